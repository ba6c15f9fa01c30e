"""SUITE_LINK_STATS whatever the spider: in the spider profile, of page items, without the suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from support.inprocess_crawls import Crawling
from support.visiting_spider import Walker, walker
from support.websites import Site, links, moved

from scrapy_spider_suite.analysis.link_stats import ROWS, LinkStats
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.packs import Link, open_packs
from scrapy_spider_suite.pipelines import LinkStatsPipeline
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader

FAST = {"SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0}
COUNT = {"SUITE_LINK_STATS": ["links", "hosts", "out", "statuses"]}
OTHER = "http://other.test/x"


@pytest.fixture
def pages(site: Site) -> Site:
    """The site with four pages; one is a redirect."""
    site.pages |= {
        "/": links("/1", "/1#again", "/moved", OTHER),
        "/1": links("/", "/2"),
        "/moved": moved("/2"),
        "/2": links(title="no links"),
    }
    return site


def counted(job: Path) -> dict[str, Any]:
    """Totals, fetches by status, and the hosts with what leads to them, by the rows of *job*."""
    with StoreReader(job / FOLDER) as reader:
        stats = LinkStats(reader.store.kv(ROWS))
        totals = stats.totals()
        return {
            "pages": totals.pages, "links": totals.links, "external": totals.external,
            "statuses": dict(stats.table("statuses")),
            "in": {host: found.in_links for host, found in stats.hosts() if found.in_links},
        }  # fmt: skip


ALL = {
    "pages": 3, "links": 5, "external": 1, "statuses": {"200": 3, "302": 1},
    "in": {"other.test": 1},
}  # fmt: skip


class Inside(Walker):
    """Follows the links of the site; each page is an item, or only the first."""

    pages = True

    def keep(self, response: Response) -> Iterator[Any]:
        """Yield the page with its links."""
        found = LinkExtractor().extract_links(response)
        if self.pages or response.url.endswith("/"):
            yield PageItem.from_response(response, found)
        yield from response.follow_all(
            [link for link in found if link.url.startswith(self.site)], self.keep
        )


def test_an_ordinary_spider(pages: Site, crawl: Crawling, tmp_path: Path) -> None:
    """Its pages are read for links, which packs have, too; totals are in the stats."""
    job, packs = tmp_path / "job", tmp_path / "packs"
    spider = walker(pages, keep=follow_inside)
    done = crawl(spider, JOBDIR=str(job), SUITE_PACKS_DIR=str(packs), **COUNT, **FAST)
    assert done.reason == "finished"
    assert counted(job) == ALL
    assert done.stat("suite/link_stats/pages") == 3
    assert done.stat("suite/link_stats/links") == 5
    page = open_packs(packs).get(f"{pages.url}/1")
    assert page is not None
    assert page.links == [Link(f"{pages.url}/"), Link(f"{pages.url}/2")]


def follow_inside(self: Walker, response: Response) -> Iterator[Any]:
    """Follow the links of the site, and yield nothing else."""
    for link in response.css("a::attr(href)").getall():
        if link.startswith("/"):
            yield response.follow(link, self.keep)


def test_only_pages_that_are_items(pages: Site, crawl: Crawling, tmp_path: Path) -> None:
    """With SUITE_PAGE_ITEMS: their links, and no status of another page."""
    spider = type("Own", (Inside,), {"site": pages.url, "pages": False})
    crawl(spider, JOBDIR=str(tmp_path), SUITE_PAGE_ITEMS=True, **COUNT, **FAST)
    assert counted(tmp_path) == {
        "pages": 1, "links": 3, "external": 1, "statuses": {"200": 1}, "in": {"other.test": 1},
    }  # fmt: skip


class Broad(BroadSpider):
    """Follows everything on the site."""

    name = "broad"
    allowed_domains = ("127.0.0.1",)


@pytest.mark.parametrize("items", [True, False])
def test_a_broad_spider(pages: Site, crawl: Crawling, tmp_path: Path, items: bool) -> None:
    """Counts the same pages as items; a redirect is none."""
    crawl(
        Broad, arguments={"seeds": f"{pages.url}/"}, JOBDIR=str(tmp_path), SUITE_PAGE_ITEMS=items,
        **COUNT, **FAST,
    )  # fmt: skip
    expected = ALL | ({"statuses": {"200": 3}} if items else {})
    assert counted(tmp_path) == expected


def test_a_plain_project(pages: Site, crawl: Crawling, tmp_path: Path) -> None:
    """The pipeline alone: counts are rows of a job in JOBDIR, and grow with the next run."""
    spider = type("Own", (Inside,), {"site": pages.url})
    for runs in (1, 2):
        done = crawl(
            spider, addon=False, JOBDIR=str(tmp_path), ITEM_PIPELINES={LinkStatsPipeline: 1},
            **COUNT,
        )  # fmt: skip
        (tmp_path / "requests.seen").unlink()  # of Scrapy's dupefilter
        assert done.reason == "finished"
        assert counted(tmp_path)["pages"] == 3 * runs
        assert counted(tmp_path)["statuses"] == {"200": 3 * runs}


def test_without_a_job(
    pages: Site, crawl: Crawling, caplog: pytest.LogCaptureFixture
) -> None:
    """Totals are in the stats, and a warning says so; without the suite there is nothing at all."""
    spider = walker(pages, keep=follow_inside)
    done = crawl(spider, **COUNT, **FAST)
    assert done.stat("suite/link_stats/links") == 5
    assert "without a JOBDIR nothing is kept but totals" in caplog.text
    plain = crawl(spider, addon=False, ITEM_PIPELINES={LinkStatsPipeline: 1}, **COUNT)
    assert plain.crawler.get_item_pipeline(LinkStatsPipeline) is None
    assert "counts need a JOBDIR to be kept in" in caplog.text
