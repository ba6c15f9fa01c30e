"""The seeds' assignment functions: sums of characters, modulo the number of agents (K1-K3, T8).

The agents are numbered as their names are sorted (K2), and are all alike: there are no weights.
Another number of agents moves nearly everything, of n + 1 agents n / (n + 1) of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from scrapy_spider_suite.agents.tables import SETTING, Member, Owners
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.urls.hosts import node_of, terminal_of

_FOLDED: Final = 55_440
"""Below 65,536, and a multiple of each number up to 12, and of 14, 15, 16, 18, 20, 21, 22, 24, …"""
_BEYOND: Final = 1 << 62
"""More than any sum, so that the remainder is the sum."""


class UrlSum:
    """`Assignment` of URLs: the sum of all characters (KSpider, figure 2).

    A sum of 65,536 or more, of a URL of 520 characters at the least, is no unit. It is taken modulo
    55,440 first. With up to 12 agents, and any other number that divides 55,440, that leaves it
    with the agent of the paper; with other numbers it may be another, and is always the same.
    """

    by_host = False

    def unit(self, host: str, url: str) -> int:
        """See `Assignment`."""
        total = node_of(url, _BEYOND)
        return total if total < UNITS else total % _FOLDED

    def table(self, members: Sequence[Member]) -> Owners:
        """See `Assignment`."""
        return _remainders("url-sum", members)


class HostParity:
    """`Assignment` of hosts: the sum of every other character (Tarantula, equation 1).

    The sum of a host's 253 characters is always a unit.
    """

    by_host = True

    def unit(self, host: str, url: str) -> int:
        """See `Assignment`."""
        return terminal_of(host, UNITS)

    def table(self, members: Sequence[Member]) -> Owners:
        """See `Assignment`."""
        return _remainders("host-parity", members)


def _remainders(name: str, members: Sequence[Member]) -> Owners:
    light, heavy = (chosen(members, key=lambda each: each.weight) for chosen in (min, max))
    if light.weight < heavy.weight:
        differ = f"{light.name} has {light.weight:g}, {heavy.name} {heavy.weight:g}"
        raise SettingsError.of(SETTING, name, f"'ring' for agents of different weights ({differ})")
    return (np.arange(UNITS) % len(members)).astype(np.uint16)
