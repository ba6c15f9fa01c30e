"""The message format, and the protocol of message transports.

A message holds rows for one receiver, numbered by the sender's outbox:

======== ==========================================================
bytes    what, in network order
======== ==========================================================
2        ``SL``
1        version: `VERSION`
1        length of the sender's name
8        incarnation of the sender: drawn by each process
8        epoch of packing
8, 8     first, last number
2        number of rows
n        the sender's name (UTF-8)
the rest a Zstandard frame (RFC 8878) of a msgpack array of rows
======== ==========================================================

Input is not trusted: lengths are checked before use.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

import msgpack  # type: ignore[import-untyped]
from backports import zstd

from scrapy_spider_suite.errors import MessageError, MessageTooLargeError
from scrapy_spider_suite.runtime.text import counted

VERSION: Final = 1

NAME_MAX: Final = 64  # bytes of an agent's name (UTF-8)

ROWS_MAX: Final = 10_000

LEVEL: Final = 3  # of Zstandard: higher ones take twice the time for a twentieth less

_MAGIC: Final = b"SL"
_HEAD: Final = struct.Struct(">2sBBQQQQH")
_RECEIPT: Final = struct.Struct(">QQQ")
_ROW: Final = 5  # bytes that msgpack puts before a row, at most
# The memory that a frame may ask for: 2 MiB.
_OPTIONS: Final[Mapping[int, int]] = {zstd.DecompressionParameter.window_log_max: 21}
_FULL: Final = 0.99  # aimed at: now and then a message has to be made anew with fewer rows
_LEARN: Final = 0.25


class MessageLimits(NamedTuple):
    """Largest messages in bytes; equal on both sides."""

    packed: int  # of several rows
    alone: int  # of one row
    raw: int  # the rows, decompressed


class Acknowledgement(NamedTuple):
    sender: str
    incarnation: int
    first: int
    last: int


class PackedMessage(NamedTuple):
    data: bytes
    first: int
    last: int
    rows: int  # how many


class Message(NamedTuple):
    sender: str
    incarnation: int
    epoch: int
    first: int
    last: int
    rows: tuple[bytes, ...]

    @property
    def receipt(self) -> Acknowledgement:
        return Acknowledgement(self.sender, self.incarnation, self.first, self.last)


class MessagePacker:
    """Packs rows into messages as full as *bounds* allow. Raises `ValueError`: invalid *sender*."""

    def __init__(self, sender: str, incarnation: int, bounds: MessageLimits) -> None:
        self._name = encode_name(sender)
        self._incarnation = incarnation
        self._bounds = bounds
        self._ratio, self._learn = 1.0, 1.0
        self._compressor = zstd.ZstdCompressor(level=LEVEL)

    def pack(self, rows: Sequence[tuple[int, bytes]], epoch: int) -> PackedMessage:
        """Return a message with as many of *rows*, (number, row) ascending, as fit.

        Raises `MessageTooLargeError`: the first row does not fit; `ValueError`: there is no row.
        """
        count = self._count_fitting(rows)
        while True:
            data, raw = self._message(rows[:count], epoch)
            limit = self._bounds.alone if count == 1 else self._bounds.packed
            if len(data) <= limit:
                break
            self._ratio = max(self._ratio, len(data) / raw)
            if count == 1:
                raise self._too_large(rows[0])
            count = max(1, min(count - 1, int(count * limit / len(data) * _FULL)))
        if count > 1:
            self._ratio += self._learn * (len(data) / raw - self._ratio)
            self._learn = _LEARN
        return PackedMessage(data, rows[0][0], rows[count - 1][0], count)

    def _count_fitting(self, rows: Sequence[tuple[int, bytes]]) -> int:
        if not rows:
            raise ValueError("a message without rows")
        bounds = self._bounds
        aim = min(bounds.raw - _ROW, int(bounds.packed / self._ratio * _FULL))
        size = 0
        for count, (_, row) in enumerate(rows[:ROWS_MAX]):
            size += len(row) + _ROW
            if size > aim and count:
                return count
            if size > bounds.raw - _ROW:
                raise self._too_large(rows[0])
        return min(len(rows), ROWS_MAX)

    def _too_large(self, row: tuple[int, bytes]) -> MessageTooLargeError:
        bounds = self._bounds
        return MessageTooLargeError(
            f"row {row[0]} of {len(row[1])} bytes does not fit into a message of {bounds.alone} "
            f"bytes, {bounds.raw} before it is packed"
        )

    def _message(self, rows: Sequence[tuple[int, bytes]], epoch: int) -> tuple[bytes, int]:
        raw: bytes = msgpack.packb([row for _, row in rows])
        head = _HEAD.pack(
            _MAGIC, VERSION, len(self._name), self._incarnation, epoch, rows[0][0], rows[-1][0],
            len(rows),
        )  # fmt: skip
        frame = self._compressor.compress(raw, zstd.ZstdCompressor.FLUSH_FRAME)
        return b"".join((head, self._name, frame)), len(raw)


def unpack_message(data: bytes, bounds: MessageLimits) -> Message:
    """Return the message in *data*.

    Raises `MessageError`: invalid, or another version; `MessageTooLargeError`: over *bounds*.
    """
    if len(data) > max(bounds.packed, bounds.alone):
        raise MessageTooLargeError(f"a message of {len(data)} bytes")
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise MessageError("not a message")
    _, version, length, incarnation, epoch, first, last, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise MessageError(f"a message of version {version}: this release knows {VERSION}")
    if not (0 < count <= ROWS_MAX and count <= last - first + 1):
        raise MessageError(f"a message of {counted(count, 'row')}, {first} to {last}")
    name, frame = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
    try:
        rows = msgpack.unpackb(
            decompress(frame, bounds.raw), use_list=False, max_array_len=count, max_map_len=0,
            max_ext_len=0, max_str_len=0,
        )  # fmt: skip
    except (ValueError, msgpack.UnpackException) as error:
        raise MessageError("a message whose rows cannot be read") from error
    if type(rows) is not tuple or len(rows) != count or any(type(row) is not bytes for row in rows):
        raise MessageError("a message whose rows are not what they should be")
    return Message(decode_name(name), incarnation, epoch, first, last, rows)


def pack_acknowledgements(receiver: str, receipts: Iterable[Acknowledgement]) -> bytes:
    name = encode_name(receiver)
    numbers = [_RECEIPT.pack(*receipt[1:]) for receipt in receipts]
    return b"".join((bytes([len(name)]), name, *numbers))


def unpack_acknowledgements(data: bytes) -> tuple[str, list[tuple[int, int, int]]]:
    """Return receiver and (incarnation, first, last). Raises `MessageError`."""
    end = 1 + data[0] if data else 0
    name, numbers = data[1:end], data[end:]
    if not numbers or len(numbers) % _RECEIPT.size:
        raise MessageError("receipts of another length than they should have")
    return decode_name(name), list(_RECEIPT.iter_unpack(numbers))


def encode_name(name: str) -> bytes:
    """Return an agent's name as bytes. Raises `ValueError`."""
    data = name.encode("utf-8", "surrogatepass")
    if not (name.isprintable() and 0 < len(data) <= NAME_MAX):
        raise ValueError(f"{name!r} is no name for an agent: 1 to {NAME_MAX} printable bytes")
    return data


def decode_name(data: bytes) -> str:
    """Return an agent's name. Raises `MessageError`."""
    try:
        name = data.decode("utf-8")
        encode_name(name)
    except ValueError as error:
        raise MessageError("a sender without a proper name") from error
    return name


def decompress(frame: bytes, limit: int, what: str = "a message") -> bytes:
    """Return the content of *frame*, *limit* bytes at most; errors call it *what*.

    Raises `MessageError`: invalid, or with a tail; `MessageTooLargeError`.
    """
    decompressor = zstd.ZstdDecompressor(options=_OPTIONS)
    try:
        raw = decompressor.decompress(frame, limit + 1)
    except (zstd.ZstdError, EOFError) as error:
        raise MessageError(f"{what} whose rows cannot be decompressed") from error
    if len(raw) > limit:
        raise MessageTooLargeError(f"{what} of more than {limit} bytes, decompressed")
    if not decompressor.eof or decompressor.unused_data:
        raise MessageError(f"{what} of another length than it should have")
    return raw


OnMessage = Callable[[Message], None]
"""Called with each message in the loop's thread; must not raise."""

OnAcknowledged = Callable[[str, int, int], None]
"""Called with receiver, first and last number of a sent message; must not raise."""


class WireError(Exception):
    """A refused datagram, or an unusable connection; stays in the transports.

    Attributes:
        kind: the counter of `RefusalCounters`.
        answer: a datagram for the other side, or nothing.
    """

    def __init__(self, kind: str, why: str, answer: bytes = b"") -> None:
        super().__init__(why)
        self.kind, self.answer = kind, answer


class RefusalCounters:
    """Counters of a transport, among them one for each kind of refusal."""

    def refuse(self, kind: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)


@dataclass
class MessageCounters(RefusalCounters):
    """Counters of a transport, ``suite/messages/...`` in the stats (docs/stats.md)."""

    taken: int = 0
    rows: int = 0
    bytes: int = 0
    sent: int = 0
    resent: int = 0
    acknowledged: int = 0
    withdrawn: int = 0
    received: int = 0
    repeated: int = 0
    receipts: int = 0
    full: int = 0
    failed: int = 0
    remade: int = 0
    forged: int = 0
    replayed: int = 0
    malformed: int = 0
    oversized: int = 0
    unknown: int = 0

    def took(self, message: PackedMessage) -> None:
        self.taken += 1
        self.rows += message.rows
        self.bytes += len(message.data)

    @property
    def refused(self) -> int:
        return self.forged + self.replayed + self.malformed + self.oversized + self.unknown


class MessageTransport(Protocol):
    """Sends a message again until its receiver acknowledged it: it arrives at least once.

    Used in the thread of one event loop.
    """

    bounds: MessageLimits
    counters: MessageCounters

    async def start(self, received: OnMessage, acknowledged: OnAcknowledged) -> None:
        """Begin to send and receive. Raises `OSError`."""

    def room(self, to: str) -> int:
        """Return how many messages `send` takes for *to*; 0 for an unknown agent."""

    def send(self, to: str, message: PackedMessage) -> bool:
        """Take a message for *to*, once; False without room."""

    def acknowledge(self, receipt: Acknowledgement) -> None:
        """The rows are on disk: the sender may forget them."""

    def withdraw(self, to: str) -> None:
        """Forget messages under way to *to*; they may arrive unreported."""

    async def close(self, seconds: float = 5.0) -> None:
        """Stop; acknowledgements go within *seconds*, callbacks end. Never raises; idempotent."""


SHARED_KEY_MIN: Final = 16  # bytes of the shared key, at least


def derive_secret(key: bytes, purpose: bytes) -> bytes:
    """Return the secret of one *purpose*. Raises `ValueError`: the shared *key* is too short."""
    if len(key) < SHARED_KEY_MIN:
        raise ValueError(
            f"the key that the agents share has {len(key)} bytes, not {SHARED_KEY_MIN}"
        )
    return blake2b(key, person=purpose).digest()
