"""A log that stays small at a thousand pages a second: similar lines are counted.

A failed download is one line. The first lines of a kind are written; then one in each interval,
with the number held back. A kind silent for an interval begins anew.
"""

from __future__ import annotations

import logging
import re
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.logformatter import DOWNLOADERRORMSG_LONG, DOWNLOADERRORMSG_SHORT
from scrapy.utils.log import LogCounterHandler

from scrapy_spider_suite.crawl.requests import event_of_error
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.runtime.tasks import PeriodicTask
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.signals import settings_changed

logger = logging.getLogger(__name__)

FIRST = 10  # lines of a new kind that are written whole
INTERVAL = 60.0  # seconds between two counts
KINDS_MAX = 1_000  # most kinds at a time; all further ones are one kind
REST = "other messages"


@dataclass(slots=True)
class Kind:
    """Similar lines of one interval."""

    name: str
    level: int  # the highest
    left: int  # lines that may still be written
    held: int = 0  # lines held back
    last: str = ""  # the last of them
    seen: bool = True  # there was a line


class LineFolding(logging.Filter):
    """Keeps count of the kinds of one log, and lets the first lines of each pass."""

    def __init__(self, first: int = FIRST, kinds_max: int = KINDS_MAX) -> None:
        super().__init__()
        self._first = first
        self._kinds_max = kinds_max
        self._kinds: dict[str, Kind] = {}
        # Any thread logs; a signal handler in the thread that holds the lock may log, too.
        self._lock = threading.RLock()

    def filter(self, record: logging.LogRecord) -> bool:
        passes = getattr(record, _PASSES, None)
        if passes is None:
            kind = kind_of(record)
            passes = kind is None or self.passes(kind, record.levelno, partial(text_of, record))
            setattr(record, _PASSES, passes)
            if passes:
                shorten(record)
        return bool(passes)

    def passes(self, name: str, level: int, text: Callable[[], str]) -> bool:
        """Whether to write a line of the kind *name*; otherwise it is counted, *text* kept."""
        with self._lock:
            if name not in self._kinds and len(self._kinds) >= self._kinds_max:
                name = REST
            kind = self._kinds.setdefault(name, Kind(name, level, self._first))
            kind.seen = True
            kind.level = max(kind.level, level)
            if kind.left:
                kind.left -= 1
                return True
            kind.held += 1
            kind.last = text()
            return False

    def end_interval(self) -> list[Kind]:
        """End an interval; return the kinds with held back lines, the most frequent first."""
        with self._lock:
            seen = [kind for kind in self._kinds.values() if kind.seen]
            # Still new if it has not used up its first lines.
            self._kinds = {
                kind.name: Kind(kind.name, kind.level, max(kind.left, 1), seen=False)
                for kind in seen
            }
        return sorted((kind for kind in seen if kind.held), key=lambda kind: -kind.held)


_ENGINES = ("scrapy", "scrapy_spider_suite", "twisted", "asyncio", "py.warnings")
"""Loggers whose lines are folded; of other loggers only lines with a traceback."""
_EXEMPT = ("scrapy.extensions", "scrapy_spider_suite.extensions")  # loggers that write at intervals
_DOWNLOAD_ERRORS = (DOWNLOADERRORMSG_SHORT, DOWNLOADERRORMSG_LONG)
_VARIES = re.compile(r"<[^<>]*>|\w+://\S+|'[^']*'|\"[^\"]*\"|\d+")
_PASSES = "suite_passes"
_LONGEST = 500  # characters of the last line of a kind
_FRAMES = 5  # innermost frames of a traceback in its kind


class QuietLog:
    """Folds the lines of the log's handlers while SUITE_QUIET_LOG is on."""

    def __init__(self, crawler: Crawler, interval: float = INTERVAL) -> None:
        self._crawler = crawler
        self._folding = LineFolding()
        self._handlers: list[logging.Handler] = []
        self._ticker = PeriodicTask(interval, self.log_counts)
        crawler.signals.connect(self.opened, signals.spider_opened)
        crawler.signals.connect(self.changed, settings_changed)
        crawler.signals.connect(self.stop, signals.spider_closed)
        crawler.signals.connect(self.stop, signals.engine_stopped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> QuietLog:
        return cls(crawler)

    def opened(self) -> None:
        if suite_settings(self._crawler).quiet_log:
            self.start()

    def changed(self, old: SuiteSettings, new: SuiteSettings) -> None:
        if new.quiet_log != old.quiet_log:
            (self.start if new.quiet_log else self.stop)()

    def start(self) -> None:
        """Fold the lines of the handlers; stats count every line."""
        handlers = logging.getLogger().handlers
        self._handlers = [each for each in handlers if not isinstance(each, LogCounterHandler)]
        for handler in self._handlers:
            handler.addFilter(self._folding)
        self._ticker.start()

    def stop(self) -> None:
        self._ticker.stop()
        self.log_counts()
        for handler in self._handlers:
            handler.removeFilter(self._folding)
        self._handlers = []

    def log_counts(self) -> None:
        for kind in self._folding.end_interval():
            like = "other messages, the last" if kind.name == REST else "more like this"
            logger.log(kind.level, "%s %s: %s", f"{kind.held:,}", like, kind.last)


def kind_of(record: logging.LogRecord) -> str | None:
    """The kind of *record*; None: always written."""
    name, error = record.name, _error_of(record)
    if record.levelno <= logging.DEBUG or record.levelno >= logging.CRITICAL:
        return None
    if error is None:
        if not _is_below(name, _ENGINES) or _is_below(name, _EXEMPT):
            return None
        # A message that was formatted before it was logged differs by names and numbers.
        message = str(record.msg)
        return f"[{name}] {message if record.args else _VARIES.sub('…', message[:500])}"
    if _is_network_error(record, error):
        return f"[{name}] {record.msg}: {type(error).__name__}"
    return f"[{name}] {type(error).__name__}{_place_of(error)}"


def text_of(record: logging.LogRecord) -> str:
    """*record* on one line, with its error."""
    error = _error_of(record)
    try:
        text = f"[{record.name}] {record.getMessage()}"
    except (TypeError, ValueError, LookupError, AttributeError):  # its handlers say so
        text = f"[{record.name}] {record.msg}"
    if error is not None:
        text += f": {_error_text(error)}"
        text += "" if _is_network_error(record, error) else _place_of(error)
    return " ".join(text.split())[:_LONGEST]


def shorten(record: logging.LogRecord) -> None:
    """Replace the traceback of a network error by its last line."""
    error = _error_of(record)
    if error is None or not _is_network_error(record, error):
        return
    record.msg = f"{record.getMessage()}: {_error_text(error)}"
    record.args = None
    record.exc_info = record.exc_text = None


def _error_text(error: BaseException) -> str:
    why = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {why}" if why else type(error).__name__


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _is_network_error(record: logging.LogRecord, error: BaseException) -> bool:
    # Not errors of callbacks, pipelines and middlewares, whatever their class.
    known = event_of_error(error) is not Event.DOWNLOAD_ERROR
    return known and record.name == "scrapy.core.scraper" and record.msg in _DOWNLOAD_ERRORS


def _place_of(error: BaseException) -> str:
    # Two faults in two places are two kinds.
    frames = deque(traceback.walk_tb(error.__traceback__), _FRAMES)
    places = [f"{PurePath(f.f_code.co_filename).name}:{line}" for f, line in frames]
    return " at " + " > ".join(places) if places else ""


def _is_below(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)
