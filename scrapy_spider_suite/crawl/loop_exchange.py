"""Exchanges of the fetch loop: of a page, or of the pages of a visit (RFC 9112 §9.3.2)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from scrapy.exceptions import DownloadTimeoutError

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.fetch.exchange import BodyLimits, Exchange
from scrapy_spider_suite.frontier.entries import Flag

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.loop_plan import LoopPlan
    from scrapy_spider_suite.crawl.queue.frontier import Frontier
    from scrapy_spider_suite.crawl.queue.leases import Fetch
    from scrapy_spider_suite.fetch.connections import Connection
    from scrapy_spider_suite.fetch.http_messages import Origin
    from scrapy_spider_suite.frontier.workbench import Departure, Visit

_MOST_HELD: Final = 8 << 20
"""Bytes of answers that a pipeline holds back."""
_UNTIL_CLOSED: Final = 5.0
"""Seconds that a server may take to close the connection behind the last answer."""
_BROKEN_MAX: Final = 10_000
"""Hosts whose pipelines broke, that are kept in mind."""
_LAST: Final = b"Connection: close\r\n\r\n"


class LoopExchange(Exchange):
    """An exchange of the fetch loop, from the choice of a connection to its end.

    Attributes:
        following: requests that are sent with its own.
    """

    __slots__ = ("connection", "deadline", "expires", "fetch", "fresh", "grants", "leaves", "visit")
    following: bytes = b""

    def __init__(
        self, fetch: Fetch, visit: Visit, message: bytes, limits: BodyLimits,
        on_over: Callable[[Any], None],
    ) -> None:  # fmt: skip
        super().__init__(fetch.entry.url, message, limits, on_over)
        self.fetch = fetch
        self.visit = visit
        self.connection: Connection | None = None
        self.fresh = False  # whether the connection was opened for it
        self.deadline = 0.0
        self.expires = float("inf")  # when the permission of a shared ledger runs out
        self.grants: Any = ()
        self.leaves: Departure | None = None


class Pipeline(LoopExchange):
    """The exchange of a visit's first page; the requests of the other pages are sent with its own.

    It needs a new connection: an old one may be closing, or have an answer that nobody asked for.
    It is over with the last answer and the end of the connection, which the last request asks for.
    All answers count, or none: where one is broken, missing or too many, nobody can tell to which
    requests the others belong.

    Attributes:
        others: exchanges of the other pages, in order; [] if no answer counts.
    """

    __slots__ = ("_current", "_held", "_timeout", "following", "others")

    def __init__(
        self, fetch: Fetch, visit: Visit, message: bytes, limits: BodyLimits,
        on_over: Callable[[Any], None], others: list[LoopExchange], timeout: float,
    ) -> None:  # fmt: skip
        super().__init__(fetch, visit, message, limits, on_over)
        self.others = others
        self._current = 0  # the number of the answer that is read; 0: its own
        self._held = 0  # bytes of the others
        self._timeout = timeout
        others[-1].request = others[-1].request.removesuffix(b"\r\n") + _LAST
        self.following = b"".join(other.request for other in others)
        for each in (self, *others):
            each.reader.pipelined = True

    def received(self, data: bytes) -> None:
        """Read *data* as the answers whose turn it is."""
        while data and not self.over:
            current: Exchange = self
            if not self._current:
                super().received(data)
            elif self._current > len(self.others) or self._held + len(data) > _MOST_HELD:
                self._conclude(whole=False)
                return
            else:
                current = self.others[self._current - 1]
                current.received(data)
            left, current.reader.rest = current.reader.rest, b""
            current.size -= len(left)
            self._held += len(data) - len(left) if self._current else 0
            data = left
            if not self.over and (current.over or (current is self and self.status)):
                self._pass_on(current)

    def disconnected(self, error: Exception | None) -> None:
        if self.over:
            return
        if self._current:
            self._conclude(whole=self._current > len(self.others))
        else:
            self.others = []
            super().disconnected(error)

    def fail(self, error: BaseException) -> None:
        if self.over:
            return
        if self._current and isinstance(error, DownloadTimeoutError):
            self._conclude(whole=False)
        else:
            self.others, self.status = [], 0
            super().fail(error)

    def idle_seconds(self, next_fetch: float | None) -> float:
        return 0.0

    def _end(self) -> None:
        if self.error is None and self.others:  # only its own answer is complete
            self.seconds = max(0.0, time.time() - self.began)
        else:
            super()._end()

    def _pass_on(self, answered: Exchange) -> None:
        reader, last = answered.reader, self._current == len(self.others)
        sound = reader.done and not reader.excess if last else reader.keeps_alive
        if answered.error is not None or not sound:
            self._conclude(whole=False)
            return
        self._current += 1
        wait = min(self._timeout, _UNTIL_CLOSED) if last else self._timeout
        self.deadline = time.monotonic() + wait

    def _conclude(self, *, whole: bool) -> None:
        if not whole:
            self.others = []
            self.size += self._held
        self.over = True
        self._on_over(self)


class Pipelines:
    """Decides which pages of a visit are asked for together (`Policy.pipelines`).

    A host whose pipeline broke gets no other in this run (RFC 9112 §9.3.2: not at once).
    """

    def __init__(self, frontier: Frontier, plan: LoopPlan, counts: dict[str, int]) -> None:
        self._frontier = frontier
        self._plan = plan
        self._counts = counts
        self._broken: set[str] = set()

    def others(
        self, first: Fetch, rest: list[Fetch], origin: Origin, server: str, limits: BodyLimits
    ) -> list[LoopExchange]:
        """Return exchanges of those of *rest* whose requests may be sent with that of *first*.

        All go to *origin*, at the address *server*.
        """
        found: list[LoopExchange] = []
        key, visit = first.entry.host, first.visit
        allowed = visit is not None and self._frontier.policy.pipelines(key)
        if visit is None or not allowed or first.early is not None or key in self._broken:
            return found
        for fetch in rest:
            self._frontier.commit.planner.begin(fetch)
            if fetch.entry.payload is not None or fetch.entry.flags & Flag.USER or fetch.plan:
                break
            try:
                if any(check(fetch, server) for check in self._plan.checks):
                    break
                for last_check in self._plan.last_checks:
                    last_check(fetch, server)
                theirs, message = self._plan.request(fetch)
            except JobDamagedError:
                raise
            except Exception as error:  # said when its turn comes
                fetch.refusal = error
                break
            if theirs != origin:
                break
            found.append(LoopExchange(fetch, visit, message, limits, _ignore))
        return found

    def broke(self, pipeline: Pipeline, connection: Connection) -> bool:
        """Give the answers to the fetches of *pipeline*; whether each is to be asked for again."""
        for other in pipeline.others:
            other.note_connection(connection)
            other.fetch.early = other
        self._counts["pipelined"] += len(pipeline.others)
        if pipeline.others:
            return False
        self._counts["pipelines_broken"] += 1
        if len(self._broken) >= _BROKEN_MAX:
            self._broken.clear()
        self._broken.add(pipeline.fetch.entry.host)
        return pipeline.error is None


def _ignore(_: Any) -> None:
    pass
