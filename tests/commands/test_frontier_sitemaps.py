"""What the commands know of sitemaps: ``why``, ``retry``, ``drop``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.frontier_command import Frontier
from support.inprocess_crawls import crawl_here
from support.websites import Answer, Site, links, running

from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_reader import StoreReader


class Mapped(BroadSpider):
    """Follows links."""

    name = "mapped"


def test_a_sitemap_that_failed_is_read_as_one_when_it_is_tried_again(
    run: Callable[[Any], Any], frontier: Frontier, tmp_path: Path
) -> None:
    """By the operator; what it says of a page is told, and forgotten with the host."""
    job = str(tmp_path)
    settings = {
        "ROBOTSTXT_OBEY": True, "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0,
        "SUITE_IP_DELAY": 0, "SUITE_SITEMAPS": "robots", "JOBDIR": job,
    }  # fmt: skip
    with running(Site({"/": links(), "/a": links()})) as site:
        site.pages["/robots.txt"] = f"Sitemap: {site.url}/map.xml"
        arguments = {"seeds": f"{site.url}/"}
        run(crawl_here(Mapped, arguments=arguments, **settings))
        assert site.paths() == ["/robots.txt", "/", "/map.xml"]
        known = frontier("why", f"{site.url}/map.xml", "-j", job, "--json").rows[0]
        assert known["reason"] == "client_error"
        assert known["came_from"] == f"{site.url}/robots.txt"
        entry = f"<url><loc>{site.url}/a</loc><lastmod>2024-05-01</lastmod></url>"
        site.pages["/map.xml"] = Answer(f"<urlset>{entry}</urlset>".encode())
        assert frontier("retry", "--reason", "client_error", "-j", job).code == 0
        run(crawl_here(Mapped, arguments=arguments, **settings))
        assert site.paths()[3:] == ["/map.xml", "/a"]
        page = frontier("why", f"{site.url}/a", "-j", job, "--json").rows[0]
    assert page["came_from"] == f"{site.url}/map.xml"
    assert page["changed_by_sitemap"] == "2024-05-01 00:00:00 UTC"
    assert frontier("drop", "127.0.0.1", "--yes", "-j", job).code == 0
    with StoreReader(tmp_path / "suite") as reader:
        for family in ("lastmod", "sitemaps", "sitemap_counts"):
            assert list(reader.store.kv(family).items()) == []
