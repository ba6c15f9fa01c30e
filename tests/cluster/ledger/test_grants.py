"""The grants of some processes in virtual time, with answers that are late or lost."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import pairwise
from random import Random

import pytest
from support.ledgers import Memory

from scrapy_spider_suite.cluster.ledger.grants import Grants, Need, SentBatch
from scrapy_spider_suite.cluster.ledger.rate_ledger import LedgerReply

TIMEOUT, WINDOW = 20.0, 5.0


class Process:
    """One that visits its hosts at their addresses, one visit at a time for each."""

    def __init__(self, town: Town, number: int) -> None:
        self.town, self.random = town, Random(f"{town.seed} {number}")
        self.name, self.offset = f"{number + 1:016x}", 1_000.0 * number
        self.grants = Grants(self.name, timeout=TIMEOUT, window=WINDOW)
        self.under_way = False
        for host in range(4):
            delay = self.random.choice([0.5, 1.0, 4.0])
            needs = [Need(f"host {host}", delay), Need(f"address {host % 2}", delay / 2)]
            town.at(self.random.random(), lambda needs=needs: self.visit(needs))

    def visit(self, needs: list[Need]) -> None:
        """Start one, or try again when the grants say so."""
        now = self.town.now + self.offset
        at = self.grants.ready(needs, now)
        if at > now:
            self.send()
            self.town.at(self.town.now + min(at - now, 0.3), lambda: self.visit(needs))
            return
        taken = self.grants.start(needs, now)
        took = self.random.choice([0.05, 0.3, 3.0, TIMEOUT])
        self.town.begin(self, needs, took)
        self.town.at(self.town.now + took, lambda: self.ended(needs, taken))

    def ended(self, needs: list[Need], taken: tuple[Need, ...]) -> None:
        """And visit again."""
        now = self.town.now + self.offset
        self.grants.end(taken, now)
        self.grants.ready(needs, now)
        self.send()
        self.town.at(self.town.now, lambda: self.visit(needs))

    def send(self) -> None:
        """One call at a time: it takes a while there and back, and may be lost on either way."""
        asked = self.town.now + self.offset
        if self.under_way or (sent := self.grants.outgoing(asked)) is None:
            return
        self.under_way = True
        there, back = (self.random.choice([0.001, 0.02, 0.3]) for _ in range(2))
        lost = self.random.random()

        def arrive() -> None:
            reply = self.town.ledger.settle(sent.batch, self.town.now)
            failed = None if lost < 0.1 else reply
            self.town.at(self.town.now + back, lambda: self.answered(sent, failed, asked))

        def fail() -> None:
            self.answered(sent, None, asked)

        self.town.at(self.town.now + there, fail if lost < 0.05 else arrive)

    def answered(self, sent: SentBatch, reply: LedgerReply | None, asked: float) -> None:
        """It came to an end."""
        self.under_way = False
        if reply is None:
            self.grants.failed(sent)
        else:
            self.grants.answered(sent, reply, asked, self.town.now + self.offset)
        self.send()


class Town:
    """Some processes and a ledger, and what they fetched: (start, end, delay, process)."""

    def __init__(self, seed: int, processes: int) -> None:
        self.seed, self.now = seed, 0.0
        self.ledger = Memory()
        self.fetched: dict[str, list[tuple[float, float, float, Process]]] = {}
        self._todo: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.processes = [Process(self, number) for number in range(processes)]

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Do *what* then."""
        self._count += 1
        heappush(self._todo, (time, self._count, what))

    def begin(self, process: Process, needs: list[Need], took: float) -> None:
        """A fetch begins, and will take so long."""
        for key, delay in needs:
            fetch = (self.now, self.now + took, delay, process)
            self.fetched.setdefault(key, []).append(fetch)

    def run(self, until: float) -> None:
        """Go on until then."""
        while self._todo[0][0] <= until:
            self.now, _, what = heappop(self._todo)
            what()


@pytest.mark.parametrize("seed", range(4))
def test_processes_are_polite_together_whatever_is_lost(seed: int) -> None:
    """No two fetches of a key overlap, each waits for its delay and for that of the one before,
    and all of them have their turns.
    """
    town = Town(seed, 3)
    town.run(400.0)
    for fetches in town.fetched.values():
        for one, two in pairwise(fetches):
            assert two[0] >= one[1] + max(one[2], two[2]) - 1e-9
        assert len({fetch[3].name for fetch in fetches}) == 3
    assert all(process.grants.counters.failures for process in town.processes)
    assert sum(map(len, town.fetched.values())) > 60


def answer(grants: Grants, ledger: Memory, now: float) -> set[str]:
    """Have what is outgoing answered at once."""
    sent = grants.outgoing(now)
    assert sent is not None
    return grants.answered(sent, ledger.settle(sent.batch, now), now, now)


NEEDS = [Need("host a", 1.0), Need("address b", 1.0)]


def test_what_is_not_ready_cannot_be_started() -> None:
    """Neither before a grant, nor after its window."""
    grants, ledger = Grants("a" * 16, timeout=TIMEOUT), Memory()
    with pytest.raises(ValueError, match="no grant for host a"):
        grants.start(NEEDS, 0.0)
    grants.ready(NEEDS, 0.0)
    answer(grants, ledger, 0.0)
    with pytest.raises(ValueError, match="no grant for host a"):
        grants.start(NEEDS, WINDOW)


@pytest.mark.parametrize("how", ["window", "drop", "close"])
def test_a_grant_that_is_not_used_is_returned(how: str) -> None:
    """So that others have it before it runs out."""
    grants, ledger = Grants("a" * 16, timeout=TIMEOUT), Memory()
    grants.ready(NEEDS, 0.0)
    answer(grants, ledger, 0.0)
    if how == "drop":
        grants.drop(NEEDS)
    elif how == "close":
        grants.close()
    due = grants.due(0.0)
    assert due is not None
    assert due <= WINDOW
    due = WINDOW if how == "window" else due
    answer(grants, ledger, due)
    assert grants.counters.returned == 2
    other = Grants("b" * 16, timeout=TIMEOUT)
    other.ready(NEEDS, due)
    answer(other, ledger, due)
    assert other.ready(NEEDS, due) == due


def test_a_grant_is_for_one_fetch_which_may_outlast_its_window() -> None:
    """The delay runs from its end."""
    grants, ledger = Grants("a" * 16, timeout=TIMEOUT), Memory()
    grants.ready(NEEDS, 0.0)
    answer(grants, ledger, 0.0)
    visit = grants.start(NEEDS, 0.0)
    assert grants.ready(NEEDS, 1.0) > 1.0
    with pytest.raises(ValueError, match="a fetch is out for host a"):
        grants.start(NEEDS, 1.0)
    assert grants.outgoing(WINDOW + 1) is None
    grants.end(visit, WINDOW + 3)
    assert grants.counters.ended == 2
    answer(grants, ledger, WINDOW + 3)
    assert ledger.accounts["host a"].ended == (WINDOW + 3) * 1000 + 10**9 + 1


def test_what_nobody_asks_for_any_more_is_forgotten() -> None:
    """Also while the ledger is away; what it may have granted is returned to it."""
    grants, ledger = Grants("a" * 16, timeout=TIMEOUT), Memory()
    grants.ready(NEEDS, 0.0)
    sent = grants.outgoing(0.0)
    assert sent is not None
    ledger.settle(sent.batch, 0.0)
    grants.failed(sent)
    again = grants.outgoing(2 * WINDOW)
    assert again is not None
    assert (len(again.batch.asks), len(again.batch.returns)) == (0, 2)
    assert grants.outgoing(3 * WINDOW) is None


def test_what_a_ledger_has_lost_is_said_again() -> None:
    """Nobody is to fetch where a fetch is out."""
    grants = Grants("a" * 16, timeout=TIMEOUT)
    grants.ready(NEEDS, 0.0)
    answer(grants, Memory(), 0.0)
    grants.start(NEEDS, 0.0)
    fresh = Memory()
    grants.postpone("host c", 50.0)
    answer(grants, fresh, 1.0)
    assert grants.counters.losses == 1
    answer(grants, fresh, 1.0)
    assert fresh.accounts["host a"].due >= (1 + TIMEOUT) * 1000 + 10**9
