"""Of which units of others something lies in a store all the same: nobody else knows that."""

from __future__ import annotations

import numpy as np

from scrapy_spider_suite.cluster.moving import Mask
from scrapy_spider_suite.cluster.shares import Shares
from scrapy_spider_suite.frontier.entries import UNITS


class Traces:
    """What is known of the units that this agent, with *shares*, neither owns nor holds.

    Attributes:
        found: units of which something may lie here, and is to go to their owners.
    """

    def __init__(self, shares: Shares) -> None:
        self.found: Mask = np.zeros(UNITS, np.bool_)
        self._clean: Mask = np.zeros(UNITS, np.bool_)  # nothing lies here, and nothing comes
        self._came: Mask = np.zeros(UNITS, np.bool_)  # since the last `begin`
        self._shares = shares

    def come(self, mask: Mask) -> None:
        """Something comes, or has come, for those units."""
        self._clean &= ~mask
        self.found &= ~mask
        self._came |= mask

    def gone(self, mask: Mask) -> None:
        """Nothing of them lies here any more."""
        self._clean |= mask
        self.found &= ~mask

    def note(self) -> None:
        """Others are members than before, or hold something else: called before anything comes."""
        self.come(self._shares.own | self._shares.mine)

    def unknown(self) -> Mask:
        """The units that are to be looked at, as far as nothing is going on with them."""
        shares = self._shares
        return ~(shares.own | shares.mine | shares.giving | self._clean | self.found)

    def begin(self) -> None:
        """The store is looked through from now on."""
        self._came[:] = False

    def looked(self, mask: Mask, found: Mask) -> None:
        """Of the units of *mask* something was found in those of *found*."""
        self.found |= found & ~self._came
        self._clean |= mask & ~found & ~self._came
