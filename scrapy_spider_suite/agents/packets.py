"""The datagrams in which letters and what is said about them travel over UDP.

====== ==================================================================================
bytes  what, in network order
====== ==================================================================================
2, 1   ``SD`` and the version
1      kind: `Kind`
8      who sends it: BLAKE2b of the name
8      call: drawn by the sender of letters for each of its connections
8      answer: what the receiver of letters gave for this call; zeros in a ``HELLO``
8      number of the letter within the connection, from 0; 0 where there is none
n      body: a letter, or a `Report`
16     keyed BLAKE2b (RFC 7693) of all before, under the key of this direction of this pair
====== ==================================================================================

All agents share one key; that of a direction is derived from it and the names of both ends, so a
datagram counts at the agent for which it was made, and nowhere else. A genuine datagram that is
played back says a call and an answer that are over, see `receiving`.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Collection
from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from scrapy_spider_suite.agents.letters import encode_name

VERSION: Final = 1
"""Third byte of each datagram."""

KEY_MIN: Final = 16
"""Bytes of the shared key, at least."""

NONE: Final = bytes(8)
"""No answer yet."""

_MAGIC: Final = b"SD"
_HEAD: Final = struct.Struct(">2sBB8s8s8sQ")
_REPORT: Final = struct.Struct(">QQH")
_MAC: Final = 16
_PURPOSE: Final = b"suite letters 01"

OVERHEAD: Final = _HEAD.size + _MAC
"""Bytes of a datagram besides its body."""

COMMON_MAX: Final = 1_400
"""Bytes of a datagram that fits an Ethernet frame, behind a tunnel too: no larger one but alone."""

DATAGRAM_MAX: Final = 8_192
"""Bytes of the largest datagram: what is longer is refused unread."""


_LISTED: Final = "on the list: SUITE_AGENTS may differ there"
_DIFFER: Final = "SUITE_CLUSTER_KEY or SUITE_AGENTS may differ there"


class Kind(IntEnum):
    """What a datagram is."""

    HELLO = 1
    """The sender of letters asks for a connection."""

    WELCOME = 2
    """Its receiver answers."""

    LETTER = 3
    REPORT = 4
    """The receiver says what it has, and what it keeps."""

    STALE = 5
    """The receiver does not know the connection (any more)."""

    UNLISTED = 6
    """The receiver has another list, on which the sender is not."""


class Packet(NamedTuple):
    """A datagram, taken apart."""

    kind: Kind
    call: bytes
    answer: bytes = NONE
    number: int = 0
    body: bytes = b""


class Report(NamedTuple):
    """What a receiver says of a connection's letters: it holds everything, so any can be lost."""

    heard: int
    """All letters below this number have arrived."""

    heard_beyond: int
    """Bit *i* is letter *heard* + *i*."""

    kept: int
    """All letters below this number are kept."""

    kept_beyond: int

    def pack(self) -> bytes:
        """As the body of a datagram."""
        heard = _bits(self.heard_beyond)
        return _REPORT.pack(self.heard, self.kept, len(heard)) + heard + _bits(self.kept_beyond)

    @classmethod
    def unpack(cls, body: bytes) -> Report:
        """Of the body of a datagram. Raises `PacketError`: it is none."""
        if len(body) < _REPORT.size:
            raise PacketError("malformed", "a report that is too short")
        heard, kept, length = _REPORT.unpack_from(body)
        beyond, rest = body[_REPORT.size :][:length], body[_REPORT.size + length :]
        return cls(heard, int.from_bytes(beyond, "little"), kept, int.from_bytes(rest, "little"))

    def has_heard(self, number: int) -> bool:
        """Whether that letter has arrived."""
        return number < self.heard or bool(self.heard_beyond >> (number - self.heard) & 1)

    def has_kept(self, number: int) -> bool:
        """Whether that letter is kept."""
        return number < self.kept or bool(self.kept_beyond >> (number - self.kept) & 1)

    @property
    def highest(self) -> int:
        """The highest letter that has arrived; -1 for none."""
        return self.heard + self.heard_beyond.bit_length() - 1


class PacketError(Exception):
    """A datagram that is refused; never leaves this package.

    Attributes:
        kind: the counter of `MailCounters` that it belongs to.
    """

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class StrangerError(PacketError):
    """A genuine datagram of an agent that is not listed here.

    Attributes:
        answer: the datagram that says so to whoever sent it.
    """

    def __init__(self, why: str, answer: bytes) -> None:
        super().__init__("unknown", why)
        self.answer = answer


class Sealer:
    """Makes datagrams of packets, and packets of genuine datagrams.

    Args:
        name: the agent that it is for.
        others: those it exchanges letters with.
        key: what all of them share, `KEY_MIN` bytes or more.

    Raises:
        ValueError: the key is too short, or a name is none.
    """

    def __init__(self, name: str, others: Collection[str], key: bytes) -> None:
        if len(key) < KEY_MIN:
            raise ValueError(f"the key that the agents share has {len(key)} bytes, not {KEY_MIN}")
        secret = blake2b(key, person=_PURPOSE).digest()
        own = _identity(name)
        self._own, self._secret = own, secret
        self._names = {_identity(other): other for other in others}
        # Copies of a hash that has taken in its key are made in half the time.
        self._out = {other: _mac_of(secret, own, _identity(other)) for other in others}
        self._in = {sender: _mac_of(secret, sender, own) for sender in self._names}

    def seal(self, to: str, packet: Packet) -> bytes:
        """The datagram for *to*."""
        return self._sealed(packet, self._out[to].copy())

    def _sealed(self, packet: Packet, mac: blake2b) -> bytes:
        kind, call, answer, number, body = packet
        head = _HEAD.pack(_MAGIC, VERSION, kind, self._own, call, answer, number)
        mac.update(head)
        mac.update(body)
        return b"".join((head, body, mac.digest()))

    def open(self, datagram: bytes) -> tuple[str, Packet]:
        """Who sent it, and what it is.

        Raises:
            StrangerError: it is genuine, but for its sender, who is not known.
            PacketError: it is malformed, oversized, forged, or from somebody who is not known.
        """
        if len(datagram) > DATAGRAM_MAX:
            raise PacketError("oversized", f"a datagram of {len(datagram)} bytes")
        if len(datagram) < OVERHEAD or not datagram.startswith(_MAGIC):
            raise PacketError("malformed", "a datagram that is none of an agent's")
        _, version, kind, sender, call, answer, number = _HEAD.unpack_from(datagram)
        base = self._in.get(sender)
        if base is None:
            raise self._unknown(datagram, sender, Packet(kind, call))
        if not _genuine(datagram, base.copy()):
            name = self._names[sender]
            raise PacketError("forged", f"a datagram that is not from {name}: {_DIFFER}")
        if version != VERSION or kind not in _KINDS:
            raise PacketError("malformed", f"a datagram of version {version}, kind {kind}")
        body = datagram[_HEAD.size : -_MAC]
        return self._names[sender], Packet(Kind(kind), call, answer, number, body)

    def _unknown(self, datagram: bytes, sender: bytes, packet: Packet) -> PacketError:
        """Of an agent that is not listed: if it has the key it may learn that, in no more bytes."""
        why = f"a datagram of an agent that is not {_LISTED}"
        asks = packet.kind in (Kind.HELLO, Kind.LETTER)
        if not (asks and _genuine(datagram, _mac_of(self._secret, sender, self._own))):
            return PacketError("unknown", why)
        mac = _mac_of(self._secret, self._own, sender)
        return StrangerError(why, self._sealed(Packet(Kind.UNLISTED, packet.call), mac))


_KINDS: Final = frozenset(Kind)


def _genuine(datagram: bytes, mac: blake2b) -> bool:
    mac.update(memoryview(datagram)[:-_MAC])
    return hmac.compare_digest(mac.digest(), datagram[-_MAC:])


def _identity(name: str) -> bytes:
    """How *name* is written in a datagram."""
    return blake2b(encode_name(name), digest_size=8).digest()


def _mac_of(secret: bytes, sender: bytes, receiver: bytes) -> blake2b:
    """A hash with the key for what goes from *sender* to *receiver*."""
    key = blake2b(sender + receiver, key=secret, digest_size=32, person=_PURPOSE).digest()
    return blake2b(key=key, digest_size=_MAC)


def _bits(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "little")
