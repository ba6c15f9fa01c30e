"""Runs in blobs: immutable files in a shared folder, each with many pieces that are read alone.

A piece is a checksum, the slot of its run, and a Zstandard frame (RFC 8878) of the run's rows by
host. Foreign and damaged pieces are refused.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from backports import zstd
from xxhash import xxh3_64_intdigest

from scrapy_spider_suite.cluster.redis_server import check_crawl_name
from scrapy_spider_suite.errors import BlobError
from scrapy_spider_suite.frontier.entries import slot_of
from scrapy_spider_suite.runtime.remote_folder import RemoteFolder, error_line

_HEAD: Final = struct.Struct(">QH")  # checksum of what follows it, slot
_PLACE: Final = struct.Struct(">8sQI")
_LEVEL: Final = 3
_URLS: Final = 1_000
_SIZE: Final = 64 << 20  # bytes of the rows of a run, decompressed
_OPTIONS: Final[Mapping[int, int]] = {zstd.DecompressionParameter.window_log_max: 23}
_Rows = Annotated[list[bytes], msgspec.Meta(min_length=1, max_length=_URLS)]
_Hosts = Annotated[list[tuple[str, _Rows]], msgspec.Meta(max_length=_URLS)]


class Place(NamedTuple):
    """Where a piece lies: in a *blob* (8 bytes), from *offset* on."""

    blob: bytes
    offset: int
    length: int

    def to_bytes(self) -> bytes:
        return _PLACE.pack(*self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Place:
        """Unpack a place. Raises `struct.error`."""
        return cls(*_PLACE.unpack(data))


RunRows = Sequence[tuple[str, Sequence[bytes]]]
"""Hosts of one slot, each with the rows of its URLs as `store.rows.pack_row` packs them."""


def pack_piece(slot: int, hosts: RunRows) -> bytes:
    frame = zstd.compress(msgspec.msgpack.encode(hosts), _LEVEL)
    rest = slot.to_bytes(2, "big") + frame
    return xxh3_64_intdigest(rest).to_bytes(8, "big") + rest


def unpack_piece(slot: int, piece: bytes) -> list[tuple[str, list[bytes]]]:
    """The hosts and rows of a *piece* of *slot*. Raises `BlobError`."""
    if len(piece) < _HEAD.size:
        raise BlobError("a piece of a blob is cut short")
    checksum, found = _HEAD.unpack_from(piece)
    if xxh3_64_intdigest(piece[8:]) != checksum:
        raise BlobError("a piece of a blob has another checksum")
    if found != slot:
        raise BlobError(f"a run of slot {slot} has the rows of slot {found}")
    try:
        decompressor = zstd.ZstdDecompressor(options=_OPTIONS)
        data = decompressor.decompress(piece[_HEAD.size :], _SIZE)
        hosts = msgspec.msgpack.decode(data, type=_Hosts)
    except (zstd.ZstdError, ValueError) as error:
        raise BlobError(f"a piece of a blob cannot be read: {error}") from error
    for host, _ in hosts:
        if slot_of(host) != slot:
            raise BlobError(f"a run of slot {slot} has the host {host[:100]!r}")
    return hosts


class BlobFolder:
    """The blobs of *crawl* in the shared folder *url*. Its methods block, and raise `BlobError`."""

    def __init__(self, url: str, crawl: str) -> None:
        check_crawl_name(crawl)
        self._folder = RemoteFolder(url)
        self._crawl = crawl

    def _name(self, blob: bytes) -> str:
        return f"{self._crawl}/{blob[:1].hex()}/{blob.hex()}.blob"

    def write(self, pieces: Sequence[bytes]) -> list[Place]:
        """Write a blob of all *pieces*; the place of each."""
        blob, offset, places = secrets.token_bytes(8), 0, []
        for piece in pieces:
            places.append(Place(blob, offset, len(piece)))
            offset += len(piece)
        try:
            self._folder.write(self._name(blob), b"".join(pieces))
        except Exception as error:  # each library of a file system has errors of its own
            where = f"a blob cannot be written to {self._folder.url}"
            raise BlobError(error_line(where, error)) from error
        return places

    def read(self, place: Place) -> bytes:
        name, end = self._name(place.blob), place.offset + place.length
        try:
            return self._folder.read(name, place.offset, end)
        except FileNotFoundError:
            raise BlobError(f"{self._folder.url} has no {name}", missing=True) from None
        except Exception as error:
            raise BlobError(error_line(f"{name} cannot be read", error)) from error

    def remove(self, blob: bytes) -> None:
        name = self._name(blob)
        try:
            self._folder.remove(name)
        except Exception as error:
            raise BlobError(error_line(f"{name} cannot be removed", error)) from error
