"""Python's garbage collector in a crawl of many hosts: fewer, and smaller, collections.

A broad crawl keeps hundreds of thousands of long-lived objects (hosts, fronts, Scrapy itself) and
makes thousands of short-lived ones for each page; with Python's defaults walking the former for
the latter took almost half of the crawl's time (measured: 6.0 of 12.8 CPU seconds for 8,200
pages, 0.3 with what is set here).
"""

from __future__ import annotations

import gc
from typing import ClassVar

from scrapy_spider_suite.crawl.turns import calm_turn

_THRESHOLDS = (2_000, 10, 1 << 30)
"""Net allocations before the youngest generation is collected, and collections of each generation
before that of the next. A collection walks all that is younger: 2,000 objects, then 20,000, so
that neither stops the crawl for more than some ten milliseconds."""
_RIPE = 3
"""Collections of the youngest generation after which `tidy` collects the next. Python by itself
waits for ten: that takes some 10 ms, in a turn of the loop that may be long anyway."""
_PERIOD = 20.0
"""Seconds between two collections of all there is: a response and its selector refer to each other,
and those that were being parsed while the second generation was collected wait for it (promise 3).
Python by itself waits until a quarter of it is new: to free so much took 0.1 s."""


class CalmCollector:
    """Sets the collector for the time of a crawl; the last `stop` puts back what was there.

    The collector is the process's, in which several crawls may run, beginning and ending in any
    order.
    """

    _running: ClassVar[set[CalmCollector]] = set()
    _last: ClassVar[float] = 0.0
    _before: ClassVar[tuple[int, int, int]] = gc.get_threshold()

    def start(self) -> None:
        """What exists now is there to stay: it is not walked any more."""
        if not self._running:
            CalmCollector._before = gc.get_threshold()
        self._running.add(self)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)

    def tidy(self) -> None:
        """Collect what is young, if there is some of it. To be called a few times a second."""
        if self._running and gc.get_count()[1] >= _RIPE:
            gc.collect(1)

    def due(self, now: float) -> bool:
        """Whether it is time to `collect`; then it is not again for a while.

        *now* is in seconds, of one clock for all crawls.
        """
        if not self._running or 0 <= now - self._last < _PERIOD:
            return False
        CalmCollector._last = now
        return True

    @staticmethod
    async def collect() -> None:
        """Collect everything: what is young first, and then, some 10 ms that cannot be cut, the
        rest, each in a turn of the loop of its own."""
        async with calm_turn():
            gc.collect(1)
        async with calm_turn():
            gc.collect()

    def stop(self) -> None:
        """Back to what was set before the first `start`, unless another crawl goes on."""
        if self in self._running:
            self._running.discard(self)
            if not self._running:
                gc.set_threshold(*self._before)
                gc.unfreeze()
