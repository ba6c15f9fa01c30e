"""Parcels: files in which one agent hands what it keeps of some hosts to another.

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

The first chunk is the `Label`, the last one is empty; every other is a list of items, which are
lists of a number and what belongs to it. So a file that was cut is noticed, and where its intact
part ends is known: a transfer goes on from there.

A file came from elsewhere: no length is used unchecked, and nothing in it is more than data.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import xxhash
from backports import zstd

from scrapy_spider_suite.errors import ParcelError

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
class Label:
    """What a parcel is.

    Attributes:
        parcel: its id: another one each time that anything is packed.
        crawl: the id of the crawl.
        sender: the agent that gives.
        receiver: the agent that takes.
        units: what is handed over, as `units.packed` has it.
    """

    parcel: str
    crawl: str
    sender: str
    receiver: str
    units: bytes


class Writer:
    """Writes a parcel to *path*. Raises `OSError`."""

    def __init__(self, path: Path, label: Label) -> None:
        self._file = path.open("wb")
        self._file.write(MAGIC)
        self._at = len(MAGIC)
        self._items: list[bytes] = []
        self._size = 0
        self._chunk(msgpack.packb([getattr(label, each.name) for each in fields(Label)]))

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

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        self.close()


class Reader:
    """Reads the parcel at *path*. Raises `ParcelError`: it is none, here and in all that follows.

    Attributes:
        label: what it says it is.
        first: where its first items begin.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ParcelError(f"{path}: {error.strerror}") from error
        try:
            if self._file.read(len(MAGIC)) != MAGIC:
                raise ParcelError(f"{path} is no parcel of this version")
            row, self.first = self._chunk(len(MAGIC))
            self.label = _label(path, row)
        except BaseException:
            self.close()
            raise

    def chunk(self, at: int) -> tuple[list[Item], int]:
        """The items of the chunk at *at*, and where the next one begins; none: it is the last."""
        items, end = self._chunk(at)
        if not all(isinstance(item, list) and item for item in items):
            raise ParcelError(f"{self.path} holds what no agent writes, at byte {at}")
        if not items and end != os.fstat(self._file.fileno()).st_size:
            raise ParcelError(f"{self.path} goes on behind its end, at byte {end}")
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
            raise ParcelError(f"{self.path} is cut, at byte {at}")
        packed, size, sum_ = _HEAD.unpack(head)
        if max(packed, size) > RAW_MAX:
            raise ParcelError(f"{self.path} is damaged, at byte {at}: a chunk of {size:,} bytes")
        if os.fstat(self._file.fileno()).st_size < at + _HEAD.size + packed:
            raise ParcelError(f"{self.path} is cut, at byte {at}")
        frame = self._file.read(packed)
        if xxhash.xxh3_64_intdigest(frame, at) != sum_:
            raise ParcelError(f"{self.path} is damaged, at byte {at}")
        return _array(_raw(frame, size), f"{self.path}, at byte {at}"), at + _HEAD.size + packed

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def intact(path: Path) -> int:
    """How many bytes of the parcel at *path*, from its begin on, need not be sent again.

    All of them if it is whole: then `Reader` reads to its end. Takes as long as reading it does.
    """
    try:
        with Reader(path) as reader:
            at = reader.first
            items = True
            while items:
                items, at = _next(reader, at)
            return at
    except ParcelError:
        return 0


def _next(reader: Reader, at: int) -> tuple[bool, int]:
    try:
        items, end = reader.chunk(at)
    except ParcelError:
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
        raise ParcelError(f"{where}: it cannot be read ({error})") from error
    if not isinstance(found, list):
        raise ParcelError(f"{where}: it holds what no agent writes")
    return found


def _label(path: Path, row: list[Any]) -> Label:
    kinds = [str, str, str, str, bytes]
    if [type(each) for each in row] != kinds:
        raise ParcelError(f"{path} has no label")
    return Label(*row)
