"""Something done again and again while a crawl runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

SHARE = 50


class Ticker:
    """Calls *action* every *period* seconds, from `start` to `stop`, on the running loop.

    Less often if it takes long: at most one part in `SHARE` of the time is spent on it. An action
    that raises is called again; that is logged once, until it has worked again.
    """

    def __init__(self, period: float, action: Callable[[], None]) -> None:
        self._period = period
        self._action = action
        self._timer: asyncio.TimerHandle | None = None
        self._failing = False

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
        try:
            self._action()
        except Exception:  # what is done again and again may work the next time
            if not self._failing:
                logger.exception("%r failed; it is tried again", self._action)
            self._failing = True
        else:
            self._failing = False
        took = time.monotonic() - began
        pause = max(self._period, took * SHARE)
        if self._timer is not None:
            self._timer = asyncio.get_running_loop().call_later(pause, self._tick)
