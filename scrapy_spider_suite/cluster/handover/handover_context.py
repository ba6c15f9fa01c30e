"""What all parts of a hand-over share. Long work is a generator of steps, or runs in a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Container, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from itertools import islice
from typing import Any, Final

import numpy as np

from scrapy_spider_suite.cluster.handover.handover_file import Mask, UnitSet
from scrapy_spider_suite.cluster.membership import Ownership
from scrapy_spider_suite.crawl.queue.frontier import Frontier, UrlEdits
from scrapy_spider_suite.errors import JobError, StoreWriteError
from scrapy_spider_suite.frontier.entries import UNITS, Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.runtime.event_loop import TimeSlices
from scrapy_spider_suite.runtime.tasks import WarnOnce
from scrapy_spider_suite.seen.sieve import Flush
from scrapy_spider_suite.store.interface import CookieJars
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_index import SieveIndex
from scrapy_spider_suite.store.seen_transfer import SieveQueue, SieveRows, unpack

logger = logging.getLogger("scrapy_spider_suite.cluster.handover.handover")

Steps = Generator[bool, None, None]  # portions of work; True: it waits
Clock = Callable[[], tuple[float, float]]  # returns the time of the frontier, and wall time
MAPPING: Final = "handover"  # the mapping of a store that lists dumps and progress of loads
WAIT: Final = 0.05  # seconds until waiting work is tried again
BACKLOG: Final = 2_000  # operations on the store after which they are written
RETRY: Final = 1.0  # seconds until a store that failed to write is tried again
_ROWS: Final = 10  # rows of links checked in a step
_AT_ONCE: Final = 0.004  # seconds for which a step itself waits for a thread


class HandoverContext:
    """Parts of *frontier*, its *store*, owners and holders of units, for hand-overs.

    *changed* is called when other units are held back; *open_sieve* gives the store a sieve;
    *cookies* gives the jars of the crawl that runs.
    """

    def __init__(
        self, frontier: Frontier, store: RocksStore, ownership: Ownership, clock: Clock,
        changed: Callable[[], None] = lambda: None, *,
        open_sieve: Callable[[], None] | None = None,
        cookies: Callable[[], CookieJars | None] = lambda: None,
    ) -> None:  # fmt: skip
        self.store, self.ownership, self.clock = store, ownership, clock
        self.kv = store.kv(MAPPING)
        self.workbench, self.residents = frontier.workbench, frontier.residents
        self.records, self.waiting = self.residents.records, self.residents.waiting
        self.states, self.health = frontier.states, frontier.health
        self.foreign, self.plans = frontier.leases.foreign, frontier.commit.planner.revisits
        self.trap_stats, self.edits = frontier.traps.stats, UrlEdits(frontier, store)
        self.flush, self.sift = frontier.flush, frontier.admission.sift
        self.open_sieve, self.cookies = open_sieve, cookies
        self.foreign_units = ForeignUnits(ownership)
        self.crawl_id = ""  # set before the first hand-over
        self.portions = 0  # steps done, except waits
        self.warnings = WarnOnce(logger, "hand-over")
        self._changed = changed
        self._one_job = asyncio.Lock()

    def units(self, mask: Mask) -> UnitSet:
        return UnitSet(self.ownership.assignment, np.flatnonzero(mask).tolist())

    def hold_back(self, mask: Mask) -> None:
        self.ownership.in_transfer |= mask
        self.ownership.refresh()
        self._changed()

    def release(self, mask: Mask) -> None:
        self.ownership.in_transfer &= ~mask
        self.ownership.refresh()
        self._changed()

    async def run_durably(
        self, make: Callable[[], Steps], goes_on: Callable[[], bool] = lambda: True, *,
        tries: int = 0,
    ) -> bool:  # fmt: skip
        """Run the steps of *make* while *goes_on*, and write the store; return whether all ran.

        After a failed write they run again. Raises `StoreWriteError` after *tries*; 0: never.
        """
        failed = 0
        while True:
            try:
                self.flush()  # nothing is added to what cannot be written
                with closing(make()) as steps:
                    done = await self._run(steps, goes_on)
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

    async def _run(self, steps: Steps, goes_on: Callable[[], bool]) -> bool:
        while True:
            async with self._one_job:
                turns, waits = TimeSlices(), False
                while not (waits or turns.is_over):
                    if not goes_on():
                        return False
                    if (found := next(steps, None)) is None:
                        return True
                    waits = found
                    self.portions += not waits
                if self.store.backlog > BACKLOG:
                    self.flush()
                await turns.yield_turn()
            if waits:
                await asyncio.sleep(WAIT)

    def sync(self) -> Steps:
        yield from _run_in_thread(_sync_and_flush(self.store))

    # Rules of both sides

    def refuse_sieve(self, units: UnitSet) -> None:
        """Raise `JobError` if fingerprints of *units* do not lie together."""
        if self.store.sieve is not None and not units.slots:
            raise JobError(
                "with SUITE_SEEN_STORE = 'sieve' hosts can be handed over with "
                "SUITE_ASSIGNMENT = 'ring' only"
            )

    def restore_revisit(self, identity: bytes) -> None:
        """Let an unvisited page that left its queue wait for its planned revisit."""
        plan = self.plans.get(identity)
        if plan is not None and not self.plans.waits(identity, plan):
            self.plans.forget(identity)
            self.plans.import_plan(identity, plan, waits=True)

    def unqueue(self, entry: Entry) -> bool:
        """Remove a pending *entry*, also one that waits for its new owner."""
        self.foreign.release(entry)
        return self.edits.remove(entry)

    # The sieve

    def drain_sieve(self, slots: Container[int] | None = None) -> Steps:
        """Let the sieve decide all waiting links; new ones become pending.

        With *slots*, only if a link leads to a host there. Several callers may step one flush.
        Raises `StoreWriteError`; call again to go on.
        """
        if (sifter := self.states.sieve_queue) is None:
            return
        end = sifter.sieve.next
        if slots is not None and not (yield from _has_links(self.store, sifter, slots)):
            return
        while sifter.first_number < end:
            self.flush()
            if sifter.begin() is None and not sifter.decided:
                yield True  # another caller holds it
            yield from self.finish_flush()

    def finish_flush(self) -> Steps:
        """Finish a flush under way: until the next step a known URL without a row is done."""
        sifter = self.states.sieve_queue
        while sifter is not None and (flush := sifter.sieve.under_way) is not None:
            if flush.decided:
                next(self.sift(self.clock()[0]), None)
            else:
                # Stepped here: a flush that failed would wait for its next time.
                self.flush()
                yield from _run_in_thread(_sync_and_flush(self.store, flush))
            if sifter.sieve.under_way is flush:
                yield False

    def with_sieve_locked(
        self, sieved: SieveIndex, work: Callable[[], Generator[Any, None, None]]
    ) -> Steps:
        """Run the steps of *work* in a thread while no flush runs or can begin."""
        while not sieved.lock():
            if sieved.sieve.under_way is None:
                yield True  # another caller holds it
            yield from self.finish_flush()
        try:
            yield from _run_in_thread(work())
        finally:
            sieved.unlock()


class ForeignUnits:
    """Units neither owned nor held here; those *found* have rows, which go to their owners."""

    def __init__(self, ownership: Ownership) -> None:
        self.found: Mask = np.zeros(UNITS, np.bool_)
        self._clean: Mask = np.zeros(UNITS, np.bool_)  # no rows here, and none will come
        self._came: Mask = np.zeros(UNITS, np.bool_)  # since the last `begin_search`
        self._ownership = ownership

    def mark_arriving(self, mask: Mask) -> None:
        self._clean &= ~mask
        self.found &= ~mask
        self._came |= mask

    def mark_empty(self, mask: Mask) -> None:
        self._clean |= mask
        self.found &= ~mask

    def unknown(self) -> Mask:
        ownership = self._ownership
        return ~(ownership.own | ownership.mine | ownership.in_transfer | self._clean | self.found)

    def begin_search(self) -> None:
        self._came[:] = False

    def end_search(self, mask: Mask, found: Mask) -> None:
        self.found |= found & ~self._came
        self._clean |= mask & ~found & ~self._came


def _has_links(
    store: RocksStore, sifter: SieveQueue, slots: Container[int]
) -> Generator[bool, None, bool]:
    after = 0
    while rows := list(islice(SieveRows(store).items(max(after, sifter.first_number)), _ROWS)):
        for number, row in rows:
            _, keys = unpack(number, row)
            if any(key and int.from_bytes(key[:2], "big") in slots for key in keys):
                return True
            after = number + len(keys)
        yield False
    return False


def _sync_and_flush(store: RocksStore, flush: Flush | None = None) -> Generator[None, None, None]:
    store.sync_log()
    yield
    while flush is not None and flush.step():
        yield


def _run_in_thread(steps: Generator[Any, None, None]) -> Steps:
    stop = threading.Event()

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


_ENDED: Final = frozenset(event for event in Event if event.outcome.state is not State.PENDING)


def is_forced(entry: Entry, state: UrlState) -> bool:
    """Whether a spider (``dont_filter``) or an operator forced *entry*, though its URL was known.

    Entries of ``start()``, which each agent makes, count only as a retry of a sent one.
    """
    if not entry.flags & Flag.DONT_FILTER:
        return False
    return not entry.flags & Flag.START or state.event in _ENDED
