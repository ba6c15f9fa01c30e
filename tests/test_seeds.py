"""Where a crawl begins: URLs, host names, files of them."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest
from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.seeds import SeedReport, check_sources, read_seeds
from scrapy_spider_suite.spiders import BroadSpider


def test_urls_and_host_names() -> None:
    """A host name becomes its first page; spaces around do not matter."""
    seeds = read_seeds(["https://a.test/x ", " b.test", "c.test:8080"])
    assert list(seeds) == ["https://a.test/x", "http://b.test/", "http://c.test:8080/"]


def test_a_file_has_one_on_each_line(tmp_path: Path) -> None:
    """Comments, blank lines, a byte order mark and Windows line ends are no seeds."""
    file = tmp_path / "seeds.txt"
    file.write_bytes(b"\xef\xbb\xbfhttps://a.test/\r\n\r\n# none\r\n  b.test\r\nc.test/path\r\n")
    expected = ["https://a.test/", "http://b.test/", "http://c.test/path"]
    assert list(read_seeds([str(file)])) == expected


def test_bytes_that_are_no_text_spoil_one_line_only(tmp_path: Path) -> None:
    """The line is handed on with a sign that no URL may hold, to be counted as refused."""
    file = tmp_path / "seeds.txt"
    file.write_bytes(b"a\xff.test\nb.test\n")
    assert list(read_seeds([str(file)])) == ["http://a\ufffd.test/", "http://b.test/"]


def test_a_long_file_is_not_read_at_once(tmp_path: Path) -> None:
    """A list of millions costs no memory."""
    file = tmp_path / "seeds"
    file.write_text("a.test\n" * 3)
    seeds = read_seeds([str(file), "missing.txt"])
    assert next(seeds) == "http://a.test/"


def test_a_pipe_will_do(tmp_path: Path) -> None:
    """What can be read need not be a regular file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a.test\n",))
    writer.start()
    assert list(read_seeds([str(pipe)])) == ["http://a.test/"]
    writer.join()


@pytest.mark.parametrize("source", ["missing.txt", "no/such/file", "seeds.csv", "."])
def test_a_file_that_is_not_there_is_said_so(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than looked up as a host."""
    monkeypatch.chdir(tmp_path)
    if source == ".":
        source = f"{tmp_path}"
    for read in (check_sources, lambda sources: list(read_seeds(sources))):
        with pytest.raises(SettingsError, match="is no URL, and there is no such file"):
            read([source])


def test_a_file_that_cannot_be_read_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason; the start of the crawl has seen that it was there."""
    file = tmp_path / "seeds"
    file.touch()

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    check_sources([str(file)])
    with pytest.raises(SettingsError, match="cannot be read: Permission denied"):
        list(read_seeds([str(file)]))


def test_the_report(caplog: pytest.LogCaptureFixture) -> None:
    """One line, and a second one with the first that was refused."""
    report = SeedReport()
    report.count("http://a.test/", True)
    logger = logging.getLogger("seeds")
    with caplog.at_level(logging.INFO):
        report.log(logger)
        assert caplog.messages == ["1 seeds"]
        report.count("http://b\ufffd/", False)
        report.count("x:", False)
        report.log(logger)
    assert caplog.messages[2].startswith("2 seeds are no web addresses and were left out")
    assert caplog.messages[2].endswith("'http://b\ufffd/'")


def test_a_spider_without_its_seeds_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    """One line and exit code 2, before anything is fetched; without seeds it is."""

    class Some(BroadSpider):
        name = "some"

    crawler = get_crawler(Spider)
    assert Some.from_crawler(crawler).seeds == ""
    assert Some.from_crawler(crawler, seeds="a.test").seeds == "a.test"
    with pytest.raises(SystemExit) as caught:
        Some.from_crawler(crawler, seeds="a.test,missing.txt")
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
