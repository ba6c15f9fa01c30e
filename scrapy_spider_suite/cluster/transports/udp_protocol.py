"""The UDP protocol without I/O: datagrams, and sender and receiver of a pair.

====== ==================================================================================
bytes  what, in network order
====== ==================================================================================
2, 1   ``SD`` and the version
1      `PacketKind`
8      the sender: BLAKE2b of its name
8      call: drawn by the sender for each connection
8      answer: given by the receiver for this call; zeros in a ``HELLO``
8      number of the message in the connection, from 0; 0 where there is none
n      body: a message, or a `ReceiptReport`
16     keyed BLAKE2b (RFC 7693) of all before, with the key of this direction of the pair
====== ==================================================================================

The key of a direction derives from the shared key and both names. An answer is a keyed hash of the
call and of the number of connections: replayed datagrams belong to ended connections.

An *unheard* message is sent again when three later ones have arrived, or after a time that follows
the round trips (RFC 6298). The burst of unheard messages grows with arrivals and is halved by
losses (RFC 5681). Then the report that the message is *kept* is awaited.

``now`` is in seconds. Invariant: every message that was put and is not kept waits or flies.
"""

from __future__ import annotations

import hmac
import struct
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Annotated, Final, NamedTuple

import msgspec

from scrapy_spider_suite.cluster.messages import (
    Acknowledgement,
    MessageCounters,
    PackedMessage,
    WireError,
    derive_secret,
    encode_name,
)

VERSION: Final = 1
NONE: Final = bytes(8)
_MAGIC: Final = b"SD"
_HEAD: Final = struct.Struct(">2sBB8s8s8sQ")
_Numbers = tuple[Annotated[int, msgspec.Meta(ge=0)], bytes]
_MAC: Final = 16
_PURPOSE: Final = b"suite messages 1"
OVERHEAD: Final = _HEAD.size + _MAC  # bytes of a datagram besides its body
COMMON_MAX: Final = 1_400
"""Bytes of a datagram of several rows: fits an Ethernet frame, also in a tunnel."""
DATAGRAM_MAX: Final = 8_192  # bytes of the largest datagram; longer ones are refused unread


class PacketKind(IntEnum):
    HELLO = 1  # the sender asks for a connection
    WELCOME = 2  # the receiver answers
    MESSAGE = 3
    REPORT = 4  # see `ReceiptReport`
    STALE = 5  # the receiver does not know the connection
    UNLISTED = 6  # the receiver's list lacks the sender


class Packet(NamedTuple):
    kind: PacketKind
    call: bytes
    answer: bytes = NONE
    number: int = 0
    body: bytes = b""


@dataclass(slots=True)
class NumberSet:
    """All numbers below `below`, and some beyond."""

    below: int = 0
    beyond: int = 0  # bit i: number below + i

    def __contains__(self, number: int) -> bool:
        return number < self.below or bool(self.beyond >> (number - self.below) & 1)

    def add(self, number: int) -> None:
        if number >= self.below:
            self.beyond |= 1 << (number - self.below)
            ones = (~self.beyond & (self.beyond + 1)).bit_length() - 1
            self.below += ones
            self.beyond >>= ones

    @property
    def highest(self) -> int:
        """The highest number; -1: none."""
        return self.below + self.beyond.bit_length() - 1


class ReceiptReport(NamedTuple):
    """Which messages have arrived, and are kept; complete, so any report may be lost."""

    heard: NumberSet
    kept: NumberSet

    def pack(self) -> bytes:
        return msgspec.msgpack.encode([(each.below, _bits(each.beyond)) for each in self])

    @classmethod
    def unpack(cls, body: bytes) -> ReceiptReport:
        """Raises `WireError` for an invalid body."""
        try:
            found = msgspec.msgpack.decode(body, type=tuple[_Numbers, _Numbers])
        except ValueError as error:
            raise WireError("malformed", f"a report that cannot be read: {error}") from error
        return cls(*(NumberSet(below, int.from_bytes(beyond, "little")) for below, beyond in found))


class PacketSealer:
    """Seals and opens datagrams of an agent.

    Raises `ValueError`: *key* is too short, or a name is invalid.
    """

    def __init__(self, name: str, others: Collection[str], key: bytes) -> None:
        secret, own = derive_secret(key, _PURPOSE), _identity(name)
        self._own, self._secret = own, secret
        self._names = {_identity(other): other for other in others}
        # Copying a keyed hash takes half the time of keying it.
        self._out = {other: _mac_of(secret, own, _identity(other)) for other in others}
        self._in = {sender: _mac_of(secret, sender, own) for sender in self._names}

    def seal(self, to: str, packet: Packet) -> bytes:
        return self._sealed(packet, self._out[to].copy())

    def _sealed(self, packet: Packet, mac: blake2b) -> bytes:
        kind, call, answer, number, body = packet
        head = _HEAD.pack(_MAGIC, VERSION, kind, self._own, call, answer, number)
        mac.update(head)
        mac.update(body)
        return b"".join((head, body, mac.digest()))

    def open(self, datagram: bytes) -> tuple[str, Packet]:
        """Return sender and packet. Raises `WireError`; its answer is for a genuine sender."""
        if len(datagram) > DATAGRAM_MAX:
            raise WireError("oversized", f"a datagram of {len(datagram)} bytes")
        if len(datagram) < OVERHEAD or not datagram.startswith(_MAGIC):
            raise WireError("malformed", "a datagram that is none of an agent's")
        _, version, kind, sender, call, answer, number = _HEAD.unpack_from(datagram)
        base = self._in.get(sender)
        if base is None:
            raise self._unlisted(datagram, sender, Packet(kind, call))
        if not _genuine(datagram, base.copy()):
            name = self._names[sender]
            raise WireError(
                "forged", f"a datagram that is not from {name}: SUITE_CLUSTER_KEY or SUITE_AGENTS "
                "may differ there",
            )  # fmt: skip
        if version != VERSION or kind not in _KINDS:
            raise WireError("malformed", f"a datagram of version {version}, kind {kind}")
        body = datagram[_HEAD.size : -_MAC]
        return self._names[sender], Packet(PacketKind(kind), call, answer, number, body)

    def _unlisted(self, datagram: bytes, sender: bytes, packet: Packet) -> WireError:
        why = "a datagram of an agent that is not on the list: SUITE_AGENTS may differ there"
        asks = packet.kind in (PacketKind.HELLO, PacketKind.MESSAGE)
        if not (asks and _genuine(datagram, _mac_of(self._secret, sender, self._own))):
            return WireError("unknown", why)
        mac = _mac_of(self._secret, self._own, sender)
        # No longer than the question.
        answer = self._sealed(Packet(PacketKind.UNLISTED, packet.call), mac)
        return WireError("unknown", why, answer)


_KINDS: Final = frozenset(PacketKind)


def _genuine(datagram: bytes, mac: blake2b) -> bool:
    mac.update(memoryview(datagram)[:-_MAC])
    return hmac.compare_digest(mac.digest(), datagram[-_MAC:])


def _identity(name: str) -> bytes:
    return blake2b(encode_name(name), digest_size=8).digest()


def _mac_of(secret: bytes, sender: bytes, receiver: bytes) -> blake2b:
    key = blake2b(sender + receiver, key=secret, digest_size=32, person=_PURPOSE).digest()
    return blake2b(key=key, digest_size=_MAC)


def _bits(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


REPORT_DELAY: Final = 0.01  # seconds for which a report waits for more
REPORT_MESSAGES: Final = 8  # messages after which a report does not wait
STALE_PAUSE: Final = 0.05  # seconds between two answers to messages of ended connections


class PairReceiver:
    """The messages of one sender, with *window* unkept ones; *secret*: random bytes."""

    def __init__(self, window: int, secret: bytes, counters: MessageCounters) -> None:
        self._window, self._secret, self._counters = window, secret, counters
        self._connections = 0
        self._stale_at = float("-inf")
        self._begin(NONE, NONE)

    def _begin(self, call: bytes, answer: bytes) -> None:
        self._call, self._answer = call, answer
        self._heard, self._kept = NumberSet(), NumberSet()
        self._unkept: dict[Acknowledgement, list[int]] = {}
        self._unreported = 0
        self.report_at: float | None = None

    def hello(self, packet: Packet) -> Packet:
        answer = self._answer if packet.call == self._call else self._answer_to(packet.call)
        return Packet(PacketKind.WELCOME, packet.call, answer)

    def knows(self, packet: Packet) -> bool:
        """Whether *packet* is of the current connection; an answered one begins with it."""
        if (packet.call, packet.answer) == (self._call, self._answer) != (NONE, NONE):
            return True
        if packet.answer != self._answer_to(packet.call):
            return False
        self._connections += 1
        self._begin(packet.call, packet.answer)
        return True

    def stale(self, packet: Packet, now: float) -> list[Packet]:
        if now < self._stale_at + STALE_PAUSE:
            return []
        self._stale_at = now
        return [Packet(PacketKind.STALE, packet.call, packet.answer)]

    def arrived(self, number: int, now: float) -> bool:
        """Whether the message is new; one beyond the agreed window will come again."""
        if number >= self._kept.below + self._window:
            self._counters.full += 1
            return False
        self._unreported += 1
        self._report_by(now if self._unreported >= REPORT_MESSAGES else now + REPORT_DELAY)
        if number in self._heard:
            self._counters.repeated += 1
            return False
        self._heard.add(number)
        return True

    def expect(self, number: int, receipt: Acknowledgement) -> None:
        self._unkept.setdefault(receipt, []).append(number)

    def keep(self, receipt: Acknowledgement, now: float) -> bool:
        """Return False for an unknown message, or one kept before."""
        numbers = self._unkept.pop(receipt, ())
        for number in numbers:
            self._kept.add(number)
        if numbers:
            self._report_by(now + REPORT_DELAY)
        return bool(numbers)

    def due(self, now: float) -> list[Packet]:
        if self.report_at is None or now < self.report_at:
            return []
        self.report_at = None
        self._unreported = 0
        body = ReceiptReport(self._heard, self._kept).pack()
        return [Packet(PacketKind.REPORT, self._call, self._answer, 0, body)]

    def _report_by(self, when: float) -> None:
        self.report_at = when if self.report_at is None else min(when, self.report_at)

    def _answer_to(self, call: bytes) -> bytes:
        text = call + self._connections.to_bytes(8, "big")
        return blake2b(text, key=self._secret, digest_size=8).digest()


FIRST_WAIT: Final = 0.25  # seconds until a resend while the round trip is unknown
LEAST_WAIT: Final = 0.2  # least seconds until a resend: a busy loop may be late by that
MOST_WAIT: Final = 10.0  # most seconds until a resend: how late a returned receiver is noticed
FIRST_PROBE, MOST_PROBE = 2.0, 30.0
"""Seconds without news until an arrived message is sent again, to get a report."""
REORDERED: Final = 3  # later arrivals after which a message counts as lost
FIRST_BURST, LEAST_BURST = 16.0, 2.0  # unheard messages at first, and at least


@dataclass(slots=True, eq=False)
class InFlight:
    message: PackedMessage
    number: int = -1  # within the connection; -1: not sent over it
    sent: float = 0.0  # when it was sent last
    tries: int = 0  # over any connection


class RetryTimer:
    """The resend time: the smoothed round trip and four times its deviation."""

    def __init__(self) -> None:
        self.trip = 0.0
        self._deviation = 0.0
        self._factor = 1

    @property
    def seconds(self) -> float:
        usual = self.trip + 4 * self._deviation if self.trip else FIRST_WAIT
        return min(max(usual, LEAST_WAIT) * self._factor, MOST_WAIT)

    def took(self, seconds: float) -> None:
        if not self.trip:
            self.trip, self._deviation = seconds, seconds / 2
        else:
            self._deviation += (abs(self.trip - seconds) - self._deviation) / 4
            self.trip += (seconds - self.trip) / 8

    def fruitless(self) -> None:
        self._factor = min(2 * self._factor, 1 << 10)

    def news(self) -> None:
        self._factor = 1


class PairSender:
    """The messages for one receiver, *window* at most; *draw* gives random bytes."""

    def __init__(
        self, window: int, draw: Callable[[int], bytes], counters: MessageCounters
    ) -> None:
        self._window, self._draw, self._counters = window, draw, counters
        self._messages: dict[tuple[int, int], InFlight] = {}
        self._begin()

    def _begin(self) -> None:
        self.call = self._draw(8)
        self._answer = NONE
        self._waiting = deque(self._messages.values())
        for flight in self._waiting:
            flight.number = -1
        self._flying: dict[int, InFlight] = {}  # in the order of their numbers
        self._unheard: dict[int, InFlight] = {}  # of these, in the order of their last sending
        self._number = 0
        self._kept = NumberSet()  # of the last report that said more
        self._wait = RetryTimer()
        self._burst = FIRST_BURST
        self._calm = 0.0  # until then further losses are those that the burst was halved for
        self._probe = FIRST_PROBE
        self._timer = 0.0  # when to say HELLO, or to probe

    def room(self) -> int:
        return self._window - len(self._messages)

    def put(self, message: PackedMessage) -> bool:
        key = message.first, message.last
        if key in self._messages:
            return True
        if len(self._messages) >= self._window:
            return False
        flight = self._messages[key] = InFlight(message)
        self._waiting.append(flight)
        self._counters.took(message)
        return True

    def clear(self) -> int:
        count = len(self._messages)
        self._messages.clear()
        self._begin()
        return count

    def wake(self) -> float | None:
        if not self._messages:
            return None
        if self._unheard:
            return next(iter(self._unheard.values())).sent + self._wait.seconds
        return self._timer

    def due(self, now: float) -> list[Packet]:
        if not self._messages:
            return []
        if self._answer == NONE:
            if now < self._timer:
                return []
            self._timer = now + self._wait.seconds
            self._wait.fruitless()
            return [Packet(PacketKind.HELLO, self.call)]
        wait = self._wait.seconds
        if lost := [flight for flight in self._unheard.values() if flight.sent + wait <= now]:
            self._resend(lost, now)
            self._wait.fruitless()
        packets = []
        while self._waiting and len(self._unheard) < int(self._burst):
            flight = self._waiting[0]
            if flight.number < 0:
                if self._flying and self._number - next(iter(self._flying)) >= self._window:
                    break
                flight.number = self._number
                self._flying[self._number] = flight
                self._number += 1
            self._waiting.popleft()
            self._unheard[flight.number] = flight
            packets.append(self._packet(flight, now))
        if not self._unheard and self._flying and now >= self._timer:
            packets.append(self._packet(next(iter(self._flying.values())), now))
            self._timer = now + self._probe
            self._probe = min(2 * self._probe, MOST_PROBE)
        return packets

    def welcome(self, packet: Packet) -> None:
        if packet.call == self.call and self._answer == NONE:
            self._answer = packet.answer
            self._wait.news()

    def is_back(self) -> None:
        self._wait.news()
        self._timer = 0.0

    def stale(self, packet: Packet) -> None:
        if (packet.call, packet.answer) == (self.call, self._answer) != (self.call, NONE):
            self._counters.remade += 1
            self._begin()

    def report(self, packet: Packet, now: float) -> list[PackedMessage]:
        """Take a report; return and forget the kept messages. Raises `WireError`."""
        report = ReceiptReport.unpack(packet.body)
        if (packet.call, packet.answer) != (self.call, self._answer):
            return []
        self._hear(report.heard, now)
        until, end = now - 1.25 * self._wait.trip, report.heard.highest - REORDERED
        flights = self._unheard.values()
        if lost := [each for each in flights if each.number <= end and each.sent < until]:
            self._resend(lost, now)
        done = self._keep(report.kept)
        self._wait.news()
        if not self._unheard:
            self._timer = now + self._probe
        return done

    def _packet(self, flight: InFlight, now: float) -> Packet:
        self._counters.sent += 1
        self._counters.resent += flight.tries > 0
        flight.sent = now
        flight.tries += 1
        return Packet(
            PacketKind.MESSAGE, self.call, self._answer, flight.number, flight.message.data
        )

    def _resend(self, lost: list[InFlight], now: float) -> None:
        for flight in lost:
            del self._unheard[flight.number]
        # The lowest first: messages beyond the receiver's window must not block earlier ones.
        # Messages without a number follow.
        self._waiting = deque(
            sorted((*lost, *self._waiting), key=lambda each: (each.number < 0, each.number))
        )
        if now >= self._calm:
            self._burst = max(LEAST_BURST, self._burst / 2)
            self._calm = now + self._wait.trip

    def _hear(self, heard: NumberSet, now: float) -> None:
        for number in [number for number in self._unheard if number in heard]:
            flight = self._unheard.pop(number)
            if flight.tries == 1:
                self._wait.took(now - flight.sent)
            # As in slow start while nothing was lost, by one for each round trip then.
            self._burst += 1.0 if self._calm == 0.0 else 1.0 / self._burst
        self._burst = min(self._burst, float(self._window))
        if self._waiting and self._waiting[0].number >= 0:
            waiting = self._waiting
            self._waiting = deque(w for w in waiting if w.number < 0 or w.number not in heard)

    def _keep(self, kept: NumberSet) -> list[PackedMessage]:
        if kept == self._kept:
            return []
        self._kept = kept
        done = []
        for number in [number for number in self._flying if number in kept]:
            message = self._flying.pop(number).message
            self._unheard.pop(number, None)
            del self._messages[message.first, message.last]
            done.append(message)
        if done:
            self._probe = FIRST_PROBE
        return done
