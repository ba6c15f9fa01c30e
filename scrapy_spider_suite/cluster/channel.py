"""A TCP connection between two agents that share a key: who has it not gets nothing said.

====== ===========================================================================
bytes  what, in network order
====== ===========================================================================
8, 32  from the caller: `MAGIC`, and what it drew
8, 32  from the other: likewise
32     its proof: keyed BLAKE2b (RFC 7693) of its role and of both draws
32     from the caller: its own proof
4, 1   then frames, both ways: bytes of the body, and the `Kind`
n      body: at most `FRAME_MAX` bytes
16     keyed BLAKE2b of the frame's number in its direction, from 0, and of the frame
====== ===========================================================================

The keys of both directions are derived from the shared key and both draws. So a frame that was made
for another connection, direction or place is noticed, as is one that was changed, left out or sent
twice. What goes over the wire can be read by others, though.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import struct
from collections.abc import Awaitable, Callable
from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple, TypeVar

from scrapy_spider_suite.agents.packets import KEY_MIN

T = TypeVar("T")

MAGIC: Final = b"SUITE-C\1"
FRAME_MAX: Final = 1 << 17
"""Bytes of a body."""

SILENCE: Final = 30.0
"""Seconds without a byte after which a connection counts as cut."""

GREETING: Final = 10.0
"""Seconds that proving oneself may take."""

_DRAW: Final = 32
_PROOF: Final = 32
_MAC: Final = 16
_HEAD: Final = struct.Struct(">IB")
_NUMBER: Final = struct.Struct(">Q")
_PURPOSE: Final = b"suite parcels 01"
_CALLER, _CALLED = b"caller", b"called"


class Kind(IntEnum):
    """What a frame is."""

    OFFER = 1
    """The giver has a parcel: its label, and its size."""

    AT = 2
    """The taker wants it, from that byte on."""

    DATA = 3
    KEPT = 4
    """The taker keeps all of it."""

    WAIT = 5
    """The taker is at work."""

    LATER = 6
    """The taker cannot take it now, and says why."""

    REFUSED = 7
    """The taker cannot take it at all, and says why."""


_KINDS: Final = frozenset(Kind)


class Frame(NamedTuple):
    """A frame that is genuine."""

    kind: Kind
    body: bytes


class ChannelError(Exception):
    """A connection that is of no use any more; never leaves this package.

    Attributes:
        kind: the counter of `CourierCounters` that it belongs to.
    """

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Secret:
    """The *key* that agents share, as this package uses it. Raises `ValueError`: it is too short.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < KEY_MIN:
            raise ValueError(f"the key that the agents share has {len(key)} bytes, not {KEY_MIN}")
        self._key = blake2b(key, person=_PURPOSE).digest()

    def proof(self, role: bytes, draws: bytes) -> bytes:
        """What only who has the key can say."""
        return blake2b(b"proof " + role + draws, key=self._key, digest_size=_PROOF).digest()

    def seal(self, role: bytes, draws: bytes) -> Callable[[bytes], bytes]:
        """Signs the frames of who has that *role*."""
        key = blake2b(b"frames " + role + draws, key=self._key, digest_size=32).digest()
        return lambda data: blake2b(data, key=key, digest_size=_MAC).digest()


class Channel:
    """A connection on which both sides have proved that they have the key.

    All of it raises `ChannelError`.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        seal: Callable[[bytes], bytes], theirs: Callable[[bytes], bytes],
        silence: float = SILENCE,
    ) -> None:  # fmt: skip
        self._reader = reader
        self._writer = writer
        self._seal, self._theirs = seal, theirs
        self._silence = silence
        self._sent = self._received = 0

    async def send(self, kind: Kind, body: bytes = b"") -> None:
        """Send a frame; returns when there is room for another."""
        head = _HEAD.pack(len(body), kind)
        mac = self._seal(_NUMBER.pack(self._sent) + head + body)
        self._sent += 1
        await within(self._silence, self._write(b"".join((head, body, mac))))

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> Frame:
        """The next frame."""
        head = await within(self._silence, self._reader.readexactly(_HEAD.size))
        size, kind = _HEAD.unpack(head)
        if size > FRAME_MAX:
            raise ChannelError("oversized", f"a frame of {size:,} bytes")
        data = await within(self._silence, self._reader.readexactly(size + _MAC))
        number, body = _NUMBER.pack(self._received), data[:size]
        if not hmac.compare_digest(self._theirs(number + head + body), data[size:]):
            raise ChannelError("forged", "a frame that its sender did not send, or not there")
        if kind not in _KINDS:
            raise ChannelError("malformed", f"a frame of kind {kind}")
        self._received += 1
        return Frame(Kind(kind), body)


async def call(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: Secret,
    silence: float = SILENCE,
) -> Channel:  # fmt: skip
    """A channel to whom one has connected to. Raises `ChannelError`."""
    mine = os.urandom(_DRAW)
    writer.write(MAGIC + mine)
    data = await within(GREETING, reader.readexactly(len(MAGIC) + _DRAW + _PROOF))
    draws = mine + _draw_in(data[:-_PROOF])
    if not hmac.compare_digest(data[-_PROOF:], secret.proof(_CALLED, draws)):
        raise ChannelError("forged", "it has another key")
    writer.write(secret.proof(_CALLER, draws))
    own, theirs = (secret.seal(role, draws) for role in (_CALLER, _CALLED))
    return Channel(reader, writer, own, theirs, silence)


async def answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: Secret,
    silence: float = SILENCE,
) -> Channel:  # fmt: skip
    """A channel to who has connected. Raises `ChannelError`."""
    data = await within(GREETING, reader.readexactly(len(MAGIC) + _DRAW))
    mine = os.urandom(_DRAW)
    draws = _draw_in(data) + mine
    writer.write(MAGIC + mine + secret.proof(_CALLED, draws))
    proof = await within(GREETING, reader.readexactly(_PROOF))
    if not hmac.compare_digest(proof, secret.proof(_CALLER, draws)):
        raise ChannelError("forged", "it has another key")
    own, theirs = (secret.seal(role, draws) for role in (_CALLED, _CALLER))
    return Channel(reader, writer, own, theirs, silence)


def _draw_in(greeting: bytes) -> bytes:
    if not greeting.startswith(MAGIC):
        raise ChannelError("malformed", "it is no agent of this version")
    return greeting[len(MAGIC) :]


async def within(seconds: float, work: Awaitable[T]) -> T:
    """What *work* comes to. Raises `ChannelError` if that takes longer, or the line is cut."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise ChannelError("broken", f"nothing came for {seconds:g} s") from error
    except asyncio.IncompleteReadError as error:
        raise ChannelError("broken", "the connection was closed") from error
    except OSError as error:
        raise ChannelError("broken", error.strerror or str(error)) from error
