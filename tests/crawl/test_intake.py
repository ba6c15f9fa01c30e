"""Seeds that crawls take in: SUITE_SEEDS of any spider, and a BroadSpider's own."""

from __future__ import annotations

import gzip
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.http import Response
from support.crawls import ADDON, crawl
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Answer, Site, links, running

from scrapy_spider_suite.crawl import seeds as intake
from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.seeds import bad_seed_lines
from scrapy_spider_suite.runtime.refusal import ExitCode, exit_code_for_reason
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.url_states import seeds

AT_ONCE = {
    "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
    "SUITE_BACKOFF_BASE": 0.01, "SUITE_RETRY_TIMES": 0, "RETRY_ENABLED": False,
}  # fmt: skip
Run = Callable[[Any], Crawled]


class Ordinary(Spider):
    """Yields an item for each page."""

    name = "ordinary"

    def parse(self, response: Response) -> Any:
        """See the class."""
        yield {"url": response.url}


class Broad(BroadSpider):
    """Yields an item for each page."""

    name = "wide"

    def parse_page(self, response: Response) -> Any:
        """See the class."""
        yield {"url": response.url}


@pytest.fixture
def site() -> Iterator[Site]:
    """A running site of a hundred pages."""
    pages = {f"/{n}": links() for n in range(100)} | {"/": links()}
    with running(Site(pages)) as server:
        yield server


def found(done: Crawled, site: Site) -> list[str]:
    """The paths of the items, in order."""
    return sorted(item["url"].removeprefix(site.url) for item in done.items)


@pytest.mark.parametrize("spidercls", [Ordinary, Broad])
@pytest.mark.parametrize("with_job", [True, False], ids=["job", "no job"])
def test_a_list_in_the_settings(
    spidercls: type[Spider], with_job: bool, site: Site, tmp_path: Path, run: Run,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Its pages come to the spider's callback beside those of start(), each once."""
    path = tmp_path / "seeds.gz"
    lines = "".join(f"{site.url}/{n} #tag=t{n % 2}\n" for n in range(40))
    path.write_bytes(gzip.compress(f"# head\n{site.url}/1\nno seed\n{lines}".encode()))

    class Chosen(spidercls):  # type: ignore[misc, valid-type]
        start_urls = (f"{site.url}/98", f"{site.url}/99")

    settings = {**AT_ONCE, "SUITE_SEEDS": [str(path)]}
    if with_job:
        settings["JOBDIR"] = str(tmp_path / "job")
    caplog.set_level(logging.INFO)
    done = run(crawl_here(Chosen, **settings))
    assert done.reason == "finished"
    assert found(done, site) == sorted([*(f"/{n}" for n in range(40)), "/98", "/99"])
    counts = [done.stat(f"suite/seeds/{name}") for name in ("taken", "bad")]
    given = 0 if spidercls is Ordinary else 2
    assert counts == [41 + given, 1]
    assert "1 line is no seed" in caplog.text
    assert f"{path}:3 'no seed'" in caplog.text
    if with_job:
        with StoreReader(tmp_path / "job" / FOLDER) as reader:
            tags = {row.url.removeprefix(site.url): row.tag for row in seeds(reader.store)}
            (bad,) = bad_seed_lines(reader.store)
            assert not list(reader.check())
        assert tags == {f"/{n}": f"t{n % 2}" for n in range(40)} | {"/98": "", "/99": ""}
        assert (bad.origin, bad.line, bad.text) == (str(path), 3, "no seed")
        again = run(crawl_here(Chosen, **settings))
        assert (again.items, again.stat("suite/seeds/lines")) == ([], 0)
        assert "read to its end by an earlier run" in caplog.text


@pytest.mark.parametrize("obey", [True, False])
@pytest.mark.parametrize("spidercls", [Ordinary, Broad])
def test_a_host_name_that_has_no_https(
    spidercls: type[Spider], obey: bool, site: Site, tmp_path: Path, run: Run
) -> None:
    """The server breaks TLS off: its page is fetched by http, a seed with the same tag."""
    bare = site.url.removeprefix("http://")
    done = run(
        crawl_here(
            spidercls, SUITE_SEEDS=[f"{bare} #tag=x"], ROBOTSTXT_OBEY=obey,
            JOBDIR=str(tmp_path / "job"), **AT_ONCE,
        )
    )  # fmt: skip
    assert found(done, site) == ["/"]
    assert done.reason == "finished"
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        rows = {row.url: (row.tag, row.state) for row in seeds(reader.store)}
        assert not list(reader.check())
    assert {url: (tag, state and state.state.value) for url, (tag, state) in rows.items()} == {
        f"https://{bare}/": ("x", "failed"), f"http://{bare}/": ("x", "done"),
    }  # fmt: skip


def test_nobody_answers_at_all(run: Run) -> None:
    """Both are tried, each once, and have failed."""
    with running(Site()) as gone:
        bare = gone.url.removeprefix("http://")
    done = run(crawl_here(Broad, arguments={"seeds": bare}, ROBOTSTXT_OBEY=False, **AT_ONCE))
    assert sorted(r.url for r in done.requests["request_reached_downloader"]) == [
        f"http://{bare}/", f"https://{bare}/",
    ]  # fmt: skip
    assert done.stat("suite/outcome/refused") == 2


def test_a_given_scheme_is_not_changed(site: Site, run: Run) -> None:
    """https was asked for, and it failed."""
    url = f"https://{site.url.removeprefix('http://')}/"
    done = run(crawl_here(Broad, arguments={"seeds": url}, ROBOTSTXT_OBEY=False, **AT_ONCE))
    assert done.items == []
    assert site.visits == []


def test_a_list_from_the_web(
    site: Site, tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Downloaded into the job once, read, and gone; one that is not there is an error line."""
    site.pages["/list"] = Answer(gzip.compress(f"{site.url}/1\n{site.url}/2\n".encode()))
    sources = [f"@{site.url}/list #tag=web", f"@{site.url}/missing"]
    settings = {**AT_ONCE, "JOBDIR": str(tmp_path / "job"), "SUITE_SEEDS": sources}
    for _ in range(2):
        done = run(crawl_here(Ordinary, USER_AGENT="me", **settings))
        assert done.reason == "seeds_unread"
        assert exit_code_for_reason(done.reason) is ExitCode.WORK_LEFT
        assert done.stat("suite/seeds/unreadable") == 1
        assert f"seeds: {site.url}/missing cannot be read: status 404" in caplog.text
    assert sorted(site.paths()) == ["/1", "/2", "/list", "/missing", "/missing"]
    agents = {v.headers["User-Agent"] for v in site.visits if v.path == "/list"}
    assert agents == {"me"}
    assert not list((tmp_path / "job" / FOLDER).glob("seeds-*"))
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        assert {row.tag for row in seeds(reader.store)} == {"web"}


def test_a_list_that_breaks_off(
    site: Site, tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """What came before is taken; the next run finds the rest."""
    path = tmp_path / "seeds.gz"
    text = b"".join(b"%s/%d?%s\n" % (site.url.encode(), n, os.urandom(2_000).hex().encode())
                    for n in range(100))  # fmt: skip
    whole = gzip.compress(text)
    path.write_bytes(whole[:-50_000])
    site.pages = {line.decode().removeprefix(site.url): links() for line in text.split()}
    settings = {**AT_ONCE, "JOBDIR": str(tmp_path / "job"), "SUITE_SEEDS": [str(path)]}
    first = run(crawl_here(Broad, **settings))
    assert first.reason == "seeds_unread"
    assert 0 < len(first.items) < 100
    assert "cannot be read" in caplog.text
    path.write_bytes(whole)
    second = run(crawl_here(Broad, **settings))
    assert second.reason == "finished"
    assert len(first.items) + len(second.items) == 100


def test_a_list_of_the_spider_s_own_that_cannot_be_had(
    site: Site, tmp_path: Path, run: Run
) -> None:
    """Work is left, too, and the next run finds it."""
    settings = {**AT_ONCE, "JOBDIR": str(tmp_path / "job")}
    seeds = {"seeds": f"@{site.url}/list"}
    first = run(crawl_here(Broad, arguments=seeds, **settings))
    assert (first.reason, first.items) == ("seeds_unread", [])
    site.pages |= {"/list": Answer(f"{site.url}/1\n".encode()), "/1": links()}
    second = run(crawl_here(Broad, arguments=seeds, **settings))
    assert (second.reason, len(second.items)) == ("finished", 1)


@pytest.mark.parametrize("source", ["missing.txt", "@missing"])
def test_a_list_that_is_not_there(source: str, tmp_path: Path) -> None:
    """The crawl does not begin, and no job is made."""
    job = tmp_path / "job"
    settings = {"ADDONS": ADDON, "SUITE_SEEDS": source, "JOBDIR": str(job)}
    done = crawl("support.spiders.Ordinary", settings, tmp_path)
    assert done.code == 2
    assert "seeds: " in done.log.splitlines()[-1]
    assert not (job / FOLDER).exists()


def test_a_pipe_that_nobody_writes_to_does_not_keep_the_crawl(
    site: Site, tmp_path: Path, run: Run
) -> None:
    """It can be stopped like any other."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    try:
        done = run(crawl_here(Broad, SUITE_SEEDS=[str(pipe)], CLOSESPIDER_TIMEOUT=1, **AT_ONCE))
        assert done.reason == "closespider_timeout"
    finally:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))  # lets the reader go


def test_a_crawl_in_memory_holds_some_seeds_only(
    site: Site, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a job an ordinary spider's requests are in memory: the list waits."""
    monkeypatch.setattr(intake, "_IN_MEMORY", 5)
    monkeypatch.setattr(intake, "_ROOM", 0.01)
    monkeypatch.setattr("scrapy_spider_suite.runtime.event_loop.SLICE", 0.0)
    monkeypatch.setattr("scrapy_spider_suite.crawl.seeds._PIECE", 2)
    path = tmp_path / "seeds"
    path.write_text("".join(f"{site.url}/{n}\n" for n in range(60)))
    most = 0

    class Watching(Ordinary):
        def parse(self, response: Response) -> Any:
            """Note how many wait."""
            nonlocal most
            most = max(most, get_crawl(self.crawler).frontier.pending)
            return super().parse(response)

    done = run(crawl_here(Watching, SUITE_SEEDS=[str(path)], **AT_ONCE))
    assert len(done.items) == 60
    assert most <= 8


def test_progress_is_told(
    site: Site, tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """How many, how fast, and how much of the file."""
    monkeypatch.setattr(intake, "_TELL", 0.0)
    path = tmp_path / "seeds"
    path.write_text("".join(f"http://127.0.0.1:9/{n}\n" for n in range(1_500)))
    caplog.set_level(logging.INFO)

    run(crawl_here(Broad, SUITE_SEEDS=[str(path)], **{
        **AT_ONCE, "SUITE_DEAD_HOST_FAILURES": 1, "ROBOTSTXT_OBEY": False}))  # fmt: skip
    told = [m for m in caplog.messages if m.startswith(f"{path}: ") and "of the file" in m]
    line = re.compile(rf"{path}: ([\d,]+) seeds of \1 lines, [\d,]+/s, ([\d.]+)% of the file")
    matches = [line.fullmatch(each) for each in told]
    assert all(matches)
    counts = [int(match[1].replace(",", "")) for match in matches if match]
    assert 0 < counts[0] <= counts[-1] <= 1_500
    assert 0 < float(matches[0][2] if matches[0] else 0) <= 100
