"""Trying URLs that nobody linked to, and learning from those that do not exist where to stop.

Each is an entry with the flag *speculative*, which is stored with it. They come after all links
of their host; one that is answered with 4xx is failed as ``not_there``, and says nothing about its
host. What is learnt lies on the host's ground.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from scrapy_spider_suite.frontier.entries import Entry, Flag, state_key
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.storage.grounds import Grounds
from scrapy_spider_suite.urls.url_spaces import ancestors, folder_of, siblings

PRIORITY = -1_000
"""That of what was mined: it comes after the links that pages had."""
MISSES_MAX = 8
"""Misses in a folder after which nothing more is mined there."""
_MISSES_OF_HOST = 24
_HIT = 2
"""Misses that a hit makes up for."""
# A plain integer: operators of flags are Python code.
_SPECULATIVE = int(Flag.SPECULATIVE)
_MINERS: dict[str, tuple[Callable[[str], list[str]], ...]] = {
    "none": (), "ancestors": (ancestors,), "siblings": (siblings,), "both": (ancestors, siblings),
}  # fmt: skip
_TOLD = {Event.SUCCESS: -_HIT, Event.NOT_STORED: -_HIT, Event.NOT_THERE: 1, Event.REPLACED: 1}
"""What each event adds to the misses: unknown pages are often redirected to a known one."""


class Miner:
    """*known* says whether a state key is known. *found* counts URLs tried, hits and misses."""

    def __init__(self, grounds: Grounds, known: Callable[[bytes], bool]) -> None:
        self.found: Counter[str] = Counter()
        self._grounds = grounds
        self._known = known

    def mine(
        self, page: Entry, kind: str, most: int, wanted: Callable[[str], bool]
    ) -> Iterator[Entry]:
        """What the URL of *page*, which was fetched, leads to, if that is *wanted* and not known.

        *kind* is the value of SUITE_MINE. No more than *most* of one host are ever given out.
        """
        for mined in _MINERS[kind]:
            for url in mined(page.url):
                ground = self._grounds.get(page.host)
                if ground is not None and ground.mined >= most:
                    return
                if self._misses(page.host, url) or not wanted(url):
                    continue
                if self._known(state_key(page.host, url)):
                    continue
                self._grounds.learn(page.host).mined += 1
                self.found["tried"] += 1
                yield Entry(
                    page.host, url, priority=PRIORITY, depth=page.depth + 1,
                    flags=_SPECULATIVE, referrer=page.url,
                )  # fmt: skip

    def _misses(self, host: str, url: str) -> bool:
        """Whether too many like *url* did not exist."""
        ground = self._grounds.get(host)
        return ground is not None and (
            ground.count("missed", folder_of(url)) >= MISSES_MAX
            or ground.count("missed", "") >= _MISSES_OF_HOST
        )

    def gave_up(self, entry: Entry) -> bool:
        """Whether *entry* was mined, and too many like it did not exist since."""
        return bool(entry.flags & _SPECULATIVE) and self._misses(entry.host, entry.url)

    def concluded(self, entry: Entry, event: Event) -> None:
        """*entry*, if it was mined, is done or failed for *event*: go on there, or stop."""
        told = _TOLD.get(event)
        if told is None or not entry.flags & _SPECULATIVE:
            return
        self.found["hits" if told < 0 else "misses"] += 1
        ground = self._grounds.learn(entry.host)
        for folder in (folder_of(entry.url), ""):
            ground.add("missed", folder, told)
