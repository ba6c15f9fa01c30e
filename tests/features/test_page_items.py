"""Pages as items: what is yielded is packed, in every kind of project, and nothing else is."""

from __future__ import annotations

import errno
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from itemadapter import ItemAdapter
from scrapy import Request, Spider
from scrapy.exceptions import DropItem
from scrapy.exporters import JsonLinesItemExporter
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from support.inprocess_crawls import Crawled, Crawling
from support.visiting_spider import Walker, walker
from support.websites import Answer, Site, links, moved

from scrapy_spider_suite.crawl.sinks import page_packs
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.packs import Link, open_packs, verify
from scrapy_spider_suite.packs.pack_file import PackFile
from scrapy_spider_suite.pipelines import PagePackPipeline
from scrapy_spider_suite.spiders import BroadSpider

FAST = {"SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0}


class Paging(Walker):
    """Yields each page but those whose path begins with /no."""

    def keep(self, response: Response) -> Iterator[Any]:
        """Yield the page with its links, and follow them."""
        yield {"title": response.url}
        if "/no" not in response.url:
            yield PageItem.from_response(response, LinkExtractor().extract_links(response))
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, self.keep)


class Broad(BroadSpider):
    """Follows everything, and has an item of its own for each page."""

    name = "broad"

    def parse_page(self, response: Response) -> Iterator[Any]:
        """Yield the URL."""
        yield {"title": response.url}


@pytest.fixture
def pages(site: Site) -> Site:
    """The site with a compressed page, a redirect and a page that is not wanted."""
    body = gzip.compress(links("/no", "/moved", "/more").encode() + b"x" * 5000)
    site.pages |= {
        "/": Answer(body=body, headers={"Content-Encoding": "gzip"}),
        "/no": links(),
        "/moved": moved("/more"),
        "/more": links(title="more"),
    }
    return site


def packed(folder: Path) -> dict[str, int]:
    """Path -> status of what is packed, once each; the packs are as they must be."""
    assert list(verify(folder)) == []
    found = [(page.url.split("/", 3)[3], page.status) for page in open_packs(folder)]
    assert len(set(found)) == len(found)
    return {f"/{path}": status for path, status in found}


def test_what_a_spider_yields_is_packed_as_it_came(
    pages: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """In the spider profile: no robots.txt, no page without an item; redirects with their page."""
    done = crawl(
        type("Own", (Paging,), {"site": pages.url}), SUITE_PACKS_DIR=str(tmp_path / "packs"),
        SUITE_PAGE_ITEMS=True, ROBOTSTXT_OBEY=True, JOBDIR=str(tmp_path / "job"), **FAST,
    )  # fmt: skip
    assert done.reason == "finished"
    assert packed(tmp_path / "packs") == {"/": 200, "/more": 200}
    first = open_packs(tmp_path / "packs").get(f"{pages.url}/")
    assert first is not None
    assert first.headers["content-encoding"] == "gzip"
    assert first.body.endswith(b"x" * 5000)
    assert [link.url for link in first.links] == [
        f"{pages.url}/{path}" for path in ("no", "moved", "more")
    ]
    assert sum(isinstance(item, PageItem) for item in done.items) == 2
    assert done.stat("suite/job/done") >= 4


def test_without_page_items_everything_is_packed_with_the_links_of_those_there_are(
    pages: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """SUITE_PACKS_DIR alone: an item adds what it knows, and packs nothing twice."""
    spider = type("Own", (Paging,), {"site": pages.url})
    crawl(spider, SUITE_PACKS_DIR=str(tmp_path), ROBOTSTXT_OBEY=True, **FAST)
    found = packed(tmp_path)
    assert found == {
        "/robots.txt": 404, "/": 200, "/no": 200, "/moved": 302, "/more": 200
    }  # fmt: skip
    first = open_packs(tmp_path).get(f"{pages.url}/")
    assert first is not None
    assert len(first.links) == 3


def test_a_broad_spider_yields_a_page_for_each(
    pages: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """With their links, through the pipelines, beside the items of its own."""
    done = crawl(
        Broad, arguments={"seeds": f"{pages.url}/"}, SUITE_PACKS_DIR=str(tmp_path),
        SUITE_PAGE_ITEMS=True, **FAST,
    )  # fmt: skip
    found = [item for item in done.items if isinstance(item, PageItem)]
    assert {item.url for item in found} == {f"{pages.url}{path}" for path in ("/", "/no", "/more")}
    first = next(item for item in found if item.url.endswith("/"))
    assert first.links == [Link(f"{pages.url}{path}") for path in ("/no", "/moved", "/more")]
    assert first.body.endswith(b"x" * 5000)
    assert len(done.items) == 2 * len(found)
    assert packed(tmp_path) == {"/": 200, "/no": 200, "/more": 200}
    packs = open_packs(tmp_path)
    kinds = [record.kind for record in packs.records()]
    assert kinds.count("request") == 3  # as on the wire


def test_a_broad_spider_yields_none_unless_asked(
    pages: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """The project's pipelines and feeds are not flooded."""
    done = crawl(Broad, arguments={"seeds": f"{pages.url}/"}, SUITE_PACKS_DIR=str(tmp_path), **FAST)
    assert {type(item) for item in done.items} == {dict}


class Dropping:
    """A pipeline of the project's: it wants no page of /more."""

    def process_item(self, item: Any) -> Any:
        """Drop it."""
        if isinstance(item, PageItem) and item.url.endswith("/more"):
            raise DropItem
        return item


def test_a_dropped_page_is_not_packed(pages: Site, crawl: Crawling, tmp_path: Path) -> None:
    """Wherever the pipeline stands that drops it."""
    for order in (-5, 5):
        folder = tmp_path / str(order)
        crawl(
            Broad, arguments={"seeds": f"{pages.url}/"}, SUITE_PACKS_DIR=str(folder),
            SUITE_PAGE_ITEMS=True, ITEM_PIPELINES={Dropping: order}, **FAST,
        )  # fmt: skip
        assert packed(folder) == {"/": 200, "/no": 200}


def plain(crawl: Crawling, spidercls: type[Spider], folder: Path, **settings: Any) -> Crawled:
    """A crawl in a project that knows the pipeline only."""
    pipelines = {"scrapy_spider_suite.pipelines.PagePackPipeline": 300}
    return crawl(
        spidercls, addon=False, ITEM_PIPELINES=pipelines, SUITE_PACKS_DIR=str(folder), **settings
    )


def test_a_plain_project_packs_what_it_yields(
    pages: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """Records of what Scrapy's middlewares have left are right: no length of before."""
    done = plain(crawl, type("Own", (Paging,), {"site": pages.url}), tmp_path)
    assert done.reason == "finished"
    assert packed(tmp_path) == {"/": 200, "/more": 200}
    page = open_packs(tmp_path).get(f"{pages.url}/")
    assert page is not None
    assert page.body.endswith(b"x" * 5000)
    assert "content-encoding" not in page.headers
    assert int(page.headers["content-length"]) == len(page.body)
    assert int(page.headers["x-crawler-content-length"]) < len(page.body)
    assert page.record.get("WARC-IP-Address") == "127.0.0.1"
    assert len(page.links) == 3
    assert done.stat("suite/packs/answers") == 2


def test_a_plain_project_with_the_suites_handler(
    pages: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """Has what was on the wire but for the body, and says so."""
    handler = "scrapy_spider_suite.fetch.http1.Http1Handler"
    plain(
        crawl, type("Own", (Paging,), {"site": pages.url}), tmp_path,
        DOWNLOAD_HANDLERS={"http": handler}, SUITE_ALLOW_PRIVATE_ADDRESSES=True,
    )  # fmt: skip
    assert packed(tmp_path) == {"/": 200, "/more": 200}
    packs = open_packs(tmp_path)
    page = packs.get(f"{pages.url}/")
    assert page is not None
    assert page.headers["x-crawler-content-encoding"] == "gzip"
    assert "content-encoding" not in page.headers
    assert page.body.endswith(b"x" * 5000)
    kinds = [record.kind for record in packs.records()]
    assert kinds.count("request") == 2


def test_a_plain_project_waits_for_a_disk(
    pages: Site, crawl: Crawling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be written is written later; nothing is fetched twice."""
    monkeypatch.setattr("scrapy_spider_suite.crawl.sinks.commit_log._RETRY", 0.1)
    append, failures = PackFile.append, [1, 2]

    def fail(self: PackFile, *args: Any) -> Any:
        if failures and any(each.entries for each in args[0]):  # not for the warcinfo record
            failures.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return append(self, *args)

    monkeypatch.setattr(PackFile, "append", fail)
    made = page_packs.pack_plan

    def soon(*args: Any) -> Any:
        return replace(made(*args), wait=0.05)

    monkeypatch.setattr(page_packs, "pack_plan", soon)
    pages.pages["/no"] = Answer(links().encode(), wait=1.5)
    done = plain(crawl, type("Own", (Paging,), {"site": pages.url}), tmp_path)
    assert packed(tmp_path) == {"/": 200, "/more": 200}
    assert done.stat("suite/packs/failed") >= 1
    assert len(set(pages.paths())) == len(pages.paths())


def test_without_a_folder_the_pipeline_is_off(site: Site, crawl: Crawling) -> None:
    """And the crawl goes on."""
    site.pages["/"] = links()
    done = crawl(walker(site), addon=False, ITEM_PIPELINES={PagePackPipeline: 1})
    assert done.reason == "finished"
    assert done.crawler.get_item_pipeline(PagePackPipeline) is None


def test_a_scheduler_of_the_projects_own_leaves_the_items(
    pages: Site, crawl: Crawling, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes as an item is packed, and a warning says that nothing else is."""
    spider = type("Own", (Paging,), {"site": pages.url})
    crawl(
        spider, SUITE_PACKS_DIR=str(tmp_path), SCHEDULER="scrapy.core.scheduler.Scheduler", **FAST
    )
    assert packed(tmp_path) == {"/": 200, "/more": 200}
    assert "only page items are packed with a SCHEDULER of the project's own" in caplog.text


class Nested(Walker):
    """Yields pages that it fetches within a callback, by the engine."""

    async def keep(self, response: Response) -> Any:
        """Fetch another page on the way."""
        engine = self.crawler.engine
        assert engine is not None
        other = await engine.download_async(Request(response.urljoin("/more")))
        yield PageItem.from_response(other)


def test_a_page_that_was_fetched_within_a_callback(
    pages: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """It has no visit of its own: the page in whose callback it was fetched waits for it."""
    done = crawl(
        type("Own", (Nested,), {"site": pages.url}), SUITE_PACKS_DIR=str(tmp_path),
        SUITE_PAGE_ITEMS=True, **FAST,
    )  # fmt: skip
    assert packed(tmp_path) == {"/more": 200}
    assert done.stat("suite/job/done") == 1


def test_pages_of_a_cache_are_packed_from_their_items(
    pages: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """The second crawl asks the site for nothing, and packs the same pages."""
    cache = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path / "cache")}
    for name in ("one", "two"):
        crawl(
            type("Own", (Paging,), {"site": pages.url}), SUITE_PACKS_DIR=str(tmp_path / name),
            SUITE_PAGE_ITEMS=True, **FAST, **cache,
        )  # fmt: skip
        assert packed(tmp_path / name) == {"/": 200, "/more": 200}
    assert len(pages.paths()) == 4


def test_an_item_in_a_feed() -> None:
    """Its body in base 64, its time in ISO 8601, and nothing that is not a field."""
    response = Response("http://a.test/", headers={"X": ["1", "2"]}, body=b"\x00\xff")
    item = PageItem.from_response(response, ["http://b.test/"])
    out = io.BytesIO()
    JsonLinesItemExporter(out).export_item(item)
    row = json.loads(out.getvalue())
    assert row.pop("time") == item.time.isoformat()
    assert row == {
        "url": "http://a.test/", "status": 200, "headers": {"X": ["1", "2"]}, "body": "AP8=",
        "links": [["http://b.test/", "a", False]],
    }  # fmt: skip
    assert set(ItemAdapter(item)) == {"url", "time", "status", "headers", "body", "links"}
    assert "body" not in repr(item)
