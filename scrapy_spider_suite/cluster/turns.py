"""Long work in portions, between which everything else in the loop has its turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

SLICE: Final = 0.005
"""Seconds that portions go on without a break, and the last of them a little longer."""

WAIT: Final = 0.05
"""Seconds until work that waits for something else is looked at again."""


class Turns:
    """Whose work it is, of all that there is: never of more than one at a time.

    It takes half of the time of a loop at most. *between* is called after each slice, and may raise
    anything.

    Attributes:
        portions: how many have been done, but for those that only waited.
    """

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        self._between = between
        self._one = asyncio.Lock()
        self.portions = 0

    async def run(
        self, steps: Iterator[bool], goes_on: Callable[[], bool] = lambda: True
    ) -> bool:
        """Do *steps*, which say whether they wait for something; whether all of them were done.

        It asks *goes_on* before each. Raises what *steps* raise.
        """
        while True:
            async with self._one:
                begin = time.perf_counter()
                waits = False
                while not waits and (used := time.perf_counter() - begin) < SLICE:
                    if not goes_on():
                        return False
                    if (found := next(steps, None)) is None:
                        return True
                    waits = found
                    self.portions += not waits
                self._between()
                if not waits:
                    await asyncio.sleep(used)
            if waits:
                await asyncio.sleep(WAIT)
