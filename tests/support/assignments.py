"""Assignment functions of a project's own, by dotted paths: a good one, and such as are refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from scrapy_spider_suite.cluster.assignment import Member, Owners, OwnerTable, Units
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
        if host.endswith(".test"):
            raise KeyError(host)
        return 1


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


def moved(old: OwnerTable, new: OwnerTable) -> dict[tuple[str, str], Units]:
    """The units whose owner changes, ascending, by the names of the one before and the one after.

    Pairs come in the order of the names; a pair that nothing moves between is not there.
    """
    names = {member.name: index for index, member in enumerate(old.members)}
    before = np.array([names.get(member.name, -1) for member in new.members])
    units = np.flatnonzero(old.owners != before[new.owners])
    if not len(units):
        return {}
    width = len(new.members)
    pairs = old.owners[units].astype(np.int64) * width + new.owners[units]
    order = np.argsort(pairs, kind="stable")
    found, starts = np.unique(pairs[order], return_index=True)
    parts = np.split(units[order].astype(np.uint16), starts[1:])
    return {
        (old.members[pair // width].name, new.members[pair % width].name): part
        for pair, part in zip(found.tolist(), parts, strict=True)
    }


def digest_of(table: OwnerTable) -> str:
    """16 hexadecimal digits, the same for agents that agree on who owns what."""
    names = "\0".join(member.name for member in table.members)
    digest = xxhash.xxh3_64(names.encode())
    digest.update(table.owners.astype(">u2").tobytes())
    return digest.hexdigest()
