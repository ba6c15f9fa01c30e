"""Long work in portions, between which everything else in the loop has its turn.

The parts of a frontier that a hand-over works with.

The sieve in a hand-over: what waits for it comes to its end first, and it lies still while it is
read or changed.

All of it goes on in steps of a generator, which are done in the loop of a crawl; what takes longer
is done in a thread, for which the steps wait.

What giving and taking hosts have in common: the parts of this agent that both work on.

Of which units of others something lies in a store all the same: nobody else knows that.

Which of what waits is to be fetched whatever other agents know of its URL.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from itertools import islice
from threading import Event
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scrapy_spider_suite.cluster.assignment import Ring
from scrapy_spider_suite.cluster.handover.handover_file import UnitSet
from scrapy_spider_suite.cluster.ownership import Ownership
from scrapy_spider_suite.crawl.queue.frontier import Frontier, UrlEdits
from scrapy_spider_suite.errors import JobError, StoreWriteError
from scrapy_spider_suite.frontier.entries import UNITS, Entry, Flag
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, State
from scrapy_spider_suite.runtime.tasks import WarnOnce
from scrapy_spider_suite.seen.sieve import Flush
from scrapy_spider_suite.store.revisit_plans import RevisitPlans
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_index import SieveIndex
from scrapy_spider_suite.store.seen_transfer import SieveQueue, SieveRows, unpack

SLICE: Final = 0.005
"""Seconds that portions go on without a break, and the last of them a little longer."""

WAIT: Final = 0.05
"""Seconds until work that waits for something else is looked at again."""


class StepRunner:
    """Whose work it is, of all that there is: never of more than one at a time.

    It takes half of the time of a loop at most. *between* is called after each slice, and may raise
    anything.

    Attributes:
        portions: how many have been done, but for those that only waited.
    """

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        self._between = between
        self._one = asyncio.Lock()
        self.portions = 0

    async def run(
        self, steps: Iterator[bool], goes_on: Callable[[], bool] = lambda: True
    ) -> bool:
        """Do *steps*, which say whether they wait for something; whether all of them were done.

        It asks *goes_on* before each. Raises what *steps* raise.
        """
        while True:
            async with self._one:
                begin = time.perf_counter()
                waits = False
                while not waits and (used := time.perf_counter() - begin) < SLICE:
                    if not goes_on():
                        return False
                    if (found := next(steps, None)) is None:
                        return True
                    waits = found
                    self.portions += not waits
                self._between()
                if not waits:
                    await asyncio.sleep(used)
            if waits:
                await asyncio.sleep(WAIT)


Steps = Generator[bool, None, None]
"""Portions of work; True: it waits for something else."""
Clock = Callable[[], tuple[float, float]]
"""The time of the frontier, and wall time."""

_ROWS: Final = 10
"""Rows of links that are looked at in a step; of those that are new one is enough."""
_AT_ONCE: Final = 0.004
"""Seconds for which a step waits for a thread itself: most of what it does takes no longer."""


def drain_sieve(context: HandoverContext, slots: Container[int] | None = None) -> Steps:
    """Have all links that wait for the sieve by now known to it, and those that are new pending.

    With *slots* only if any of them leads to a host there. Others may work at the same, and do:
    a flush bears to be stepped by several. Raises `StoreWriteError`, and goes on if it is called
    again.
    """
    sifter = context.states.sieve_queue
    if sifter is None:
        return
    end = sifter.end
    if slots is not None and not (yield from _waits(context.store, sifter, slots)):
        return
    while sifter.first < end:
        context.flush()
        if sifter.begin() is None and not sifter.decided:
            yield True  # somebody holds it
        yield from finish_flush(context)


def finish_flush(context: HandoverContext) -> Steps:
    """Have no flush under way, until the next step of whoever asks for it: then, of what has no
    row, who is known to the sieve is done."""
    sifter = context.states.sieve_queue
    while sifter is not None and (flush := sifter.under_way) is not None:
        if flush.decided:
            next(context.sift(context.clock()[0]), None)
        else:
            # It may be that nobody is at it: it has failed, and waits for its time.
            context.flush()
            yield from run_in_thread(_run(context.store, flush))
        if sifter.under_way is flush:
            yield False


def _waits(
    store: RocksStore, sifter: SieveQueue, slots: Container[int]
) -> Generator[bool, None, bool]:
    """Whether a link that waits leads to a host in *slots*, or is one that did."""
    after = 0
    while rows := list(islice(SieveRows(store).items(max(after, sifter.first)), _ROWS)):
        for number, row in rows:
            _, keys = unpack(number, row)
            if any(key and int.from_bytes(key[:2], "big") in slots for key in keys):
                return True
            after = number + len(keys)
        yield False
    return False


def with_sieve_locked(
    context: HandoverContext, sieved: SieveIndex, work: Callable[[], Generator[Any, None, None]]
) -> Steps:
    """Do the steps that *work* makes, in a thread, while no flush runs or can begin."""
    while not sieved.lock():
        flush = sieved.sieve.under_way
        if flush is None or flush.decided:
            yield True  # somebody else holds it
        else:
            context.flush()
            yield from run_in_thread(_run(context.store, flush))
    try:
        yield from run_in_thread(work())
    finally:
        sieved.unlock()


def _run(store: RocksStore, flush: Flush) -> Generator[None, None, None]:
    """The steps of *flush*, after all that it is about is on the medium."""
    store.sync_log()
    while flush.step():
        yield


def run_in_thread(steps: Generator[Any, None, None]) -> Steps:
    """Do all *steps* in a thread, between which it can be stopped; raises what they raise."""
    stop = Event()

    def run() -> None:
        with closing(steps):
            for _ in steps:
                if stop.is_set():
                    return

    with ThreadPoolExecutor(1, "suite-hand-over") as threads:
        done = threads.submit(run)
        try:
            wait([done], _AT_ONCE)
            while not done.done():
                yield True
        finally:
            stop.set()
        done.result()


BACKLOG: Final = 2_000
"""Operations on the store after which they are written."""

RETRY: Final = 1.0
"""Seconds until a store that could not write is asked again."""

Mask = npt.NDArray[np.bool_]
"""For each unit whether it is meant."""

logger = logging.getLogger("scrapy_spider_suite.cluster.handover.handover")


def unit_mask(numbers: frozenset[int]) -> Mask:
    """Those units."""
    mask = np.zeros(UNITS, np.bool_)
    mask[list(numbers)] = True
    return mask


class HandoverContext:
    """What hand-overs work on: the parts of *frontier*, its *store*, and who owns and holds units.

    Args:
        clock: returns the time of the frontier, and wall time.
        changed: called when other units are held back than before.
        open_sieve: gives the store a sieve; None: the store cannot get one.

    Attributes:
        crawl_id: known before the first hand-over.
        runner: runs the steps of all hand-overs, one at a time.
    """

    def __init__(
        self, frontier: Frontier, store: RocksStore, ownership: Ownership, clock: Clock,
        changed: Callable[[], None] = lambda: None, *,
        open_sieve: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.store, self.ownership, self.clock = store, ownership, clock
        self.workbench, self.residents = frontier.workbench, frontier.residents
        self.states, self.health = frontier.states, frontier.health
        self.foreign, self.plans = frontier.leases.foreign, frontier.planner.revisits
        self.trap_stats, self.edits = frontier.trap_stats, UrlEdits(frontier, store)
        self.flush, self.sift = frontier.flush, frontier.admission.sift
        self.open_sieve = open_sieve
        self.crawl_id = ""
        self.runner = StepRunner(self._relieve)
        self.warnings = WarnOnce(logger, "hand-over")
        self._changed = changed

    def units(self, mask: Mask) -> UnitSet:
        """Those units, as the storage takes them."""
        assignment = self.ownership.assignment
        numbers: list[int] = np.flatnonzero(mask).tolist()
        return UnitSet(
            numbers, assignment.unit, by_host=assignment.by_host,
            slots=isinstance(assignment, Ring),
        )  # fmt: skip

    def hold_back(self, mask: Mask) -> None:
        """Let nobody fetch those units here until they are let go."""
        self.ownership.in_transfer |= mask
        self._held()

    def release(self, mask: Mask) -> None:
        """Let those units be fetched again, if they are this agent's."""
        self.ownership.in_transfer &= ~mask
        self._held()

    def _held(self) -> None:
        self.ownership.refresh()
        self._changed()

    async def run_durably(
        self, make: Callable[[], Steps], goes_on: Callable[[], bool] = lambda: True, *,
        tries: int = 0,
    ) -> bool:  # fmt: skip
        """Do the steps that *make* gives, and make that durable; see `StepRunner.run`.

        Where the store cannot write they are made, and done, once more when it can. Raises
        `StoreWriteError`: it could not *tries* times; 0 is without end.
        """
        failed = 0
        while True:
            try:
                self.flush()  # nothing is added to what cannot be written
                with closing(make()) as steps:
                    done = await self.runner.run(steps, goes_on)
                self.flush()
            except StoreWriteError as error:
                self.warnings.say("store", error)
                failed += 1
                if failed == tries:
                    raise
                await asyncio.sleep(RETRY)
            else:
                self.warnings.over("store")
                return done

    def _relieve(self) -> None:
        if self.store.backlog > BACKLOG:
            self.flush()


class ForeignUnits:
    """What is known of the units that this agent, with *ownership*, neither owns nor holds.

    Attributes:
        found: units of which something may lie here, and is to go to their owners.
    """

    def __init__(self, ownership: Ownership) -> None:
        self.found: Mask = np.zeros(UNITS, np.bool_)
        self._clean: Mask = np.zeros(UNITS, np.bool_)  # nothing lies here, and nothing comes
        self._came: Mask = np.zeros(UNITS, np.bool_)  # since the last `begin`
        self._ownership = ownership

    def come(self, mask: Mask) -> None:
        """Something comes, or has come, for those units."""
        self._clean &= ~mask
        self.found &= ~mask
        self._came |= mask

    def gone(self, mask: Mask) -> None:
        """Nothing of them lies here any more."""
        self._clean |= mask
        self.found &= ~mask

    def note(self) -> None:
        """Others are members than before, or hold something else: called before anything comes."""
        self.come(self._ownership.own | self._ownership.mine)

    def unknown(self) -> Mask:
        """The units that are to be looked at, as far as nothing is going on with them."""
        ownership = self._ownership
        return ~(ownership.own | ownership.mine | ownership.in_transfer | self._clean | self.found)

    def begin(self) -> None:
        """The store is looked through from now on."""
        self._came[:] = False

    def looked(self, mask: Mask, found: Mask) -> None:
        """Of the units of *mask* something was found in those of *found*."""
        self.found |= found & ~self._came
        self._clean |= mask & ~found & ~self._came


# Plain integers: operators of flags are Python code.
_START, _DONT_FILTER = int(Flag.START), int(Flag.DONT_FILTER)
_ENDED: Final = frozenset(
    event for event, outcome in OUTCOMES.items() if outcome.state is not State.PENDING
)


def is_forced(entry: Entry, state: UrlState) -> bool:
    """Whether somebody asked for *entry*, which waits, though its URL was known: a spider that said
    ``dont_filter``, an operator.

    What ``start()`` yields every agent asks for that begins. So that is none of it, unless *state*
    says that one was sent, which this one follows (a retry).
    """
    if not entry.flags & _DONT_FILTER:
        return False
    return not entry.flags & _START or state.event in _ENDED


def restore_revisit(revisits: RevisitPlans, identity: bytes) -> None:
    """A page is not pending any more, and nobody has visited it: let it wait for its time, if it
    has a plan."""
    plan = revisits.get(identity)
    if plan is not None and not revisits.waits(identity, plan):
        revisits.forget(identity)
        revisits.take_over(identity, plan, waits=True)


def refuse_sieve(context: HandoverContext, units: UnitSet) -> None:
    """Raise `JobError` where URLs are known by fingerprints that are not those of some units."""
    if context.store.sieve is not None and not units.slots:
        raise JobError(
            "with SUITE_SEEN_STORE = 'sieve' hosts can be handed over with "
            "SUITE_ASSIGNMENT = 'ring' only"
        )
