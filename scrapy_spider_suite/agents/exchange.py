"""All letters of one agent over UDP, to and from a fixed list of agents: the deciding part.

`sending` and `receiving` decide for each pair; here a datagram finds its pair, or is refused and
counted. ``now`` is an argument, in seconds of a clock that never goes back.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection
from typing import Final

from scrapy_spider_suite.agents.letters import Bounds, Packed, Receipt, unpack
from scrapy_spider_suite.agents.packets import (
    COMMON_MAX,
    DATAGRAM_MAX,
    OVERHEAD,
    Kind,
    Packet,
    PacketError,
    Sealer,
    StrangerError,
)
from scrapy_spider_suite.agents.receiving import Incoming, Verdict
from scrapy_spider_suite.agents.sending import Outgoing
from scrapy_spider_suite.agents.transport import Acknowledged, MailCounters, Received
from scrapy_spider_suite.errors import LetterError, LetterTooLargeError
from scrapy_spider_suite.runtime.tasks import Once

BOUNDS: Final = Bounds(COMMON_MAX - OVERHEAD, DATAGRAM_MAX - OVERHEAD, 1 << 16)
"""A letter is a datagram."""

_QUESTIONS: Final = (Kind.HELLO, Kind.WELCOME, Kind.LETTER)
"""What is answered where it arrives, by anything but a hello."""

logger = logging.getLogger(__name__)


class Exchange:
    """Datagrams in, letters out, and the other way round.

    Args:
        name: this agent.
        others: those with whom it exchanges letters.
        key: what all of them share, 16 bytes or more.
        window: letters to one receiver that may be on the way: taken and not known to be kept. All
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
        received: Received,
        acknowledged: Acknowledged,
        unlisted: Callable[[str], None],
        draw: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.counters = MailCounters()
        self._received = received
        self._acknowledged = acknowledged
        self._unlisted = unlisted
        self._sealer = Sealer(name, others, key)
        self._to = {other: Outgoing(window, draw, self.counters) for other in others}
        self._from = {other: Incoming(window, draw(32)) for other in others}
        self._replies: list[tuple[str, Packet]] = []
        self._unanswered: dict[str, float] = {}  # since when
        self._once = Once(logger, f"letters over UDP, agent {name}")

    def room(self, to: str) -> int:
        """How many letters `send` takes for *to*."""
        return self._to[to].room() if to in self._to else 0

    def send(self, to: str, letter: Packed) -> bool:
        """Take *letter*, if there is room."""
        if to not in self._to:
            return False
        outgoing = self._to[to]
        before = len(outgoing)
        taken = outgoing.put(letter)
        if len(outgoing) > before:
            self.counters.took(letter)
        return taken

    def withdraw(self, to: str) -> None:
        """Forget the letters for *to*."""
        if to in self._to:
            self.counters.withdrawn += self._to[to].clear()

    def acknowledge(self, receipt: Receipt, now: float) -> None:
        """The rows of that letter are kept."""
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
        except StrangerError as error:
            self._refuse(error.kind, error)
            return error.answer
        except PacketError as error:
            self._refuse(error.kind, error)
        except LetterTooLargeError as error:
            self._refuse("oversized", error)
        except LetterError as error:
            self._refuse("malformed", error)
        return b""

    def _take(self, name: str, packet: Packet, now: float) -> None:
        if packet.kind in (Kind.WELCOME, Kind.STALE, Kind.REPORT):
            self._unanswered.pop(name, None)
        match packet.kind:
            case Kind.HELLO:
                self._replies.append((name, self._from[name].hello(packet)))
                self._to[name].is_back()
            case Kind.WELCOME:
                self._to[name].welcome(packet)
            case Kind.STALE:
                self._to[name].stale(packet)
            case Kind.REPORT:
                for letter in self._to[name].report(packet, now):
                    self.counters.acknowledged += 1
                    self._acknowledged(name, letter.first, letter.last)
            case Kind.LETTER:
                self._letter(name, packet, now)
            case Kind.UNLISTED:
                if self._to[name].calls(packet):  # otherwise it was said to an earlier process
                    self._unlisted(name)

    def _letter(self, name: str, packet: Packet, now: float) -> None:
        incoming = self._from[name]
        if not incoming.knows(packet):
            self._replies += [(name, reply) for reply in incoming.stale(packet, now)]
            self.counters.replayed += 1  # or sent to the process that was here before: no line
            return
        self._unanswered.pop(name, None)
        verdict = incoming.arrived(packet.number, now)
        self.counters.repeated += verdict is Verdict.REPEATED
        self.counters.full += verdict is Verdict.BEYOND
        if verdict is not Verdict.NEW:
            return
        letter = unpack(packet.body, BOUNDS)
        if letter.sender != name:
            raise PacketError("forged", f"a letter of {letter.sender} from {name}")
        incoming.expect(packet.number, letter.receipt)
        self.counters.received += 1
        self._received(letter)

    def _refuse(self, kind: str, why: Exception) -> None:
        self.counters.refuse(kind)
        self._once.say(kind, f"refused {why}")
