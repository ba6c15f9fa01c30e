"""What the page asks of a job; viewers that ask the same within a second share one answer."""

from __future__ import annotations

import gzip
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from scrapy_spider_suite.errors import SuiteError

if TYPE_CHECKING:
    from scrapy_spider_suite.operate.crawl_view import View

logger = logging.getLogger(__name__)
reactor: Any = _reactor  # the attributes that its type has are those of its module

_T = TypeVar("_T")
_ANSWERS: Final = 64  # that are kept at most
_WAITING: Final = 100  # questions that wait for the thread at most
_LONGEST: Final = 2_000  # characters of a word
_ROWS: Final = 20
POINTS: Final = 1_000
_SMALL: Final = 1_000  # bytes of an answer that is not compressed
_CHARTED: Final = ("pages", "new_urls", "bytes", "failed", "errors.", "pending", "waiting.")
"""The series of the charts: names, and beginnings of names."""


class ViewThread:
    """A `View`, and the one thread that asks it while the reactor runs."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._pool = ThreadPool(1, 1, "dashboard")
        reactor.callWhenRunning(self._pool.start)
        reactor.addSystemEventTrigger("during", "shutdown", self._pool.stop)

    def ask(self, question: Callable[[View], _T]) -> Deferred[_T]:
        return deferToThreadPool(reactor, self._pool, question, self._view)


JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A body, and the same compressed if that is worth it."""

    status: int
    body: bytes
    compressed: bytes | None
    kind: str

    @classmethod
    def of_bytes(cls, body: bytes, kind: str, status: int = 200) -> HttpAnswer:
        return cls(status, body, gzip.compress(body) if len(body) > _SMALL else None, kind)

    @classmethod
    def of(cls, value: Any, status: int = 200) -> HttpAnswer:
        """As JSON; NaN becomes null."""
        return cls.of_bytes(msgspec.json.encode(value), JSON, status)

    @classmethod
    def error(cls, status: int, why: str) -> HttpAnswer:
        return cls.of({"error": why}, status)


Words = Mapping[str, str]


def _number(words: Words, name: str, default: float) -> float:
    text = words.get(name, "")
    number = float(text) if text else default
    if not abs(number) < 1e11:  # nor is NaN
        raise ValueError(f"{name}={text}: expected seconds")
    return number


def _text(words: Words, name: str) -> str:
    text = words.get(name, "").strip()
    if not 0 < len(text) <= _LONGEST:
        raise ValueError(f"{name}: expected 1 to {_LONGEST} characters")
    return text


def _series(view: View, words: Words) -> dict[str, Any]:
    """Rates of counters and means of gauges; a negative time is seconds before now."""
    now = time.time()
    start, end = _number(words, "start", -900.0), _number(words, "end", now)
    start, end = (now + each if each < 0 else each for each in (start, end))
    points = round(_number(words, "points", 300.0))
    if not (start < end and 1 < points <= POINTS):
        raise ValueError(f"expected start < end, and at most {POINTS} points")
    rows = view.series(start, end, points)
    return {
        "start": start, "end": end, "width": rows.width, "times": rows.times.tolist(),
        "rates": _charted(rows.columns.counters, rows.rate),
        "means": _charted(rows.columns.gauges, rows.mean),
    }  # fmt: skip


def _charted(
    names: tuple[str, ...], values: Callable[[str], np.ndarray[Any, Any]]
) -> dict[str, list[float]]:
    """The *values* of the charts; without series of a kind that are 0 all the time."""
    charted = {}
    for name in names:
        if name.startswith(_CHARTED):
            found = values(name)
            if "." not in name or np.nansum(found) > 0:
                charted[name] = np.round(found, 3).tolist()
    return charted


def _metrics(view: View, words: Words) -> HttpAnswer:
    from scrapy_spider_suite.dashboard import metrics  # needs an extra

    return HttpAnswer.of_bytes(metrics.metrics_text(view.overview()), metrics.CONTENT_TYPE)


def _hosts(view: View, words: Words) -> list[dict[str, Any]]:
    by = words.get("by", "")
    if by not in ("slowest", "pending", "failed"):
        raise ValueError("by: expected slowest, pending or failed")
    return view.hosts(by, _ROWS)


def _rows(
    find: Callable[[View, Words], list[dict[str, Any]]]
) -> Callable[[View, Words], dict[str, Any]]:
    """The rows that *find* returns, and what they lack."""
    return lambda view, words: {"rows": find(view, words), "missing": view.missing}


QUESTIONS: Final[Mapping[str, Callable[[View, Words], Any]]] = {
    "series": _series,
    "hosts": _rows(_hosts),
    "why": _rows(lambda view, words: view.why(_text(words, "target"))),
    "pages": _rows(lambda view, words: view.pages(_ROWS)),
    "links": lambda view, words: {**view.links(), "missing": view.missing},
    "search": _rows(lambda view, words: view.search(_text(words, "q"))),
    "metrics": _metrics,
}
_QUICK: Final = frozenset({"series", "metrics"})
_FRESH: Final = {"hosts": 10.0, "links": 60.0, "pages": 2.0}
"""Seconds for which an answer is good; others: one second."""


@dataclass(slots=True)
class _Asked:
    when: float
    answer: HttpAnswer | None = None
    waiters: list[Deferred[HttpAnswer]] = field(default_factory=list)


class SharedAnswers:
    """Answers to `QUESTIONS`, each of which is asked once for all who want it at that time.

    Those that may take long are asked in the *slow* thread, so that no other waits for them.
    """

    def __init__(
        self, quick: ViewThread, slow: ViewThread, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quick = quick
        self._slow = slow
        self._clock = clock
        self._asked: OrderedDict[tuple[str, ...], _Asked] = OrderedDict()

    def get(self, name: str, words: Words) -> Deferred[HttpAnswer]:
        """Answer the question *name*; an error is an answer, too."""
        key, now = (name, *map(repr, sorted(words.items()))), self._clock()
        asked = self._asked.get(key)
        if asked is None or (asked.answer and now > asked.when + _FRESH.get(name, 1.0)):
            self._forget()
            if len(self._asked) >= _WAITING:
                return succeed(HttpAnswer.error(503, "too many questions wait: ask again later"))
            asked = self._asked[key] = _Asked(now)
            self._asked.move_to_end(key)
            question, thread = QUESTIONS[name], self._quick if name in _QUICK else self._slow
            answered = thread.ask(lambda view: _answer(question(view, words)))
            answered.addErrback(error_answer)
            answered.addCallback(self._give, asked)
        if asked.answer is not None:
            return succeed(asked.answer)
        waiter = Deferred[HttpAnswer]()
        asked.waiters.append(waiter)
        return waiter

    def _forget(self) -> None:
        answered = [key for key, asked in self._asked.items() if asked.answer]
        for key in answered[: max(0, len(self._asked) - _ANSWERS)]:
            del self._asked[key]

    @staticmethod
    def _give(answer: HttpAnswer, asked: _Asked) -> None:
        asked.answer, waiters = answer, asked.waiters
        for waiter in waiters:
            waiter.callback(answer)
        waiters.clear()


def _answer(found: Any) -> HttpAnswer:
    return found if isinstance(found, HttpAnswer) else HttpAnswer.of(found)


def error_answer(failure: Failure) -> HttpAnswer:
    """What a view says that cannot answer; any other error is a fault, which is logged."""
    if isinstance(failure.value, ValueError):
        return HttpAnswer.error(400, str(failure.value))
    if isinstance(failure.value, SuiteError | OSError):
        return HttpAnswer.error(409, str(failure.value))
    logger.error("the dashboard cannot answer: %s", failure.getTraceback())
    return HttpAnswer.error(500, "this could not be answered: the log of the dashboard says why")
