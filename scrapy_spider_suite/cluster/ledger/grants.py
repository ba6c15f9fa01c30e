"""The grants of one process: requests, use, return and reports to the ledger. Pure.

Invariant: between `start` and `end` the process has a grant for each key. ``now`` is in seconds of
a clock that runs during sleep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from scrapy_spider_suite.cluster.ledger.rate_ledger import (
    BATCH,
    HOLD_MAX,
    WISH_MAX,
    DelayWish,
    FetchEnd,
    LedgerBatch,
    LedgerLine,
    LedgerReply,
    ReturnedGrant,
)


class Need(NamedTuple):
    """A key of a fetch, with the delay in seconds before and after it."""

    key: str
    delay: float


@dataclass(slots=True)
class GrantCounters:
    asked: int = 0
    granted: int = 0
    refused: int = 0
    ended: int = 0
    returned: int = 0
    calls: int = 0
    failures: int = 0
    losses: int = 0  # times that the ledger had lost its state


@dataclass(slots=True)
class Grant:
    """A fetch may start from *opens* to *closes*."""

    serial: int
    opens: float
    closes: float
    delay: float  # which it was granted for
    in_use: bool = False


@dataclass(slots=True)
class GrantRequest:
    serial: int
    needs: tuple[Need, ...]  # all are granted, or none
    again: float
    wanted: float
    queued: bool = False
    in_flight: bool = False
    maybe: bool = False  # the ledger may have granted them; its answer was lost


class EndedGrant(NamedTuple):
    """A grant whose fetch ended at *ended*; None: it was not used."""

    key: str
    serial: int
    ended: float | None = None
    delay: float = 0.0


class OutboxPortion(NamedTuple):
    ended: list[EndedGrant]
    wishes: list[tuple[str, float]]


class LedgerOutbox:
    """Ended grants and wishes unknown to the ledger; without its answers no more come."""

    def __init__(self) -> None:
        self._ended: deque[EndedGrant] = deque()
        self._wishes: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._ended) + len(self._wishes)

    def add(self, grant: EndedGrant) -> None:
        self._ended.append(grant)

    def wish(self, key: str, until: float) -> None:
        self._wishes[key] = max(until, self._wishes.get(key, until))

    def pop_portion(self, room: int) -> OutboxPortion:
        ended = [self._ended.popleft() for _ in range(min(room, len(self._ended)))]
        keys = list(self._wishes)[: room - len(ended)]
        return OutboxPortion(ended, [(key, self._wishes.pop(key)) for key in keys])

    def put_back(self, portion: OutboxPortion) -> None:
        self._ended.extendleft(reversed(portion.ended))
        for key, until in portion.wishes:
            self.wish(key, until)


def whole_millis(seconds: float) -> int:
    """Return milliseconds, rounded up, within the bounds of a ledger."""
    whole = int(seconds * 1000)
    return min(max(0, whole + (whole < seconds * 1000)), WISH_MAX)


PATIENCE: Final = 1.0  # seconds until an unanswered question is asked again
SLACK: Final = 1.0  # seconds between `start` and the first byte on the wire
_TIDY: Final = 0.25  # seconds between two looks for grants and requests that nobody uses


class SentBatch(NamedTuple):
    batch: LedgerBatch
    asks: tuple[tuple[str, ...], ...]
    portion: OutboxPortion


class Grants:
    """The grants of *process*, 16 random hexadecimal digits; times in seconds.

    *timeout*: the longest fetch. A grant waits *window* for its fetch, and is given up to *ahead*
    early.
    """

    def __init__(
        self, process: str, *, timeout: float, window: float = 5.0, ahead: float = 5.0
    ) -> None:  # fmt: skip
        self._process = process
        self._hold = min(timeout + SLACK, HOLD_MAX / 1000)
        self._window, self._ahead = window, ahead
        self._grants: dict[str, Grant] = {}
        self._requests: dict[tuple[str, ...], GrantRequest] = {}
        self._queue: deque[tuple[str, ...]] = deque()
        self._tidy_at = 0.0
        self._serial = 0
        self._era = 0
        self._longest = 0
        self.outbox = LedgerOutbox()
        self.counters = GrantCounters()

    # Fetches

    def ready(self, needs: Iterable[Need], now: float) -> float:
        """Return when a fetch with *needs* may start; asks for missing grants.

        If after *now*, ask again then, after news of `answered`, or after a fetch here.
        """
        missing, at = [], now
        for need in needs:
            grant = self._grants.get(need.key)
            if grant is not None and grant.in_use:
                return now + PATIENCE
            if grant is not None and grant.delay < need.delay:
                self._give_back(need.key, grant)  # it was for another host of the address
                grant = None
            if grant is None or grant.closes <= now:
                missing.append(need)
            else:
                at = max(at, grant.opens)
        return max(at, self._ask(tuple(missing), now)) if missing else at

    def awaits(self, needs: Iterable[Need], now: float) -> bool:
        """Whether the ledger must still answer a request for *needs*."""
        grants = ((key, self._grants.get(key)) for key, _ in needs)
        missing = tuple(key for key, grant in grants if grant is None or grant.closes <= now)
        request = self._requests.get(missing)
        return request is not None and (request.queued or request.in_flight)

    def start(self, needs: Iterable[Need], now: float) -> tuple[Need, ...]:
        """Start a fetch; pass the result to `end`. Raises `ValueError` if not `ready`."""
        taken = tuple(needs)
        for need in taken:
            grant = self._grants.get(need.key)
            if grant is None or not grant.opens <= now < grant.closes:
                raise ValueError(f"no grant for {need.key}")
            if grant.in_use:
                raise ValueError(f"a fetch is out for {need.key}")
        for need in taken:
            self._grants[need.key].in_use = True
        return taken

    def end(self, taken: Iterable[Need], now: float) -> None:
        for key, delay in taken:
            grant = self._grants.pop(key)
            self.counters.ended += 1
            self.outbox.add(EndedGrant(key, grant.serial, now, delay))

    def drop(self, needs: Iterable[Need]) -> None:
        keys = tuple(need.key for need in needs)
        self._forget(keys)
        for key in keys:
            grant = self._grants.get(key)
            if grant is not None and not grant.in_use:
                self._give_back(key, grant)

    def close(self) -> None:
        for keys in list(self._requests):
            self._forget(keys)
        for key, grant in list(self._grants.items()):
            if not grant.in_use:
                self._give_back(key, grant)

    def postpone(self, key: str, until: float) -> None:
        self.outbox.wish(key, until)

    # The ledger

    def due(self, now: float) -> float | None:
        """Return the seconds until `outgoing` has a batch; None: unknown."""
        if self._queue or self.outbox:
            return 0.0
        return max(0.0, self._tidy_at - now) if self._grants or self._requests else None

    def outgoing(self, now: float) -> SentBatch | None:
        """Return the next batch, if there is one; one at a time."""
        self._tidy(now)
        portion = self.outbox.pop_portion(BATCH)
        room, asks = BATCH - len(portion.ended) - len(portion.wishes), []
        while self._queue and room > 0:
            keys = self._queue.popleft()
            if (request := self._requests.get(keys)) is not None and request.queued:
                asks.append(keys)
                request.queued, request.in_flight = False, True
                room -= len(keys)
        if not (portion.ended or portion.wishes or asks):
            return None
        self.counters.calls += 1
        return SentBatch(self._batch(portion, asks, now), tuple(asks), portion)

    def answered(self, sent: SentBatch, reply: LedgerReply, asked: float, now: float) -> set[str]:
        """Take the *reply* to a batch sent at *asked*; return keys whose `ready` may change."""
        if self._era and reply.era != self._era:
            self.counters.losses += 1
            for key, grant in self._grants.items():
                if grant.in_use:
                    self.postpone(key, now + self._hold)
        self._era, self._longest = reply.era, max(self._longest, reply.longest)
        for keys, lines, answer in zip(sent.asks, sent.batch.asks, reply.answers, strict=True):
            if answer.closes:
                # The ledger's now lies between *asked* and *now*: each end of the window by the
                # later, or the earlier, of the two.
                opens, closes = now + answer.opens / 1000, asked + answer.closes / 1000
                self._granted(keys, lines, opens, closes)
                continue
            self.counters.refused += len(keys)
            if (request := self._requests.get(keys)) is not None:
                request.in_flight = request.maybe = False
                request.again = now + answer.wait / 1000
        return {key for keys in sent.asks for key in keys}

    def failed(self, sent: SentBatch) -> None:
        """No answer came: send the batch again."""
        self.counters.failures += 1
        self.outbox.put_back(sent.portion)
        for keys in sent.asks:
            if (request := self._requests.get(keys)) is not None:
                request.in_flight, request.maybe, request.queued = False, True, True
                self._queue.append(keys)

    def _ask(self, needs: tuple[Need, ...], now: float) -> float:
        keys = tuple(need.key for need in needs)
        request = self._requests.get(keys)
        if request is None:
            self._serial += 1
            request = self._requests[keys] = GrantRequest(self._serial, needs, now, now)
        request.needs, request.wanted = needs, now
        if request.again > now:
            return request.again
        if not request.queued and not request.in_flight:
            request.queued = True
            self._queue.append(keys)
        return now + PATIENCE

    def _batch(
        self, portion: OutboxPortion, asks: Iterable[tuple[str, ...]], now: float
    ) -> LedgerBatch:
        ends = tuple(
            FetchEnd(key, serial, min(int((now - ended) * 1000), WISH_MAX), whole_millis(delay))
            for key, serial, ended, delay in portion.ended if ended is not None
        )  # fmt: skip
        returns = tuple(ReturnedGrant(*each[:2]) for each in portion.ended if each.ended is None)
        wishes = tuple(DelayWish(key, whole_millis(until - now)) for key, until in portion.wishes)
        lines = tuple(map(self._lines, asks))
        delays = [line.delay for each in lines for line in each] + [end.delay for end in ends]
        self._longest = max(self._longest, *delays, 0)
        return LedgerBatch(
            self._process, self._era, self._longest, whole_millis(self._window),
            whole_millis(self._hold), whole_millis(self._ahead), ends, returns, wishes, lines,
        )  # fmt: skip

    def _lines(self, keys: tuple[str, ...]) -> tuple[LedgerLine, ...]:
        request = self._requests[keys]
        self.counters.asked += len(keys)
        return tuple(
            LedgerLine(key, self._grants.get(key, request).serial, whole_millis(delay))
            for key, delay in request.needs
        )

    def _granted(
        self, keys: tuple[str, ...], lines: Iterable[LedgerLine], opens: float, closes: float
    ) -> None:
        request = self._requests.pop(keys, None)
        self.counters.granted += len(keys)
        for line in lines:
            grant = self._grants.get(line.key)
            if grant is not None and grant.serial == line.serial:
                grant.closes = max(grant.closes, closes)
            elif grant is None and request is not None and request.serial == line.serial:
                self._grants[line.key] = Grant(line.serial, opens, closes, line.delay / 1000)
            else:  # nobody wants it any more, or its fetch has ended
                self.outbox.add(EndedGrant(line.key, line.serial))

    def _give_back(self, key: str, grant: Grant) -> None:
        del self._grants[key]
        self.counters.returned += 1
        self.outbox.add(EndedGrant(key, grant.serial))

    def _forget(self, keys: tuple[str, ...]) -> None:
        request = self._requests.pop(keys, None)
        if request is not None and (request.maybe or request.in_flight):
            for key in keys:
                if key not in self._grants:
                    self.outbox.add(EndedGrant(key, request.serial))

    def _tidy(self, now: float) -> None:
        if now < self._tidy_at:
            return
        self._tidy_at = now + _TIDY
        for key, grant in list(self._grants.items()):
            if not grant.in_use and grant.closes <= now:
                self._give_back(key, grant)
        for keys, request in list(self._requests.items()):
            idle = max(request.wanted, request.again) + self._window
            if idle <= now and not request.in_flight:
                self._forget(keys)
