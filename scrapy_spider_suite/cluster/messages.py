"""Messages: rows of an agent's outbox on their way to another agent, as bytes and back.

A message holds rows that are all for one receiver; *first* and *last* are the numbers that its
first and its last row have in the outbox of the sender, which numbers its rows once and for good.
What a
row says is nothing to this module: it is bytes, and stays bytes.

======== ==========================================================
bytes    what, in network order
======== ==========================================================
2        ``SL``
1        version: `VERSION`
1        length of the sender's name
8        incarnation of the sender: drawn by each of its processes
8        epoch in which it was packed
8, 8     first, last
2        how many rows
n        the sender's name (UTF-8)
the rest a Zstandard frame (RFC 8878) of a msgpack array of the rows
======== ==========================================================

What is unpacked came from elsewhere: every length is checked before it is used, a frame is
decompressed as far as `Bounds.raw` and no further, and nothing in it is more than bytes.

What carries messages between agents: the protocol that Redis Streams and UDP both follow.

A message that `Transport.send` has taken is sent again until its receiver says that it is kept, or
until it is withdrawn or the transport is closed. It arrives at least once, and perhaps more often:
who receives messages has to bear that, which is easy with URLs. It is acknowledged to the sender
only after the receiver's `Transport.acknowledge`, which the receiver calls once its rows are on
disk. What a process had taken and was not acknowledged is lost to it with the process; it is still
in the outbox, from where it is sent again, perhaps in other messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple, Protocol

import msgpack  # type: ignore[import-untyped]
from backports import zstd

from scrapy_spider_suite.errors import MessageError, MessageTooLargeError
from scrapy_spider_suite.runtime.text import counted

VERSION: Final = 1
"""Third byte of each message."""

NAME_MAX: Final = 64
"""Bytes of an agent's name (UTF-8)."""

ROWS_MAX: Final = 10_000
"""Rows of one message."""

LEVEL: Final = 3
"""Of Zstandard: higher ones take twice the time or more for a twentieth less."""

_MAGIC: Final = b"SL"
_HEAD: Final = struct.Struct(">2sBBQQQQH")
_RECEIPT: Final = struct.Struct(">QQQ")
_ROW: Final = 5  # what msgpack puts before a row, at most
# The memory that a frame may ask for: 2 MiB.
_OPTIONS: Final[Mapping[int, int]] = {zstd.DecompressionParameter.window_log_max: 21}
_FULL: Final = 0.99  # aimed at: now and then a message has to be made anew with fewer rows
_LEARN: Final = 0.25


class MessageLimits(NamedTuple):
    """How large messages may be, in bytes; both sides have to agree on them."""

    packed: int
    """A message of several rows."""

    alone: int
    """A message of one row, which nothing can divide."""

    raw: int
    """The rows of a message, decompressed."""


class Acknowledgement(NamedTuple):
    """What of whom is acknowledged."""

    sender: str
    incarnation: int
    first: int
    last: int


class PackedMessage(NamedTuple):
    """A message as bytes."""

    data: bytes
    first: int
    last: int
    rows: int
    """How many rows it holds."""


class Message(NamedTuple):
    """A message as it was received."""

    sender: str
    incarnation: int
    epoch: int
    first: int
    last: int
    rows: tuple[bytes, ...]

    @property
    def receipt(self) -> Acknowledgement:
        """By which it is acknowledged."""
        return Acknowledgement(self.sender, self.incarnation, self.first, self.last)


class MessagePacker:
    """Cuts rows into messages that are as full as *bounds* let them be.

    How far the rows can be compressed is known from the messages before.

    Raises:
        ValueError: *sender* is no name for an agent.
    """

    def __init__(self, sender: str, incarnation: int, bounds: MessageLimits) -> None:
        self._name = encode_name(sender)
        self._incarnation = incarnation
        self._bounds = bounds
        self._ratio, self._learn = 1.0, 1.0
        self._compressor = zstd.ZstdCompressor(level=LEVEL)

    def pack(self, rows: Sequence[tuple[int, bytes]], epoch: int) -> PackedMessage:
        """A message with as many of *rows*, (number, row) from the lowest, as fit from the first
        on.

        Raises:
            MessageTooLargeError: the first row does not fit, even alone.
            ValueError: there is no row.
        """
        count = self._guess(rows)
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

    def _guess(self, rows: Sequence[tuple[int, bytes]]) -> int:
        """How many of *rows* are likely to fit."""
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
        """The message, and the bytes of its rows before they were compressed."""
        raw: bytes = msgpack.packb([row for _, row in rows])
        head = _HEAD.pack(
            _MAGIC, VERSION, len(self._name), self._incarnation, epoch, rows[0][0], rows[-1][0],
            len(rows),
        )  # fmt: skip
        frame = self._compressor.compress(raw, zstd.ZstdCompressor.FLUSH_FRAME)
        return b"".join((head, self._name, frame)), len(raw)


def unpack_message(data: bytes, bounds: MessageLimits) -> Message:
    """The message that *data* is.

    Raises:
        MessageError: it is none, or one of another version.
        MessageTooLargeError: it is larger than *bounds* allow, or would be.
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
    rows = _rows(decompress(frame, bounds.raw), count)
    return Message(decode_name(name), incarnation, epoch, first, last, rows)


def pack_acknowledgements(receiver: str, receipts: Iterable[Acknowledgement]) -> bytes:
    """What *receiver* keeps of one sender's messages, as bytes."""
    name = encode_name(receiver)
    numbers = [_RECEIPT.pack(*receipt[1:]) for receipt in receipts]
    return b"".join((bytes([len(name)]), name, *numbers))


def unpack_acknowledgements(data: bytes) -> tuple[str, list[tuple[int, int, int]]]:
    """Who keeps messages, and of each incarnation, first and last. Raises `MessageError`."""
    end = 1 + data[0] if data else 0
    name, numbers = data[1:end], data[end:]
    if not numbers or len(numbers) % _RECEIPT.size:
        raise MessageError("receipts of another length than they should have")
    return decode_name(name), list(_RECEIPT.iter_unpack(numbers))


def encode_name(name: str) -> bytes:
    """The name of an agent as bytes. Raises `ValueError`: it is none."""
    data = name.encode("utf-8", "surrogatepass")
    if not (name.isprintable() and 0 < len(data) <= NAME_MAX):
        raise ValueError(f"{name!r} is no name for an agent: 1 to {NAME_MAX} printable bytes")
    return data


def decode_name(data: bytes) -> str:
    """The name of an agent. Raises `MessageError`: it is none."""
    try:
        name = data.decode("utf-8")
        encode_name(name)
    except ValueError as error:
        raise MessageError("a sender without a proper name") from error
    return name


def decompress(frame: bytes, limit: int, what: str = "a message") -> bytes:
    """What *frame* holds, *limit* bytes at most; an error speaks of it as *what*.

    Raises:
        MessageError: it cannot be decompressed, or something follows it.
        MessageTooLargeError: it holds more.
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


def _rows(raw: bytes, count: int) -> tuple[bytes, ...]:
    """The *count* rows in *raw*."""
    try:
        rows = msgpack.unpackb(
            raw, use_list=False, max_array_len=count, max_map_len=0, max_ext_len=0, max_str_len=0
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise MessageError("a message whose rows cannot be read") from error
    if type(rows) is not tuple or len(rows) != count or any(type(row) is not bytes for row in rows):
        raise MessageError("a message whose rows are not what they should be")
    return rows


OnMessage = Callable[[Message], None]
"""Called with each message, in the loop's thread; must not raise."""

OnAcknowledged = Callable[[str, int, int], None]
"""Called with receiver, first and last of a message that was taken from here; must not raise."""


@dataclass(slots=True)
class MessageCounters:
    """What a transport has done since it was made; each is for ``suite/messages/...`` in the stats.
    """

    taken: int = 0
    """Messages to be sent."""

    rows: int = 0
    """Rows in them."""

    bytes: int = 0
    """Bytes of them."""

    sent: int = 0
    """Times that a message was put on the wire."""

    resent: int = 0
    """Of these, not for the first time."""

    acknowledged: int = 0
    """Messages that their receivers keep."""

    withdrawn: int = 0
    """Messages that were taken back."""

    received: int = 0
    """Messages handed on, some of them twice."""

    repeated: int = 0
    """Messages that came again and were not handed on again."""

    receipts: int = 0
    """Messages that were acknowledged to their senders."""

    full: int = 0
    """Times that a message had to wait because there was no room for it."""

    failed: int = 0
    """Times that the server or the network failed; it is tried again."""

    remade: int = 0
    """Streams or connections that had to be made anew because the other side had lost them."""

    forged: int = 0
    """Refused: not from who it says, or with another key."""

    replayed: int = 0
    """Refused: a datagram of a connection that is over, genuine or not."""

    malformed: int = 0
    """Refused: not what it should be."""

    oversized: int = 0
    """Refused: too large, packed or unpacked."""

    unknown: int = 0
    """Refused: from an agent that is not on the list."""

    def took(self, message: PackedMessage) -> None:
        """*message* is to be sent."""
        self.taken += 1
        self.rows += message.rows
        self.bytes += len(message.data)

    def refuse(self, kind: str) -> None:
        """Something was refused: *kind* is one of the last five."""
        setattr(self, kind, getattr(self, kind) + 1)

    @property
    def refused(self) -> int:
        """What came and was refused, whatever the reason."""
        return self.forged + self.replayed + self.malformed + self.oversized + self.unknown

    def as_dict(self) -> dict[str, int]:
        """Each by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class MessageTransport(Protocol):
    """Carries messages; belongs to one event loop and is used in its thread only."""

    bounds: MessageLimits
    """What messages it can carry: for `messages.Packer`."""

    counters: MessageCounters

    async def start(self, received: OnMessage, acknowledged: OnAcknowledged) -> None:
        """Begin to send and to receive. Raises `OSError`: there is no socket for it."""

    def room(self, to: str) -> int:
        """How many messages `send` takes for the agent *to* now; 0 for one that is not known."""

    def send(self, to: str, message: PackedMessage) -> bool:
        """Take a message for *to*; False if there is no room. One that is on its way is not
        doubled.

        There is room again as messages are acknowledged.
        """

    def acknowledge(self, receipt: Acknowledgement) -> None:
        """The rows of a message that was received are kept: its sender may forget them."""

    def withdraw(self, to: str) -> None:
        """Forget what is on its way to *to*: it may arrive, but nobody will be told."""

    async def close(self, seconds: float = 5.0) -> None:
        """Stop; what is acknowledged already is brought to the senders within *seconds*.

        Nothing is received from the call on, no callback called. It never raises; twice is once.
        """


SHARED_KEY_MIN: Final = 16
"""Bytes of the shared key, at least."""
