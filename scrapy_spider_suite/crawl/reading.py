"""Pages read for their links, whoever is to have them: the frontier, packs, statistics."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scrapy.http import HtmlResponse, Response

from scrapy_spider_suite.crawl.requests import SITEMAP
from scrapy_spider_suite.urls.extract import Context, Edge, PageLinks, extract, extract_edges

if TYPE_CHECKING:
    from scrapy_spider_suite.settings.suite import SuiteSettings

_PRODUCT = re.compile(r"(?:^|\bcompatible;\s*)(?!mozilla\b)([\w-]+)", re.I | re.A)


class LinkReader:
    """Reads the links of pages, for one crawl; *settings* gives those that hold now."""

    def __init__(self, settings: Callable[[], SuiteSettings]) -> None:
        project = settings().project
        self._longest = project.urllength_limit or 1 << 20
        self._robot = product_of(project.robotstxt_user_agent or project.user_agent)
        self._settings = settings

    def links_of(self, response: Response) -> tuple[PageLinks, Sequence[Edge]]:
        """The links of *response*, whatever their scope; where pages are kept, how they link."""
        headers = response.headers
        context: Context = {
            "url": response.url,
            "content_type": headers.get("Content-Type"),
            "x_robots_tag": [tag.decode("latin-1") for tag in headers.getlist("X-Robots-Tag")],
            "robot": self._robot,
            "max_url_length": self._longest,
        }
        settings = self._settings()
        if settings.packs_dir is not None or settings.page_items:
            return extract_edges(response.body, **context)
        return extract(response.body, **context), ()


def has_links(response: Response) -> bool:
    """Whether *response* is a page that is read for links: HTML, 2xx, and no sitemap."""
    if not isinstance(response, HtmlResponse) or not 200 <= response.status < 300:
        return False
    # A sitemap may be served as HTML, too: it is read by its callback.
    return response.request is not None and SITEMAP not in response.request.meta


def product_of(user_agent: str) -> str:
    """The product token of *user_agent* (RFC 9309 §2.2.1), by which pages address a robot.

    Of ``Mozilla/5.0 (compatible; mybot/1.0)`` that is ``mybot``; "" where it names no robot.
    """
    found = _PRODUCT.search(user_agent)
    return found[1] if found else ""
