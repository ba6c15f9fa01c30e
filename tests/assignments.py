"""Assignment functions of a project's own, by dotted paths: a good one, and such as are refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from scrapy_spider_suite.cluster.assignment import Member, Owners
from scrapy_spider_suite.frontier.entries import UNITS


class ByDomain:
    """Hosts of a top-level domain together, domains over agents by their lengths."""

    by_host = True

    def unit(self, host: str, url: str) -> int:
        """The length of the domain."""
        return len(host.rpartition(".")[2])

    def table(self, members: Sequence[Member]) -> Owners:
        """The other way round, so that it is no modulo of the suite's."""
        return (len(members) - 1 - np.arange(UNITS) % len(members)).astype(np.uint16)


class ByPythonsHash(ByDomain):
    """Another one in each process."""

    def unit(self, host: str, url: str) -> int:
        """By a hash with a seed."""
        return hash(host) % UNITS


class Random(ByDomain):
    """Another one each time."""

    def __init__(self) -> None:
        self._salt = random.getrandbits(64)

    def unit(self, host: str, url: str) -> int:
        """By a salt."""
        return hash((host, self._salt)) % UNITS


class RandomTable(ByDomain):
    """Another table each time."""

    def table(self, members: Sequence[Member]) -> Owners:
        """By chance."""
        drawn = [random.randrange(len(members)) for _ in range(UNITS)]
        return np.array(drawn, dtype=np.uint16)


class Unsaid(ByDomain):
    """Does not say whether hosts are whole."""

    by_host = None  # type: ignore[assignment]


class Untrue(ByDomain):
    """Says that hosts are whole, and divides them."""

    def unit(self, host: str, url: str) -> int:
        """By the path."""
        return len(url)


class TooFar(ByDomain):
    """Knows more units than there are."""

    def unit(self, host: str, url: str) -> int:
        """One too many."""
        return UNITS


class Late(ByDomain):
    """Fails at hosts that are not in the sample."""

    def unit(self, host: str, url: str) -> int:
        """Knows one domain."""
        return {"example": 1}[host.rpartition(".")[2]]


class Words(ByDomain):
    """Gives agents by their names."""

    def table(self, members: Sequence[Member]) -> Any:
        """No numbers."""
        return [members[0].name] * UNITS


class Short(ByDomain):
    """Leaves units without an owner."""

    def table(self, members: Sequence[Member]) -> Owners:
        """One too few."""
        return np.zeros(UNITS - 1, dtype=np.uint16)


class Stranger(ByDomain):
    """Gives units to who is no member."""

    def table(self, members: Sequence[Member]) -> Owners:
        """One too many."""
        return np.full(UNITS, len(members), dtype=np.uint16)


class Needy(ByDomain):
    """Cannot be made without arguments."""

    def __init__(self, agents: int) -> None:
        self.agents = agents


def function(host: str, url: str) -> int:
    """No class."""
    return 0
