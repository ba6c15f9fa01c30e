"""Seeds whose scheme was guessed: https first, then http if nobody answers there."""

from __future__ import annotations

from collections.abc import Callable

from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.storage import seeds
from scrapy_spider_suite.storage.store import Store
from scrapy_spider_suite.urls.normalize import host_of, normalize

_NO_ANSWER = frozenset({Event.REFUSED, Event.TIMEOUT, Event.CONNECTION_LOST})


def _link(url: str) -> Entry:
    return Entry(host_of(url), url, flags=int(Flag.START))


class Guesses:
    """Tells which failures mean that the guess was wrong, and what to try then.

    *entry_of* makes the entry of a seed; a crawl whose seeds are requests of its spider has another
    one than a link without a page.
    """

    def __init__(self, store: Store, entry_of: Callable[[str], Entry] = _link) -> None:
        self.entry_of = entry_of
        self._store = store

    def wrong(self, entry: Entry, event: Event) -> bool:
        """Whether *event* is how https did not answer for *entry*, where it was only a guess."""
        if event not in _NO_ANSWER or not entry.url.startswith("https:"):
            return False
        return seeds.guessed(self._store, entry.identity)

    def other(self, entry: Entry) -> Entry:
        """The same page by http, to be scheduled in the place of *entry*, with its tag."""
        url = f"http:{entry.url.removeprefix('https:')}"
        other = self.entry_of(normalize(url) or url)  # port 80 is no more to be named
        other.mark = seeds.mark_of(seeds.tag_of(self._store, entry.identity) or "", guessed=False)
        return other

    def over(self, entry: Entry) -> None:
        """The other one was scheduled: nothing of *entry* is guessed now."""
        seeds.take_guess(self._store, entry.identity)
