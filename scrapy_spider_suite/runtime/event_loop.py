"""The event loop: time slices, blocking iterators in threads, garbage collection, uvloop."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, TypeVar

from scrapy.utils.reactor import is_reactor_installed

T = TypeVar("T")

SLICE = 0.005  # seconds of work after which other work has its turn
_SHARE = 3  # slices that other work may take for one
_LONG = 2 * SLICE
"""Seconds; after a longer turn of the loop (a garbage collection, say) another one comes first."""
_LONGS = 3  # long turns that are waited for: then every turn is long
_IDLE = 0.0002  # seconds; in a shorter turn of the loop there is no other work
_CALM = 0.002  # seconds; after a shorter turn of the loop, the next one has little to do
_PATIENCE = 0.5  # seconds after which any turn will do


def portions(
    items: Iterable[T], size: Callable[[T], int], enough: int
) -> Iterator[list[T]]:  # fmt: skip
    """Yield *items* in lists, each of which ends with the item that makes its size *enough*."""
    portion: list[T] = []
    left = enough
    for item in items:
        portion.append(item)
        left -= size(item)
        if left <= 0:
            yield portion
            portion, left = [], enough
    if portion:
        yield portion


class TimeSlices:
    """Work in slices: call `yield_turn` between two pieces of it. *clock* gives seconds."""

    withheld: ClassVar[int] = 0  # number of `quiet_turn`s that wait or run

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._until = clock() + SLICE

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._until

    async def yield_turn(self) -> None:
        """Return at once within a slice; at its end when other work is idle, or had its share.

        With no other work that is one turn of the loop, some 20 µs.
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
    """A turn of the loop for work that is long and cannot be cut.

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
before the next is. So a collection walks 2,000 objects, or 20,000: ten milliseconds at most."""
_RIPE = 3
"""Collections of the youngest generation after which `tidy` collects the next. Python waits for
ten, which then takes some 10 ms, in a turn of the loop that may be long anyway."""
_PERIOD = 20.0
"""Seconds between two full collections. A response and its selector refer to each other, and wait
for one if they met a collection of the second generation (promise 3). Python waits until a quarter
of all objects is new: freeing so much takes 0.1 s."""


def _find_trim() -> Callable[[int], int] | None:
    """malloc_trim(3) of the GNU C library; None: another library, which trims itself or cannot."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return found


_trim = _find_trim()
"""Blocks of a database's cache come and go in several threads, and leave free pages between those
in use: without this, memory grows by a seventh in half an hour."""

_ENDED_MOST = 4
"""Crawls that may have ended when another begins without a full collection, which takes 50 ms."""


class GcTuning:
    """Tunes garbage collection for a crawl: fewer and smaller collections, and freed memory goes
    back to the system.

    Python's defaults spend half of a broad crawl on walking its long-lived objects. Several crawls
    may run in the process: the last `stop` restores the settings.
    """

    _running: ClassVar[set[GcTuning]] = set()
    _ended: ClassVar[int] = 0
    _last: ClassVar[float] = 0.0
    _before: ClassVar[tuple[int, int, int]] = gc.get_threshold()

    def start(self) -> None:
        """Set the thresholds, and exempt all existing objects from collections."""
        if not self._running:
            GcTuning._before = gc.get_threshold()
        self._running.add(self)
        if GcTuning._ended >= _ENDED_MOST:
            GcTuning._ended = 0
            gc.unfreeze()
            gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)

    def tidy(self) -> None:
        """Collect the young generation if it has grown; to be called a few times a second."""
        if self._running and gc.get_count()[1] >= _RIPE:
            gc.collect(1)

    def due(self, now: float) -> bool:
        """Whether to `collect` now, once a period; *now*: seconds of one clock for all crawls."""
        if not self._running or 0 <= now - self._last < _PERIOD:
            return False
        GcTuning._last = now
        return True

    @staticmethod
    async def collect() -> None:
        """Collect everything, in two turns of the loop; the second takes some 10 ms."""
        async with quiet_turn():
            gc.collect(1)
        async with quiet_turn():
            gc.collect()
        if _trim is not None:
            await asyncio.to_thread(_trim, 0)

    def stop(self) -> None:
        if self in self._running:
            self._running.discard(self)
            GcTuning._ended += 1
            if not self._running:
                gc.set_threshold(*self._before)
                gc.unfreeze()


_AHEAD = 4  # items that are made ahead


async def iterate_in_thread(make: Callable[[], Iterator[T]]) -> AsyncGenerator[T]:
    """Yield the items of the blocking iterator that *make* returns, run in a thread.

    Raises its exceptions. To be closed (`contextlib.aclosing`). A thread that blocks for ever does
    not keep the process from ending.
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


try:
    import uvloop
except ImportError:  # not on this platform: `PREFERRED_LOOP` must not be set then
    pass
else:

    class _AnyLoopIsFine(type):
        def __instancecheck__(cls, instance: object) -> bool:
            if isinstance(instance, uvloop.Loop) or is_reactor_installed():
                return True
            if isinstance(instance, asyncio.AbstractEventLoop):
                # Scrapy drops this loop without closing it. Python would end with a traceback.
                atexit.register(instance.close)
            return False

    class PreferredLoop(uvloop.Loop, metaclass=_AnyLoopIsFine):
        """A uvloop for Scrapy to create if it creates a loop.

        Scrapy stops a crawl whose loop is not the ``ASYNCIO_EVENT_LOOP``, and an add-on cannot know
        who creates it. So this class accepts every loop once a reactor is installed: then it is too
        late to choose.
        """
