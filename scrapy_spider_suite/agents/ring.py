"""The ring: consistent hashing over slots, with weights (U8; BUbiNG §4.1).

Every agent has points on a circle of 64 bits, in proportion to its weight, at places that nothing
but its name decides on. A slot lies on the same circle, and belongs to the agent whose point comes
next. So an agent that joins takes slots from all the others, and one that leaves gives them its
own; nothing else would have to move.

But slots are few: since they fall to anybody by chance, shares differ by 1/sqrt(slots of an agent),
which is 3 % with 64 agents, and 8 % for the largest of them, however many points there are.
Therefore who has more than its share and `SLACK` hands the rest to those who have less than theirs:
with 64 agents a few slots in a thousand, which may move again when the agents change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import uhashring  # type: ignore[import-untyped]
import xxhash

from scrapy_spider_suite.agents.tables import Member, Owners
from scrapy_spider_suite.frontier.entries import UNITS, slot_of

POINTS: Final = 4_096
"""Of an agent with weight 1."""
SLACK: Final = 0.04
"""Of its share, by which an agent may own more or less."""

_PLACES: Final = np.arange(UNITS, dtype=np.uint64) << np.uint64(48)
"""Of the slots on the circle: a slot is the first 16 bits of a hash of 64."""

Points = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]


class Ring:
    """`Assignment` of hosts, by their slots, in proportion to weights."""

    by_host = True

    def unit(self, host: str, url: str) -> int:
        """See `Assignment`: the slot of *host*."""
        return slot_of(host)

    def table(self, members: Sequence[Member]) -> Owners:
        """See `Assignment`."""
        return levelled(nearest(members), [member.weight for member in members])


def nearest(members: Sequence[Member]) -> Owners:
    """For each slot whose point on the circle comes next."""
    points = [points_of(name, max(1, round(POINTS * weight))) for name, weight in members]
    owners = np.repeat(np.arange(len(members), dtype=np.uint16), [len(each) for each in points])
    circle = np.concatenate(points)
    # Points at one place are those of the first name: in the order of the members, and stable.
    order = np.argsort(circle, kind="stable")
    following = np.searchsorted(circle[order], _PLACES) % len(circle)
    return owners[order[following]]


def levelled(owners: Owners, weights: Sequence[float]) -> Owners:
    """*owners*, of whom each has its share of the slots by *weights*, and `SLACK` more or less."""
    aims, counts = _aims(owners, weights)
    by_owner = np.argsort(owners, kind="stable")
    ranks = np.arange(UNITS) - np.repeat(np.cumsum(counts) - counts, counts)
    # The same ones with every membership, as far as may be: the last of an agent.
    given = np.sort(by_owner[ranks >= np.repeat(aims, counts)])
    level = owners.copy()
    level[given] = np.repeat(np.arange(len(weights)), np.maximum(aims - counts, 0))
    return level


def _aims(owners: Owners, weights: Sequence[float]) -> tuple[Counts, Counts]:
    """How many slots each agent is to own, and how many it has."""
    shares = np.array(weights) * (UNITS / sum(weights))
    least = np.floor(shares * (1 - SLACK)).astype(np.int64)
    most = np.ceil(shares * (1 + SLACK)).astype(np.int64)
    counts = np.bincount(owners, minlength=len(weights))
    aims = np.clip(counts, least, most)
    # What is cut off here and put on there need not be the same: all who can make up for it.
    over = int(aims.sum()) - UNITS
    room = aims - least if over > 0 else most - aims
    if over:
        edges = np.cumsum(room) * abs(over) // int(room.sum())
        aims -= np.sign(over) * np.diff(edges, prepend=0)
    return aims, counts


@lru_cache(maxsize=1_024)
def points_of(name: str, count: int) -> Points:
    """The places of an agent's points, ascending; the fewer of one are among the more of it."""
    ring = uhashring.HashRing({name: {"vnodes": count}}, hash_fn=_place)
    points = np.sort(np.fromiter(ring.ring, dtype=np.uint64, count=ring.size))
    points.setflags(write=False)
    return points


def _place(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode())
