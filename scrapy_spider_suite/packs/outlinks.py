"""The links of a page that a crawl packed without them: read from the page itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs.pages import Link
from scrapy_spider_suite.urls.extract import extract_edges

if TYPE_CHECKING:
    from scrapy_spider_suite.packs.page import Page


def links_in(page: Page, robot: str) -> list[Link]:
    """Return what a crawl finds in *page* that goes by the name of *robot*.

    Nothing where the page cannot be read: its ``body`` says why.
    """
    try:
        body = page.body
    except PackError:
        return []
    tags = [value for name, value in page.head.fields if name.lower() == "x-robots-tag"]
    content_type = page.head.get("Content-Type") or None
    _, edges = extract_edges(
        body, url=page.url, content_type=content_type, x_robots_tag=tags, robot=robot
    )
    return [Link(*edge) for edge in edges]
