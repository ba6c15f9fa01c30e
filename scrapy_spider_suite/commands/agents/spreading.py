"""Divides a list of URLs among agents: each gets what it owns, or holds.

What is sent to an agent is whole lines, in pieces, as fast as it takes them. Who owns a URL is
worked out here as the agents do it; should one be with another agent all the same, since the
members have changed or the crawl has a normal form of its own, that one sends it on.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from scrapy_spider_suite.agents.calls import PIECE, Caller, Piece
from scrapy_spider_suite.cluster.assignment import (
    SETTING,
    Assignment,
    OwnerTable,
    fingerprint,
    load_assignment,
)
from scrapy_spider_suite.cluster.membership import MemberRecord
from scrapy_spider_suite.cluster.registry import ClusterOverview
from scrapy_spider_suite.errors import ClusterError, SettingsError
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.url_lists import ORIGIN, BadLine, SeedLines

_ASSIGNMENT = re.compile(r"'?([\w.-]+)'? \(([0-9a-f]{16})\)")
_POLL = 0.05
_SHOWN, _KEPT = 5, 1_000

Whose = Callable[[str, str], str]
"""The agent that a URL is sent to: of its host, and itself."""


def assignment_in(overview: ClusterOverview) -> Assignment:
    """The assignment function of the crawl. Raises `ClusterError`: it is not to be had here."""
    text = overview.fixed.get(SETTING, "")
    found = _ASSIGNMENT.fullmatch(text)
    if found is None:
        raise ClusterError(f"the agents do not say which {SETTING} they have: {text[:100]!r}")
    try:
        assignment = load_assignment(found[1])
    except SettingsError as error:
        raise ClusterError(f"run this in the project of the crawl: {error}") from error
    if fingerprint(assignment) != found[2]:
        raise ClusterError(f"{SETTING} = {found[1]!r} is another function here than in the crawl")
    return assignment


def owners(overview: ClusterOverview, there: Mapping[str, MemberRecord]) -> Whose:
    """Who owns a URL; for what an agent owns that is not *there* anybody who is."""
    assignment = assignment_in(overview)
    table = OwnerTable.of(assignment, overview.view.members)
    return _of(assignment, [member.name for member in table.members], table.owners.tolist(), there)


def holders(overview: ClusterOverview, there: Mapping[str, MemberRecord]) -> Whose:
    """Who holds a URL, and so knows what became of it; if that one is not *there*, anybody."""
    assignment = assignment_in(overview)
    names = {number: row.name for number, row in overview.view.numbers.items()}
    holders = overview.tokens.holders.tolist()
    most = max([*names, *holders])
    return _of(assignment, [names.get(number, "") for number in range(most + 1)], holders, there)


def _of(
    assignment: Assignment, names: list[str], units: list[int], there: Mapping[str, MemberRecord]
) -> Whose:
    known = sorted(there)

    def whose(host: str, url: str) -> str:
        unit = assignment.unit(host, url)
        name = names[units[unit]]
        return name if name in there else known[unit % len(known)]

    return whose


@dataclass
class Part:
    """What one agent gets: a file of whole lines."""

    path: Path
    bytes: int = 0
    origin: tuple[str, str] | None = None

    @property
    def pieces(self) -> int:
        """In how many it is sent."""
        return -(-self.bytes // PIECE)


@dataclass
class Spread:
    """A list that was divided.

    Attributes:
        parts: what each agent gets, by its name; nobody gets nothing.
        bad: how many lines are no seeds, which are sent to nobody.
        bad_lines: the first of them.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    bad: int = 0
    bad_lines: list[BadLine] = field(default_factory=list)

    @property
    def first_bad(self) -> list[str]:
        """The first few lines that are no seeds, as people read them."""
        return [str(line) for line in self.bad_lines[:_SHOWN]]


@contextmanager
def spread(lines: Iterable[str], whose: Whose) -> Iterator[Spread]:
    """Divide *lines*, all of which are read before anything is sent."""
    found, read = Spread(), SeedLines("URLs")
    with TemporaryDirectory(prefix="suite-list-") as folder, ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for line in lines:
            seed = read.read(line.encode("utf-8", "replace"))
            if isinstance(seed, BadLine):
                found.bad += 1
                found.bad_lines += [seed] * (len(found.bad_lines) < _KEPT)
            elif seed is not None:
                name = whose(host_of(seed.url), seed.url)
                if name not in files:
                    path = Path(folder) / str(len(files))
                    files[name] = stack.enter_context(path.open("wb"))
                    found.parts[name] = Part(path)
                _write(found.parts[name], files[name], line, (read.origin, read.tag))
        for file in files.values():
            file.flush()
        yield found


def _write(part: Part, file: BinaryIO, line: str, origin: tuple[str, str]) -> None:
    text = f"{line}\n"
    if part.origin != origin:
        part.origin = origin
        text = f"{ORIGIN}{origin[0]}\t{origin[1]}\n{text}"
    part.bytes += file.write(text.encode("utf-8", "replace"))


async def send(caller: Caller, id: str, agent: str, part: Part, seconds: float) -> None:
    """Send *part* as fast as *agent* takes it; give up if it has taken nothing for *seconds*.

    Raises `RegistryError`.
    """
    with part.path.open("rb") as file:
        for number in range(part.pieces):
            piece = Piece(number, number * PIECE, file.read(PIECE))
            deadline = time.monotonic() + seconds
            while not await caller.send(id, agent, piece):
                if time.monotonic() > deadline:
                    return  # whoever waits for its answer says so
                await asyncio.sleep(_POLL)
