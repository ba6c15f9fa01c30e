"""Messages over UDP between a fixed list of agents, without a server."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

from scrapy_spider_suite.cluster.messages import (
    Acknowledgement,
    MessageCounters,
    MessageLimits,
    OnAcknowledged,
    OnMessage,
    PackedMessage,
    WireError,
    encode_name,
    unpack_message,
)
from scrapy_spider_suite.cluster.transports.udp_protocol import (
    COMMON_MAX,
    DATAGRAM_MAX,
    OVERHEAD,
    Packet,
    PacketKind,
    PacketSealer,
    PairReceiver,
    PairSender,
)
from scrapy_spider_suite.errors import MessageError, MessageTooLargeError
from scrapy_spider_suite.runtime.tasks import WarnOnce
from scrapy_spider_suite.settings.values import Endpoint, endpoint

logger = logging.getLogger(__name__)

BOUNDS: Final = MessageLimits(COMMON_MAX - OVERHEAD, DATAGRAM_MAX - OVERHEAD, 1 << 16)
"""A message is a datagram."""
_QUESTIONS: Final = (PacketKind.HELLO, PacketKind.WELCOME, PacketKind.MESSAGE)
"""Packets that are answered on arrival by anything but a hello."""


class UdpPeers:
    """Pairs and datagrams, without I/O; ``now`` in seconds. Raises `ValueError`: bad name or key.

    *window*: messages under way to one receiver, equal for all agents. *unlisted* is told of an
    agent whose list lacks this one. *draw*: as `os.urandom`.
    """

    received: OnMessage  # as `acknowledged`, set before the first datagram
    acknowledged: OnAcknowledged

    def __init__(
        self, name: str, others: Collection[str], key: bytes, window: int,
        unlisted: Callable[[str], None], draw: Callable[[int], bytes] = os.urandom,
    ) -> None:  # fmt: skip
        self.counters = MessageCounters()
        self._unlisted = unlisted
        self._sealer = PacketSealer(name, others, key)
        self._to = {other: PairSender(window, draw, self.counters) for other in others}
        self._from = {other: PairReceiver(window, draw(32), self.counters) for other in others}
        self._replies: list[tuple[str, Packet]] = []
        self._unanswered: dict[str, float] = {}  # since when
        self._once = WarnOnce(logger, f"messages over UDP, agent {name}")

    def room(self, to: str) -> int:
        return self._to[to].room() if to in self._to else 0

    def send(self, to: str, message: PackedMessage) -> bool:
        return to in self._to and self._to[to].put(message)

    def withdraw(self, to: str) -> None:
        if to in self._to:
            self.counters.withdrawn += self._to[to].clear()

    def acknowledge(self, receipt: Acknowledgement, now: float) -> None:
        sender = self._from.get(receipt.sender)
        if sender is not None and sender.keep(receipt, now):
            self.counters.receipts += 1

    def wake(self) -> float | None:
        if self._replies:
            return 0.0
        times = [outgoing.wake() for outgoing in self._to.values()]
        times += [incoming.report_at for incoming in self._from.values()]
        return min((time for time in times if time is not None), default=None)

    def due(self, now: float) -> list[tuple[str, bytes]]:
        packets, self._replies = self._replies, []
        for name, outgoing in self._to.items():
            packets += [(name, packet) for packet in outgoing.due(now)]
        for name, incoming in self._from.items():
            packets += [(name, packet) for packet in incoming.due(now)]
        for name, packet in packets:
            if packet.kind in _QUESTIONS:
                self._unanswered.setdefault(name, now)
        return [(name, self._sealer.seal(name, packet)) for name, packet in packets]

    def silent(self, since: float) -> list[str]:
        return [name for name, when in self._unanswered.items() if when <= since]

    def moved(self, name: str) -> None:
        self._unanswered.pop(name, None)
        self._to[name].is_back()

    def reports(self) -> list[tuple[str, bytes]]:
        return [
            (name, self._sealer.seal(name, packet))
            for name, incoming in self._from.items()
            for packet in incoming.due(math.inf)
        ]

    def receive(self, datagram: bytes, now: float) -> bytes:
        """Handle any datagram; return an answer, or nothing."""
        try:
            name, packet = self._sealer.open(datagram)
            self._receive(name, packet, now)
        except WireError as error:
            self._refuse(error.kind, error)
            return error.answer
        except MessageTooLargeError as error:
            self._refuse("oversized", error)
        except MessageError as error:
            self._refuse("malformed", error)
        return b""

    def _receive(self, name: str, packet: Packet, now: float) -> None:
        if packet.kind in (PacketKind.WELCOME, PacketKind.STALE, PacketKind.REPORT):
            self._unanswered.pop(name, None)
        match packet.kind:
            case PacketKind.HELLO:
                self._replies.append((name, self._from[name].hello(packet)))
                self._to[name].is_back()
            case PacketKind.WELCOME:
                self._to[name].welcome(packet)
            case PacketKind.STALE:
                self._to[name].stale(packet)
            case PacketKind.REPORT:
                for message in self._to[name].report(packet, now):
                    self.counters.acknowledged += 1
                    self.acknowledged(name, message.first, message.last)
            case PacketKind.MESSAGE:
                self._message(name, packet, now)
            case PacketKind.UNLISTED:
                if packet.call == self._to[name].call:  # not to an earlier process
                    self._unlisted(name)

    def _message(self, name: str, packet: Packet, now: float) -> None:
        incoming = self._from[name]
        if not incoming.knows(packet):
            self._replies += [(name, reply) for reply in incoming.stale(packet, now)]
            self.counters.replayed += 1  # or sent to an earlier process: no line in the log
            return
        self._unanswered.pop(name, None)
        if not incoming.arrived(packet.number, now):
            return
        message = unpack_message(packet.body, BOUNDS)
        if message.sender != name:
            raise WireError("forged", f"a message of {message.sender} from {name}")
        incoming.expect(packet.number, message.receipt)
        self.counters.received += 1
        self.received(message)

    def _refuse(self, kind: str, why: Exception) -> None:
        self.counters.refuse(kind)
        self._once.say(kind, f"refused {why}")


WINDOW: Final = 512  # messages under way to one receiver: 0.7 MB
BUFFER: Final = 1 << 20  # bytes of the socket's buffers
LOOK: Final = 5.0  # seconds without an answer after which an address is looked up again


def parse_agents(texts: Iterable[str]) -> dict[str, Endpoint]:
    """Return name and address of each ``NAME=HOST:PORT``, IPv6 in brackets.

    Raises `ValueError`: invalid, or a name or an address twice.
    """
    agents: dict[str, Endpoint] = {}
    for text in texts:
        name, _, place = text.strip().partition("=")
        try:
            address = endpoint(place, whole=True)
        except ValueError:
            raise ValueError(f"{text!r} is not NAME=HOST:PORT of an agent") from None
        encode_name(name)
        if name in agents or address in agents.values():
            raise ValueError(f"{text!r}: another agent has that name or address")
        agents[name] = address
    return agents


class UdpTransport(asyncio.DatagramProtocol):
    """A `MessageTransport` over UDP; *window*, *unlisted*: see `UdpPeers`.

    Raises `ValueError`: *name* is unlisted or invalid, or the key is too short.
    """

    bounds = BOUNDS

    def __init__(
        self, name: str, agents: Mapping[str, Endpoint], key: bytes, window: int = WINDOW,
        unlisted: Callable[[str], None] = lambda name: None,
    ) -> None:  # fmt: skip
        if name not in agents:
            raise ValueError(f"agent {name!r} is not in the list of agents")
        self._name, self._own = name, agents[name]
        self._others = {other: address for other, address in agents.items() if other != name}
        self._peers = UdpPeers(name, list(self._others), key, window, unlisted)
        self.counters: MessageCounters = self._peers.counters
        self._once = WarnOnce(logger, f"messages over UDP, agent {name}")
        self._places: dict[str, Any] = {}
        self._socket: asyncio.DatagramTransport | None = None
        self._turn: asyncio.Handle | None = None  # as soon as the loop has time
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._ended = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def start(self, received: OnMessage, acknowledged: OnAcknowledged) -> None:
        loop = asyncio.get_running_loop()
        self._peers.received, self._peers.acknowledged = received, acknowledged
        try:
            wire, _ = await loop.create_datagram_endpoint(
                lambda: self, local_addr=(self._own[0], self._own[1])
            )
        except (OSError, UnicodeError) as error:
            raise OSError(
                f"SUITE_AGENTS: {self._own[0]}:{self._own[1]}, the address of agent {self._name} "
                f"on this machine, cannot be used: {_reason(error)}; or that agent runs already, "
                "or SUITE_AGENT_NAME is that of another"
            ) from error
        own = wire.get_extra_info("socket")
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            own.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await asyncio.gather(*(self._look_up(other, own.family) for other in self._others))
        self._looking = loop.create_task(self._look_up_missing(own.family))
        self._pump()

    async def _look_up_missing(self, family: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK)
            unknown = self._others.keys() - self._places.keys()
            others = unknown | set(self._peers.silent(loop.time() - LOOK))
            await asyncio.gather(*(self._look_up(other, family) for other in others))

    async def _look_up(self, other: str, family: int) -> None:
        loop, (host, port) = asyncio.get_running_loop(), self._others[other]
        try:
            found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as error:
            self.counters.failed += 1
            if other not in self._places:
                self._once.say(
                    f"name of {other}",
                    f"SUITE_AGENTS: the address of agent {other}, {host}:{port}, is not known: "
                    f"{_reason(error)}; it is looked up again",
                )
            return
        places = [each[4] for each in found]
        self._once.over(f"name of {other}")
        if self._places.get(other) not in places:
            if other in self._places:
                logger.info("agent %s has another address: %s", other, places[0][0])
            self._places[other] = places[0]
            self._peers.moved(other)
            self._soon()

    def room(self, to: str) -> int:
        return self._peers.room(to)

    def send(self, to: str, message: PackedMessage) -> bool:
        taken = self._peers.send(to, message)
        self._soon()
        return taken

    def acknowledge(self, receipt: Acknowledgement) -> None:
        self._peers.acknowledge(receipt, asyncio.get_running_loop().time())
        self._soon()

    def withdraw(self, to: str) -> None:
        self._peers.withdraw(to)

    async def close(self, seconds: float = 5.0) -> None:
        self._cancel_timers()
        if self._looking is not None:
            self._looking.cancel()
        wire, self._socket = self._socket, None
        if wire is None:
            return
        if seconds > 0:
            # Send the reports that wait for more receipts.
            for to, datagram in self._peers.reports():
                if to in self._places:
                    wire.sendto(datagram, self._places[to])
            wire.close()
        else:
            wire.abort()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), max(seconds, 1.0))

    def _soon(self) -> None:
        if self._turn is None and self._socket is not None:
            self._turn = asyncio.get_running_loop().call_soon(self._pump)

    def _cancel_timers(self) -> None:
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        self._turn = self._timer = None

    def _pump(self) -> None:
        self._cancel_timers()
        if self._socket is None or self._paused:
            return
        loop = asyncio.get_running_loop()
        for to, datagram in self._peers.due(loop.time()):
            if to in self._places:
                self._socket.sendto(datagram, self._places[to])
        if (when := self._peers.wake()) is not None:
            self._timer = loop.call_at(when, self._pump)

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if self._socket is not None:
            if answer := self._peers.receive(data, asyncio.get_running_loop().time()):
                self._socket.sendto(answer, addr)
            self._soon()

    def error_received(self, exc: Exception) -> None:
        self.counters.failed += 1
        self._once.say("failed", f"a datagram could not be sent: {exc}")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, OSError):
        return str(error.strerror or error)
    return f"no name of a machine ({error})"
