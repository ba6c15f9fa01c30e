"""Pages that wait for one another, for several sinks, or for a row that nobody can read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Site, links, running

from scrapy_spider_suite.analysis.duplicates import PAYLOADS
from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.sinks.commit_log import FrontierLog, PlainLog
from scrapy_spider_suite.crawl.sinks.page_packs import PagePacks
from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.packs import Capture, open_items, open_packs
from scrapy_spider_suite.packs.warc import URL_MAX, CaptureRecords, format_capture
from scrapy_spider_suite.packs.writer import GroupWriter
from scrapy_spider_suite.pipelines import ItemPackPipeline, PagePackPipeline
from scrapy_spider_suite.runtime.refusal import DAMAGED
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.page_digests import sha1_of

Run = Callable[[Any], Crawled]
SAME = links(title="the same") + "word " * 300


@pytest.fixture
def site() -> Iterator[Site]:
    """Two pages that are the same, and others."""
    pages = {"/a": SAME, "/b": SAME} | {f"/{n}": links(title=f"page {n}") for n in range(5)}
    with running(Site(pages)) as server:
        yield server


def options(folder: Path, **more: Any) -> dict[str, Any]:
    """Settings of a quick crawl that packs into *folder*."""
    return {
        "ROBOTSTXT_OBEY": False, "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0,
        "SUITE_IP_DELAY": 0, "SUITE_PACKS_DIR": str(folder / "packs"), **more,
    }  # fmt: skip


class Leading(Spider):
    """Its first page leads to one that is the same, by a request that cannot be stored."""

    name = "leading"
    site = ""

    async def start(self) -> AsyncIterator[Any]:
        """Begin."""
        yield Request(f"{self.site}/a")

    async def parse(self, response: Response) -> AsyncIterator[Any]:
        """Lead on."""
        yield Request(f"{self.site}/b", self.end, cb_kwargs={"what": object()})

    def end(self, response: Response, what: object) -> None:
        """Nothing more."""


@pytest.mark.slow
def test_a_duplicate_of_the_page_that_waits_for_it(site: Site, run: Run, tmp_path: Path) -> None:
    """It waits for no commit in turn: neither would ever come."""
    more = {"JOBDIR": str(tmp_path / "job"), "SUITE_COMPARE_PAGES": "payload"}
    given = options(tmp_path, CLOSESPIDER_TIMEOUT=8, **more)
    done = run(crawl_here(Leading, arguments={"site": site.url}, **given))
    assert done.reason == "finished"
    found = {page.url.removeprefix(site.url): page for page in open_packs(tmp_path / "packs")}
    assert {path: page.body for path, page in found.items()} == {
        "/a": SAME.encode(), "/b": SAME.encode()
    }  # fmt: skip


class Items(Spider):
    """An item of each page."""

    name = "items"
    site = ""
    paths = "/0 /1 /2 /3 /4"

    async def start(self) -> AsyncIterator[Any]:
        """Ask for all of them."""
        for path in self.paths.split():
            yield Request(f"{self.site}{path}")

    def parse(self, response: Response) -> Iterator[Any]:
        """Yield it."""
        yield {"url": response.url}


def test_items_wait_for_packs_wherever_their_pipeline_stands(
    site: Site, run: Run, tmp_path: Path
) -> None:
    """A crawl that is stopped has written the items of all pages that were packed."""
    pipelines = {ItemPackPipeline: 100, PagePackPipeline: 200}
    items = {"SUITE_ITEMS_DIR": str(tmp_path / "items"), "ITEM_PIPELINES": pipelines}
    given = options(tmp_path, CLOSESPIDER_ITEMCOUNT=3, **items)
    done = run(crawl_here(Items, arguments={"site": site.url}, **given))
    assert done.reason == "closespider_itemcount"
    written = {item["url"] for item in open_items(tmp_path / "items")}
    assert written == {item["url"] for item in done.items}
    assert len(written) >= 3


class Odd(Items):
    """Pages as items, made by hand."""

    name = "odd"
    paths = "/0 /1"

    def parse(self, response: Response) -> Iterator[Any]:
        """Yield the page, with links that are none, or only their URLs."""
        links: Any = ["http://a.test/", 7 if response.url.endswith("/1") else "http://b.test/"]
        yield PageItem(url=response.url, body=response.body, response=response, links=links)


def test_a_page_item_with_links_that_are_none(site: Site, run: Run, tmp_path: Path) -> None:
    """Fails, rather than have its page wait for ever for what cannot be written."""
    given = options(tmp_path, CLOSESPIDER_TIMEOUT=8, SUITE_PAGE_ITEMS=True)
    done = run(crawl_here(Odd, arguments={"site": site.url}, **given))
    assert done.reason == "finished"
    assert len(done.items) == 1
    [page] = open_packs(tmp_path / "packs")
    assert page.url == f"{site.url}/0"
    assert [link.url for link in page.links] == ["http://a.test/", "http://b.test/"]


class Damaging(Items):
    """Damages what its job knows of the page that it asks for."""

    name = "damaging"
    paths = "/a"

    async def start(self) -> AsyncIterator[Any]:
        """Begin."""
        digest = sha1_of(SAME.encode())
        get_crawl(self.crawler).store.kv(PAYLOADS).put(digest, b"\xc1")
        async for each in super().start():
            yield each


def test_a_digest_that_nobody_can_read(site: Site, run: Run, tmp_path: Path) -> None:
    """Ends the crawl; the page is not at fault, and is fetched again."""
    given = options(tmp_path, JOBDIR=str(tmp_path / "job"), SUITE_COMPARE_PAGES="payload")
    done = run(crawl_here(Damaging, arguments={"site": site.url}, **given))
    assert done.reason == DAMAGED
    assert [response.url for response in done.responses] == [f"{site.url}/a"]


def test_a_commit_that_meets_what_nobody_can_read(tmp_path: Path) -> None:
    """Condemns the store, and is not lost with the callback that told of it."""
    store, woken = RocksStore(tmp_path / "store", memory=4 << 20), []

    def unhold(lease: Any, now: float) -> None:
        raise JobDamagedError("a row of the revisits is damaged")

    its_crawl: Any = SimpleNamespace(
        crawler=get_crawler(), settings=None, store=store, now=lambda: 0.0,
        wake=lambda: woken.append(1),
        frontier=SimpleNamespace(commit=SimpleNamespace(unhold=unhold)),
    )  # fmt: skip
    nothing: Any = lambda *why: None  # noqa: E731
    scheduler: Any = SimpleNamespace(pause=nothing, unpause=nothing, flush_soon=nothing)
    FrontierLog(its_crawl, scheduler, nothing).written([object()])  # type: ignore[list-item]
    assert store.damage == "a row of the revisits is damaged"
    assert woken
    store.close()


def test_a_writer_that_dies_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Does not keep the other sinks, and the job, from being closed."""

    def broken(self: GroupWriter, now: float) -> None:
        raise ValueError("write to closed file")

    async def crawl() -> None:
        packs = PagePacks(PlainLog(get_crawler()), tmp_path)
        monkeypatch.setattr(GroupWriter, "write", broken)
        packs.add_page(PageItem.from_response(Response("http://a.test/", body=b"page")))
        await packs.finish()
        await packs.close()

    asyncio.run(crawl())
    assert "1 answer is lost" in caplog.text


def test_what_no_record_can_be_made_of_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a URL that no reader would take, and of what nobody thought of: others are packed."""

    def made(fetch: Capture, ids: Iterator[str]) -> CaptureRecords:
        if fetch.url.endswith("/odd"):
            raise KeyError("not thought of")
        return format_capture(fetch, ids)

    crawler = get_crawler()

    async def crawl() -> None:
        packs = PagePacks(PlainLog(crawler), tmp_path)
        monkeypatch.setattr("scrapy_spider_suite.packs.cdxj.format_capture", made)
        for path in ("x" * (URL_MAX + 1), "odd", ""):
            packs.add_page(PageItem.from_response(Response(f"http://a.test/{path}", body=b"page")))
        await packs.finish()
        await packs.close()

    asyncio.run(crawl())
    assert [page.url for page in open_packs(tmp_path)] == ["http://a.test/"]
    assert crawler.stats.get_value("suite/packs/refused") == 2
    assert crawler.stats.get_value("suite/packs/failed") is None
    assert "xxx... is not packed: it is too long" in caplog.text
    assert "http://a.test/odd: KeyError('not thought of')" in caplog.text


class Drained(deque[Any]):
    """Is emptied by its reader just before something is put in."""

    def append(self, item: Any, /) -> None:
        """Put it in."""
        self.clear()
        super().append(item)


def test_what_is_written_is_told_whenever_the_loop_has_looked(tmp_path: Path) -> None:
    """In the writer's thread: it may be held up between any two steps."""
    loop = Mock()
    packing: Any = SimpleNamespace(_written=Drained(["earlier"]), _loop=loop, _settle_written=None)
    PagePacks._append_written(packing, object())  # type: ignore[arg-type]
    loop.call_soon_threadsafe.assert_called_once_with(None)
