"""Units, members and owners: which agent should hold which part of a crawl.

A *unit*, 0 to 65,535, is the smallest part that moves. An assignment maps URLs to units, and units
to owners; all agents compute the same table from the same members.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import uhashring  # type: ignore[import-untyped]
import xxhash

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.entries import UNITS, slot_of
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.urls.hosts import node_of, terminal_of, thread_of

SETTING: Final = "SUITE_ASSIGNMENT"
LIGHTEST: Final = 0.1
HEAVIEST: Final = 10.0

Units = npt.NDArray[np.uint16]
Owners = npt.NDArray[np.uint16]  # for each unit the index of its owner in the members


class Member(NamedTuple):
    """An agent; *weight* is its share, `LIGHTEST` to `HEAVIEST`."""

    name: str
    weight: float = 1.0


class Assignment(Protocol):
    """Maps URLs to units, and units to owners, by its arguments alone."""

    by_host: bool  # all URLs of a host lie in one unit

    def unit(self, host: str, url: str) -> int:
        """Return the unit, 0 to 65,535, of *url* of *host*."""
        ...

    def table(self, members: Sequence[Member]) -> Owners:
        """Return the owner of each unit as an index into *members*, which are sorted by name.

        Raises `SettingsError` for members that it cannot serve.
        """
        ...


class OwnerTable:
    """The owner of each unit for *members*, sorted by name; immutable."""

    def __init__(self, members: tuple[Member, ...], owners: Owners) -> None:
        self.members = members
        self.owners = owners.copy()
        self.owners.setflags(write=False)

    @classmethod
    def of(cls, assignment: Assignment, members: Iterable[Member]) -> OwnerTable:
        """Return the table of *members*, in any order. Takes milliseconds.

        Raises `ValueError`: no members, two of one name, an invalid weight; `SettingsError`.
        """
        known = tuple(sorted(members))
        if not 1 <= len(known) <= UNITS:
            raise ValueError(f"{counted(len(known), 'agent')}: expected 1 to {UNITS:,}")
        if len({member.name for member in known}) < len(known):
            raise ValueError("agents of the same name")
        for name, weight in known:
            if not LIGHTEST <= weight <= HEAVIEST:
                raise ValueError(f"weight {weight} of {name}: expected {LIGHTEST} to {HEAVIEST}")
        return cls(known, assignment.table(known))

    def owner(self, unit: int) -> str:
        return self.members[int(self.owners[unit])].name

    def counts(self) -> dict[str, int]:
        counts = np.bincount(self.owners, minlength=len(self.members)).tolist()
        return {member.name: n for member, n in zip(self.members, counts, strict=True)}


_FOLDED: Final = 55_440
"""Below 65,536, and a multiple of each number up to 12, and of 14, 15, 16, 18, 20, 21, 22, 24, …"""
_BEYOND: Final = 1 << 62  # more than any sum: the remainder is the sum


class UrlSum:
    """`Assignment` of URLs: the sum of all characters (KSpider, figure 2).

    A sum of 65,536 or more is reduced modulo 55,440: up to 12 agents get the paper's owners.
    """

    by_host = False

    def unit(self, host: str, url: str) -> int:
        total = node_of(url, _BEYOND)
        return total if total < UNITS else total % _FOLDED

    def table(self, members: Sequence[Member]) -> Owners:
        _refuse_weights("url-sum", members)
        return (np.arange(UNITS) % len(members)).astype(np.uint16)


_MACHINES: Final = 240  # a multiple of each number up to 6, and of 8, 10, 12, 15, 16, 20, 24, …
_PROCESSES: Final = 192  # a multiple of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64
_PROCESS: Final = re.compile(r"_[0-9]+$")


class HostParity:
    """`Assignment` of hosts to machines and to processes on them (Tarantula §5.1).

    The sum of every other character, modulo the machines, is the machine (equation 1); that of the
    others, modulo its processes, the process (equation 2). Members whose names differ in a number
    at the end alone (``w_1``, ``w_2``) are processes of one machine.
    """

    by_host = True

    def unit(self, host: str, url: str) -> int:
        return terminal_of(host, _MACHINES) * _PROCESSES + thread_of(host, _PROCESSES)

    def table(self, members: Sequence[Member]) -> Owners:
        _refuse_weights("host-parity", members)
        machines: dict[str, list[int]] = {}
        for number, member in enumerate(members):
            machines.setdefault(_PROCESS.sub("", member.name), []).append(number)
        first, second = np.divmod(np.arange(UNITS), _PROCESSES)
        owners = np.empty(UNITS, np.uint16)
        for at, processes in enumerate(machines.values()):
            here = first % len(machines) == at
            owners[here] = np.array(processes)[second[here] % len(processes)]
        return owners


def _refuse_weights(name: str, members: Sequence[Member]) -> None:
    light, heavy = (chosen(members, key=lambda each: each.weight) for chosen in (min, max))
    if light.weight < heavy.weight:
        differ = f"{light.name} has {light.weight:g}, {heavy.name} {heavy.weight:g}"
        raise SettingsError.of(SETTING, name, f"'ring' for agents of different weights ({differ})")


POINTS: Final = 4_096  # on the circle, of an agent with weight 1
SLACK: Final = 0.04  # the part of its share by which an agent may own more or less

# Of the slots on the circle: a slot is the first 16 bits of a 64-bit hash.
_PLACES: Final = np.arange(UNITS, dtype=np.uint64) << np.uint64(48)


class Ring:
    """`Assignment` of hosts by their slots, in proportion to weights (BUbiNG §4.1)."""

    by_host = True

    def unit(self, host: str, url: str) -> int:
        return slot_of(host)

    def table(self, members: Sequence[Member]) -> Owners:
        return leveled_owners(nearest_owners(members), [member.weight for member in members])


def nearest_owners(members: Sequence[Member]) -> Owners:
    """Return for each slot the owner of the next point on the circle."""
    points = [ring_points(name, max(1, round(POINTS * weight))) for name, weight in members]
    owners = np.repeat(np.arange(len(members), dtype=np.uint16), [len(each) for each in points])
    circle = np.concatenate(points)
    # Points at one place are those of the first name: in the order of the members, and stable.
    order = np.argsort(circle, kind="stable")
    following = np.searchsorted(circle[order], _PLACES) % len(circle)
    return owners[order[following]]


def leveled_owners(owners: Owners, weights: Sequence[float]) -> Owners:
    """Return *owners* with each agent's share within `SLACK` of its *weights*."""
    shares = np.array(weights) * (UNITS / sum(weights))
    least = np.floor(shares * (1 - SLACK)).astype(np.int64)
    most = np.ceil(shares * (1 + SLACK)).astype(np.int64)
    counts = np.bincount(owners, minlength=len(weights))
    aims = np.clip(counts, least, most)
    # Units cut off above and added below may differ in number: the other agents make up for it.
    over = int(aims.sum()) - UNITS
    if over:
        room = aims - least if over > 0 else most - aims
        edges = np.cumsum(room) * abs(over) // int(room.sum())
        aims -= np.sign(over) * np.diff(edges, prepend=0)
    by_owner = np.argsort(owners, kind="stable")
    ranks = np.arange(UNITS) - np.repeat(np.cumsum(counts) - counts, counts)
    # An agent gives away its last units: the same ones with every membership, as far as may be.
    given = np.sort(by_owner[ranks >= np.repeat(aims, counts)])
    level = owners.copy()
    level[given] = np.repeat(np.arange(len(weights)), np.maximum(aims - counts, 0))
    return level


@lru_cache(maxsize=1_024)
def ring_points(name: str, count: int) -> npt.NDArray[np.uint64]:
    """Return an agent's points, ascending; fewer points are a subset of more points."""
    ring = uhashring.HashRing(
        {name: {"vnodes": count}}, hash_fn=lambda key: xxhash.xxh3_64_intdigest(key.encode())
    )
    points = np.sort(np.fromiter(ring.ring, dtype=np.uint64, count=ring.size))
    points.setflags(write=False)
    return points


ASSIGNMENTS: Final[dict[str, type[Assignment]]] = {
    "ring": Ring, "url-sum": UrlSum, "host-parity": HostParity,
}  # fmt: skip

_DOMAINS: Final = ("example", "com", "org", "de", "fr", "uk", "jp", "br", "cn", "in")
_HOSTS: Final = [f"www.sample-{n}.{_DOMAINS[n % len(_DOMAINS)]}" for n in range(100)]
_PATHS: Final = ("", "a/page.html", "?q=1")
_MEMBERSHIPS: Final = [
    [Member(f"sample-{number}") for number in range(count)] for count in (1, 2, 5)
]


def load_assignment(name: str) -> Assignment:
    """Return one of `ASSIGNMENTS`, or a checked class at a dotted path. Raises `SettingsError`."""
    kind = ASSIGNMENTS.get(name)
    return ProjectAssignment(name) if kind is None else kind()


def fingerprint(assignment: Assignment) -> str:
    """Return 16 hexadecimal digits of the results of *assignment* for a sample."""
    digest = xxhash.xxh3_64(np.array(_units(assignment), dtype=">u2").tobytes())
    for members in _MEMBERSHIPS:
        digest.update(assignment.table(members).astype(">u2").tobytes())
    return digest.hexdigest()


class ProjectAssignment:
    """A project's `Assignment`, made without arguments; any fault is a `SettingsError`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._own = self._make()
        if not isinstance(getattr(self._own, "by_host", None), bool):
            self._refuse("a class with by_host, which is True or False")
        self.by_host: bool = self._own.by_host
        units, tables = _units(self), [self.table(members) for members in _MEMBERSHIPS]
        self._own = self._make()
        again = [self.table(members) for members in _MEMBERSHIPS]
        if units != _units(self) or not all(map(np.array_equal, tables, again)):
            self._refuse("a function that says the same of the same, whenever it is asked")
        groups = (units[start : start + len(_PATHS)] for start in range(0, len(units), len(_PATHS)))
        if self.by_host and any(len(set(group)) > 1 for group in groups):
            self._refuse("by_host = False for URLs of a host that lie in different units")

    def unit(self, host: str, url: str) -> int:
        try:
            unit = operator.index(self._own.unit(host, url))
        except Exception as error:  # a project's code may raise anything
            self._fail(f"unit({host!r}, {url!r})", error)
        if not 0 <= unit < UNITS:
            self._refuse(f"unit({host!r}, {url!r}) from 0 to {UNITS - 1:,}, not {unit}")
        return unit

    def table(self, members: Sequence[Member]) -> Owners:
        what = f"table() of {counted(len(members), 'member')}"
        try:
            owners = np.asarray(self._own.table(members))
        except Exception as error:  # a project's code may raise anything
            self._fail(what, error)
        if owners.shape != (UNITS,) or owners.dtype.kind not in "iu":
            got = f"{owners.dtype} of shape {owners.shape}"
            self._refuse(f"table() to return an array of {UNITS:,} integers, not {got}")
        if owners.min() < 0 or owners.max() >= len(members):
            self._refuse(f"{what} to hold 0 to {len(members) - 1}")
        return owners.astype(np.uint16)

    def _make(self) -> Any:
        try:
            found = resolve_name(self._path)
        except Exception as error:  # importing a project's module may raise anything
            raise SettingsError(
                f"{SETTING} = {self._path!r}: neither one of "
                f"{', '.join(ASSIGNMENTS)} nor a class that can be imported: {error}"
            ) from error
        if not isinstance(found, type):
            self._refuse("the import path of a class")
        try:
            return found()
        except Exception as error:  # a project's code may raise anything
            self._fail(f"{found.__name__}()", error)

    def _fail(self, what: str, error: Exception) -> NoReturn:
        raise SettingsError(f"{SETTING} = {self._path!r}: {what} failed: {error!r}") from error

    def _refuse(self, allowed: str) -> NoReturn:
        raise SettingsError.of(SETTING, self._path, allowed)


def _units(assignment: Assignment) -> list[int]:
    return [assignment.unit(host, f"https://{host}/{path}") for host in _HOSTS for path in _PATHS]
