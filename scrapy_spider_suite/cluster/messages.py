"""The message format, and the protocol of message transports.

A message holds rows for one receiver, numbered by the sender's outbox: a msgpack array
(`_Envelope`) around a Zstandard frame (RFC 8878) of a msgpack array of rows. Input is not trusted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Annotated, Final, NamedTuple, Protocol

import msgspec
from backports import zstd

from scrapy_spider_suite.errors import MessageError, MessageTooLargeError
from scrapy_spider_suite.runtime.text import counted

VERSION: Final = 1
NAME_MAX: Final = 64  # bytes of an agent's name (UTF-8)
ROWS_MAX: Final = 10_000
LEVEL: Final = 3  # of Zstandard: higher ones take twice the time for a twentieth less
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]
_Number = Annotated[int, msgspec.Meta(ge=0)]  # below 2 ** 64, as msgpack has it
_ROW: Final = 5  # bytes that msgpack puts before a row, at most
# The memory that a frame may ask for: 2 MiB.
_OPTIONS: Final[Mapping[int, int]] = {zstd.DecompressionParameter.window_log_max: 21}
_FULL: Final = 0.99  # aimed at: now and then a message has to be made anew with fewer rows


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


class _Envelope(NamedTuple):
    version: int
    sender: _Name
    incarnation: _Number  # of the sender: drawn by each process
    epoch: _Number  # of packing
    first: _Number
    last: _Number
    frame: bytes


class MessagePacker:
    """Packs rows into messages as full as *bounds* allow. Raises `ValueError`: invalid *sender*."""

    def __init__(self, sender: str, incarnation: int, bounds: MessageLimits) -> None:
        encode_name(sender)
        self._name = sender
        self._incarnation = incarnation
        self._bounds = bounds
        self._ratio = 1.0  # packed bytes for each byte of the last rows
        self._compressor = zstd.ZstdCompressor(level=LEVEL)

    def pack(self, rows: Sequence[tuple[int, bytes]], epoch: int) -> PackedMessage:
        """Return a message with as many of *rows*, (number, row) without gaps, as fit.

        Raises `MessageTooLargeError`: the first one does not fit.
        """
        bounds = self._bounds
        aim = min(bounds.raw - _ROW, int(bounds.packed / self._ratio * _FULL))
        sizes = list(accumulate(len(row) + _ROW for _, row in rows[:ROWS_MAX]))
        count = max(1, bisect_right(sizes, aim))
        while True:
            data, raw = self._message(rows[:count], epoch)
            limit = bounds.alone if count == 1 else bounds.packed
            if len(data) <= limit and raw <= bounds.raw:
                break
            if count == 1:
                raise MessageTooLargeError(
                    f"row {rows[0][0]} of {len(rows[0][1])} bytes does not fit into a message of "
                    f"{bounds.alone} bytes, {bounds.raw} before it is packed"
                )
            count = max(1, min(count - 1, int(count * limit / len(data) * _FULL)))
        if count > 1:
            self._ratio = len(data) / raw
        return PackedMessage(data, rows[0][0], rows[count - 1][0], count)

    def _message(self, rows: Sequence[tuple[int, bytes]], epoch: int) -> tuple[bytes, int]:
        raw = msgspec.msgpack.encode([row for _, row in rows])
        frame = self._compressor.compress(raw, zstd.ZstdCompressor.FLUSH_FRAME)
        whose = VERSION, self._name, self._incarnation
        return msgspec.msgpack.encode((*whose, epoch, rows[0][0], rows[-1][0], frame)), len(raw)


def unpack_message(data: bytes, bounds: MessageLimits) -> Message:
    """Return the message in *data*.

    Raises `MessageError`: invalid, or another version; `MessageTooLargeError`: over *bounds*.
    """
    if len(data) > max(bounds.packed, bounds.alone):
        raise MessageTooLargeError(f"a message of {len(data)} bytes")
    try:
        found = msgspec.msgpack.decode(data, type=_Envelope)
        encode_name(found.sender)
    except ValueError as error:
        raise MessageError(f"not a message: {error}") from error
    if found.version != VERSION:
        raise MessageError(f"a message of version {found.version}: this release knows {VERSION}")
    try:
        rows = msgspec.msgpack.decode(decompress(found.frame, bounds.raw), type=tuple[bytes, ...])
    except ValueError as error:
        raise MessageError(f"a message whose rows cannot be read: {error}") from error
    message = Message(*found[1:6], rows)
    if not 0 < len(rows) == message.last - message.first + 1 <= ROWS_MAX:
        number = counted(len(rows), "row")
        raise MessageError(f"{number} of the numbers {message.first} to {message.last}")
    return message


def pack_acknowledgements(receiver: str, receipts: Iterable[Acknowledgement]) -> bytes:
    return msgspec.msgpack.encode((receiver, [receipt[1:] for receipt in receipts]))


def unpack_acknowledgements(data: bytes) -> tuple[str, list[tuple[int, int, int]]]:
    """Return receiver and (incarnation, first, last). Raises `MessageError`."""
    try:
        return msgspec.msgpack.decode(data, type=tuple[_Name, list[tuple[int, int, int]]])
    except ValueError as error:
        raise MessageError(f"no receipts: {error}") from error


def encode_name(name: str) -> bytes:
    """Return an agent's name as bytes. Raises `ValueError`."""
    data = name.encode("utf-8", "surrogatepass")
    if not (name.isprintable() and 0 < len(data) <= NAME_MAX):
        raise ValueError(f"{name!r} is no name for an agent: 1 to {NAME_MAX} printable bytes")
    return data


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
    """A refused datagram, or an unusable connection, counted as *kind*; stays in the transports.

    *answer*: a datagram for the other side, or nothing.
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


class MessageTransport(Protocol):
    """Sends a message again until its receiver acknowledged it: it arrives at least once."""

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
    if (size := len(key)) < SHARED_KEY_MIN:
        raise ValueError(f"the key that the agents share has {size} bytes, not {SHARED_KEY_MIN}")
    return blake2b(key, person=purpose).digest()
