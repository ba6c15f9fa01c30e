"""What one sender's letters have come to, over UDP: which have arrived, and which are kept.

A connection is known by what its sender drew for it, the *call*, and by what this process made of
the call, the *answer*. An answer is a keyed hash of the call and of how many connections there were
from this sender, so it is good until the next connection begins and in no other process: whoever
plays back what was sent before names a connection that is over. Nothing is remembered of a call
until its answer comes back with a letter.

``now`` is an argument, in seconds. Invariant: what is kept has arrived.
"""

from __future__ import annotations

from enum import Enum, auto
from hashlib import blake2b
from typing import Final

from scrapy_spider_suite.agents.letters import Receipt
from scrapy_spider_suite.agents.packets import NONE, Kind, Packet, Report

REPORT_DELAY: Final = 0.01
"""Seconds for which a report waits for more to say."""

REPORT_LETTERS: Final = 8
"""Letters of which a report does not wait longer."""

STALE_PAUSE: Final = 0.05
"""Seconds between two answers to letters of connections that are over."""


class Verdict(Enum):
    """What a letter is to the connection that it came by."""

    NEW = auto()
    REPEATED = auto()
    BEYOND = auto()
    """Its sender has more on the way than was agreed; it will come again."""


class Marks:
    """Numbers that are marked: all below `below`, and some beyond."""

    def __init__(self) -> None:
        self.below = 0
        self.beyond = 0  # bit i: number below + i

    def __contains__(self, number: int) -> bool:
        return number < self.below or bool(self.beyond >> (number - self.below) & 1)

    def add(self, number: int) -> None:
        """Mark *number*."""
        if number >= self.below:
            self.beyond |= 1 << (number - self.below)
            ones = (~self.beyond & (self.beyond + 1)).bit_length() - 1
            self.below += ones
            self.beyond >>= ones


class Incoming:
    """The letters of one sender, of which *window* may be unkept at a time.

    Args:
        secret: random bytes that no other process has.
    """

    def __init__(self, window: int, secret: bytes) -> None:
        self._window = window
        self._secret = secret
        self._connections = 0
        self._stale_at = float("-inf")
        self._begin(NONE, NONE)

    def _begin(self, call: bytes, answer: bytes) -> None:
        self._call, self._answer = call, answer
        self._heard, self._kept = Marks(), Marks()
        self._unkept: dict[Receipt, list[int]] = {}
        self._unreported = 0
        self._report_at: float | None = None

    def hello(self, packet: Packet) -> Packet:
        """The answer to somebody who wants to send letters."""
        answer = self._answer if packet.call == self._call else self._answer_to(packet.call)
        return Packet(Kind.WELCOME, packet.call, answer)

    def knows(self, packet: Packet) -> bool:
        """Whether *packet* is of the connection that holds; one that was answered begins thus."""
        if (packet.call, packet.answer) == (self._call, self._answer) != (NONE, NONE):
            return True
        if packet.answer != self._answer_to(packet.call):
            return False
        self._connections += 1
        self._begin(packet.call, packet.answer)
        return True

    def stale(self, packet: Packet, now: float) -> list[Packet]:
        """What to say about a letter of an unknown connection: now and then, that it is unknown."""
        if now < self._stale_at + STALE_PAUSE:
            return []
        self._stale_at = now
        return [Packet(Kind.STALE, packet.call, packet.answer)]

    def arrived(self, number: int, now: float) -> Verdict:
        """Take note of a letter."""
        if number >= self._kept.below + self._window:
            return Verdict.BEYOND
        self._unreported += 1
        self._report_by(now if self._unreported >= REPORT_LETTERS else now + REPORT_DELAY)
        if number in self._heard:
            return Verdict.REPEATED
        self._heard.add(number)
        return Verdict.NEW

    def expect(self, number: int, receipt: Receipt) -> None:
        """A letter that arrived is kept once `keep` is called with *receipt*."""
        self._unkept.setdefault(receipt, []).append(number)

    def keep(self, receipt: Receipt, now: float) -> bool:
        """It is kept; False for a letter that came by another connection, or was kept before."""
        numbers = self._unkept.pop(receipt, ())
        for number in numbers:
            self._kept.add(number)
        if numbers:
            self._report_by(now + REPORT_DELAY)
        return bool(numbers)

    def wake(self) -> float | None:
        """When there is something to report."""
        return self._report_at

    def due(self, now: float) -> list[Packet]:
        """The report, if it is time for one; it counts as sent."""
        if self._report_at is None or now < self._report_at:
            return []
        self._report_at = None
        self._unreported = 0
        heard, kept = self._heard, self._kept
        body = Report(heard.below, heard.beyond, kept.below, kept.beyond).pack()
        return [Packet(Kind.REPORT, self._call, self._answer, 0, body)]

    def _report_by(self, when: float) -> None:
        self._report_at = when if self._report_at is None else min(when, self._report_at)

    def _answer_to(self, call: bytes) -> bytes:
        """What makes a connection of *call*."""
        text = call + self._connections.to_bytes(8, "big")
        return blake2b(text, key=self._secret, digest_size=8).digest()
