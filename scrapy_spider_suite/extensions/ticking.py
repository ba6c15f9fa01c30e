"""Something done again and again while a crawl runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SHARE = 50


class Ticker:
    """Calls *action* every *period* seconds, from `start` to `stop`, on the running loop.

    Less often if it takes long: at most one part in `SHARE` of the time is spent on it. An action
    that raises is not called again; the loop's exception handler reports it.
    """

    def __init__(self, period: float, action: Callable[[], None]) -> None:
        self._period = period
        self._action = action
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; the first call comes after one period."""
        self._timer = asyncio.get_running_loop().call_later(self._period, self._tick)

    def stop(self) -> None:
        """End; stopping twice, or what was never started, does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        began = time.monotonic()
        self._action()
        took = time.monotonic() - began
        pause = max(self._period, took * SHARE)
        if self._timer is not None:
            self._timer = asyncio.get_running_loop().call_later(pause, self._tick)
