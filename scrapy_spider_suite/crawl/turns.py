"""Leaves the rest of a crawl its turns of the event loop while something long is worked off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

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


class Turns:
    """Work in slices: `leave` between two pieces of it. *clock* gives seconds."""

    withheld: ClassVar[int] = 0
    """How many wait for a turn without a slice."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._until = clock() + SLICE

    @property
    def over(self) -> bool:
        """Whether the slice is over."""
        return self._clock() >= self._until

    async def leave(self) -> None:
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
            if Turns.withheld:
                continue
            if now - before < _IDLE or (now >= enough and calm):
                break
        self._until = now + SLICE


@asynccontextmanager
async def calm_turn(clock: Callable[[], float] = time.perf_counter) -> AsyncIterator[None]:
    """A turn of the loop for what takes long and cannot be cut: others bring little to it.

    No slice falls in it, and the turn before it was short, unless none is for half a second.
    """
    Turns.withheld += 1
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
        Turns.withheld -= 1
