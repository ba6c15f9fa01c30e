"""What giving and taking hosts have in common: the parts of this agent that both work on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from typing import Final

import numpy as np
import numpy.typing as npt

from scrapy_spider_suite.agents.ring import Ring
from scrapy_spider_suite.cluster.shares import Shares
from scrapy_spider_suite.cluster.turns import Turns
from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.runtime.tasks import Once
from scrapy_spider_suite.storage.hands import Hands
from scrapy_spider_suite.storage.printed import refuse_sieve
from scrapy_spider_suite.storage.settling import Clock, Steps
from scrapy_spider_suite.storage.units import Units

BACKLOG: Final = 2_000
"""Operations on the store after which they are written."""

RETRY: Final = 1.0
"""Seconds until a store that could not write is asked again."""

Mask = npt.NDArray[np.bool_]
"""For each unit whether it is meant."""

logger = logging.getLogger("scrapy_spider_suite.cluster.both_ways")


def mask_of(numbers: frozenset[int]) -> Mask:
    """Those units."""
    mask = np.zeros(UNITS, np.bool_)
    mask[list(numbers)] = True
    return mask


class Moving:
    """The frontier of *hands* and its *shares*; *clock* tells the time of it, and wall time.

    Args:
        changed: called when other units are held back than before.

    Attributes:
        crawl: the id of the crawl; nothing goes on before it is known.

    Raises:
        JobError: the job knows its URLs by fingerprints, and those of units do not lie together.
    """

    def __init__(
        self, hands: Hands, shares: Shares, clock: Clock, changed: Callable[[], None]
    ) -> None:
        self.hands = hands
        self.shares = shares
        refuse_sieve(hands, self.units(np.zeros(UNITS, np.bool_)))
        self.clock = clock
        self.crawl = ""
        self.turns = Turns(self._relieve)
        self.once = Once(logger, "hand-over")
        self._changed = changed

    def units(self, mask: Mask) -> Units:
        """Those units, as the storage takes them."""
        assignment = self.shares.assignment
        numbers: list[int] = np.flatnonzero(mask).tolist()
        return Units(
            numbers, assignment.unit, by_host=assignment.by_host,
            slots=isinstance(assignment, Ring),
        )  # fmt: skip

    def hold_back(self, mask: Mask) -> None:
        """Let nobody fetch those units here until they are let go."""
        self.shares.giving |= mask
        self._held()

    def let_go(self, mask: Mask) -> None:
        """Let those units be fetched again, if they are this agent's."""
        self.shares.giving &= ~mask
        self._held()

    def _held(self) -> None:
        self.shares.refresh()
        self._changed()

    async def through(
        self, make: Callable[[], Steps], goes_on: Callable[[], bool] = lambda: True, *,
        tries: int = 0,
    ) -> bool:  # fmt: skip
        """Do the steps that *make* gives, and make that durable; see `Turns.run`.

        Where the store cannot write they are made, and done, once more when it can. Raises
        `StoreWriteError`: it could not *tries* times; 0 is without end.
        """
        failed = 0
        while True:
            try:
                self.hands.flush()  # nothing is added to what cannot be written
                with closing(make()) as steps:
                    done = await self.turns.run(steps, goes_on)
                self.hands.flush()
            except StoreWriteError as error:
                self.once.say("store", error)
                failed += 1
                if failed == tries:
                    raise
                await asyncio.sleep(RETRY)
            else:
                self.once.over("store")
                return done

    def _relieve(self) -> None:
        if self.hands.store.backlog > BACKLOG:
            self.hands.flush()
