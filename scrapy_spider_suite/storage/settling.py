"""The sieve in a hand-over: what waits for it comes to its end first, and it lies still while it is
read or changed.

All of it goes on in steps of a generator, which are done in the loop of a crawl; what takes longer
is done in a thread, for which the steps wait.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from itertools import islice
from threading import Event
from typing import Any, Final

from scrapy_spider_suite.seen.sieve import Flush
from scrapy_spider_suite.storage.hands import Hands
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.seen_index import Sieved
from scrapy_spider_suite.store.seen_transfer import Sifter, unpack

Steps = Generator[bool, None, None]
"""Portions of work; True: it waits for something else."""
Clock = Callable[[], tuple[float, float]]
"""The time of the frontier, and wall time."""

_ROWS: Final = 10
"""Rows of links that are looked at in a step; of those that are new one is enough."""
_AT_ONCE: Final = 0.004
"""Seconds for which a step waits for a thread itself: most of what it does takes no longer."""


def settled(hands: Hands, clock: Clock, slots: Container[int] | None = None) -> Steps:
    """Have all links that wait for the sieve by now known to it, and those that are new pending.

    With *slots* only if any of them leads to a host there. Others may work at the same, and do:
    a flush bears to be stepped by several. Raises `StoreWriteError`, and goes on if it is called
    again.
    """
    sifter = hands.ledger.sifter
    if sifter is None:
        return
    end = sifter.end
    if slots is not None and not (yield from _waits(hands.store, sifter, slots)):
        return
    while sifter.first < end:
        hands.flush()
        if sifter.begin() is None and not sifter.decided:
            yield True  # somebody holds it
        yield from ended(hands, clock)


def ended(hands: Hands, clock: Clock) -> Steps:
    """Have no flush under way, until the next step of whoever asks for it: then, of what has no
    row, who is known to the sieve is done."""
    sifter = hands.ledger.sifter
    while sifter is not None and (flush := sifter.under_way) is not None:
        if flush.decided:
            next(hands.sift(clock()[0]), None)
        else:
            # It may be that nobody is at it: it has failed, and waits for its time.
            hands.flush()
            yield from beside(_run(hands.store, flush))
        if sifter.under_way is flush:
            yield False


def _waits(store: RocksStore, sifter: Sifter, slots: Container[int]) -> Generator[bool, None, bool]:
    """Whether a link that waits leads to a host in *slots*, or is one that did."""
    after = 0
    while rows := list(islice(store.fresh(max(after, sifter.first)), _ROWS)):
        for number, row in rows:
            _, keys = unpack(number, row)
            if any(key and int.from_bytes(key[:2], "big") in slots for key in keys):
                return True
            after = number + len(keys)
        yield False
    return False


def still(hands: Hands, sieved: Sieved, work: Callable[[], Generator[Any, None, None]]) -> Steps:
    """Do the steps that *work* makes, in a thread, while no flush runs or can begin."""
    while not sieved.hold():
        flush = sieved.sieve.under_way
        if flush is None or flush.decided:
            yield True  # somebody else holds it
        else:
            hands.flush()
            yield from beside(_run(hands.store, flush))
    try:
        yield from beside(work())
    finally:
        sieved.give_back()


def _run(store: RocksStore, flush: Flush) -> Generator[None, None, None]:
    """The steps of *flush*, after all that it is about is on the medium."""
    store.sync_log()
    while flush.step():
        yield


def beside(steps: Generator[Any, None, None]) -> Steps:
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
