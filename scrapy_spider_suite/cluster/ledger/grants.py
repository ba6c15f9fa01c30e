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
    flying: bool = False
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
    """The oldest are paid first.

    Attributes:
        dropped: those that were too many.
    """

    def __init__(self) -> None:
        self._debts: deque[EndedGrant] = deque()
        self._wishes: dict[str, float] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._debts) + len(self._wishes)

    def end(self, key: str, serial: int, ended: float, delay: float) -> None:
        """A fetch ended, and *delay* seconds run from there."""
        self._debts.append(EndedGrant(key, serial, ended, delay))
        self._bound()

    def give_back(self, key: str, serial: int) -> None:
        """A grant that was not used, or may have been given."""
        self._debts.append(EndedGrant(key, serial, -1.0, 0.0))
        self._bound()

    def wish(self, key: str, until: float) -> None:
        """Nobody is to fetch there before *until*."""
        self._wishes[key] = max(until, self._wishes.get(key, until))
        self._bound()

    def take(self, room: int) -> OutboxPortion:
        """Up to *room* of them, to be sent."""
        debts = tuple(self._debts.popleft() for _ in range(min(room, len(self._debts))))
        keys = list(self._wishes)[: room - len(debts)]
        return OutboxPortion(debts, tuple((key, self._wishes.pop(key)) for key in keys))

    def put_back(self, paid: OutboxPortion) -> None:
        """They may not have been heard."""
        self._debts.extendleft(reversed(paid.debts))
        for key, until in paid.wishes:
            self.wish(key, until)
        self._bound()

    def _bound(self) -> None:
        while len(self._debts) > OUTBOX_MAX:
            self._debts.popleft()
            self.dropped += 1
        while len(self._wishes) > OUTBOX_MAX:
            del self._wishes[next(iter(self._wishes))]
            self.dropped += 1


@dataclass(frozen=True, slots=True)
class OutboxPortion:
    """What `Debts.take` gave."""

    debts: tuple[EndedGrant, ...] = ()
    wishes: tuple[tuple[str, float], ...] = ()

    def __len__(self) -> int:
        return len(self.debts) + len(self.wishes)

    def lines(
        self, now: float
    ) -> tuple[tuple[FetchEnd, ...], tuple[ReturnedGrant, ...], tuple[DelayWish, ...]]:
        """As they are written into a batch that is sent *now*."""
        ends = tuple(
            FetchEnd(key, serial, min(int((now - ended) * 1000), WISH_MAX), whole_millis(delay))
            for key, serial, ended, delay in self.debts if ended >= 0
        )  # fmt: skip
        returns = tuple(
            ReturnedGrant(debt.key, debt.serial) for debt in self.debts if debt.ended < 0
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
"""Seconds between `start` and the first byte on the wire, as in `lease`."""


class SentBatch(NamedTuple):
    """What `outgoing` gave, for `answered` or `failed`."""

    batch: LedgerBatch
    asks: tuple[tuple[str, ...], ...]
    paid: OutboxPortion


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
        self._leases: dict[str, Grant] = {}
        self._asks: dict[tuple[str, ...], GrantRequest] = {}
        self._queue: deque[tuple[str, ...]] = deque()
        self._agenda: list[tuple[float, int, tuple[str, ...]]] = []
        self._serial = 0
        self._era = 0
        self._longest = 0
        self.debts = LedgerOutbox()
        self.figures = GrantCounters()

    # Fetches

    def ready(self, needs: Iterable[Need], now: float, within: Collection[Need] = ()) -> float:
        """When a fetch with *needs* may start: at once if that is not after *now*; otherwise ask
        again then, and not before unless `answered` has news, or a fetch here ended.

        What is missing is asked for: who asks as a fetch ends has the next grant in time. A fetch
        *within* another, for which that waits, shares the keys that were taken for it.
        """
        missing, at = [], now
        for need in needs:
            lease = self._leases.get(need.key)
            if lease is not None and lease.out and need not in within:
                return now + PATIENCE
            if lease is not None and not lease.out and lease.asked < need.delay:
                self._give_back(need.key, lease)  # it was for another host of the address
                lease = None
            if lease is None or lease.closes <= now:
                missing.append(need)
            else:
                at = max(at, lease.opens)
        return max(at, self._ask(tuple(missing), now)) if missing else at

    def awaits(self, needs: Iterable[Need], now: float) -> bool:
        """Whether the ledger was asked for what a fetch with *needs* lacks, and has yet to answer.
        """
        keys = tuple(need.key for need in needs)
        leases = ((key, self._leases.get(key)) for key in keys)
        missing = tuple(key for key, lease in leases if lease is None or lease.closes <= now)
        asking = self._asks.get(missing)
        return asking is not None and (asking.queued or asking.flying)

    def start(
        self, needs: Iterable[Need], now: float, within: Collection[Need] = ()
    ) -> tuple[Need, ...]:
        """A fetch is started: what has to be ended or cancelled later, empty if nothing is shared.

        Raises `ValueError` if it is not `ready`.
        """
        taken = tuple(needs)
        for need in taken:
            lease = self._leases.get(need.key)
            if lease is None or not lease.opens <= now < lease.closes:
                raise ValueError(f"no grant for {need.key}")
            if lease.out and need not in within:
                raise ValueError(f"a fetch is out for {need.key}")
        for need in taken:
            self._leases[need.key].out += 1
        return taken

    def end(self, taken: Iterable[Need], now: float) -> None:
        """The fetch ended *now*."""
        for need in taken:
            lease = self._leases[need.key]
            lease.ended, lease.delay = now, max(lease.delay, need.delay)
            self._over(need.key, lease)

    def cancel(self, taken: Iterable[Need]) -> None:
        """The fetch touched no wire."""
        for need in taken:
            self._over(need.key, self._leases[need.key])

    def drop(self, needs: Iterable[Need]) -> None:
        """Nobody here wants to fetch there now: return what is here, and do not ask any more."""
        keys = tuple(need.key for need in needs)
        self._forget(keys)
        for key in keys:
            lease = self._leases.get(key)
            if lease is not None and not lease.out:
                self._give_back(key, lease)

    def close(self) -> None:
        """Return all that no fetch is out for."""
        for keys in list(self._asks):
            self._forget(keys)
        for key, lease in list(self._leases.items()):
            if not lease.out:
                self._give_back(key, lease)

    def postpone(self, key: str, until: float) -> None:
        """Nobody, here or elsewhere, is to fetch there before *until*."""
        self.debts.wish(key, until)

    # The ledger

    def due(self, now: float) -> float | None:
        """Seconds until `outgoing` has something, 0.0 for at once, None if nothing is known of."""
        if self._queue or self.debts:
            return 0.0
        return max(0.0, self._agenda[0][0] - now) if self._agenda else None

    def outgoing(self, now: float) -> SentBatch | None:
        """What is to be sent now, if there is anything; one at a time."""
        self._tidy(now)
        paid = self.debts.take(BATCH)
        room, asks = BATCH - len(paid), []
        while self._queue and room > 0:
            keys = self._queue.popleft()
            if (asking := self._asks.get(keys)) is not None and asking.queued:
                asks.append(keys)
                asking.queued, asking.flying = False, True
                room -= len(keys)
        if not (paid or asks):
            return None
        self.figures.calls += 1
        return SentBatch(self._batch(paid, asks, now), tuple(asks), paid)

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
        self.figures.failures += 1
        self.debts.put_back(sent.paid)
        for keys in sent.asks:
            if (asking := self._asks.get(keys)) is not None:
                asking.flying, asking.maybe, asking.queued = False, True, True
                self._queue.append(keys)

    # Within

    def _ask(self, needs: tuple[Need, ...], now: float) -> float:
        keys = tuple(need.key for need in needs)
        asking = self._asks.get(keys)
        if asking is None:
            self._serial += 1
            asking = self._asks[keys] = GrantRequest(self._serial, needs, now, now)
            heappush(self._agenda, (now + self._window, self._serial, keys))
        asking.needs, asking.wanted = needs, now
        if asking.again > now:
            return asking.again
        if not asking.queued and not asking.flying:
            asking.queued = True
            self._queue.append(keys)
        return now + PATIENCE

    def _batch(
        self, paid: OutboxPortion, asks: Iterable[tuple[str, ...]], now: float
    ) -> LedgerBatch:
        ends, returns, wishes = paid.lines(now)
        lines = tuple(self._lines(self._asks[keys]) for keys in asks)
        delays = [line.delay for each in lines for line in each] + [end.delay for end in ends]
        self._longest = max(self._longest, *delays, 0)
        return LedgerBatch(
            self._process, self._era, self._longest, whole_millis(self._window),
            whole_millis(self._hold),
            whole_millis(self._ahead), ends, returns, wishes, lines,
        )  # fmt: skip

    def _lines(self, asking: GrantRequest) -> tuple[LedgerLine, ...]:
        lines = []
        for need in asking.needs:
            lease = self._leases.get(need.key)
            serial = asking.serial if lease is None else lease.serial
            lines.append(LedgerLine(need.key, serial, whole_millis(need.delay)))
        self.figures.asked += len(lines)
        return tuple(lines)

    def _refused(self, keys: tuple[str, ...], answer: LedgerAnswer, now: float) -> None:
        self.figures.refused += len(keys)
        if (asking := self._asks.get(keys)) is not None:
            asking.flying = asking.maybe = False
            asking.again = now + answer.wait / 1000

    def _granted(
        self,
        keys: tuple[str, ...],
        lines: Sequence[LedgerLine],
        answer: LedgerAnswer,
        asked: float,
        now: float,
    ) -> None:
        asking = self._asks.pop(keys, None)
        self.figures.granted += len(lines)
        # The ledger's now lies between *asked* and *now*: each end of the window by the later, or
        # the earlier, of the two.
        opens, closes = now + answer.opens / 1000, asked + answer.closes / 1000
        for line in lines:
            lease = self._leases.get(line.key)
            if lease is not None and lease.serial == line.serial:
                lease.closes = max(lease.closes, closes)
            elif lease is None and asking is not None and asking.serial == line.serial:
                lease = Grant(line.serial, opens, closes, line.delay / 1000)
                self._leases[line.key] = lease
            else:  # nobody wants it any more, or its fetch has ended
                self.debts.give_back(line.key, line.serial)
                continue
            heappush(self._agenda, (lease.closes, line.serial, (line.key,)))

    def _over(self, key: str, lease: Grant) -> None:
        lease.out -= 1
        if not lease.out and lease.ended >= 0:
            del self._leases[key]
            self.figures.ended += 1
            self.debts.end(key, lease.serial, lease.ended, lease.delay)
        elif not lease.out:
            heappush(self._agenda, (lease.closes, lease.serial, (key,)))

    def _give_back(self, key: str, lease: Grant) -> None:
        del self._leases[key]
        self.figures.returned += 1
        self.debts.give_back(key, lease.serial)

    def _forget(self, keys: tuple[str, ...]) -> None:
        asking = self._asks.pop(keys, None)
        if asking is not None and (asking.maybe or asking.flying):
            for key in keys:
                if key not in self._leases:
                    self.debts.give_back(key, asking.serial)

    def _tidy(self, now: float) -> None:
        """Return grants whose windows have closed, and forget what nobody asks for any more."""
        while self._agenda and self._agenda[0][0] <= now:
            _, serial, keys = heappop(self._agenda)
            lease = self._leases.get(keys[0])
            if len(keys) == 1 and lease is not None and lease.serial == serial:
                if not lease.out and lease.closes <= now:
                    self._give_back(keys[0], lease)
                continue
            asking = self._asks.get(keys)
            if asking is None or asking.serial != serial:
                continue
            idle = max(asking.wanted, asking.again) + self._window
            if idle <= now and not asking.flying:
                self._forget(keys)
            else:
                heappush(self._agenda, (max(idle, now + self._window), serial, keys))

    def _lost(self, now: float) -> None:
        """The ledger does not know any more what is out: nobody is to fetch there meanwhile."""
        self.figures.losses += 1
        for key, lease in self._leases.items():
            if lease.out:
                self.postpone(key, now + self._hold)
