"""The records of a graph out of packs: which fetches say where a page leads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from scrapy_spider_suite.graph.records import PageRecord
from scrapy_spider_suite.packs.cdxj import REVISIT, Entry
from scrapy_spider_suite.packs.reader import Packs
from scrapy_spider_suite.packs.selection import Choice, pages
from scrapy_spider_suite.urls.normalize import normalize

HTML: Final = ("text/html", "application/xhtml+xml")
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NOT_MODIFIED: Final = 304


@dataclass(frozen=True, slots=True, kw_only=True)
class Linking(Choice):
    """What says where a page leads: HTML, redirects of any type, and duplicates.

    Left out is what says nothing of that: robots.txt, answers for now, and 304. Of revisits an
    index does not know the type: `records_of` looks at it.
    """

    def takes(self, entry: Entry) -> bool:
        """Whether *entry* is wanted, the sample aside."""
        if entry.says_nothing or entry.status == _NOT_MODIFIED:
            return False
        leads = entry.mime in (*HTML, REVISIT) or entry.status in _REDIRECTS
        return leads and Choice.takes(self, entry)


def records_of(
    packs: Packs, choice: Choice, told: Callable[[int], object] = lambda number: None
) -> Iterator[PageRecord]:
    """Yield what is wanted of *packs*, where it lies; *told* of every fetch. Raises `OSError`."""
    for page in pages(packs, choice):
        told(1)
        if not (page.is_revisit and isinstance(choice, Linking)) or page.mime in HTML:
            when = page.time.timestamp() if page.time else 0.0
            yield PageRecord(normalize(page.url) or page.url, page.links, when)
