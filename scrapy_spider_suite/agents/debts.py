"""What a process owes the ledger: ends of fetches, grants it returns, and wishes that it heard.

They are kept until the ledger has them, within bounds. Times are seconds of `grants`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from scrapy_spider_suite.agents.ledger import WISH_MAX, End, Return, Wish

DEBTS_MAX: Final = 100_000
"""Of each kind, for a ledger that is away. An end that is dropped makes others wait until its grant
runs out; of a wish they do not hear."""


class Debt(NamedTuple):
    """A grant is over: its fetch ended at *ended*, or it was not used (below 0)."""

    key: str
    serial: int
    ended: float
    delay: float


class Debts:
    """The oldest are paid first.

    Attributes:
        dropped: those that were too many.
    """

    def __init__(self) -> None:
        self._debts: deque[Debt] = deque()
        self._wishes: dict[str, float] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._debts) + len(self._wishes)

    def end(self, key: str, serial: int, ended: float, delay: float) -> None:
        """A fetch ended, and *delay* seconds run from there."""
        self._debts.append(Debt(key, serial, ended, delay))
        self._bound()

    def give_back(self, key: str, serial: int) -> None:
        """A grant that was not used, or may have been given."""
        self._debts.append(Debt(key, serial, -1.0, 0.0))
        self._bound()

    def wish(self, key: str, until: float) -> None:
        """Nobody is to fetch there before *until*."""
        self._wishes[key] = max(until, self._wishes.get(key, until))
        self._bound()

    def take(self, room: int) -> Paid:
        """Up to *room* of them, to be sent."""
        debts = tuple(self._debts.popleft() for _ in range(min(room, len(self._debts))))
        keys = list(self._wishes)[: room - len(debts)]
        return Paid(debts, tuple((key, self._wishes.pop(key)) for key in keys))

    def put_back(self, paid: Paid) -> None:
        """They may not have been heard."""
        self._debts.extendleft(reversed(paid.debts))
        for key, until in paid.wishes:
            self.wish(key, until)
        self._bound()

    def _bound(self) -> None:
        while len(self._debts) > DEBTS_MAX:
            self._debts.popleft()
            self.dropped += 1
        while len(self._wishes) > DEBTS_MAX:
            del self._wishes[next(iter(self._wishes))]
            self.dropped += 1


@dataclass(frozen=True, slots=True)
class Paid:
    """What `Debts.take` gave."""

    debts: tuple[Debt, ...] = ()
    wishes: tuple[tuple[str, float], ...] = ()

    def __len__(self) -> int:
        return len(self.debts) + len(self.wishes)

    def lines(self, now: float) -> tuple[tuple[End, ...], tuple[Return, ...], tuple[Wish, ...]]:
        """As they are written into a batch that is sent *now*."""
        ends = tuple(
            End(key, serial, min(int((now - ended) * 1000), WISH_MAX), span(delay))
            for key, serial, ended, delay in self.debts if ended >= 0
        )  # fmt: skip
        returns = tuple(Return(debt.key, debt.serial) for debt in self.debts if debt.ended < 0)
        wishes = tuple(Wish(key, span(until - now)) for key, until in self.wishes)
        return ends, returns, wishes


def span(seconds: float) -> int:
    """Whole milliseconds, not less than *seconds*, within what a ledger takes."""
    whole = int(seconds * 1000)
    return min(max(0, whole + (whole < seconds * 1000)), WISH_MAX)
