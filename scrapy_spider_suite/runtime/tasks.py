"""Work beside a crawl: retried steps, tasks whose end is logged, calls by a timer or a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

logger = logging.getLogger(__name__)

FIRST_PAUSE, MOST_PAUSE = 0.1, 5.0
"""Seconds until what failed is tried again: at first, and at most."""

_UNFORESEEN: Final = "unforeseen"
_DRAIN_LOOK: Final = 0.02  # seconds between two looks at whether calls are done


async def retry_forever(
    step: Callable[[], Awaitable[None]], failed: Callable[[Exception], str],
    over: Callable[[str], None], what: str,
) -> None:  # fmt: skip
    """Do *step* until cancelled, and again after a pause where it fails.

    *failed* returns the kind of an error, "" for an unforeseen one, which is logged as one of
    *what*. *over* gets the kind when a step succeeds again.
    """
    pause, kind = FIRST_PAUSE, ""
    while True:
        try:
            await step()
        except Exception as error:  # without what it does the crawl would stand still, in silence
            before, kind = kind, failed(error) or _UNFORESEEN
            if kind == _UNFORESEEN != before:
                logger.critical("%s: %r; tried again, report this", what, error, exc_info=error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE)
        else:
            if kind:
                over(kind)
            pause, kind = FIRST_PAUSE, ""


def logged_task(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """A task that does *work*; an error that ends it is logged as one of *what*."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical(
                "%s of this agent do not go on; start it again, and report this", what,
                exc_info=error,
            )  # fmt: skip

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task


async def cancel_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel *tasks* and wait until they have ended; None is skipped."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until *event* is set, at most *seconds*; None: without end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


TIME_SHARE = 50


class PeriodicTask:
    """Calls *action* every *period* seconds, from `start` to `stop`, on the running loop.

    A slow action is called less often: it gets one part in `TIME_SHARE` of the time. An action that
    raises is called again; that is logged once, until it succeeds.
    """

    def __init__(self, period: float, action: Callable[[], None]) -> None:
        self._period = period
        self._action = action
        self._timer: asyncio.TimerHandle | None = None
        self._failing = False

    def start(self) -> None:
        """Start; the first call comes after one period."""
        self._timer = asyncio.get_running_loop().call_later(self._period, self._tick)

    def stop(self) -> None:
        """Stop; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        began = time.monotonic()
        try:
            self._action()
        except Exception:  # what is done again and again may work the next time
            if not self._failing:
                logger.exception("%r failed; it is tried again", self._action)
            self._failing = True
        else:
            self._failing = False
        took = time.monotonic() - began
        pause = max(self._period, took * TIME_SHARE)
        if self._timer is not None:
            self._timer = asyncio.get_running_loop().call_later(pause, self._tick)


class DaemonCalls:
    """Calls in a thread that keeps no process alive, one after the other.

    At most *room* calls wait: the oldest are dropped. A call does not raise.
    """

    def __init__(self, name: str, room: int) -> None:
        self._name = name
        self._calls: deque[Callable[[], None]] = deque(maxlen=room)
        self._lock = threading.Lock()
        self._running = False

    def add(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while call := self._next():
            call()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            self._running = bool(self._calls)
            return self._calls.popleft() if self._calls else None

    async def drain(self, seconds: float) -> None:
        """Wait until all calls are done, at most so many *seconds*."""
        end = time.monotonic() + seconds
        while self._running and time.monotonic() < end:
            await asyncio.sleep(_DRAIN_LOOK)


class WarnOnce:
    """Logs each kind of trouble once, however often it occurs."""

    def __init__(self, logger: logging.Logger, name: str) -> None:
        self._logger = logger
        self._name = name
        self._said: set[str] = set()

    def say(self, kind: str, why: object) -> None:
        """Log *why*, unless the *kind* was logged and is not `over`."""
        if kind not in self._said:
            self._said.add(kind)
            text = " ".join(str(why).split())
            self._logger.warning(f"{self._name}: {text} (said once; further ones are counted)")

    def over(self, kind: str) -> None:
        """The trouble is over: the next of its *kind* is logged again."""
        self._said.discard(kind)
