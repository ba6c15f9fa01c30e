"""Units, agents, and who should hold what: the shape of every assignment function (U8).

A *unit* is a number from 0 to 65,535, the smallest part of a crawl that moves from agent to agent.
An assignment function says once for all which unit a URL lies in, and for each membership who owns
each unit. Every agent computes the same table from the same members, so nobody has to send it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.wording import counted

SETTING: Final = "SUITE_ASSIGNMENT"
LIGHTEST: Final = 0.1
HEAVIEST: Final = 10.0

Units = npt.NDArray[np.uint16]
Owners = npt.NDArray[np.uint16]
"""For each unit the index of its owner in the members."""


class Member(NamedTuple):
    """An agent of a crawl.

    Attributes:
        name: distinct among the agents.
        weight: its part of the crawl, beside those of the others; `LIGHTEST` to `HEAVIEST`.
    """

    name: str
    weight: float = 1.0


class Assignment(Protocol):
    """Which unit a URL lies in, and who owns which unit.

    Both depend on nothing but their arguments: on no process, no call before, no hash seed.

    Attributes:
        by_host: all URLs of a host lie in one unit.
    """

    by_host: bool

    def unit(self, host: str, url: str) -> int:
        """The unit, from 0 to 65,535, of *url*, whose host is *host*."""
        ...

    def table(self, members: Sequence[Member]) -> Owners:
        """The owner of each unit as an index into *members*, which are sorted by their names.

        Raises `SettingsError` for members that the function has no answer for.
        """
        ...


class Table:
    """Who should hold each unit, for one membership; never changed.

    Attributes:
        members: sorted by their names.
        owners: for each unit the index of its owner in *members*, read-only.
    """

    def __init__(self, members: tuple[Member, ...], owners: Owners) -> None:
        self.members = members
        self.owners = owners.copy()
        self.owners.setflags(write=False)

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}: {count:,}" for name, count in self.counts().items())
        return f"<Table {counts}>"

    @classmethod
    def of(cls, assignment: Assignment, members: Iterable[Member]) -> Table:
        """What *assignment* makes of *members*, in whatever order they come.

        Takes milliseconds, more for agents that it never saw. Raises `ValueError` if there are no
        members, two of a name, or one with a weight out of bounds, and what *assignment* raises.
        """
        known = _checked(members)
        return cls(known, assignment.table(known))

    @property
    def digest(self) -> str:
        """16 hexadecimal digits, the same for agents that agree on who owns what."""
        names = "\0".join(member.name for member in self.members)
        digest = xxhash.xxh3_64(names.encode())
        digest.update(self.owners.astype(">u2").tobytes())
        return digest.hexdigest()

    def owner(self, unit: int) -> str:
        """The name of the agent that should hold *unit*."""
        return self.members[int(self.owners[unit])].name

    def counts(self) -> dict[str, int]:
        """How many units each agent owns, by its name."""
        counts = np.bincount(self.owners, minlength=len(self.members)).tolist()
        return {member.name: n for member, n in zip(self.members, counts, strict=True)}


def moved(old: Table, new: Table) -> dict[tuple[str, str], Units]:
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


def _checked(members: Iterable[Member]) -> tuple[Member, ...]:
    """*members* by their names, which nothing but their characters decides on."""
    known = tuple(sorted(members))
    if not 1 <= len(known) <= UNITS:
        raise ValueError(f"{counted(len(known), 'agent')}: expected 1 to {UNITS:,}")
    if len({member.name for member in known}) < len(known):
        raise ValueError("agents of the same name")
    for name, weight in known:
        if not LIGHTEST <= weight <= HEAVIEST:
            raise ValueError(f"weight {weight} of {name}: expected {LIGHTEST} to {HEAVIEST}")
    return known
