"""The pulse of a crawl: counters and gauges, once a second.

Progress line, status file, series, page and metrics take their numbers from here.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scrapy_spider_suite.analysis.time_series import Array, Columns, SeriesWriter
from scrapy_spider_suite.crawl.context import Crawl
from scrapy_spider_suite.crawl.gate import CAP_UNITS
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.workbench import WaitReason
from scrapy_spider_suite.store.job_reader import read_status

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.assembly import CrawlParts

logger = logging.getLogger(__name__)

SERIES_FOLDER: Final = "series"  # in the ``suite`` folder of a job
PULSE: Final = "pulse"  # the field of the status file with the last pulse

_NO_ERRORS: Final = frozenset({Event.INTERRUPTED, Event.BARRED})  # the URL is only put off
_ERRORS: Final = tuple(
    event for event in Event
    if (event.outcome.state is not State.DONE and event not in _NO_ERRORS)
    or event is Event.CALLBACK_ERROR
)
_STATUSES: Final = ("2xx", "3xx", "4xx", "5xx", "429")
_STATUS_STATS: Final = "downloader/response_status_count/"

COLUMNS: Final = Columns(
    counters=(
        "pages", "failed", "bytes", "new_urls", "filtered", "retried", "cache_hits",
        "cache_misses", "dns_lookups", *(f"status.{each}" for each in _STATUSES),
        *(f"errors.{event.value}" for event in _ERRORS),
    ),
    gauges=(
        "pending", "under_way", "hosts", "memory", "disk_free", "phase",
        *(f"waiting.{reason.value}" for reason in WaitReason),
    ),
)  # fmt: skip
"""What one process counts: docs/watching.md explains the names."""
_UNSTORED: Final = np.array(
    [name.startswith(("cache_", "dns_", "status.")) for name in COLUMNS.counters]
)
"""The counters that the process has; the store has the others."""
RATES: Final = ("pages", "failed", "bytes", "new_urls")
_RATED: Final = [COLUMNS.counters.index(name) for name in RATES]

_MINUTE: Final = 60.0  # seconds over which rates are measured
_PERIOD: Final = 1.0  # seconds between two pulses
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")


class CrawlPace:
    """Rates of the last minute, and the end expected from them; *began*: monotonic start."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._samples: deque[tuple[float, int, Array]] = deque()

    def note(self, now: float, pending: int, counts: Array) -> None:
        """Note the URLs *pending*, and the totals of `RATES` so far."""
        self._samples.append((now, pending, counts))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _MINUTE:
            self._samples.popleft()

    def rates(self) -> dict[str, float]:
        """The rates by second of `RATES`; 0 before the second sample."""
        if not self._samples:
            return dict.fromkeys(RATES, 0.0)
        (then, _, before), (now, _, counts) = self._samples[0], self._samples[-1]
        return dict(zip(RATES, ((counts - before) / max(1e-9, now - then)).tolist(), strict=True))

    def seconds_left(self) -> tuple[str, float | None]:
        """How the queue goes: ``falls``, ``grows``, ``stands`` or ``empty``; seconds to its end.

        Only the later half of the crawl counts: it opens empty, and grows while its seeds come.
        """
        if not self._samples:
            return "stands", None
        now, pending, _ = self._samples[-1]
        middle = (self._began + now) / 2
        first = max((each for each in self._samples if each[0] <= middle), default=self._samples[0],
                    key=lambda each: each[0])  # fmt: skip
        then, before, _ = first
        if pending > before:
            return "grows", None
        if pending == 0:
            return "empty", 0.0
        if pending == before:
            return "stands", None
        return "falls", pending * (now - then) / (before - pending)


class Pulses:
    """Takes the pulses of one crawl; without a job nothing is written.

    *listeners* are called after each pulse with the time, the seconds that it covers, the increase
    of the counters, and the gauges.
    """

    def __init__(self, parts: CrawlParts) -> None:
        self._parts = parts
        self._crawl = crawl = parts.crawl
        self.listeners: list[Callable[[float, float, Array, Array], None]] = []
        self._second = int(time.time())
        self._taken = crawl.now()  # the end of the time that pulses cover
        self._last = self._read_counters()
        self.counted = np.zeros(len(self._last))  # the increase since the start of the process
        self.totals = _totals_so_far(crawl, self._last)
        self.gauges = self._read_gauges(time.time())
        self.when = time.time()
        self.pace = CrawlPace(self._taken)
        self._note_pace()
        self._series: SeriesWriter | None = None
        self._trouble = ""
        crawl.closers.append(self._close)

    def poll(self) -> None:
        """Take a pulse if a second of the clock is over; call a few times a second."""
        if int(time.time()) != self._second:
            self.take()

    def take(self) -> None:
        """Take a pulse now."""
        wall, now = time.time(), self._crawl.now()
        counters = self._read_counters()
        increase = np.maximum(counters - self._last, 0.0)  # an extension may clear the stats
        seconds, self._taken = now - self._taken, now
        self._second, self._last, self.when = int(wall), counters, wall
        self.counted = self.counted + increase
        self.totals = self.totals + increase
        self.gauges = self._read_gauges(wall)
        self._note_pace()
        middle = wall - _PERIOD / 2  # of the second that is over
        self._write(middle, seconds, increase)
        for listener in self.listeners:
            listener(middle, seconds, increase, self.gauges)

    def _note_pace(self) -> None:
        self.pace.note(self._taken, self._crawl.pending, self.totals[_RATED])

    def _write(self, when: float, seconds: float, increase: Array) -> None:
        job = self._crawl.job
        if job is None:
            return
        try:
            if self._series is None:
                self._series = SeriesWriter(job.folder / SERIES_FOLDER, COLUMNS)
            self._series.add(when, seconds, increase, self.gauges)
        except OSError as error:
            if not self._trouble:
                logger.error("series of %s cannot be written: %s", job.path, error)
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _close(self, reason: str) -> None:
        if self._series is not None:
            self._series.close()
            self._series = None

    def facts(self) -> dict[str, Any]:
        """The last pulse as JSON, with rates of the last minute and the time to the end."""
        trend, seconds = self.time_left()
        gauges = zip(COLUMNS.gauges, self.gauges.tolist(), strict=True)
        return {
            "when": self.when,
            "counters": dict(zip(COLUMNS.counters, map(int, self.totals), strict=True)),
            "gauges": {name: None if math.isnan(value) else int(value) for name, value in gauges},
            "rates": self.pace.rates(),
            "end": {"trend": trend, "seconds": seconds},
        }  # fmt: skip

    def time_left(self) -> tuple[str, float | None]:
        """As `CrawlPace.seconds_left`; in place of the trend the name of a cap that comes first."""
        trend, seconds = self.pace.seconds_left()
        cap, until_cap = min(self._until_caps(), key=lambda each: each[1], default=("", math.inf))
        if until_cap < (math.inf if seconds is None else seconds):
            return cap, until_cap
        return trend, seconds

    def _until_caps(self) -> Iterator[tuple[str, float]]:
        """The caps of the crawl by their names, and seconds until each is reached."""
        counters, rates = self._crawl.frontier.counters, self.pace.rates()
        counts = ((counters.done, rates["pages"]), (counters.bytes, rates["bytes"]),
                  (counters.seconds, 1.0))  # fmt: skip
        for name, (count, rate) in zip(CAP_UNITS, counts, strict=True):
            cap = getattr(self._crawl.settings, name)
            if cap and rate:
                yield name, max(0.0, cap - count) / rate

    def _read_counters(self) -> Array:
        crawl, frontier = self._crawl, self._crawl.frontier
        counters, cache = frontier.counters, frontier.states.cache
        return np.array([
            counters.pages, counters.failures, counters.bytes, counters.found, counters.filtered,
            counters.retried, cache.hits, cache.misses,
            self._parts.trusted.resolver.counts["queries"], *_statuses(crawl),
            *(counters.endings.get(event, 0) for event in _ERRORS),
        ], np.float64)  # fmt: skip

    def _read_gauges(self, wall: float) -> Array:
        crawl, frontier = self._crawl, self._crawl.frontier
        phases, job = crawl.policy_file.policy.phases, crawl.job
        waiting = {each.reason: each.hosts for each in frontier.waits.counts}
        return np.array([
            crawl.pending, frontier.leases.out, len(frontier.workbench.hosts), _memory(),
            math.nan if job is None else _disk_free(job.folder),
            math.nan if phases is None else phases.active(wall) + 1,
            *(waiting.get(reason, 0) for reason in WaitReason),
        ], np.float64)  # fmt: skip


def _totals_so_far(crawl: Crawl, counters: Array) -> Array:
    """The totals of the job: what its store counts, the others by its last pulse."""
    status = None if crawl.job is None else read_status(crawl.job.folder)
    known = ((status or {}).get(PULSE) or {}).get("counters")
    if not isinstance(known, dict):
        return counters
    found = [known.get(name) for name in COLUMNS.counters]
    before = np.array([each if isinstance(each, int | float) else 0 for each in found], float)
    return np.where(_UNSTORED, counters + before, counters)


def _statuses(crawl: Crawl) -> list[int]:
    """Answers by `_STATUSES`, as the stats count them, and those that go to the stats next."""
    found = [0] * len(_STATUSES)
    for counts in (crawl.crawler.stats.get_stats(), crawl.counts):
        for name, count in counts.items():
            if name.startswith(_STATUS_STATS):
                status = name.removeprefix(_STATUS_STATS)
                if "2" <= status[:1] <= "5":
                    found[int(status[0]) - 2] += count
                if status == "429":
                    found[-1] += count
    return found


def _memory() -> float:
    """The resident bytes of this process; NaN where it cannot be known."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return float(int(file.read().split()[1]) * _PAGE_SIZE)
    except (OSError, IndexError, ValueError):
        return math.nan


def _disk_free(folder: os.PathLike[str]) -> float:
    try:
        system = os.statvfs(folder)
    except OSError:
        return math.nan
    return float(system.f_bavail * system.f_frsize)
