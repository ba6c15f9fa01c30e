"""Work of a hand-over on the sieve, in steps: its flushes, and its fingerprints in a thread."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from itertools import islice
from threading import Event
from typing import Any, Final

from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext, Steps
from scrapy_spider_suite.seen.sieve import Flush
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.seen_index import SieveIndex
from scrapy_spider_suite.store.seen_transfer import SieveQueue, SieveRows, unpack

_ROWS: Final = 10  # rows of links checked in a step
_AT_ONCE: Final = 0.004  # seconds for which a step itself waits for a thread


def drain_sieve(context: HandoverContext, slots: Container[int] | None = None) -> Steps:
    """Let the sieve decide all waiting links; new ones become pending.

    With *slots*, only if a link leads to a host there. Several callers may step one flush. Raises
    `StoreWriteError`; call again to go on.
    """
    sifter = context.states.sieve_queue
    if sifter is None:
        return
    end = sifter.end
    if slots is not None and not (yield from _has_links(context.store, sifter, slots)):
        return
    while sifter.first < end:
        context.flush()
        if sifter.begin() is None and not sifter.decided:
            yield True  # somebody holds it
        yield from finish_flush(context)


def finish_flush(context: HandoverContext) -> Steps:
    """Finish a flush under way: until the next step a known URL without a row is done."""
    sifter = context.states.sieve_queue
    while sifter is not None and (flush := sifter.under_way) is not None:
        if flush.decided:
            next(context.sift(context.clock()[0]), None)
        else:
            # It may be that nobody is at it: it has failed, and waits for its time.
            context.flush()
            yield from _run_in_thread(_step_flush(context.store, flush))
        if sifter.under_way is flush:
            yield False


def with_sieve_locked(
    context: HandoverContext, sieved: SieveIndex, work: Callable[[], Generator[Any, None, None]]
) -> Steps:
    """Run the steps of *work* in a thread while no flush runs or can begin."""
    while not sieved.lock():
        flush = sieved.sieve.under_way
        if flush is None or flush.decided:
            yield True  # somebody else holds it
        else:
            context.flush()
            yield from _run_in_thread(_step_flush(context.store, flush))
    try:
        yield from _run_in_thread(work())
    finally:
        sieved.unlock()


def _has_links(
    store: RocksStore, sifter: SieveQueue, slots: Container[int]
) -> Generator[bool, None, bool]:
    after = 0
    while rows := list(islice(SieveRows(store).items(max(after, sifter.first)), _ROWS)):
        for number, row in rows:
            _, keys = unpack(number, row)
            if any(key and int.from_bytes(key[:2], "big") in slots for key in keys):
                return True
            after = number + len(keys)
        yield False
    return False


def _step_flush(store: RocksStore, flush: Flush) -> Generator[None, None, None]:
    store.sync_log()
    while flush.step():
        yield


def _run_in_thread(steps: Generator[Any, None, None]) -> Steps:
    """Run all *steps* in a thread that can be stopped between two; raises what they raise."""
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
