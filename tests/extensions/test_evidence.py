"""The fetch log and the tallies of real crawls: a line for each fetch, of whatever kind."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import FormRequest, Request, Spider, signals
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from support.crawls import crawl, web_settings
from support.frontier_command import FAST
from support.inprocess_crawls import Crawled, crawl_here
from support.webs import FakeWebProcess
from support.websites import Answer, Site, links, moved, running

from scrapy_spider_suite.crawl.gate import end_exchange
from scrapy_spider_suite.extensions.fetch_recorder import FetchRecorder
from scrapy_spider_suite.fetch.fetch_log import (
    LOG_FOLDER,
    FetchLine,
    FetchLog,
    FetchLogReader,
    parse_line,
)
from scrapy_spider_suite.store.counters import FetchTotals
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.url_states import seeds
from scrapy_spider_suite.testing import FakeWebConfig

HERE = {
    "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "ROBOTSTXT_OBEY": True,
    "RETRY_ENABLED": False, "SUITE_BACKOFF_BASE": 0.05, "SUITE_BACKOFF_MAX": 0.05,
}  # fmt: skip


@pytest.fixture
def site() -> Iterator[Site]:
    """A site with an answer of each kind."""
    pages: dict[str, str | Answer] = {
        "/missing": Answer(status=404),
        "/robots.txt": Answer(b"User-agent: *\nDisallow: /no\n", headers={
            "Content-Type": "text/plain; charset=utf-8"
        }),
        "/": links("/page"),
        "/page": "a page",
        "/moved": moved("/there"),
        "/there": "there",
        "/form": "posted",
        "/slow": Answer(wait=30),
        "/odd": Answer(b"odd", headers={"Content-Type": 'X/Y Z\t;a="\r'}),
        "/empty": Answer(status=204),
        "/aside": "aside",
    }  # fmt: skip
    with running(Site({path: closing(page) for path, page in pages.items()})) as server:
        yield server


def closing(page: str | Answer) -> Answer:
    """*page*, after which the connection is closed: the site does so, and has to say it.

    Else a POST may be sent where nobody listens any more, and is not sent again.
    """
    answer = Answer(page.encode()) if isinstance(page, str) else page
    return replace(answer, headers={**answer.headers, "Connection": "close"})


@pytest.fixture
def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def log_of(folder: Path) -> list[FetchLine]:
    """Every line of a fetch log."""
    return [parse_line(line) for line in FetchLogReader(folder).lines()]


def tallies_of(job: Path) -> FetchTotals:
    """The tallies of the job in *job*."""
    with StoreReader(job / FOLDER) as reader:
        return FetchTotals.load(reader.store)


class Everything(Spider):
    """Fetches each of the pages, one of them aside."""

    name = "everything"
    site = ""
    refused = ""

    async def start(self) -> AsyncIterator[Any]:
        """Ask for all of them."""
        paths = ("/", "/missing", "/moved", "/slow", "/no", "/odd", "/empty")
        for url in (*(self.site + path for path in paths), "data:,x"):
            # Of this one alone: on a busy machine any other may take half a second, too.
            wait = {"download_timeout": 0.5} if url.endswith("/slow") else {}
            yield Request(url, errback=self.failed, meta=wait)
        yield Request(self.refused, errback=self.failed, meta={"dont_obey_robotstxt": True})
        yield FormRequest(f"{self.site}/form", formdata={"a": "b"})

    async def parse(self, response: Response) -> Any:
        """Follow the page, and download something beside it."""
        if response.url == f"{self.site}/":
            engine = self.crawler.engine
            assert engine is not None
            await engine.download_async(Request(f"{self.site}/aside"))
            yield response.follow("/page")

    def failed(self, failure: Any) -> None:
        """Say nothing."""


Run = Callable[..., Any]


@pytest.fixture
def everything(
    run: Run, site: Site, closed_port: int, tmp_path: Path
) -> Callable[..., Crawled]:
    """Crawl it all, with JOBDIR."""
    arguments = {"site": site.url, "refused": f"http://127.0.0.1:{closed_port}/refused"}

    def crawl_it(**settings: Any) -> Crawled:
        given = {**HERE, "JOBDIR": str(tmp_path / "job"), **settings}
        crawled: Crawled = run(
            crawl_here(Everything, arguments=arguments, **given)
        )
        return crawled

    return crawl_it


def test_a_line_for_each_fetch(
    everything: Callable[..., Crawled], site: Site, tmp_path: Path
) -> None:
    """Whatever became of it; none for what was never on the wire."""
    assert everything().reason == "finished"
    log = log_of(tmp_path / "job" / FOLDER / LOG_FOLDER)
    told = {
        fetch.url.removeprefix(site.url): (fetch.status, fetch.reason, fetch.remarks, fetch.depth)
        for fetch in log
    }
    refused = next(url for url in told if url.endswith("/refused"))
    assert told == {
        "/robots.txt": (200, "success", ("robots",), None),
        "/": (200, "success", (), 0),
        "/page": (200, "success", (), 1),
        "/aside": (200, "success", ("aside",), None),
        "/missing": (404, "client_error", (), 0),
        "/moved": (302, "redirect", (), 0),
        "/there": (200, "success", (), 0),
        "/form": (200, "success", ("POST",), 0),
        "/slow": (None, "timeout", (), 0),
        "/odd": (200, "success", (), 0),
        "/empty": (204, "success", (), 0),
        refused: (None, "refused", (), 0),
    }
    assert len(log) == len(told)
    by_path = {fetch.url.removeprefix(site.url): fetch for fetch in log}
    page = by_path["/page"]
    assert (page.bytes, page.type, page.address) == (6, "text/html", "127.0.0.1")
    assert page.via == f"{site.url}/"
    assert page.digest == base64.b32encode(hashlib.sha1(b"a page").digest()).decode()
    assert by_path["/empty"].digest == by_path["/slow"].digest == ""
    assert by_path["/slow"].ms >= 500
    assert by_path["/odd"].type == "x/y%20z"
    assert by_path["/robots.txt"].type == "text/plain"


def test_tallies_are_those_of_the_log(
    everything: Callable[..., Crawled], tmp_path: Path
) -> None:
    """By status, type and kind."""
    assert everything().reason == "finished"
    tallies = tallies_of(tmp_path / "job")
    log = log_of(tmp_path / "job" / FOLDER / LOG_FOLDER)
    counts = Counter(str(fetch.status or fetch.reason) for fetch in log)
    assert {key: row[0] for key, row in tallies.statuses.items()} == counts
    assert tallies.total() == (
        len(log), sum(fetch.bytes for fetch in log), sum(fetch.ms for fetch in log)
    )  # fmt: skip
    assert tallies.types["text/html"][0] == sum(fetch.type == "text/html" for fetch in log)
    assert tallies.types["(other)"][0] == 1
    assert {key: row[0] for key, row in tallies.kinds.items()} == {
        "page": len(log) - 2, "robots": 1, "aside": 1,
    }  # fmt: skip


def test_tallies_go_on(everything: Callable[..., Crawled], tmp_path: Path) -> None:
    """They are those of the job, not of a run."""
    assert everything(CLOSESPIDER_PAGECOUNT=3, CONCURRENT_REQUESTS=1).reason != "finished"
    before = tallies_of(tmp_path / "job").total()[0]
    assert everything().reason == "finished"
    after = tallies_of(tmp_path / "job").total()[0]
    assert 0 < before < after == len(log_of(tmp_path / "job" / FOLDER / LOG_FOLDER))


def test_seeds_are_known(everything: Callable[..., Crawled], site: Site, tmp_path: Path) -> None:
    """With what became of them; what they led to is none."""
    everything()
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        rows = {row.url.removeprefix(site.url): row.state for row in seeds(reader.store)}
    assert {"/", "/missing", "/no", "/form"} < rows.keys()
    assert "/page" not in rows
    states = {url: state.event for url, state in rows.items() if state is not None}
    assert states["/"] == "success"
    assert states["/missing"] == "client_error"
    assert states["/no"] == "robots"


def test_stats(everything: Callable[..., Crawled], tmp_path: Path) -> None:
    """Lines, bytes, and lost lines, as they are in the end."""
    crawled = everything()
    log = tmp_path / "job" / FOLDER / LOG_FOLDER / "fetch.log"
    assert crawled.stat("suite/fetch_log/bytes") == log.stat().st_size
    assert crawled.stat("suite/fetch_log/lines") == log.read_bytes().count(b"\n") - 1
    assert crawled.crawler.stats.get_value("suite/fetch_log/lost") == 0


def test_a_folder_of_its_own(everything: Callable[..., Crawled], tmp_path: Path) -> None:
    """Without a job directory too; the next crawl adds to it."""
    folder = tmp_path / "somewhere" / "else"
    everything(SUITE_FETCH_LOG=str(folder), JOBDIR=None)
    count = len(log_of(folder))
    assert count == 12
    everything(SUITE_FETCH_LOG=str(folder), JOBDIR=None)
    assert len(log_of(folder)) == 2 * count


def test_switched_off(everything: Callable[..., Crawled], tmp_path: Path) -> None:
    """No log, and the tallies all the same; nor is there one without a job directory."""
    crawled = everything(SUITE_FETCH_LOG=False)
    assert not (tmp_path / "job" / FOLDER / LOG_FOLDER).exists()
    assert tallies_of(tmp_path / "job").total()[0] == 12
    assert "suite/fetch_log/lines" not in crawled.crawler.stats.get_stats()
    assert "suite/fetch_log/lines" not in everything(JOBDIR=None).crawler.stats.get_stats()


def test_a_stop_in_the_middle(run: Run, site: Site, tmp_path: Path) -> None:
    """A transfer that is cut short has a line that says so."""

    class Stopped(Spider):
        name = "stopped"
        start_urls = (f"{site.url}/slow",)

    def watch(crawler: Any) -> None:
        def soon() -> None:
            asyncio.get_running_loop().call_later(0.3, stop)

        def stop() -> None:
            tasks.append(asyncio.ensure_future(crawler.engine.close_spider_async(reason="enough")))

        crawler.signals.connect(soon, signals.request_reached_downloader, weak=False)

    tasks: list[Any] = []
    folder = tmp_path / "log"

    async def both() -> Crawled:
        crawled = await crawl_here(
            Stopped, watch=watch, SUITE_FETCH_LOG=str(folder), SUITE_STOP_TIMEOUT=0.5,
            **{**HERE, "ROBOTSTXT_OBEY": False},
        )  # fmt: skip
        await asyncio.gather(*tasks)
        return crawled

    assert run(both()).reason == "enough"
    (fetch,) = log_of(folder)
    assert (fetch.status, fetch.reason, fetch.bytes) == (None, "interrupted", 0)


def test_a_folder_in_use(site: Site, tmp_path: Path) -> None:
    """Refuses the crawl in one line, with exit code 2."""
    log = FetchLog(tmp_path / "fetches")
    settings = {**web_settings(53, **HERE), "SUITE_FETCH_LOG": str(tmp_path / "fetches")}
    end = crawl("support.spiders.Ordinary", settings, tmp_path, start=site.url, timeout=30)
    log.close()
    assert end.code == 2
    assert "is being written by another crawl: set SUITE_FETCH_LOG" in end.log.splitlines()[-1]
    assert site.visits == []


def test_only_a_crawl_leaves_evidence(tmp_path: Path) -> None:
    """Not ``scrapy shell`` beside it, which would find the folder in use."""
    crawler = get_crawler(Spider, {"SUITE_FETCH_LOG": str(tmp_path / "fetches")})
    with pytest.raises(NotConfigured):
        FetchRecorder.from_crawler(crawler)
    assert not (tmp_path / "fetches").exists()


def test_whatever_a_project_puts_into_its_requests(tmp_path: Path) -> None:
    """A line is made all the same."""
    log = FetchLog(tmp_path)
    evidence = FetchRecorder(get_crawler(Spider), log)
    crawl: Any = SimpleNamespace(observers=[evidence.fetched])
    request = Request("http://a.test/é x", meta={"depth": "deep", "suite_via": 5})
    response = Response(request.url, flags=[["odd"], "truncated"])
    end_exchange(crawl, request, None, response, None, 1e9)
    end_exchange(crawl, request, None, None, asyncio.CancelledError(), 1e9)
    evidence.flush()
    log.close()
    first, second = log_of(tmp_path)
    assert (first.via, first.depth, first.remarks) == ("5", None, ("aside", "truncated"))
    assert (second.status, second.reason) == (None, "interrupted")


def test_a_full_disk_is_said_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Until writing works again."""
    log = FetchLog(tmp_path)
    evidence = FetchRecorder(get_crawler(Spider), log)
    real = log.flush
    for error in (None, OSError("full"), OSError("full"), None, OSError("full")):

        def flush(error: OSError | None = error) -> None:
            log.error = error

        log.flush = flush  # type: ignore[method-assign]
        with caplog.at_level(logging.ERROR):
            evidence.flush()
    log.flush = real  # type: ignore[method-assign]
    log.close()
    assert caplog.messages == [f"the fetch log in {tmp_path} cannot be written: full"] * 2


@pytest.mark.slow
def test_a_kill_loses_the_last_second_at_most(tmp_path: Path) -> None:
    """Every arrival that is older has its line, and the next run adds to it."""
    web_log = tmp_path / "arrivals"
    with FakeWebProcess(FakeWebConfig(hosts=40, pages=50, seed=5, log=web_log)) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(tmp_path / "job"), **{**FAST, "SUITE_HOST_DELAY": 0.2}
        )
        arguments = {"seeds": web.ready.seeds[0]}
        crawl("support.spiders.Bulk", settings, tmp_path, kill_after=6, **arguments)
        arrivals = web.arrivals()
        log = log_of(tmp_path / "job" / FOLDER / LOG_FOLDER)
        known = {fetch.url.replace(f":{web.ready.http_port}", "") for fetch in log}
        last = max(arrival.end for arrival in arrivals)
        older = {f"http://{each.host}{each.path}" for each in arrivals if each.end < last - 2.0}
        assert len(older) > 100
        assert older - known == set()
        crawl("support.spiders.Bulk", settings, tmp_path, kill_after=4, **arguments)
        assert len(log_of(tmp_path / "job" / FOLDER / LOG_FOLDER)) > len(log)
    assert tallies_of(tmp_path / "job").total()[0] > 100
