"""Noticing that something stands still, by ticks of one's own.

No clock is asked. While a process is stopped (SIGSTOP) or a machine sleeps, clocks go on and
ticks do not, so that neither looks like a stall afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

from scrapy_spider_suite.runtime.text import counted

TICK = 1.0
"""Seconds between two looks of the watchdog."""
_LEAST = 3
"""Fewest ticks of a stall: the first after a pause of the process says nothing."""


class Stillness:
    """Counts the looks at which something was the same as at the last one."""

    def __init__(self) -> None:
        self._last: object = object()
        self.looks = 0

    def look(self, state: object, *, excused: bool = False) -> int:
        """How many looks in a row nothing has moved; *excused* is whether nothing needs to."""
        if excused or state != self._last:
            self.looks = 0
            self._last = state
        else:
            self.looks += 1
        return self.looks


class Watchdog:
    """A thread that calls *tripped* once if `beat` is not called for *limit()* seconds.

    `beat` and `stop` are called by what is watched. A *limit* of 0 lets anything pass.

    Code that keeps all threads from running (an endless regular expression) keeps this one, too;
    against that an alarm counts the processor time of the main thread, which calls *tripped*
    there. It is set where nothing else uses SIGVTALRM.
    """

    def __init__(
        self, limit: Callable[[], float], tripped: Callable[[], None], tick: float = TICK
    ) -> None:
        self._limit = limit
        self._tripped = tripped
        self._tick = tick
        self._beats = 0
        self._stillness = Stillness()
        self._once = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall watchdog", daemon=True)
        self._alarm = False
        self._beaten = 0.0  # processor time of the main thread

    def beat(self) -> None:
        """What is watched, and calls this, is alive; the first time there is a limit, begin."""
        self._beats += 1
        if self._thread.ident is None and self._limit() and not self._ended.is_set():
            self._start()
        if self._alarm:
            self._beaten = time.thread_time()
            signal.setitimer(signal.ITIMER_VIRTUAL, self._limit())

    def _start(self) -> None:
        with contextlib.suppress(ValueError, AttributeError):  # no main thread, or Windows
            if signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL:
                signal.signal(signal.SIGVTALRM, self._on_alarm)
                self._alarm = True
        self._thread.start()

    def stop(self) -> None:
        """End; stopping twice does nothing."""
        self._ended.set()
        if self._alarm:
            self._alarm = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL)

    def _watch(self) -> None:
        while not self._ended.wait(self._tick):
            limit = self._limit()
            looks = self._stillness.look(self._beats, excused=not limit)
            if looks >= max(_LEAST, limit / self._tick):
                self._trip()

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        """As much time was spent, by all threads; look how much of it was the main thread's."""
        limit = self._limit()
        left = limit - (time.thread_time() - self._beaten)
        if limit and left <= 0:
            self._trip()
        elif limit:
            signal.setitimer(signal.ITIMER_VIRTUAL, left)

    def _trip(self) -> None:
        if self._once.acquire(blocking=False):
            self._tripped()


def stacks() -> str:
    """What every thread of this process is doing, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        lines = "".join(traceback.format_stack(frame))
        parts.append(f"Thread {names.get(ident, '?')} ({ident}):\n{lines}")
    return "\n".join(parts)


def tasks(loop: asyncio.AbstractEventLoop, most: int = 20) -> str:
    """What the first *most* tasks of *loop* wait for; to be called there."""
    text = io.StringIO()
    found = sorted(asyncio.all_tasks(loop), key=asyncio.Task.get_name)
    for task in found[:most]:
        task.print_stack(limit=5, file=text)
    if len(found) > most:
        text.write(f"and {counted(len(found) - most, 'more task')}\n")
    return text.getvalue()
