"""The catalogue of a trie store: which segments hold which range of ids.

It is the truth about a store: a segment that it does not name is none. A new one is written beside
the old, made durable, and renamed over it. There are two copies, each with a hash, so that a
damaged one costs nothing; of two that differ the later holds.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import xxhash

from scrapy_spider_suite.errors import JobDamagedError, JobFormatError, StoreWriteError
from scrapy_spider_suite.runtime import files as durable
from scrapy_spider_suite.seen.filters import WORD
from scrapy_spider_suite.seen.identity import LOW
from scrapy_spider_suite.seen.wayback import Way

FORMAT: Final = 3
_READ: Final = (1, 2, FORMAT)
"""Segments of all of these may be in one store: see `segments`."""
COPIES: Final = ("catalogue-0", "catalogue-1")


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One segment.

    Attributes:
        name: its file.
        keys: URLs in its trie.
        trie: bytes of the trie, with which the file begins.
        size: bytes of the file.
        width: bytes of a trie's key number in it; 0 in a store without ids.
        sums: the hashes of the trie and of what follows it.
        removed: prefixes whose URLs in it count no more.
        gone: how many those are.
        words: of the filter; 0 in format 1, which had another one.
        way: of the table that leads back from ids; None in formats 1 and 2.
    """

    name: str
    keys: int
    trie: int
    size: int
    width: int
    sums: tuple[str, str]
    removed: tuple[str, ...] = ()
    gone: int = 0
    words: int = 0
    way: Way | None = None

    @property
    def way_back(self) -> int:
        """Bytes of the way from ids to URLs."""
        if self.words and self.width:
            return self.size - self.trie - WORD * self.words
        return self.keys * self.width


@dataclass(frozen=True, slots=True)
class RangeRow:
    """One range of ids, from *low* to the next range's: its segments, the older one first.

    Fresh rows with handles below *mark* are in them.
    """

    low: int
    mark: int = 0
    base: SegmentRow | None = None
    recent: SegmentRow | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What a store consists of.

    Attributes:
        serial: counts the catalogues of a store.
        seed: of its `Identity`; *mask* likewise.
        ids: whether URLs can be found by their ids.
        ranges: in ascending order, the first from 0.
        removed: prefixes, and the handle below which fresh rows with them count no more.
        twins: the URLs that are twins, as text, and their ids.
    """

    serial: int
    seed: int
    ids: bool
    mask: int = LOW
    ranges: tuple[RangeRow, ...] = (RangeRow(0),)
    removed: tuple[tuple[str, int], ...] = ()
    twins: dict[str, int] = field(default_factory=dict)

    @property
    def files(self) -> set[str]:
        """The names of the segments."""
        rows = (segment for row in self.ranges for segment in (row.base, row.recent))
        return {row.name for row in rows if row is not None}

    @property
    def mark(self) -> int:
        """The highest mark."""
        return max(row.mark for row in self.ranges)

    def encode(self) -> bytes:
        """The bytes of a file."""
        text = json.dumps({"format": FORMAT, **asdict(self)}).encode()
        return xxhash.xxh3_128_hexdigest(text).encode() + b"\n" + text + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Catalogue | None:
        """What *data* says; None if it is damaged. Raises `JobFormatError`."""
        digest, _, text = data.partition(b"\n")
        if not text.endswith(b"\n") or digest.decode("latin-1") != xxhash.xxh3_128_hexdigest(
            text[:-1]
        ):
            return None
        row: dict[str, Any] = json.loads(text)
        if (found := row.pop("format")) not in _READ:
            raise JobFormatError(f"a store of URLs in format {found}; this release reads {FORMAT}")
        row["ranges"] = tuple(_range(part) for part in row["ranges"])
        row["removed"] = tuple((prefix, mark) for prefix, mark in row["removed"])
        return cls(**row)


def _range(row: dict[str, Any]) -> RangeRow:
    return RangeRow(row["low"], row["mark"], _segment(row["base"]), _segment(row["recent"]))


def _segment(row: dict[str, Any] | None) -> SegmentRow | None:
    if row is None:
        return None
    way = Way(**row["way"]) if row.get("way") else None
    some = {"sums": tuple(row["sums"]), "removed": tuple(row["removed"]), "way": way}
    return SegmentRow(**row | some)


def read(folder: Path) -> tuple[Catalogue | None, list[str]]:
    """The catalogue of the store in *folder*, None if there is no store; and damaged copies' names.

    Raises `JobDamagedError` if no copy can be read, `JobFormatError`.
    """
    found: list[Catalogue] = []
    damaged = []
    for name in COPIES:
        try:
            data = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
        copy = Catalogue.decode(data)
        if copy is None:
            damaged.append(name)
        else:
            found.append(copy)
    if damaged and not found:
        raise JobDamagedError(f"{folder}: no copy of the catalogue of seen URLs can be read")
    return max(found, key=lambda copy: copy.serial, default=None), damaged


def write(folder: Path, catalogue: Catalogue) -> None:
    """Write durable copies into *folder*, which are none yet until `install`. Raises OSError."""
    data = catalogue.encode()
    for name in COPIES:
        durable.write(folder / name, data)


def install(made: Path, folder: Path) -> None:
    """Make the copies in *made* those of the store in *folder*. Raises `StoreWriteError`."""
    first, second = COPIES
    try:
        (made / first).replace(folder / first)
    except OSError as error:
        raise StoreWriteError(f"{folder}: {error.strerror}") from error
    # It is done; the other one is older then, and known to be.
    with suppress(OSError):
        (made / second).replace(folder / second)
