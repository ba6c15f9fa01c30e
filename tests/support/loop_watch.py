"""An extension that watches the crawling process: how long its loop was blocked, its memory.

Time in which the loop's thread could run but other processes had the cores does not count as
blocked: it says something of the machine, and nothing of the crawl.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path

from scrapy import signals
from scrapy.crawler import Crawler

TICK = 0.05
"""Seconds between two ticks."""
GAP = "watch/longest_gap"
PEAK = "watch/peak_rss"
STARVED = "watch/starved"
_STATUS = Path("/proc/self/status")
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a core, nanoseconds waited for one, and how often (Linux)."""


class Watch:
    """Sets the stats ``watch/longest_gap``, ``watch/starved`` (seconds), and
    ``watch/peak_rss`` (bytes).

    Starved is the time in which the thread could run but had no core.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._timer: asyncio.TimerHandle | None = None
        self._last = self._waited = 0.0
        crawler.signals.connect(self._start, signals.engine_started)
        crawler.signals.connect(self._stop, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Watch:
        """Build it for *crawler*."""
        return cls(crawler)

    def _start(self) -> None:
        self._last, self._waited = _own_time(), _waited()
        self._tick()

    def _tick(self) -> None:
        now = _own_time()
        self._crawler.stats.max_value(GAP, now - self._last)
        self._last = now
        self._crawler.stats.max_value(PEAK, _peak_rss())
        self._crawler.stats.set_value(STARVED, _waited() - self._waited)
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Stalls:
    """Appends a line to the file TEST_STALLS for each time that the loop was blocked for long.

    That is for more than TEST_LONG seconds, 0.05 by default. A line has the wall clock at its end,
    seconds, and of them those in which the thread worked: in the others it waited for a disk, or
    the machine, a virtual one, had no processor.
    """

    TICK = 0.01

    def __init__(self, crawler: Crawler) -> None:
        self._path = Path(crawler.settings["TEST_STALLS"])
        self._long = crawler.settings.getfloat("TEST_LONG", 0.05)
        self._timer: asyncio.TimerHandle | None = None
        self._last = self._worked = 0.0
        crawler.signals.connect(self._start, signals.engine_started)
        crawler.signals.connect(self._stop, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Stalls:
        """Build it for *crawler*."""
        return cls(crawler)

    def _start(self) -> None:
        self._last, self._worked = _own_time(), time.thread_time()
        self._tick()

    def _tick(self) -> None:
        blocked = _own_time() - self._last - self.TICK
        if blocked > self._long:
            with self._path.open("a") as file:
                worked = time.thread_time() - self._worked
                file.write(f"{time.time():.3f} {blocked:.3f} {worked:.3f}\n")
        self._last, self._worked = _own_time(), time.thread_time()
        self._timer = asyncio.get_running_loop().call_later(self.TICK, self._tick)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _own_time() -> float:
    """Return a clock in seconds that stands still while this thread waits for a core."""
    return time.monotonic() - _waited()


def _waited() -> float:
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except OSError:  # the system does not tell
        return 0.0


def _peak_rss() -> int:
    """Not by getrusage() where there is another way: on Linux it begins with the parent's."""
    if _STATUS.exists():
        (peak,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
