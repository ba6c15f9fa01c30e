"""Where a crawl begins: what the lines of a list say, and how lists are read."""

from __future__ import annotations

import gzip
import http.server
import lzma
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from backports import zstd
from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.urls.url_lists import (
    LONGEST,
    READ_ERRORS,
    BadLine,
    ListFile,
    Seed,
    SeedLines,
    Source,
    check_sources,
    download,
    read_lines,
)

COMPRESS = {"plain": bytes, "gz": gzip.compress, "xz": lzma.compress, "zst": zstd.compress}


def read_seeds(sources: Iterable[str]) -> Iterator[str]:
    """The URLs in *sources*, without bad lines."""
    lines = SeedLines("")
    for line in read_lines(sources, ""):
        seed = lines.read(line.encode())
        if isinstance(seed, Seed):
            yield seed.url


def read(*lines: bytes, tag: str = "") -> list[Seed | BadLine | None]:
    """What the lines of a list say."""
    reader = SeedLines("list", tag)
    return [reader.read(line) for line in lines]


# Lines


@pytest.mark.parametrize(
    ("line", "url", "guessed"),
    [
        (b"https://a.test/x ", "https://a.test/x", False),
        (b"http://A.test", "http://a.test/", False),
        (b" b.test\r", "https://b.test/", True),
        (b"c.test:8080", "https://c.test:8080/", True),
        (b"c.test/path?q=1", "https://c.test/path?q=1", True),
        (b"[2001:db8::1]:81/x", "https://[2001:db8::1]:81/x", True),
        ("bücher.test".encode(), "https://xn--bcher-kva.test/", True),
        (b"http://a.test/two words", "http://a.test/two%20words", False),
        (b"\xef\xbb\xbfhttp://bom.test/", "http://bom.test/", False),
        (b"http://a.test/#part", "http://a.test/", False),
    ],
)
def test_a_seed(line: bytes, url: str, guessed: bool) -> None:
    """A URL in normal form; without a scheme it is https, at first."""
    assert read(line) == [Seed(url, "", guessed)]


@pytest.mark.parametrize("line", [b"", b"  \r", b"# nothing", b"#nothing", b"#tag=x", b" # a.test"])
def test_a_line_that_says_nothing(line: bytes) -> None:
    """Blank ones and comments."""
    assert read(line) == [None]


def test_tags() -> None:
    """One behind a seed is its own; one on its own line is that of all that follow."""
    read_ = read(
        b"http://a.test/ #tag=news", b"b.test\t# tag=old", b"#tag=rest", b"http://c.test/",
        b"http://d.test/#tag=no", b"http://e.test/ # tag=one two", b"http://f.test/ # a comment",
        tag="given",
    )  # fmt: skip
    assert [seed.tag for seed in read_ if isinstance(seed, Seed)] == [
        "news", "old", "rest", "rest", "one", "rest",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"1,google.com", "neither a URL nor a host name"),
        (b"mailto:me@a.test", "neither a URL nor a host name"),
        (b"two words", "neither a URL nor a host name"),
        (b"ftp://a.test/", "no web address"),
        (b"http://", "no web address"),
        (b"http://a\xff.test/", "no web address"),
        (b"\0\1\2", "neither a URL nor a host name"),
        (b"http://a.test/" + b"x" * LONGEST, "longer than 65536 bytes"),
    ],
)
def test_garbage(line: bytes, why: str) -> None:
    """It is told with its place, and the next line is read."""
    nothing, bad, good = read(b"# first", line, b"http://a.test/")
    assert nothing is None
    assert isinstance(bad, BadLine)
    assert (bad.origin, bad.line, bad.why) == ("list", 2, why)
    assert len(bad.text) <= 300
    assert str(bad).startswith("list:2 ")
    assert good == Seed("http://a.test/")


# Files


@pytest.mark.parametrize("how", COMPRESS)
def test_a_list_compressed_or_not(how: str, tmp_path: Path) -> None:
    """Told by its first bytes; two compressed lists behind one another are one."""
    path = tmp_path / "seeds"
    compress = COMPRESS[how]
    path.write_bytes(compress(b"http://a.test/\n# no\n") + compress(b"http://b.test/"))
    assert list(read_seeds([str(path)])) == ["http://a.test/", "http://b.test/"]


@pytest.mark.parametrize("how", COMPRESS)
def test_a_list_is_read_on_from_anywhere(how: str, tmp_path: Path) -> None:
    """In blocks, with the share of the file that was read."""
    text = b"".join(b"http://h%d.test/\n" % n for n in range(20_000))
    path = tmp_path / "seeds"
    path.write_bytes(COMPRESS[how](text))
    for begin in (0, 1, 150_000):
        with ListFile(path) as file:
            file.skip(begin)
            blocks = list(file.blocks())
        assert b"".join(block for block, _ in blocks) == text[begin:]
        shares = [share or 0 for _, share in blocks]
        assert shares == sorted(shares)
        assert shares[-1] == 1


@pytest.mark.parametrize("how", ["gz", "xz", "zst"])
def test_a_list_that_was_cut_off(how: str, tmp_path: Path) -> None:
    """What came before is handed on, then it is said so."""
    text = os.urandom(300_000).hex().encode()
    path = tmp_path / "seeds"
    path.write_bytes(COMPRESS[how](text)[:-2000])
    taken: list[bytes] = []
    with ListFile(path) as file, pytest.raises(READ_ERRORS):
        taken.extend(block for block, _ in file.blocks())
    assert text.startswith(b"".join(taken))
    assert taken
    with pytest.raises(SettingsError, match="seeds cannot be read"):
        list(read_seeds([str(path)]))


def test_a_pipe_will_do(tmp_path: Path) -> None:
    """What can be read need not be a regular file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("http://a.test/\n",))
    writer.start()
    assert list(read_seeds([str(pipe)])) == ["http://a.test/"]
    writer.join()


def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    """It is cut off, and found to be too long."""
    path = tmp_path / "seeds"
    path.write_bytes(b"x" * (5 * LONGEST) + b"\nhttp://a.test/\n")
    lines = list(read_lines([str(path)], ""))
    assert max(map(len, lines)) <= 2 * LONGEST + 1
    assert list(read_seeds([str(path)])) == ["http://a.test/"]


def test_lists_that_are_handed_on_keep_their_names_and_line_numbers(tmp_path: Path) -> None:
    """Whoever reads them as one list still says where a bad line is."""
    for name in ("one", "two"):
        (tmp_path / name).write_text("# head\nhttp://a.test/\nno seed\n")
    sources = [f"{tmp_path / 'one'} #tag=x", "b.test", str(tmp_path / "two")]
    reader = SeedLines("")
    said = [reader.read(line.encode()) for line in read_lines(sources, "")]
    assert [seed for seed in said if isinstance(seed, Seed)] == [
        Seed("http://a.test/", "x"), Seed("https://b.test/", "", True), Seed("http://a.test/"),
    ]  # fmt: skip
    bad = [each for each in said if isinstance(each, BadLine)]
    assert [(Path(b.origin).name, b.line) for b in bad] == [("one", 3), ("two", 3)]


# Sources


@pytest.mark.parametrize(
    "source", ["missing.txt", "no/such/file", "seeds.csv", "list.zst", ".", "@a.test"]
)
def test_a_file_that_is_not_there_is_said_so(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than looked up as a host."""
    monkeypatch.chdir(tmp_path)
    if source == ".":
        source = f"{tmp_path}"
    for check in (check_sources, lambda sources: list(read_seeds(sources))):
        with pytest.raises(SettingsError, match=r"there is no (such )?file"):
            check([source])


def test_sources(tmp_path: Path) -> None:
    """An @ tells a list from a seed."""
    path = tmp_path / "a.test"
    path.touch()
    assert Source.parse("https://a.test/l.gz") == ("seed", "https://a.test/l.gz", "")
    source = Source.parse("@https://a.test/l.gz #tag=x")
    assert source == ("remote", "https://a.test/l.gz", "x")
    assert Source.parse(f"@{path}") == Source.parse(str(path)) == ("file", str(path), "")
    assert Source.parse("a.test #tag=x") == ("seed", "a.test", "x")


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


def test_a_spider_without_its_seeds_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    """One line and exit code 2, before anything is fetched; without seeds it is."""

    class Some(BroadSpider):
        name = "some"

    crawler = get_crawler(Spider)
    assert Some.from_crawler(crawler).seeds == ""
    assert Some.from_crawler(crawler, seeds="a.test").seeds == "a.test"
    with pytest.raises(SettingsError, match=r"missing\.txt"):
        Some.from_crawler(crawler, seeds="a.test,missing.txt")


# Downloads


class _Lists(http.server.BaseHTTPRequestHandler):
    agents: list[str | None]

    def do_GET(self) -> None:
        """A list, one that breaks off, or none."""
        self.agents.append(self.headers["User-Agent"])
        body = b"http://a.test/\nno seed\n"
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Length", str(len(body) + 5 * (self.path == "/cut")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def lists() -> Iterator[tuple[str, list[str | None]]]:
    """A server of lists: its URL, and who has asked."""
    handler = type("_Handler", (_Lists,), {"agents": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler.agents
        finally:
            server.shutdown()
            thread.join()


def test_a_list_from_the_web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it or nothing."""
    path = tmp_path / "list"
    with lists() as (url, agents):
        download(f"{url}/list", path, "me")
        assert path.read_bytes() == b"http://a.test/\nno seed\n"
        assert agents == ["me"]
        for bad in ("missing", "cut"):
            with pytest.raises(OSError, match=r"status 404|cut short"):
                download(f"{url}/{bad}", tmp_path / bad, "me")
            with pytest.raises(SettingsError, match=f"/{bad} cannot be had: "):
                list(read_lines([f"@{url}/{bad}"], "me"))
        monkeypatch.setattr("scrapy_spider_suite.urls.url_lists.MOST", 10)
        with pytest.raises(OSError, match="longer than 10 bytes"):
            download(f"{url}/list", tmp_path / "long", "me")
    assert list(tmp_path.iterdir()) == [path]
