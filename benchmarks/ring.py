"""How evenly the assignment functions share a crawl, and how much of it moves with an agent.

    python benchmarks/ring.py [--small] [--lists FOLDER]

Prints three tables. The first is of the ring over its 65,536 slots, the worst of some sets of
agents' names, of three agents each that leave or have half or twice the weight, and of one that
joins: by how much a share is off its weight ("points": before it is levelled), how many percent of
the slots move beyond those that must, and milliseconds of CPU for a table, the first time and
again. The exit code is 1 if a share is off by more than 5 % and a slot, or if more than 2 % of the
slots move without need.

The second is of URLs that move when n agents become n + 1. The third says by how much the share of
one of n agents is off at most, in hosts and in URLs; chance alone makes large hosts lie unevenly.
FOLDER holds ``mixed_500k.txt.xz``, one URL a line; without it, made-up URLs are taken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from growing import urls_of

from scrapy_spider_suite.cluster.assignment import (
    ASSIGNMENTS,
    Member,
    Owners,
    OwnerTable,
    Ring,
    load_assignment,
    nearest_owners,
    ring_points,
)
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.urls.normalize import normalize

COUNTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
MIXES = {"equal": (1.0,), "mixed": (1.0, 0.5, 4.0, 2.0, 1.0)}
SLACK, NEEDLESS = 0.05, 0.02
GROWTHS = (1, 2, 4, 8, 16, 32)
CREWS = (2, 4, 8, 16, 64)


class Worst(NamedTuple):
    """A line of the first table: parts of 1, and seconds."""

    off: float
    points: float
    joins: float
    leaves: float
    weighs: float
    first: float
    again: float


def crew(names: str, weights: Sequence[float]) -> list[Member]:
    """Agents with *weights*."""
    return [Member(f"{names}-{number}", weight) for number, weight in enumerate(weights)]


def parts(members: Sequence[Member]) -> dict[str, float]:
    """The part of the whole that each agent should have."""
    whole = sum(member.weight for member in members)
    return {member.name: member.weight / whole for member in members}


def off(owners: Owners, members: Sequence[Member]) -> float:
    """By what part of itself a share differs from its weight at most; a slot is no difference."""
    shares = np.array(list(parts(members).values())) * UNITS
    counts = np.bincount(owners, minlength=len(members))
    return float((np.maximum(np.abs(counts - shares) - 1, 0) / shares).max())


def moved(old: OwnerTable, new: OwnerTable) -> npt.NDArray[np.bool_]:
    """For each unit whether its owner changes."""
    before, after = (
        np.array([member.name for member in table.members])[table.owners] for table in (old, new)
    )
    return np.not_equal(before, after)


def needless(old: OwnerTable, new: OwnerTable) -> float:
    """The part of all slots that moves, without what must: what some have more of than before."""
    before, after = parts(old.members), parts(new.members)
    must = sum(max(0.0, part - before.get(name, 0.0)) for name, part in after.items())
    return float(moved(old, new).mean()) - must


def timed(members: Sequence[Member]) -> float:
    """Seconds of CPU for a table."""
    began = time.thread_time()
    OwnerTable.of(Ring(), members)
    return time.thread_time() - began


def worst(count: int, mix: Sequence[float], sets: int) -> Worst:
    """The worst of *count* agents in so many *sets*."""
    rows = []
    for number in range(sets):
        weights = [mix[at % len(mix)] for at in range(count)]
        members = crew(f"crawler{number}", weights)
        ring_points.cache_clear()
        first, again = timed(members), timed(members)
        old = OwnerTable.of(Ring(), members)
        ends = sorted({0, count // 2, count - 1})
        fewer = [members[:at] + members[at + 1 :] for at in ends if count > 1]
        other = [
            [*members[:at], Member(members[at].name, weight), *members[at + 1 :]]
            for at in ends
            for weight in (members[at].weight / 2, members[at].weight * 2)
        ]
        joiner = Member(f"crawler{number}-{count}", mix[count % len(mix)])
        joined = OwnerTable.of(Ring(), [*members, joiner])
        rows.append(Worst(
            off(old.owners, old.members), off(nearest_owners(old.members), old.members),
            needless(old, joined), most(old, fewer), most(old, other), first, again,
        ))  # fmt: skip
    return Worst(*map(max, zip(*rows, strict=True)))


def most(old: OwnerTable, crews: Sequence[Sequence[Member]]) -> float:
    """What moves without need to the worst of *crews*."""
    return max((needless(old, OwnerTable.of(Ring(), members)) for members in crews), default=0.0)


def ring_table(counts: Sequence[int], sets: int) -> bool:
    """Print the first table; whether all is within the bounds."""
    print(f"the ring: the worst of {sets} sets of names, in percent; milliseconds of CPU")
    print("agents weights     off points  joins leaves weighs  first  again")
    good = True
    for name, mix in MIXES.items():
        for count in counts:
            row = worst(count, mix, sets)
            figures = " ".join(f"{100 * part:6.2f}" for part in row[:5])
            clocks = " ".join(f"{1_000 * seconds:6.1f}" for seconds in row[5:])
            print(f"{count:6} {name:7}  {figures} {clocks}", flush=True)
            good &= row.off <= SLACK and max(row.joins, row.leaves, row.weighs) <= NEEDLESS
    return good


# Real hosts and URLs


class Web:
    """URLs, and the units that each function puts them into."""

    def __init__(self, urls: Sequence[str]) -> None:
        normal = [url for url in map(normalize, urls) if url is not None]
        hosts = [urlsplit(url).hostname or "" for url in normal]
        self.size, self.hosts = len(normal), len(set(hosts))
        firsts = dict(zip(reversed(hosts), range(self.size - 1, -1, -1), strict=True))
        self._first = np.array(sorted(firsts.values()))
        self._urls = list(zip(hosts, normal, strict=True))
        self.units: Callable[[str], npt.NDArray[np.int64]] = cache(self._units)

    def _units(self, kind: str) -> npt.NDArray[np.int64]:
        unit = load_assignment(kind).unit
        return np.array([unit(host, url) for host, url in self._urls])

    def shares(self, kind: str, count: int) -> Iterator[npt.NDArray[np.int64]]:
        """How many hosts each agent has, if they are whole, and how many URLs."""
        owners = table_of(kind, count).owners[self.units(kind)]
        if load_assignment(kind).by_host:
            yield np.bincount(owners[self._first], minlength=count)
        yield np.bincount(owners, minlength=count)

    def moved(self, kind: str, count: int) -> float:
        """The part of the URLs that moves as an agent joins *count* of them."""
        changed = moved(table_of(kind, count), table_of(kind, count + 1))
        return float(changed[self.units(kind)].mean())


def table_of(kind: str, count: int) -> OwnerTable:
    """Of *count* agents of one weight."""
    return OwnerTable.of(load_assignment(kind), crew("agent", [1.0] * count))


def web_tables(web: Web, largest: int) -> None:
    """Print the second and the third table, up to so many agents."""
    growths, crews = ([n for n in each if n <= largest] for each in (GROWTHS, CREWS))
    print(f"\n{web.size:,} URLs of {web.hosts:,} hosts: percent of the URLs that move")
    print(f"{'agents':12}" + "".join(f"{f'{n} to {n + 1}':>9}" for n in growths))
    for kind in ASSIGNMENTS:
        print(f"{kind:12}" + "".join(f"{100 * web.moved(kind, n):9.1f}" for n in growths))
    print("\npercent by which the share of an agent is off at most: hosts, URLs")
    print(f"{'agents':12}" + "".join(f"{n:>15}" for n in crews))
    for kind in ASSIGNMENTS:
        print(f"{kind:12}" + "".join(f"{cell(web, kind, n):>15}" for n in crews))


def cell(web: Web, kind: str, count: int) -> str:
    """By how much a share is off."""
    shares = [100 * float(np.abs(each / each.mean() - 1).max()) for each in web.shares(kind, count)]
    return ", ".join(f"{share:.1f}" for share in shares)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a few agents, 3,000 URLs")
    parser.add_argument("--sets", type=int, default=10, help="sets of names")
    parser.add_argument("--lists", type=Path, help="the folder of the real lists")
    options = parser.parse_args()
    counts, sets, urls = ((1, 2, 8), 1, 3_000) if options.small else (COUNTS, options.sets, None)
    good = ring_table(counts, sets)
    web_tables(Web(urls_of(options.lists, "mixed_500k", urls)), counts[-1])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
