"""What `grants` keeps of each grant, here or asked for. Times are seconds of its clock.

What a process owes the ledger: ends of fetches, grants it returns, and wishes that it heard.

They are kept until the ledger has them, within bounds. Times are seconds of `grants`.

What one process knows of its grants: which keys need one, what to ask for, and what to return.

Pure: ``now`` is an argument, seconds of a clock that nobody sets and that goes on in sleep. Who
decides what is fetched next asks `ready` and calls `start`, both at once and without waiting;
`outgoing` gives what is to be sent to the ledger, and `answered` or `failed` takes what came of it.

Invariant: between `start` and `end` this process holds a grant for each key of the fetch,
which was in its window as the fetch was started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple

from scrapy_spider_suite.cluster.ledger.rate_ledger import (
    BATCH,
    HOLD_MAX,
    WISH_MAX,
    DelayWish,
    FetchEnd,
    LedgerAnswer,
    LedgerBatch,
    LedgerLine,
    LedgerReply,
    ReturnedGrant,
)


class Need(NamedTuple):
    """A fetch has to do with this key, and *delay* seconds have to pass there before and after."""

    key: str
    delay: float


@dataclass(slots=True)
class GrantCounters:
    """What was done so far, in numbers of keys."""

    asked: int = 0
    granted: int = 0
    refused: int = 0
    ended: int = 0
    returned: int = 0
    calls: int = 0
    failures: int = 0
    losses: int = 0
    """Times that the ledger had lost what it knew."""


@dataclass(slots=True)
class Grant:
    """A grant: fetches may start from *opens* to *closes*; *out* are those that were."""

    serial: int
    opens: float
    closes: float
    asked: float
    """The delay that it was granted for."""
    out: int = 0
    ended: float = -1.0
    delay: float = 0.0


@dataclass(slots=True)
class GrantRequest:
    """Grants that are wanted, all or none."""

    serial: int
    needs: tuple[Need, ...]
    again: float
    """When to ask."""
    wanted: float
    """When somebody last asked for them here."""
    queued: bool = False
    in_flight: bool = False
    maybe: bool = False
    """They may have been granted without our knowledge."""


OUTBOX_MAX: Final = 100_000
"""Of each kind, for a ledger that is away. An end that is dropped makes others wait until its grant
runs out; of a wish they do not hear."""


class EndedGrant(NamedTuple):
    """A grant is over: its fetch ended at *ended*, or it was not used (below 0)."""

    key: str
    serial: int
    ended: float
    delay: float


class LedgerOutbox:
    """The oldest are portion first.

    Attributes:
        dropped: those that were too many.
    """

    def __init__(self) -> None:
        self._ended: deque[EndedGrant] = deque()
        self._wishes: dict[str, float] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._ended) + len(self._wishes)

    def end(self, key: str, serial: int, ended: float, delay: float) -> None:
        """A fetch ended, and *delay* seconds run from there."""
        self._ended.append(EndedGrant(key, serial, ended, delay))
        self._bound()

    def give_back(self, key: str, serial: int) -> None:
        """A grant that was not used, or may have been given."""
        self._ended.append(EndedGrant(key, serial, -1.0, 0.0))
        self._bound()

    def wish(self, key: str, until: float) -> None:
        """Nobody is to fetch there before *until*."""
        self._wishes[key] = max(until, self._wishes.get(key, until))
        self._bound()

    def take(self, room: int) -> OutboxPortion:
        """Up to *room* of them, to be sent."""
        ended = tuple(self._ended.popleft() for _ in range(min(room, len(self._ended))))
        keys = list(self._wishes)[: room - len(ended)]
        return OutboxPortion(ended, tuple((key, self._wishes.pop(key)) for key in keys))

    def put_back(self, portion: OutboxPortion) -> None:
        """They may not have been heard."""
        self._ended.extendleft(reversed(portion.ended))
        for key, until in portion.wishes:
            self.wish(key, until)
        self._bound()

    def _bound(self) -> None:
        while len(self._ended) > OUTBOX_MAX:
            self._ended.popleft()
            self.dropped += 1
        while len(self._wishes) > OUTBOX_MAX:
            del self._wishes[next(iter(self._wishes))]
            self.dropped += 1


@dataclass(frozen=True, slots=True)
class OutboxPortion:
    """What `Debts.take` gave."""

    ended: tuple[EndedGrant, ...] = ()
    wishes: tuple[tuple[str, float], ...] = ()

    def __len__(self) -> int:
        return len(self.ended) + len(self.wishes)

    def lines(
        self, now: float
    ) -> tuple[tuple[FetchEnd, ...], tuple[ReturnedGrant, ...], tuple[DelayWish, ...]]:
        """As they are written into a batch that is sent *now*."""
        ends = tuple(
            FetchEnd(key, serial, min(int((now - ended) * 1000), WISH_MAX), whole_millis(delay))
            for key, serial, ended, delay in self.ended if ended >= 0
        )  # fmt: skip
        returns = tuple(
            ReturnedGrant(each.key, each.serial) for each in self.ended if each.ended < 0
        )
        wishes = tuple(DelayWish(key, whole_millis(until - now)) for key, until in self.wishes)
        return ends, returns, wishes


def whole_millis(seconds: float) -> int:
    """Whole milliseconds, not less than *seconds*, within what a ledger takes."""
    whole = int(seconds * 1000)
    return min(max(0, whole + (whole < seconds * 1000)), WISH_MAX)


PATIENCE: Final = 1.0
"""Seconds after which to ask again for what the ledger was asked, if no news came."""

SLACK: Final = 1.0
"""Seconds between `start` and the first byte on the wire, as in `cluster.membership`."""


class SentBatch(NamedTuple):
    """What `outgoing` gave, for `answered` or `failed`."""

    batch: LedgerBatch
    asks: tuple[tuple[str, ...], ...]
    portion: OutboxPortion


class Grants:
    """The grants of one process. All times and spans are seconds.

    Args:
        process: 16 hexadecimal digits, drawn at random for each process.
        timeout: how long a fetch may last.
        window: how long a grant may lie here before its fetch starts.
        ahead: how long before its time a grant is given.
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
        self._agenda: list[tuple[float, int, tuple[str, ...]]] = []
        self._serial = 0
        self._era = 0
        self._longest = 0
        self.outbox = LedgerOutbox()
        self.counters = GrantCounters()

    # Fetches

    def ready(self, needs: Iterable[Need], now: float, within: Collection[Need] = ()) -> float:
        """When a fetch with *needs* may start: at once if that is not after *now*; otherwise ask
        again then, and not before unless `answered` has news, or a fetch here ended.

        What is missing is asked for: who asks as a fetch ends has the next grant in time. A fetch
        *within* another, for which that waits, shares the keys that were taken for it.
        """
        missing, at = [], now
        for need in needs:
            grant = self._grants.get(need.key)
            if grant is not None and grant.out and need not in within:
                return now + PATIENCE
            if grant is not None and not grant.out and grant.asked < need.delay:
                self._give_back(need.key, grant)  # it was for another host of the address
                grant = None
            if grant is None or grant.closes <= now:
                missing.append(need)
            else:
                at = max(at, grant.opens)
        return max(at, self._ask(tuple(missing), now)) if missing else at

    def awaits(self, needs: Iterable[Need], now: float) -> bool:
        """Whether the ledger was asked for what a fetch with *needs* lacks, and has yet to answer.
        """
        keys = tuple(need.key for need in needs)
        grants = ((key, self._grants.get(key)) for key in keys)
        missing = tuple(key for key, grant in grants if grant is None or grant.closes <= now)
        request = self._requests.get(missing)
        return request is not None and (request.queued or request.in_flight)

    def start(
        self, needs: Iterable[Need], now: float, within: Collection[Need] = ()
    ) -> tuple[Need, ...]:
        """A fetch is started: what has to be ended or cancelled later, empty if nothing is shared.

        Raises `ValueError` if it is not `ready`.
        """
        taken = tuple(needs)
        for need in taken:
            grant = self._grants.get(need.key)
            if grant is None or not grant.opens <= now < grant.closes:
                raise ValueError(f"no grant for {need.key}")
            if grant.out and need not in within:
                raise ValueError(f"a fetch is out for {need.key}")
        for need in taken:
            self._grants[need.key].out += 1
        return taken

    def end(self, taken: Iterable[Need], now: float) -> None:
        """The fetch ended *now*."""
        for need in taken:
            grant = self._grants[need.key]
            grant.ended, grant.delay = now, max(grant.delay, need.delay)
            self._over(need.key, grant)

    def cancel(self, taken: Iterable[Need]) -> None:
        """The fetch touched no wire."""
        for need in taken:
            self._over(need.key, self._grants[need.key])

    def drop(self, needs: Iterable[Need]) -> None:
        """Nobody here wants to fetch there now: return what is here, and do not ask any more."""
        keys = tuple(need.key for need in needs)
        self._forget(keys)
        for key in keys:
            grant = self._grants.get(key)
            if grant is not None and not grant.out:
                self._give_back(key, grant)

    def close(self) -> None:
        """Return all that no fetch is out for."""
        for keys in list(self._requests):
            self._forget(keys)
        for key, grant in list(self._grants.items()):
            if not grant.out:
                self._give_back(key, grant)

    def postpone(self, key: str, until: float) -> None:
        """Nobody, here or elsewhere, is to fetch there before *until*."""
        self.outbox.wish(key, until)

    # The ledger

    def due(self, now: float) -> float | None:
        """Seconds until `outgoing` has something, 0.0 for at once, None if nothing is known of."""
        if self._queue or self.outbox:
            return 0.0
        return max(0.0, self._agenda[0][0] - now) if self._agenda else None

    def outgoing(self, now: float) -> SentBatch | None:
        """What is to be sent now, if there is anything; one at a time."""
        self._tidy(now)
        portion = self.outbox.take(BATCH)
        room, asks = BATCH - len(portion), []
        while self._queue and room > 0:
            keys = self._queue.popleft()
            if (request := self._requests.get(keys)) is not None and request.queued:
                asks.append(keys)
                request.queued, request.in_flight = False, True
                room -= len(keys)
        if not (portion or asks):
            return None
        self.counters.calls += 1
        return SentBatch(self._batch(portion, asks, now), tuple(asks), portion)

    def answered(self, sent: SentBatch, reply: LedgerReply, asked: float, now: float) -> set[str]:
        """The ledger was *asked* at a time, and its *reply* is here *now*.

        Returns the keys for which `ready` may say something else than before.
        """
        if self._era and reply.era != self._era:
            self._lost(now)
        self._era, self._longest = reply.era, max(self._longest, reply.longest)
        for keys, lines, answer in zip(sent.asks, sent.batch.asks, reply.answers, strict=True):
            if answer.closes:
                self._granted(keys, lines, answer, asked, now)
            else:
                self._refused(keys, answer, now)
        return {key for keys in sent.asks for key in keys}

    def failed(self, sent: SentBatch) -> None:
        """No answer came: all of it is to be sent again. What was granted here holds."""
        self.counters.failures += 1
        self.outbox.put_back(sent.portion)
        for keys in sent.asks:
            if (request := self._requests.get(keys)) is not None:
                request.in_flight, request.maybe, request.queued = False, True, True
                self._queue.append(keys)

    # Within

    def _ask(self, needs: tuple[Need, ...], now: float) -> float:
        keys = tuple(need.key for need in needs)
        request = self._requests.get(keys)
        if request is None:
            self._serial += 1
            request = self._requests[keys] = GrantRequest(self._serial, needs, now, now)
            heappush(self._agenda, (now + self._window, self._serial, keys))
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
        ends, returns, wishes = portion.lines(now)
        lines = tuple(self._lines(self._requests[keys]) for keys in asks)
        delays = [line.delay for each in lines for line in each] + [end.delay for end in ends]
        self._longest = max(self._longest, *delays, 0)
        return LedgerBatch(
            self._process, self._era, self._longest, whole_millis(self._window),
            whole_millis(self._hold),
            whole_millis(self._ahead), ends, returns, wishes, lines,
        )  # fmt: skip

    def _lines(self, request: GrantRequest) -> tuple[LedgerLine, ...]:
        lines = []
        for need in request.needs:
            grant = self._grants.get(need.key)
            serial = request.serial if grant is None else grant.serial
            lines.append(LedgerLine(need.key, serial, whole_millis(need.delay)))
        self.counters.asked += len(lines)
        return tuple(lines)

    def _refused(self, keys: tuple[str, ...], answer: LedgerAnswer, now: float) -> None:
        self.counters.refused += len(keys)
        if (request := self._requests.get(keys)) is not None:
            request.in_flight = request.maybe = False
            request.again = now + answer.wait / 1000

    def _granted(
        self,
        keys: tuple[str, ...],
        lines: Sequence[LedgerLine],
        answer: LedgerAnswer,
        asked: float,
        now: float,
    ) -> None:
        request = self._requests.pop(keys, None)
        self.counters.granted += len(lines)
        # The ledger's now lies between *asked* and *now*: each end of the window by the later, or
        # the earlier, of the two.
        opens, closes = now + answer.opens / 1000, asked + answer.closes / 1000
        for line in lines:
            grant = self._grants.get(line.key)
            if grant is not None and grant.serial == line.serial:
                grant.closes = max(grant.closes, closes)
            elif grant is None and request is not None and request.serial == line.serial:
                grant = Grant(line.serial, opens, closes, line.delay / 1000)
                self._grants[line.key] = grant
            else:  # nobody wants it any more, or its fetch has ended
                self.outbox.give_back(line.key, line.serial)
                continue
            heappush(self._agenda, (grant.closes, line.serial, (line.key,)))

    def _over(self, key: str, grant: Grant) -> None:
        grant.out -= 1
        if not grant.out and grant.ended >= 0:
            del self._grants[key]
            self.counters.ended += 1
            self.outbox.end(key, grant.serial, grant.ended, grant.delay)
        elif not grant.out:
            heappush(self._agenda, (grant.closes, grant.serial, (key,)))

    def _give_back(self, key: str, grant: Grant) -> None:
        del self._grants[key]
        self.counters.returned += 1
        self.outbox.give_back(key, grant.serial)

    def _forget(self, keys: tuple[str, ...]) -> None:
        request = self._requests.pop(keys, None)
        if request is not None and (request.maybe or request.in_flight):
            for key in keys:
                if key not in self._grants:
                    self.outbox.give_back(key, request.serial)

    def _tidy(self, now: float) -> None:
        """Return grants whose windows have closed, and forget what nobody asks for any more."""
        while self._agenda and self._agenda[0][0] <= now:
            _, serial, keys = heappop(self._agenda)
            grant = self._grants.get(keys[0])
            if len(keys) == 1 and grant is not None and grant.serial == serial:
                if not grant.out and grant.closes <= now:
                    self._give_back(keys[0], grant)
                continue
            request = self._requests.get(keys)
            if request is None or request.serial != serial:
                continue
            idle = max(request.wanted, request.again) + self._window
            if idle <= now and not request.in_flight:
                self._forget(keys)
            else:
                heappush(self._agenda, (max(idle, now + self._window), serial, keys))

    def _lost(self, now: float) -> None:
        """The ledger does not know any more what is out: nobody is to fetch there meanwhile."""
        self.counters.losses += 1
        for key, grant in self._grants.items():
            if grant.out:
                self.postpone(key, now + self._hold)
