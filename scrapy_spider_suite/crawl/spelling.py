"""The links of pages in the normal form of the crawl, and what pages say of twins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from scrapy_spider_suite.downloadermiddlewares.redirect import redirect_target
from scrapy_spider_suite.urls.normalize import normalize
from scrapy_spider_suite.urls.normalizer import Normalizer
from scrapy_spider_suite.urls.twins import Twins

if TYPE_CHECKING:
    from scrapy.http import Response
    from scrapy.statscollectors import StatsCollector


_PERMANENT = frozenset({301, 308})


def note_redirect(twins: Twins, response: Response) -> None:
    """Let *twins* know where *response* leads, if it is a redirect, whoever asked for it."""
    target, page = redirect_target(response.url, response), normalize(response.url)
    if target is not None and page is not None:
        twins.redirected(page, target, permanent=response.status in _PERMANENT)


class Spelling:
    """Stats: ``suite/links/respelled``, ``suite/twins/forms``."""

    def __init__(self, normalizer: Normalizer, stats: StatsCollector) -> None:
        self._normal = normalizer
        self._stats = stats
        self._forms = 0

    def links(self, response: Response, links: list[str]) -> list[str]:
        """The normal forms of *links*, in plain normal form, which *response* (2xx) holds."""
        normal = self._normal
        if normal.twins is not None:
            normal.twins.answered(response.url, response.body)
            self._count_forms(len(normal.twins))
        if normal.idle:
            return links
        before = normal.changed
        found = normal.links(links)
        if normal.changed != before:
            self._stats.inc_value("suite/links/respelled", normal.changed - before)
        return found

    def chosen(self, links: list[str], chosen: Iterable[str]) -> list[str]:
        """What a spider chose of *links*; those that it made of them itself in normal form."""
        kept = list(chosen)
        own = {*kept}.difference(links)
        if not own:
            return kept
        spelled = (self._normal(url) if url in own else url for url in kept)
        return list(dict.fromkeys(filter(None, spelled)))

    def _count_forms(self, number: int) -> None:
        if number != self._forms:
            self._forms = number
            self._stats.set_value("suite/twins/forms", number)
