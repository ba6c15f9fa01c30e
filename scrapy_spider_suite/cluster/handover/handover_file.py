"""Hand-over files, their labels and units, and the protocol of their transports.

======== ==========================================================
bytes    what, in network order
======== ==========================================================
8        `MAGIC`: type and version
4        bytes of the first chunk as stored
4        bytes of it decompressed
8        xxh3 of the bytes as stored, seeded with their offset
n        the chunk: a Zstandard frame (RFC 8878) of a msgpack array
...      likewise, chunk after chunk
======== ==========================================================

The first chunk is the label, the last one is empty, all others are lists of items. So a cut is
noticed, and a transfer resumes at the end of the intact part. Input is not trusted: every length is
checked before use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Protocol
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from backports import zstd

from scrapy_spider_suite.cluster.assignment import Assignment, Ring
from scrapy_spider_suite.cluster.messages import RefusalCounters, decompress, encode_name
from scrapy_spider_suite.errors import HandoverFileError, MessageError, TransportError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.runtime.tasks import WarnOnce

MAGIC: Final = b"SUITE-H\1"
CHUNK: Final = 1 << 16  # bytes of items, decompressed, at which a chunk is full
RAW_MAX: Final = 64 << 20  # most bytes of a chunk, decompressed: with one request of a spider
_HEAD: Final = struct.Struct(">IIQ")
_LEVEL: Final = 3


class ItemKind(IntEnum):
    HOST = 0  # the record of a host
    ROW = 1  # a pending URL
    STATE = 2  # a URL that is done or failed
    KEPT = 3  # a row of a mapping
    CLOCK = 4  # the next fetch from an address
    SIEVE = 5  # bits of the fingerprints
    DROPPED = 6  # how often links of a host were dropped
    PRINTS = 7  # fingerprints


Item = list[Any]
Mask = npt.NDArray[np.bool_]  # for each unit whether it is meant


class HandoverLabel(NamedTuple):
    """Identifies a file: *file_id* is new with each packing; *units*: see `pack_units`."""

    file_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    crawl: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    sender: str
    receiver: str
    units: Annotated[bytes, msgspec.Meta(min_length=UNITS // 8, max_length=UNITS // 8)]


class HandoverWriter:
    """Writes a file to *path*. Raises `OSError`."""

    def __init__(self, path: Path, label: HandoverLabel) -> None:
        self._file = path.open("wb")
        self._file.write(MAGIC)
        self._at = len(MAGIC)
        self._items: list[msgspec.Raw] = []
        self._size = 0
        self._chunk(msgspec.msgpack.encode(label))

    def put(self, item: Item) -> bool:
        """Add *item*; return whether a chunk was written."""
        data = msgspec.msgpack.encode(item)
        self._items.append(msgspec.Raw(data))
        self._size += len(data)
        if self._size < CHUNK:
            return False
        self._cut()
        return True

    def _cut(self) -> None:
        if self._items:
            self._chunk(msgspec.msgpack.encode(self._items))
            self._items.clear()
            self._size = 0

    def _chunk(self, raw: bytes) -> None:
        frame = zstd.compress(raw, _LEVEL)
        sum_ = xxhash.xxh3_64_intdigest(frame, self._at)
        self._file.write(_HEAD.pack(len(frame), len(raw), sum_) + frame)
        self._at += _HEAD.size + len(frame)

    def __enter__(self) -> HandoverWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish the file, unless an error broke it off."""
        if kind is None:
            self._cut()
            self._chunk(msgspec.msgpack.encode([]))
        self._file.close()


class HandoverReader:
    """Reads the file at *path*; *first*: offset of the first items.

    Raises `HandoverFileError`, as do its methods.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise HandoverFileError(f"{path}: {error.strerror}") from error
        try:
            if self._file.read(len(MAGIC)) != MAGIC:
                raise HandoverFileError(f"{path} is no hand-over file of this version")
            row, self.first = self._chunk(len(MAGIC))
            self.label = decode_label(row)
        except BaseException:
            self._file.close()
            raise

    def chunk(self, at: int) -> tuple[list[Item], int]:
        """Return the items at offset *at* and the next offset; no items: the end."""
        items, end = self._chunk(at)
        if not all(isinstance(item, list) and item for item in items):
            raise self._fault(at, "it holds what no agent writes")
        if not items and end != os.fstat(self._file.fileno()).st_size:
            raise self._fault(end, "it goes on behind its end")
        return items, end

    def chunks(self) -> Iterator[tuple[list[Item], int]]:
        items, at = self.chunk(self.first)
        while items:
            yield items, at
            items, at = self.chunk(at)

    def _chunk(self, at: int) -> tuple[list[Any], int]:
        self._file.seek(at)
        head = self._file.read(_HEAD.size)
        packed, size, sum_ = _HEAD.unpack(head.ljust(_HEAD.size, b"\0"))
        if max(packed, size) > RAW_MAX:
            raise self._fault(at, f"it is damaged: a chunk of {size:,} bytes")
        frame = self._file.read(packed)
        if len(head) < _HEAD.size or len(frame) < packed:
            raise self._fault(at, "it is cut")
        if xxhash.xxh3_64_intdigest(frame, at) != sum_:
            raise self._fault(at, "it is damaged")
        try:
            raw = decompress(frame, size)
            found = msgspec.msgpack.decode(raw, type=list[Any])
        except (MessageError, ValueError, RecursionError) as error:
            raise self._fault(at, f"it cannot be read ({error})") from error
        if len(raw) != size:
            raise self._fault(at, "it holds what no agent writes")
        return found, at + _HEAD.size + packed

    def _fault(self, at: int, why: str) -> HandoverFileError:
        return HandoverFileError(f"{self.path}, at byte {at}: {why}")

    def __enter__(self) -> HandoverReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def intact_length(path: Path, label: HandoverLabel) -> int:
    """Return how many bytes of file *label* at *path* need not be sent again; reads them all."""
    at = 0
    with suppress(HandoverFileError), HandoverReader(path) as reader:
        if reader.label == label:
            at, more = reader.first, True
            while more:
                items, at = reader.chunk(at)
                more = bool(items)
    return at


class UnitSet:
    """Some units of an assignment."""

    def __init__(self, assignment: Assignment, units: Iterable[int]) -> None:
        self.numbers = frozenset(units)
        self.by_host = assignment.by_host  # the unit depends on the host alone
        self.slots = isinstance(assignment, Ring)  # it is the host's slot: its rows lie together
        self._unit = assignment.unit

    def has_host(self, host: str) -> bool:
        """Whether URLs of *host* lie, or may lie, here."""
        return not self.by_host or self._unit(host, f"https://{host}/") in self.numbers

    def has(self, host: str, url: str) -> bool:
        return self._unit(host, url) in self.numbers

    def prefixes(self, first: int = 0, end: int = UNITS) -> Iterator[tuple[bytes, bytes]]:
        """Yield first and exclusive last key of the ranges of the units in *first* to *end*."""
        numbers = sorted(self.numbers) if self.slots else range(UNITS)
        run = [number for number in numbers if first <= number < end]
        starts = [n for n, before in zip(run, [-2, *run], strict=False) if n != before + 1]
        ends = [before for before, n in pairwise([*run, UNITS + 1]) if n != before + 1]
        for start, last in zip(starts, ends, strict=True):
            # No host's name begins with a byte above all others.
            yield start.to_bytes(2, "big"), last.to_bytes(2, "big") + b"\xff"


def pack_units(units: Iterable[int]) -> bytes:
    bits = np.zeros(UNITS, bool)
    bits[list(units)] = True
    return np.packbits(bits).tobytes()


def unpack_units(data: bytes) -> Mask:
    return np.unpackbits(np.frombuffer(data, np.uint8)).astype(np.bool_)


PIECE: Final = 1 << 16  # bytes sent at a time
RESERVE: Final = 64 << 20  # bytes of a disk that stay free, besides the size of the merged file


class FileReceiver(Protocol):
    def is_stored(self, label: HandoverLabel) -> bool:
        """Whether all of the file is in the store on disk. Raises `TransportError`: unknown now."""

    async def merge(self, label: HandoverLabel, path: Path) -> None:
        """Merge the file at *path* into the store on disk; resumes after a cancellation.

        Raises `HandoverFileError`: never possible; `TransportError`: not now.
        """


@dataclass
class FileCounters(RefusalCounters):
    """Counters of a transport; bytes of files."""

    delivered: int = 0
    received: int = 0
    resumed: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    broken: int = 0
    forged: int = 0
    malformed: int = 0
    oversized: int = 0
    crowded: int = 0
    bad: int = 0


class FileTransport(ABC):
    """Sends and receives several files; *rate*: most bytes a second that go out; 0: unlimited.

    Either end may be killed: a transfer resumes at the intact part. The sender keeps a file until
    the receiver stores it. A file offered twice is acknowledged again.
    """

    inbox: FileReceiver

    def __init__(self, rate: float) -> None:
        self.counters = FileCounters()
        self.rate, self._free_at = rate, 0.0
        self.address = ""  # where other agents send files, once started; for the member's record
        self.signs = 0  # signs of life of receivers at work
        self._sent: Counter[str] = Counter()
        self._once = WarnOnce(logging.getLogger(type(self).__module__), "hand-over")

    @abstractmethod
    async def start(self, inbox: FileReceiver) -> None:
        """Begin to receive, also what an earlier process left. Raises `OSError`."""

    @abstractmethod
    async def deliver(self, path: Path, label: HandoverLabel, address: str) -> None:
        """Send the file at *path*; return once the receiver keeps it. May be cancelled.

        Raises `TransportError`: try again later; `HandoverFileError`: refused for good.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop. Never raises; idempotent."""

    def withdraw(self, label: HandoverLabel) -> None:
        """Remove the rest of a file that is not delivered again; it may have arrived."""
        self._sent.pop(label.file_id, None)

    def sent(self, label: HandoverLabel) -> int:
        """Return the bytes of the file that have gone out, until it is withdrawn."""
        return self._sent[label.file_id]

    def seconds_to_wait(self, size: int, now: float) -> float:
        """Return the seconds to wait at *now* before *size* bytes go, and count the bytes."""
        if not self.rate:
            return 0.0
        begin = max(now, self._free_at)
        self._free_at = begin + size / self.rate
        return begin - now

    async def _portions(
        self, label: HandoverLabel, at: int, size: int, most: int
    ) -> AsyncIterator[tuple[int, int]]:
        """Yield offsets and bytes to send from *at* on, when the rate allows; counts them."""
        self.counters.resumed += at > 0
        loop = asyncio.get_running_loop()
        while at < size:
            portion = min(most, size - at)
            await asyncio.sleep(self.seconds_to_wait(portion, loop.time()))
            yield at, portion
            at += portion
            self.counters.bytes_out += portion
            self._sent[label.file_id] = max(self._sent[label.file_id], at)

    def _refuse(self, kind: str, why: Exception) -> None:
        self.counters.refuse(kind)
        self._once.say(kind, f"refused: {error_text(why)}")


def decode_label(row: Sequence[Any]) -> HandoverLabel:
    """Return the label in *row*. Raises `HandoverFileError`."""
    try:
        label = msgspec.convert(row, HandoverLabel)
        encode_name(label.sender)
        encode_name(label.receiver)
    except ValueError as error:
        raise HandoverFileError(f"a hand-over file with a wrong label: {error}") from error
    return label


def read_label(path: Path) -> HandoverLabel:
    """Return the checked label of the file at *path*. Raises `HandoverFileError`."""
    if path.is_symlink() or not path.is_file():
        raise HandoverFileError(f"{path.name} is no file")
    with HandoverReader(path) as reader:
        return reader.label


def quoted_name(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")


def intact_prefix(path: Path, label: HandoverLabel, size: int) -> int:
    """Return the intact bytes of file *label* at *path*; cuts off the rest. Raises `OSError`."""
    whole = path.is_file() and not path.is_symlink()
    at = intact_length(path, label) if whole else 0
    if not 0 < at <= size:
        path.unlink(missing_ok=True)
        return 0
    os.truncate(path, at)
    return at


def check_room(folder: Path, size: int) -> None:
    """Raise `TransportError` unless the disk has room for *size* more bytes."""
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    if free < 2 * size + RESERVE:
        raise TransportError(f"the disk has no room for {size:,} bytes: {free:,} are free")


def error_text(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
