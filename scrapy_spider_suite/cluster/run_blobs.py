"""Runs in blobs: immutable files in a shared folder, each with many pieces that are read alone.

A piece is a checksum, a number, and a Zstandard frame (RFC 8878). A run, and what is known of
hosts, has the number of its slot; links for an owner, and rows that wait there, that of their
partition. Foreign and damaged pieces are refused.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from backports import zstd
from xxhash import xxh3_64_intdigest

from scrapy_spider_suite.cluster.redis_server import check_crawl_name
from scrapy_spider_suite.errors import BlobError
from scrapy_spider_suite.frontier.entries import slot_of
from scrapy_spider_suite.runtime.remote_folder import RemoteFolder, error_line

_HEAD: Final = struct.Struct(">QH")  # checksum of what follows it, number
_PLACE: Final = struct.Struct(">8sQI")
_LEVEL: Final = 3
_URLS: Final = 1_000
_SIZE: Final = 256 << 20  # bytes of a piece, decompressed
_OPTIONS: Final[Mapping[int, int]] = {zstd.DecompressionParameter.window_log_max: 23}
RunRow: TypeAlias = bytes | tuple[bytes, str]
"""The row of a URL as `store.rows.pack_row` packs it; of a seed with its note."""
_Rows = Annotated[list[RunRow], msgspec.Meta(min_length=1, max_length=_URLS)]
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
        """Unpack a place. Raises `BlobError`."""
        try:
            return cls(*_PLACE.unpack(data))
        except struct.error as error:
            raise BlobError(f"no place of a blob: {error}", damaged=True) from error


RunHosts: TypeAlias = list[tuple[str, list[RunRow]]]
"""Hosts of one slot, each with the rows of its URLs."""


class Links(NamedTuple):
    """What a fetcher found for the owner of a partition: *rows* as `mailbox` packs them for other
    agents, and *endings* of URLs: fingerprint, number of the event, status, seconds since 1970.
    """

    rows: list[bytes]
    endings: list[tuple[int, int, int, int]]


def _seal(number: int, data: bytes) -> bytes:
    rest = number.to_bytes(2, "big") + zstd.compress(data, _LEVEL)
    return xxh3_64_intdigest(rest).to_bytes(8, "big") + rest


def _unseal(piece: bytes) -> tuple[int, bytes]:
    if len(piece) < _HEAD.size:
        raise BlobError("a piece of a blob is cut short", damaged=True)
    checksum, number = _HEAD.unpack_from(piece)
    if xxh3_64_intdigest(piece[8:]) != checksum:
        raise BlobError("a piece of a blob has another checksum", damaged=True)
    try:
        decompressor = zstd.ZstdDecompressor(options=_OPTIONS)
        return number, decompressor.decompress(piece[_HEAD.size :], _SIZE)
    except (zstd.ZstdError, ValueError) as error:
        raise BlobError(f"a piece of a blob cannot be read: {error}", damaged=True) from error


def pack_piece(slot: int, hosts: Sequence[tuple[str, Sequence[RunRow]]]) -> bytes:
    return _seal(slot, msgspec.msgpack.encode(hosts))


def unpack_piece(slot: int, piece: bytes) -> RunHosts:
    """The hosts and rows of a *piece* of *slot*. Raises `BlobError`."""
    found, data = _unseal(piece)
    if found != slot:
        raise BlobError(f"a run of slot {slot} has the rows of slot {found}", damaged=True)
    hosts: RunHosts = _decode(data, _Hosts)
    for host, _ in hosts:
        if slot_of(host) != slot:
            raise BlobError(f"a run of slot {slot} has the host {host[:100]!r}", damaged=True)
    return hosts


def pack_waiting(partition: int, slots: Sequence[tuple[int, RunHosts]]) -> bytes:
    return _seal(partition, msgspec.msgpack.encode(slots))


def unpack_waiting(partition: int, piece: bytes) -> list[tuple[int, RunHosts]]:
    """Slots and their rows by host. Raises `BlobError`."""
    return _decoded(partition, piece, list[tuple[int, RunHosts]])


def pack_hosts(slot: int, items: Sequence[list[Any]]) -> bytes:
    return _seal(slot, msgspec.msgpack.encode(items))


def unpack_hosts(slot: int, piece: bytes) -> list[list[Any]]:
    """What `run_hosts` saved of the hosts of *slot*. Raises `BlobError`."""
    return _decoded(slot, piece, list[list[Any]])


def pack_links(partition: int, links: Links) -> bytes:
    return _seal(partition, msgspec.msgpack.encode(links))


def unpack_links(partition: int, piece: bytes) -> Links:
    """The links of a *piece* for the owner of *partition*. Raises `BlobError`."""
    return _decoded(partition, piece, Links)


T = TypeVar("T")


def _decoded(number: int, piece: bytes, kind: type[T]) -> T:
    found, data = _unseal(piece)
    if found != number:
        raise BlobError(f"a piece is for number {found}, not for {number}", damaged=True)
    return _decode(data, kind)


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise BlobError(f"a piece of a blob cannot be read: {error}", damaged=True) from error


class BlobFolder:
    """The blobs of *crawl* in the shared folder *url*. Its methods block, and raise `BlobError`."""

    def __init__(self, url: str, crawl: str) -> None:
        check_crawl_name(crawl)
        self._folder = RemoteFolder(url)
        self._crawl = crawl

    def _name(self, blob: bytes) -> str:
        return f"{self._crawl}/{blob[:1].hex()}/{blob.hex()}.blob"

    def mark(self, crawl: str, *, new: bool) -> str:
        """Which crawl the folder belongs to: *crawl* if it is *new*; "" if nobody has marked it."""
        name = f"{self._crawl}/crawl"
        try:
            if new:
                self._folder.write(name, crawl.encode())
            return self._folder.read(name).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        except Exception as error:
            raise BlobError(error_line(f"{self._folder.url} cannot be used", error)) from error

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

    def read_run(self, place: bytes) -> bytes:
        """The piece of a run by its *place*, which may hold the piece itself (`run_queue.Run`)."""
        return self.read(Place.from_bytes(place[1:])) if place[:1] == b"\1" else place[1:]

    def remove(self, blob: bytes) -> None:
        name = self._name(blob)
        try:
            self._folder.remove(name)
        except Exception as error:
            raise BlobError(error_line(f"{name} cannot be removed", error)) from error
