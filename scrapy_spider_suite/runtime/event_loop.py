"""Leaves the rest of a crawl its turns of the event loop while something long is worked off.

Python's garbage collector in a crawl of many hosts: fewer, and smaller, collections.

A broad crawl keeps hundreds of thousands of long-lived objects (hosts, fronts, Scrapy itself) and
makes thousands of short-lived ones for each page; with Python's defaults walking the former for
the latter took almost half of the crawl's time (measured: 6.0 of 12.8 CPU seconds for 8,200
pages, 0.3 with what is set here).

An iterator that blocks, run in a thread of its own, for the event loop.

uvloop where it can be had, and never a crash where it cannot.

Scrapy creates the event loop before there is a crawler, and stops the crawl when the loop that it
finds later is not the one that ``ASYNCIO_EVENT_LOOP`` names. A project's add-on is asked before
the loop is created, but it cannot know whether Scrapy or a script will create it. So it names a
class that counts every loop as its own once a reactor is installed: then it is too late to choose.

Importing this module needs uvloop.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, TypeVar

import uvloop
from scrapy.utils.reactor import is_reactor_installed

SLICE = 0.005
"""Seconds of work after which the others have their turn."""
_SHARE = 3
"""So many slices the others may take for one, if they have so much to do."""
_LONG = 2 * SLICE
"""Seconds; after a turn of the loop that took more comes another one before the next slice: a
collection of garbage or a pulse has fallen in it, which is long enough without a slice."""
_LONGS = 3
"""So many turns that were long are waited for: then every turn is."""
_IDLE = 0.0002
"""Seconds; a turn of the loop that took less had nothing to do but come back here."""
_CALM = 0.002
"""Seconds; after a turn of the loop that took less, the next one has little to do."""
_PATIENCE = 0.5
"""Seconds; by then any turn has to do."""


class TimeSlices:
    """Work in slices: `yield_turn` between two pieces of it. *clock* gives seconds."""

    withheld: ClassVar[int] = 0
    """How many wait for a turn without a slice."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._until = clock() + SLICE

    @property
    def is_over(self) -> bool:
        """Whether the slice is over."""
        return self._clock() >= self._until

    async def yield_turn(self) -> None:
        """Return at once within a slice; at its end when the others are idle, or had their share.

        Where nobody else has anything to do that is one turn of the loop, some 20 µs.
        """
        now = self._clock()
        if now < self._until:
            return
        enough, longs = now + _SHARE * SLICE, 0
        while True:
            await asyncio.sleep(0)
            before, now = now, self._clock()
            long = now - before >= _LONG
            longs += long
            calm = not long or longs > _LONGS
            if TimeSlices.withheld:
                continue
            if now - before < _IDLE or (now >= enough and calm):
                break
        self._until = now + SLICE


@asynccontextmanager
async def quiet_turn(clock: Callable[[], float] = time.perf_counter) -> AsyncIterator[None]:
    """A turn of the loop for what takes long and cannot be cut: others bring little to it.

    No slice falls in it, and the turn before it was short, unless none is for half a second.
    """
    TimeSlices.withheld += 1
    try:
        await asyncio.sleep(0)  # in this turn a slice may have fallen already
        now = clock()
        patience = now + _PATIENCE
        while True:
            await asyncio.sleep(0)
            before, now = now, clock()
            if now - before < _CALM or now >= patience:
                break
        yield
    finally:
        TimeSlices.withheld -= 1


_THRESHOLDS = (2_000, 10, 1 << 30)
"""Net allocations before the youngest generation is collected, and collections of each generation
before that of the next. A collection walks all that is younger: 2,000 objects, then 20,000, so
that neither stops the crawl for more than some ten milliseconds."""
_RIPE = 3
"""Collections of the youngest generation after which `tidy` collects the next. Python by itself
waits for ten: that takes some 10 ms, in a turn of the loop that may be long anyway."""
_PERIOD = 20.0
"""Seconds between two collections of all there is: a response and its selector refer to each other,
and those that were being parsed while the second generation was collected wait for it (promise 3).
Python by itself waits until a quarter of it is new: to free so much took 0.1 s."""


class GcTuning:
    """Sets the collector for the time of a crawl; the last `stop` puts back what was there.

    The collector is the process's, in which several crawls may run, beginning and ending in any
    order.
    """

    _running: ClassVar[set[GcTuning]] = set()
    _last: ClassVar[float] = 0.0
    _before: ClassVar[tuple[int, int, int]] = gc.get_threshold()

    def start(self) -> None:
        """What exists now is there to stay: it is not walked any more."""
        if not self._running:
            GcTuning._before = gc.get_threshold()
        self._running.add(self)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)

    def tidy(self) -> None:
        """Collect what is young, if there is some of it. To be called a few times a second."""
        if self._running and gc.get_count()[1] >= _RIPE:
            gc.collect(1)

    def due(self, now: float) -> bool:
        """Whether it is time to `collect`; then it is not again for a while.

        *now* is in seconds, of one clock for all crawls.
        """
        if not self._running or 0 <= now - self._last < _PERIOD:
            return False
        GcTuning._last = now
        return True

    @staticmethod
    async def collect() -> None:
        """Collect everything: what is young first, and then, some 10 ms that cannot be cut, the
        rest, each in a turn of the loop of its own."""
        async with quiet_turn():
            gc.collect(1)
        async with quiet_turn():
            gc.collect()

    def stop(self) -> None:
        """Back to what was set before the first `start`, unless another crawl goes on."""
        if self in self._running:
            self._running.discard(self)
            if not self._running:
                gc.set_threshold(*self._before)
                gc.unfreeze()


T = TypeVar("T")

_AHEAD = 4
"""Items that are made before they are asked for."""


async def iterate_in_thread(make: Callable[[], Iterator[T]]) -> AsyncGenerator[T]:
    """Yield what the iterator that *make* makes yields; raises what it raises.

    To be closed (`contextlib.aclosing`). A thread that waits for ever, as for a pipe that nobody
    writes to, does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[tuple[bool, T | Exception | None]] = asyncio.Queue()
    room, stopped = threading.Semaphore(_AHEAD), threading.Event()

    def run() -> None:
        end: Exception | None = None
        try:
            for item in make():
                room.acquire()
                if stopped.is_set():
                    return
                loop.call_soon_threadsafe(items.put_nowait, (True, item))
        except Exception as error:  # whatever it is, it is raised where the items are used
            end = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(items.put_nowait, (False, end))

    threading.Thread(target=run, name="suite-reader", daemon=True).start()
    try:
        while True:
            more, item = await items.get()
            if not more:
                if isinstance(item, Exception):
                    raise item
                return
            room.release()
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        room.release()


class _AnyLoopIsFine(type):
    def __instancecheck__(cls, instance: object) -> bool:
        if isinstance(instance, uvloop.Loop) or is_reactor_installed():
            return True
        if isinstance(instance, asyncio.AbstractEventLoop):
            # Scrapy drops this loop without closing it. Python would end with a traceback.
            atexit.register(instance.close)
        return False


class PreferredLoop(uvloop.Loop, metaclass=_AnyLoopIsFine):
    """A uvloop for Scrapy to create if it creates one, and to accept any other in its place."""
