"""What brings parcels from agent to agent: the protocol that TCP and a shared folder both follow.

A parcel (`storage.parcels`) may hold gigabytes, and each end may be killed at any time. So it goes
on where its intact part ends, the giver keeps it until the taker says that all of it is in its own
store, and whoever is offered one that he has taken already only says so. Offer and receipt travel
the same way as the file: a hand-over that is under way needs no server.

Whatever comes was written by others: ids and names are checked before any becomes part of a path,
and what is in a file is the business of `storage.taking`, which believes none of it either.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from scrapy_spider_suite.agents.letters import encode_name
from scrapy_spider_suite.errors import CourierError, ParcelError
from scrapy_spider_suite.storage.parcels import Label, Reader, intact
from scrapy_spider_suite.storage.units import unpacked

PIECE: Final = 1 << 16
"""Bytes that are sent at a time."""

RESERVE: Final = 64 << 20
"""Bytes of a disk that a parcel leaves free, besides as many as it has itself: it is merged."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Inbox(Protocol):
    """What takes the parcels that come."""

    def kept(self, label: Label) -> bool:
        """Whether all of that parcel is in the store, on disk, already.

        Raises `CourierError`: that cannot be said now.
        """

    async def take(self, label: Label, path: Path) -> None:
        """Have all of the parcel at *path*, which is whole, in the store, on disk.

        If it is cancelled, the next call goes on. Raises `ParcelError`: it cannot be taken, now or
        later; `CourierError`: not now.
        """


@dataclass
class CourierCounters:
    """What a courier has done since it was made. Bytes are those of parcels.

    Attributes:
        signs: how often a taker was heard of that is at work.
    """

    delivered: int = 0
    """Parcels of which the other side has said that it keeps them."""

    received: int = 0
    """Parcels that are kept here."""

    resumed: int = 0
    """Parcels that went on where a transfer had broken off, either way."""

    bytes_out: int = 0
    bytes_in: int = 0
    broken: int = 0
    """Connections that were cut, or on which nothing came."""

    forged: int = 0
    """Refused: without the key, or not what its sender had sent."""

    malformed: int = 0
    """Refused: not what it should be."""

    oversized: int = 0
    """Refused: larger than agreed."""

    crowded: int = 0
    """Refused: too many connections at once, or no room on the disk."""

    bad: int = 0
    """Parcels that cannot be taken, given or received."""

    def __post_init__(self) -> None:
        self.signs = 0
        self._sent: Counter[str] = Counter()

    def sent(self, label: Label) -> int:
        """How far that parcel has gone out, however often, until it is withdrawn."""
        return self._sent[label.parcel]

    def send(self, label: Label, at: int, size: int) -> None:
        """So many bytes of it go out, from byte *at* on."""
        self.bytes_out += size
        self._sent[label.parcel] = max(self._sent[label.parcel], at + size)

    def withdraw(self, label: Label) -> None:
        """Nobody asks for that parcel any more."""
        self._sent.pop(label.parcel, None)

    def refuse(self, kind: str) -> None:
        """Something was refused: *kind* is the name of a counter."""
        setattr(self, kind, getattr(self, kind) + 1)

    def as_dict(self) -> dict[str, int]:
        """Each by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Courier(Protocol):
    """Brings parcels, several at once; belongs to one event loop and is used in its thread only."""

    counters: CourierCounters

    @property
    def address(self) -> str:
        """Where others bring theirs, once it has started; for the row of a member."""

    async def start(self, inbox: Inbox) -> None:
        """Begin to receive; what an earlier process has not taken is. Raises `OSError`."""

    async def deliver(self, path: Path, label: Label, address: str) -> None:
        """Bring the parcel at *path* to its receiver, at *address*; return once that keeps it.

        Raises `CourierError`: it is to be tried again later; `ParcelError`: the receiver cannot
        take it, now or later. May be cancelled.
        """

    def withdraw(self, label: Label) -> None:
        """Nobody calls `deliver` for that parcel any more: what lies about of it is removed.

        If it was not delivered, it may have arrived all the same.
        """

    async def close(self) -> None:
        """Stop. It never raises; twice is once."""


class Throttle:
    """Lets *rate* bytes a second through; any number of them with 0."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0

    def wait(self, size: int, now: float) -> float:
        """How many seconds to wait, at time *now*, before *size* bytes go; they count as gone."""
        if not self._rate:
            return 0.0
        begin = max(now, self._free)
        self._free = begin + size / self._rate
        return begin - now


def label_of(row: Sequence[Any]) -> Label:
    """The label that *row* holds. Raises `ParcelError` unless it is one that an agent can write."""
    if [type(each) for each in row] != [str, str, str, str, bytes]:
        raise ParcelError("a parcel without a label")
    label = Label(*row)
    unpacked(label.units)
    if not _ID.fullmatch(label.parcel) or not 0 < len(label.crawl) <= 256:
        raise ParcelError("a parcel with a label that no agent writes")
    try:
        encode_name(label.sender)
        encode_name(label.receiver)
    except ValueError as error:
        raise ParcelError(f"a parcel with a label that no agent writes: {error}") from error
    return label


def label_in(path: Path) -> Label:
    """The label of the parcel at *path*, checked. Raises `ParcelError`."""
    if path.is_symlink() or not path.is_file():
        raise ParcelError(f"{path.name} is no file")
    with Reader(path) as reader:
        found = reader.label
    return label_of([getattr(found, name) for name in Label.__slots__])


def as_file(name: str) -> str:
    """*name* as part of a path, whatever is in it."""
    return quote(name, safe="").replace(".", "%2E")


def part_of(path: Path, label: Label, size: int) -> int:
    """How much of the parcel *label* of *size* bytes lies at *path*, where it goes on; 0 is none.

    What is not intact is cut off. Takes as long as reading it does. Raises `OSError`.
    """
    at = 0
    if path.is_file() and not path.is_symlink():
        try:
            at = intact(path) if label_in(path) == label else 0
        except ParcelError:
            at = 0
    if not 0 < at <= size:
        path.unlink(missing_ok=True)
        return 0
    os.truncate(path, at)
    return at


def check_room(folder: Path, size: int) -> None:
    """Raise `CourierError` unless a parcel of which *size* bytes are to come finds room there."""
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    if free < 2 * size + RESERVE:
        raise CourierError(f"the disk has no room for {size:,} bytes: {free:,} are free")


def one_line(error: BaseException) -> str:
    """What *error* says, as others are told."""
    return " ".join(str(error).split())[:300] or type(error).__name__
