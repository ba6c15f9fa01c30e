"""All messages of one agent over UDP, to and from a fixed list of agents: the deciding part.

`sending` and `receiving` decide for each pair; here a datagram finds its pair, or is refused and
counted. ``now`` is an argument, in seconds of a clock that never goes back.

Messages over UDP between the agents of a local network, without a server (K21).

"The URLs are pack together and send out as a UDP packet. The scheduler of the communicator takes
care of timeouts and data retransmission" (KSpider). The agents are listed, each with its address,
and share a key; what they decide is in `exchange`, here are the socket and the clock.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from scrapy_spider_suite.cluster.messages import (
    Acknowledgement,
    Message,
    MessageCounters,
    MessageLimits,
    OnAcknowledged,
    OnMessage,
    PackedMessage,
    encode_name,
    unpack_message,
)
from scrapy_spider_suite.cluster.transports.udp_protocol import (
    COMMON_MAX,
    DATAGRAM_MAX,
    OVERHEAD,
    Arrival,
    Packet,
    PacketError,
    PacketKind,
    PacketSealer,
    PairReceiver,
    PairSender,
    UnlistedAgentError,
)
from scrapy_spider_suite.errors import MessageError, MessageTooLargeError
from scrapy_spider_suite.runtime.tasks import WarnOnce
from scrapy_spider_suite.settings.values import endpoint

logger = logging.getLogger(__name__)

BOUNDS: Final = MessageLimits(COMMON_MAX - OVERHEAD, DATAGRAM_MAX - OVERHEAD, 1 << 16)
"""A message is a datagram."""

_QUESTIONS: Final = (PacketKind.HELLO, PacketKind.WELCOME, PacketKind.MESSAGE)
"""What is answered where it arrives, by anything but a hello."""


class UdpPeers:
    """Datagrams in, messages out, and the other way round.

    Args:
        name: this agent.
        others: those with whom it exchanges messages.
        key: what all of them share, 16 bytes or more.
        window: messages to one receiver that may be on the way: taken and not known to be kept. All
            agents have to agree on it.
        unlisted: told of an agent whose list does not have this one.
        draw: random bytes, as `os.urandom`.

    Raises:
        ValueError: the key is too short, or a name is none.
    """

    def __init__(
        self,
        name: str,
        others: Collection[str],
        key: bytes,
        window: int,
        received: OnMessage,
        acknowledged: OnAcknowledged,
        unlisted: Callable[[str], None],
        draw: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.counters = MessageCounters()
        self._received = received
        self._acknowledged = acknowledged
        self._unlisted = unlisted
        self._sealer = PacketSealer(name, others, key)
        self._to = {other: PairSender(window, draw, self.counters) for other in others}
        self._from = {other: PairReceiver(window, draw(32)) for other in others}
        self._replies: list[tuple[str, Packet]] = []
        self._unanswered: dict[str, float] = {}  # since when
        self._once = WarnOnce(logger, f"messages over UDP, agent {name}")

    def room(self, to: str) -> int:
        """How many messages `send` takes for *to*."""
        return self._to[to].room() if to in self._to else 0

    def send(self, to: str, message: PackedMessage) -> bool:
        """Take *message*, if there is room."""
        if to not in self._to:
            return False
        outgoing = self._to[to]
        before = len(outgoing)
        taken = outgoing.put(message)
        if len(outgoing) > before:
            self.counters.took(message)
        return taken

    def withdraw(self, to: str) -> None:
        """Forget the messages for *to*."""
        if to in self._to:
            self.counters.withdrawn += self._to[to].clear()

    def acknowledge(self, receipt: Acknowledgement, now: float) -> None:
        """The rows of that message are kept."""
        sender = self._from.get(receipt.sender)
        if sender is not None and sender.keep(receipt, now):
            self.counters.receipts += 1

    def wake(self) -> float | None:
        """When `due` has something, if nothing happens before."""
        if self._replies:
            return 0.0
        times = [outgoing.wake() for outgoing in self._to.values()]
        times += [incoming.wake() for incoming in self._from.values()]
        return min((time for time in times if time is not None), default=None)

    def due(self, now: float) -> list[tuple[str, bytes]]:
        """Datagrams to be sent now, with the agents that they are for; they count as sent."""
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
        """Those that have not answered what they were sent at *since*, or before, and after it."""
        return [name for name, when in self._unanswered.items() if when <= since]

    def moved(self, name: str) -> None:
        """That agent has another address: what waits for it need not wait for longer."""
        self._unanswered.pop(name, None)
        self._to[name].is_back()

    def reports(self) -> list[tuple[str, bytes]]:
        """What there is to report, without waiting for more."""
        return [
            (name, self._sealer.seal(name, packet))
            for name, incoming in self._from.items()
            for packet in incoming.due(math.inf)
        ]

    def take(self, datagram: bytes, now: float) -> bytes:
        """Take in a datagram, whatever it is; what to answer to where it came from, or nothing."""
        try:
            name, packet = self._sealer.open(datagram)
            self._take(name, packet, now)
        except UnlistedAgentError as error:
            self._refuse(error.kind, error)
            return error.answer
        except PacketError as error:
            self._refuse(error.kind, error)
        except MessageTooLargeError as error:
            self._refuse("oversized", error)
        except MessageError as error:
            self._refuse("malformed", error)
        return b""

    def _take(self, name: str, packet: Packet, now: float) -> None:
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
                    self._acknowledged(name, message.first, message.last)
            case PacketKind.MESSAGE:
                self._message(name, packet, now)
            case PacketKind.UNLISTED:
                if self._to[name].calls(packet):  # otherwise it was said to an earlier process
                    self._unlisted(name)

    def _message(self, name: str, packet: Packet, now: float) -> None:
        incoming = self._from[name]
        if not incoming.knows(packet):
            self._replies += [(name, reply) for reply in incoming.stale(packet, now)]
            self.counters.replayed += 1  # or sent to the process that was here before: no line
            return
        self._unanswered.pop(name, None)
        verdict = incoming.arrived(packet.number, now)
        self.counters.repeated += verdict is Arrival.REPEATED
        self.counters.full += verdict is Arrival.BEYOND
        if verdict is not Arrival.NEW:
            return
        message = unpack_message(packet.body, BOUNDS)
        if message.sender != name:
            raise PacketError("forged", f"a message of {message.sender} from {name}")
        incoming.expect(packet.number, message.receipt)
        self.counters.received += 1
        self._received(message)

    def _refuse(self, kind: str, why: Exception) -> None:
        self.counters.refuse(kind)
        self._once.say(kind, f"refused {why}")


WINDOW: Final = 512
"""Messages on the way to one receiver: 0.7 MB."""

BUFFER: Final = 1 << 20
"""Bytes that the system is asked to hold for a process that is busy with something else."""

LOOK: Final = 5.0
"""Seconds without an answer after which the address of an agent is looked up again."""

Address = tuple[str, int]


def parse_agents(texts: Iterable[str]) -> dict[str, Address]:
    """Return name and address of each agent in *texts*: ``NAME=HOST:PORT``, IPv6 in brackets.

    Raises:
        ValueError: one is not that, or a name or an address comes twice.
    """
    agents: dict[str, Address] = {}
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


class UdpTransport:
    """A `transport.Transport` over UDP.

    Args:
        name: this agent, one of *agents*.
        agents: all of them, with the addresses that they listen at.
        key: what they share, 16 bytes or more.
        window: messages on the way to one receiver; all agents have to agree on it.
        unlisted: told of an agent whose list does not have this one.

    Raises:
        ValueError: *name* is not one of *agents*, a name is none, or the key is too short.
    """

    bounds = BOUNDS

    def __init__(
        self, name: str, agents: Mapping[str, Address], key: bytes, window: int = WINDOW,
        unlisted: Callable[[str], None] = lambda name: None,
    ) -> None:  # fmt: skip
        if name not in agents:
            raise ValueError(f"agent {name!r} is not in the list of agents")
        self._name, self._own = name, agents[name]
        self._others = {other: address for other, address in agents.items() if other != name}
        self._received: OnMessage | None = None
        self._acknowledged: OnAcknowledged | None = None
        self._exchange = UdpPeers(
            name, list(self._others), key, window, self._hand_on, self._tell, unlisted
        )
        self.counters: MessageCounters = self._exchange.counters
        self._once = WarnOnce(logger, f"messages over UDP, agent {name}")
        self._places: dict[str, Any] = {}
        self._socket: asyncio.DatagramTransport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn: asyncio.Handle | None = None  # as soon as the loop has time
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._ended = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def start(self, received: OnMessage, acknowledged: OnAcknowledged) -> None:
        """Listen at the own address. Raises `OSError`: it is not to be had, or its name not known.

        Those whose names are not known are looked up again from time to time.
        """
        self._loop = asyncio.get_running_loop()
        self._received, self._acknowledged = received, acknowledged
        try:
            family, own = await self._find(self._own)
        except OSError as error:
            raise self._no_good(f"not known: {error.strerror}") from error
        raw = self._bound(family, own[0])
        self._socket, _ = await self._loop.create_datagram_endpoint(lambda: _Socket(self), sock=raw)
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await self._look_up(self._others, family)
        self._looking = self._loop.create_task(self._look(family))
        self._pump()

    def _bound(self, family: int, own: Any) -> socket.socket:
        """A socket at the address *own*. Raises `OSError`, which says what to do about it."""
        raw = socket.socket(family, socket.SOCK_DGRAM)
        try:
            raw.setblocking(False)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                raw.setsockopt(socket.SOL_SOCKET, option, BUFFER)
            raw.bind(own)
        except OSError as error:
            raw.close()
            in_use = error.errno == errno.EADDRINUSE
            why = "in use: that agent may run already" if in_use else f"no good: {error.strerror}"
            raise self._no_good(why) from error
        return raw

    def _no_good(self, why: str) -> OSError:
        host, port = self._own
        return OSError(
            f"SUITE_AGENTS: {host}:{port}, the address of agent {self._name} on this machine, "
            f"is {why}; or SUITE_AGENT_NAME is that of another"
        )

    async def _find(self, address: Address, family: int = 0) -> tuple[int, list[Any]]:
        """The family of *address*, and what it may be, as the system wants it. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(*address, family=family, type=socket.SOCK_DGRAM)
        except UnicodeError as error:
            raise OSError(errno.EINVAL, f"no name of a machine ({error})") from error
        family = found[0][0]
        return family, [each[4] for each in found if each[0] == family]

    async def _look(self, family: int) -> None:
        """Look up, from time to time, who is not known or has not answered for long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK)
            unknown = self._others.keys() - self._places.keys()
            await self._look_up(unknown | set(self._exchange.silent(loop.time() - LOOK)), family)

    async def _look_up(self, others: Iterable[str], family: int) -> None:
        await asyncio.gather(*(self._look_up_one(other, family) for other in others))

    async def _look_up_one(self, other: str, family: int) -> None:
        """It may be the first time, or another address by now."""
        address = self._others[other]
        try:
            _, places = await self._find(address, family)
        except OSError as error:
            self.counters.failed += 1
            if other not in self._places:
                self._once.say(
                    f"name of {other}",
                    f"SUITE_AGENTS: the address of agent {other}, {address[0]}:{address[1]}, is "
                    f"not known: {error.strerror}; it is looked up again",
                )
            return
        self._once.over(f"name of {other}")
        if self._places.get(other) not in places:
            if other in self._places:
                logger.info("agent %s has another address: %s", other, places[0][0])
            self._places[other] = places[0]
            self._exchange.moved(other)
            self._soon()

    def _send(self, wire: asyncio.DatagramTransport, to: str, datagram: bytes) -> None:
        """To where *to* is, if that is known."""
        if to in self._places:
            wire.sendto(datagram, self._places[to])

    def room(self, to: str) -> int:
        """How many messages `send` takes for *to*."""
        return self._exchange.room(to)

    def send(self, to: str, message: PackedMessage) -> bool:
        """Take *message* for *to*, if there is room."""
        taken = self._exchange.send(to, message)
        self._soon()
        return taken

    def acknowledge(self, receipt: Acknowledgement) -> None:
        """The rows of that message are kept."""
        if self._loop is not None:
            self._exchange.acknowledge(receipt, self._loop.time())
            self._soon()

    def withdraw(self, to: str) -> None:
        """Forget what is on its way to *to*."""
        self._exchange.withdraw(to)

    async def close(self, seconds: float = 5.0) -> None:
        """Send what is to be said of messages that are kept, and close the socket."""
        self._received = self._acknowledged = None
        self._rest()
        if self._looking is not None:
            self._looking.cancel()
        wire, self._socket = self._socket, None
        if wire is None or self._loop is None:
            return
        if seconds > 0:
            # The reports that wait for more to say wait no longer.
            for to, datagram in self._exchange.reports():
                self._send(wire, to, datagram)
            wire.close()
        else:
            wire.abort()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), max(seconds, 1.0))

    def _soon(self) -> None:
        """Look what is to be sent, once whoever is at work now has done."""
        if self._turn is None and self._socket is not None and self._loop is not None:
            self._turn = self._loop.call_soon(self._pump)

    def _rest(self) -> None:
        """Let nothing call `_pump`."""
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        self._turn = self._timer = None

    def _pump(self) -> None:
        """Send what is due, and come back when there is more."""
        self._rest()
        if self._socket is None or self._loop is None or self._paused:
            return
        for to, datagram in self._exchange.due(self._loop.time()):
            self._send(self._socket, to, datagram)
        when = self._exchange.wake()
        if when is not None:
            self._timer = self._loop.call_at(when, self._pump)

    def _take(self, datagram: bytes, source: Any) -> None:
        if self._received is not None and self._loop is not None:
            answer = self._exchange.take(datagram, self._loop.time())
            if answer and self._socket is not None:
                self._socket.sendto(answer, source)
            self._soon()

    def _hand_on(self, message: Message) -> None:
        if self._received is not None:
            self._received(message)

    def _tell(self, to: str, first: int, last: int) -> None:
        if self._acknowledged is not None:
            self._acknowledged(to, first, last)

    def _failed(self, error: Exception) -> None:
        """Nobody listens there, or there is no way: that is what sending again is for."""
        self.counters.failed += 1
        self._once.say("failed", f"a datagram could not be sent: {error}")

    def _pause(self, paused: bool) -> None:
        """The system takes no more for now; or it does again."""
        self._paused = paused
        self._soon()


class _Socket(asyncio.DatagramProtocol):
    """The side of it that asyncio calls."""

    def __init__(self, owner: UdpTransport) -> None:
        self._owner = owner

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._owner._take(data, addr)

    def error_received(self, exc: Exception) -> None:
        self._owner._failed(exc)

    def pause_writing(self) -> None:
        self._owner._pause(True)

    def resume_writing(self) -> None:
        self._owner._pause(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner._ended.set()
