"""Hand-over files: files in which one agent hands what it keeps of some hosts to another.

======== ==========================================================
bytes    what, in network order
======== ==========================================================
8        `MAGIC`: what it is, and its version
4        bytes of the first chunk as it lies here
4        bytes of it decompressed
8        xxh3 of the bytes as they lie here, seeded with the place at which they begin
n        the chunk: a Zstandard frame (RFC 8878) of a msgpack array
...      likewise, chunk after chunk
======== ==========================================================

The first chunk is the `HandoverLabel`, the last one is empty; every other is a list of items, which
are lists of a number and what belongs to it. So a file that was cut is noticed, and where its
intact
part ends is known: a transfer goes on from there.

A file came from elsewhere: no length is used unchecked, and nothing in it is more than data.

Some units of a crawl: which hosts and URLs lie in them, and where to find those in a store.

What brings files from agent to agent: the protocol that TCP and a shared folder both follow.

A file (`storage.files`) may hold gigabytes, and each end may be killed at any time. So it goes
on where its intact part ends, the giver keeps it until the taker says that all of it is in its own
store, and whoever is offered one that he has taken already only says so. Offer and receipt travel
the same way as the file: a hand-over that is under way needs no server.

Whatever comes was written by others: ids and names are checked before any becomes part of a path,
and what is in a file is the business of `storage.taking`, which believes none of it either.
"""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgpack  # type: ignore[import-untyped]
import numpy as np
import xxhash
from backports import zstd

from scrapy_spider_suite.cluster.messages import encode_name
from scrapy_spider_suite.errors import HandoverFileError, TransportError
from scrapy_spider_suite.frontier.entries import UNITS

MAGIC: Final = b"SUITE-H\1"
CHUNK: Final = 1 << 16
"""Bytes of items, decompressed, from which on a chunk is full."""
RAW_MAX: Final = 64 << 20
"""Most bytes of a chunk, decompressed: a chunk, and one request of a spider in its largest form."""

_HEAD: Final = struct.Struct(">IIQ")
_LEVEL: Final = 3
_OPTIONS: Final[Mapping[int, int]] = {zstd.DecompressionParameter.window_log_max: 23}

HOST, ROW, STATE, KEPT, CLOCK, SIEVE, DROPPED, PRINTS = range(8)
"""What an item is: a host's record, a pending URL, one that is done or failed, a row of a mapping,
the clock of an address; the bits of all fingerprints that come, how often a host was dropped, some
fingerprints."""

Item = list[Any]


@dataclass(frozen=True, slots=True)
class HandoverLabel:
    """What a file is.

    Attributes:
        file_id: another one each time that hosts are packed; its id: another one each time that
        anything is packed. crawl: the id of the crawl.
        sender: the agent that gives.
        receiver: the agent that takes.
        units: what is handed over, as `units.packed` has it.
    """

    file_id: str
    crawl: str
    sender: str
    receiver: str
    units: bytes


class HandoverWriter:
    """Writes a file to *path*. Raises `OSError`."""

    def __init__(self, path: Path, label: HandoverLabel) -> None:
        self._file = path.open("wb")
        self._file.write(MAGIC)
        self._at = len(MAGIC)
        self._items: list[bytes] = []
        self._size = 0
        self._chunk(msgpack.packb([getattr(label, each.name) for each in fields(HandoverLabel)]))

    def put(self, item: Item) -> bool:
        """Add *item*; whether a chunk was written for it."""
        data = msgpack.packb(item)
        self._items.append(data)
        self._size += len(data)
        if self._size < CHUNK:
            return False
        self._cut()
        return True

    def _cut(self) -> None:
        if self._items:
            head = msgpack.Packer().pack_array_header(len(self._items))
            self._chunk(b"".join((head, *self._items)))
            self._items.clear()
            self._size = 0

    def _chunk(self, raw: bytes) -> None:
        frame = zstd.compress(raw, _LEVEL)
        sum_ = xxhash.xxh3_64_intdigest(frame, self._at)
        self._file.write(_HEAD.pack(len(frame), len(raw), sum_) + frame)
        self._at += _HEAD.size + len(frame)

    def finish(self) -> None:
        """Nothing more comes."""
        self._cut()
        self._chunk(msgpack.packb([]))

    def close(self) -> None:
        """Let go of the file; it is to be removed unless it was finished."""
        self._file.close()

    def __enter__(self) -> HandoverWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        self.close()


class HandoverReader:
    """Reads the file at *path*. Raises `HandoverFileError`: it is none, here and in all that
    follows.

    Attributes:
        label: what it says it is.
        first: where its first items begin.
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
            self.label = _label_of_row(path, row)
        except BaseException:
            self.close()
            raise

    def chunk(self, at: int) -> tuple[list[Item], int]:
        """The items of the chunk at *at*, and where the next one begins; none: it is the last."""
        items, end = self._chunk(at)
        if not all(isinstance(item, list) and item for item in items):
            raise HandoverFileError(f"{self.path} holds what no agent writes, at byte {at}")
        if not items and end != os.fstat(self._file.fileno()).st_size:
            raise HandoverFileError(f"{self.path} goes on behind its end, at byte {end}")
        return items, end

    def chunks(self) -> Iterator[tuple[list[Item], int]]:
        """All of them, from the first to the last."""
        items, at = self.chunk(self.first)
        while items:
            yield items, at
            items, at = self.chunk(at)

    def _chunk(self, at: int) -> tuple[list[Any], int]:
        """The array at *at*, and where the next chunk begins."""
        self._file.seek(at)
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise HandoverFileError(f"{self.path} is cut, at byte {at}")
        packed, size, sum_ = _HEAD.unpack(head)
        if max(packed, size) > RAW_MAX:
            raise HandoverFileError(
                f"{self.path} is damaged, at byte {at}: a chunk of {size:,} bytes"
            )
        if os.fstat(self._file.fileno()).st_size < at + _HEAD.size + packed:
            raise HandoverFileError(f"{self.path} is cut, at byte {at}")
        frame = self._file.read(packed)
        if xxhash.xxh3_64_intdigest(frame, at) != sum_:
            raise HandoverFileError(f"{self.path} is damaged, at byte {at}")
        return _array(_raw(frame, size), f"{self.path}, at byte {at}"), at + _HEAD.size + packed

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> HandoverReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def intact_length(path: Path) -> int:
    """How many bytes of the file at *path*, from its begin on, need not be sent again.

    All of them if it is whole: then `HandoverReader` reads to its end. Takes as long as reading it
    does.
    """
    try:
        with HandoverReader(path) as reader:
            at = reader.first
            items = True
            while items:
                items, at = _next(reader, at)
            return at
    except HandoverFileError:
        return 0


def _next(reader: HandoverReader, at: int) -> tuple[bool, int]:
    try:
        items, end = reader.chunk(at)
    except HandoverFileError:
        return False, at
    return bool(items), end


def _raw(frame: bytes, size: int) -> bytes:
    """What *frame* holds, if that is *size* bytes; else nothing, which is no array."""
    decompressor = zstd.ZstdDecompressor(options=_OPTIONS)
    try:
        raw = decompressor.decompress(frame, size + 1)
    except (zstd.ZstdError, EOFError):
        return b""
    return raw if decompressor.eof and len(raw) == size else b""


def _array(raw: bytes, where: str) -> list[Any]:
    try:
        found = msgpack.unpackb(raw, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise HandoverFileError(f"{where}: it cannot be read ({error})") from error
    if not isinstance(found, list):
        raise HandoverFileError(f"{where}: it holds what no agent writes")
    return found


def _label_of_row(path: Path, row: list[Any]) -> HandoverLabel:
    kinds = [str, str, str, str, bytes]
    if [type(each) for each in row] != kinds:
        raise HandoverFileError(f"{path} has no label")
    return HandoverLabel(*row)


UnitFunction = Callable[[str, str], int]
"""The unit of a URL: of its host, and itself."""


class UnitSet:
    """The *units* of an assignment, whose function is *unit*.

    With *by_host* it goes by the host alone; with *slots* the unit is the slot of the host, so that
    what is kept of a unit lies together.
    """

    def __init__(
        self, units: Iterable[int], unit: UnitFunction, *, by_host: bool = True, slots: bool = False
    ) -> None:
        self.numbers = frozenset(units)
        self.by_host = by_host
        self.slots = slots
        self._unit = unit

    def __repr__(self) -> str:
        return f"<Units: {len(self.numbers):,}>"

    def has_host(self, host: str) -> bool:
        """Whether all URLs of *host* lie in them; where that goes by URL, whether some may."""
        return not self.by_host or self._unit(host, f"https://{host}/") in self.numbers

    def has(self, host: str, url: str) -> bool:
        """Whether *url* of *host* lies in them."""
        return self._unit(host, url) in self.numbers

    def prefixes(self) -> Iterator[tuple[bytes, bytes]]:
        """Where keys that begin with a slot may lie: from the first key on, before the second."""
        if not self.slots:
            yield b"", b"\xff" * 3
            return
        run = sorted(self.numbers)
        starts = [n for n, before in zip(run, [-2, *run], strict=False) if n != before + 1]
        ends = [before + 1 for before, n in pairwise([*run, UNITS + 1]) if n != before + 1]
        for start, end in zip(starts, ends, strict=True):
            # No host's name begins with a byte above all others.
            yield start.to_bytes(2, "big"), (end - 1).to_bytes(2, "big") + b"\xff"


def pack_units(units: Iterable[int]) -> bytes:
    """*units* as a bit for each."""
    bits = np.zeros(UNITS, bool)
    bits[list(units)] = True
    return np.packbits(bits).tobytes()


def unpack_units(data: bytes) -> frozenset[int]:
    """What `pack_units` packed. Raises `HandoverFileError` for anything else."""
    if len(data) != UNITS // 8:
        raise HandoverFileError("units that are none")
    found = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8)))
    return frozenset(found.tolist())


PIECE: Final = 1 << 16
"""Bytes that are sent at a time."""

RESERVE: Final = 64 << 20
"""Bytes of a disk that a file leaves free, besides as many as it has itself: it is merged."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class FileReceiver(Protocol):
    """What takes the files that come."""

    def kept(self, label: HandoverLabel) -> bool:
        """Whether all of that file is in the store, on disk, already.

        Raises `TransportError`: that cannot be said now.
        """

    async def take(self, label: HandoverLabel, path: Path) -> None:
        """Have all of the file at *path*, which is whole, in the store, on disk.

        If it is cancelled, the next call goes on. Raises `HandoverFileError`: it cannot be taken,
        now or later; `TransportError`: not now.
        """


@dataclass
class FileCounters:
    """What a file_transport has done since it was made. Bytes are those of files.

    Attributes:
        signs: how often a taker was heard of that is at work.
    """

    delivered: int = 0
    """Hand-over files of which the other side has said that it keeps them."""

    received: int = 0
    """Hand-over files that are kept here."""

    resumed: int = 0
    """Hand-over files that went on where a transfer had broken off, either way."""

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
    """Hand-over files that cannot be taken, given or received."""

    def __post_init__(self) -> None:
        self.signs = 0
        self._sent: Counter[str] = Counter()

    def sent(self, label: HandoverLabel) -> int:
        """How far that file has gone out, however often, until it is withdrawn."""
        return self._sent[label.file_id]

    def send(self, label: HandoverLabel, at: int, size: int) -> None:
        """So many bytes of it go out, from byte *at* on."""
        self.bytes_out += size
        self._sent[label.file_id] = max(self._sent[label.file_id], at + size)

    def withdraw(self, label: HandoverLabel) -> None:
        """Nobody asks for that file any more."""
        self._sent.pop(label.file_id, None)

    def refuse(self, kind: str) -> None:
        """Something was refused: *kind* is the name of a counter."""
        setattr(self, kind, getattr(self, kind) + 1)

    def as_dict(self) -> dict[str, int]:
        """Each by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class FileTransport(Protocol):
    """Brings files, several at once; belongs to one event loop and is used in its thread only."""

    counters: FileCounters
    throttle: Throttle

    @property
    def address(self) -> str:
        """Where others bring theirs, once it has started; for the row of a member."""

    async def start(self, inbox: FileReceiver) -> None:
        """Begin to receive; what an earlier process has not taken is. Raises `OSError`."""

    async def deliver(self, path: Path, label: HandoverLabel, address: str) -> None:
        """Bring the file at *path* to its receiver, at *address*; return once that keeps it.

        Raises `TransportError`: it is to be tried again later; `HandoverFileError`: the receiver
        cannot take it, now or later. May be cancelled.
        """

    def withdraw(self, label: HandoverLabel) -> None:
        """Nobody calls `deliver` for that file any more: what lies about of it is removed.

        If it was not delivered, it may have arrived all the same.
        """

    async def close(self) -> None:
        """Stop. It never raises; twice is once."""


class Throttle:
    """Lets *rate* bytes a second through; any number of them with 0."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._free = 0.0

    def wait(self, size: int, now: float) -> float:
        """How many seconds to wait, at time *now*, before *size* bytes go; they count as gone."""
        if not self.rate:
            return 0.0
        begin = max(now, self._free)
        self._free = begin + size / self.rate
        return begin - now


def decode_label(row: Sequence[Any]) -> HandoverLabel:
    """The label that *row* holds. Raises `HandoverFileError` unless it is one that an agent can
    write.
    """
    if [type(each) for each in row] != [str, str, str, str, bytes]:
        raise HandoverFileError("a hand-over file without a label")
    label = HandoverLabel(*row)
    unpack_units(label.units)
    if not _ID.fullmatch(label.file_id) or not 0 < len(label.crawl) <= 256:
        raise HandoverFileError("a hand-over file with a label that no agent writes")
    try:
        encode_name(label.sender)
        encode_name(label.receiver)
    except ValueError as error:
        raise HandoverFileError(
            f"a hand-over file with a label that no agent writes: {error}"
        ) from error
    return label


def read_label(path: Path) -> HandoverLabel:
    """The label of the file at *path*, checked. Raises `HandoverFileError`."""
    if path.is_symlink() or not path.is_file():
        raise HandoverFileError(f"{path.name} is no file")
    with HandoverReader(path) as reader:
        found = reader.label
    return decode_label([getattr(found, name) for name in HandoverLabel.__slots__])


def quoted_name(name: str) -> str:
    """*name* as part of a path, whatever is in it."""
    return quote(name, safe="").replace(".", "%2E")


def intact_prefix(path: Path, label: HandoverLabel, size: int) -> int:
    """How much of the file *label* of *size* bytes lies at *path*, where it goes on; 0 is none.

    What is not intact is cut off. Takes as long as reading it does. Raises `OSError`.
    """
    at = 0
    if path.is_file() and not path.is_symlink():
        try:
            at = intact_length(path) if read_label(path) == label else 0
        except HandoverFileError:
            at = 0
    if not 0 < at <= size:
        path.unlink(missing_ok=True)
        return 0
    os.truncate(path, at)
    return at


def check_room(folder: Path, size: int) -> None:
    """Raise `TransportError` unless a file of which *size* bytes are to come finds room there."""
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    if free < 2 * size + RESERVE:
        raise TransportError(f"the disk has no room for {size:,} bytes: {free:,} are free")


def error_text(error: BaseException) -> str:
    """What *error* says, as others are told."""
    return " ".join(str(error).split())[:300] or type(error).__name__
