"""Letters on their way to one receiver over UDP: what is sent when, and when again.

A connection begins when the receiver has answered a ``HELLO``, and lasts until the receiver says
that it knows it no more. Within it letters are numbered. A letter is *unheard* until a report says
that it has arrived, then only waited for until a report says that it is *kept*. An unheard letter
is sent again when three later ones have arrived, or after a time that follows the round trips (RFC
6298); how many may be unheard at once grows with what arrives and is halved by losses (RFC 5681).

Everything is decided here and nothing done: ``now`` is an argument, in seconds, and packets are
returned. Invariant: every letter that was put and is not kept is waiting or flying.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scrapy_spider_suite.agents.letters import Packed
from scrapy_spider_suite.agents.packets import NONE, Kind, Packet, Report
from scrapy_spider_suite.agents.transport import MailCounters

FIRST_WAIT: Final = 0.25
"""Seconds until something is sent again, while nothing is known of the round trip."""

LEAST_WAIT: Final = 0.2
"""Seconds, at least: the loop of a process that crawls may be late by that."""

MOST_WAIT: Final = 10.0
"""Seconds, at most: how late it is noticed that a receiver is back."""

FIRST_PROBE, MOST_PROBE = 2.0, 30.0
"""Seconds without news until a letter that has arrived is sent again, to get a report of it."""

REORDERED: Final = 3
"""How many later letters arrive before one is taken for lost."""

FIRST_BURST, LEAST_BURST = 16.0, 2.0
"""Letters that may be unheard at first, and at least."""


@dataclass(slots=True, eq=False)
class Flight:
    """A letter that is not kept yet."""

    letter: Packed
    number: int = -1  # within the connection; -1: not sent over it
    sent: float = 0.0  # when it was sent last
    tries: int = 0  # over any connection


def _order(flight: Flight) -> float:
    """Which goes first: by number, then those that have none, as they came."""
    return flight.number if flight.number >= 0 else math.inf


class Wait:
    """How long to wait for a report: the smoothed round trip and four times its deviation."""

    def __init__(self) -> None:
        self.trip = 0.0
        self._deviation = 0.0
        self._factor = 1

    @property
    def seconds(self) -> float:
        """Until a letter of which nothing was heard is sent again."""
        usual = self.trip + 4 * self._deviation if self.trip else FIRST_WAIT
        return min(max(usual, LEAST_WAIT) * self._factor, MOST_WAIT)

    def took(self, seconds: float) -> None:
        """A letter that was sent once was reported after *seconds*."""
        if not self.trip:
            self.trip, self._deviation = seconds, seconds / 2
        else:
            self._deviation += (abs(self.trip - seconds) - self._deviation) / 4
            self.trip += (seconds - self.trip) / 8

    def fruitless(self) -> None:
        """It was waited for nothing: wait for twice as long."""
        self._factor = min(2 * self._factor, 1 << 10)

    def news(self) -> None:
        """The other side is there."""
        self._factor = 1


class Outgoing:
    """The letters for one receiver, *window* of them at most.

    Args:
        draw: random bytes, as `os.urandom`.
    """

    def __init__(self, window: int, draw: Callable[[int], bytes], counters: MailCounters) -> None:
        self._window = window
        self._draw = draw
        self._counters = counters
        self._letters: dict[tuple[int, int], Flight] = {}
        self._begin()

    def __len__(self) -> int:
        return len(self._letters)

    def _begin(self) -> None:
        """Begin a connection: all letters wait, as if none had been sent."""
        self._call = self._draw(8)
        self._answer = NONE
        self._waiting = deque(self._letters.values())
        for flight in self._waiting:
            flight.number = -1
        self._flying: dict[int, Flight] = {}  # in the order of their numbers
        self._unheard: dict[int, Flight] = {}  # of these, in the order of their last sending
        self._number = 0
        self._kept: tuple[int, int] = (0, 0)  # what the last report that said more said
        self._wait = Wait()
        self._burst = FIRST_BURST
        self._calm = 0.0  # until then further losses are those that the burst was halved for
        self._probe = FIRST_PROBE
        self._timer = 0.0  # when to say HELLO, or to probe

    def calls(self, packet: Packet) -> bool:
        """Whether *packet* is about this connection, as it is now."""
        return packet.call == self._call

    def room(self) -> int:
        """How many letters `put` takes."""
        return self._window - len(self._letters)

    def put(self, letter: Packed) -> bool:
        """Take *letter*, unless there is no room. One that is here already is here once."""
        key = letter.first, letter.last
        if key in self._letters:
            return True
        if len(self._letters) >= self._window:
            return False
        flight = self._letters[key] = Flight(letter)
        self._waiting.append(flight)
        return True

    def clear(self) -> int:
        """Forget all letters and the connection; how many letters there were."""
        count = len(self._letters)
        self._letters.clear()
        self._begin()
        return count

    def wake(self) -> float | None:
        """When `due` has something to send if nothing happens before; None: never."""
        if not self._letters:
            return None
        if self._unheard:
            return next(iter(self._unheard.values())).sent + self._wait.seconds
        return self._timer

    def due(self, now: float) -> list[Packet]:
        """What is to be sent now; it counts as sent."""
        if not self._letters:
            return []
        if self._answer == NONE:
            return self._hello(now)
        self._overdue(now)
        packets = []
        while self._waiting and len(self._unheard) < int(self._burst):
            if not self._has_number(self._waiting[0]):
                break
            flight = self._waiting.popleft()
            self._unheard[flight.number] = flight
            packets.append(self._packet(flight, now))
        if not self._unheard and self._flying and now >= self._timer:
            packets.append(self._packet(next(iter(self._flying.values())), now))
            self._timer = now + self._probe
            self._probe = min(2 * self._probe, MOST_PROBE)
        return packets

    def welcome(self, packet: Packet) -> None:
        """The receiver answered: letters may go."""
        if packet.call == self._call and self._answer == NONE:
            self._answer = packet.answer
            self._wait.news()

    def is_back(self) -> None:
        """The receiver has said something: what waits for it need not wait for longer."""
        self._wait.news()
        self._timer = 0.0

    def stale(self, packet: Packet) -> None:
        """The receiver does not know the connection: begin another one."""
        if (packet.call, packet.answer) == (self._call, self._answer) != (self._call, NONE):
            self._counters.remade += 1
            self._begin()

    def report(self, packet: Packet, now: float) -> list[Packed]:
        """Take in what the receiver says; the letters that it keeps, and that are forgotten here.

        Raises:
            PacketError: it is no report.
        """
        report = Report.unpack(packet.body)
        if (packet.call, packet.answer) != (self._call, self._answer):
            return []
        self._hear(report, now)
        self._miss(report, now)
        done = self._keep(report)
        self._wait.news()
        if not self._unheard:
            self._timer = now + self._probe
        return done

    def _hello(self, now: float) -> list[Packet]:
        if now < self._timer:
            return []
        self._timer = now + self._wait.seconds
        self._wait.fruitless()
        return [Packet(Kind.HELLO, self._call)]

    def _has_number(self, flight: Flight) -> bool:
        """Number it, if the receiver can tell so many apart."""
        if flight.number < 0:
            if self._flying and self._number - next(iter(self._flying)) >= self._window:
                return False
            flight.number = self._number
            self._flying[self._number] = flight
            self._number += 1
        return True

    def _packet(self, flight: Flight, now: float) -> Packet:
        self._counters.sent += 1
        self._counters.resent += flight.tries > 0
        flight.sent = now
        flight.tries += 1
        return Packet(Kind.LETTER, self._call, self._answer, flight.number, flight.letter.data)

    def _overdue(self, now: float) -> None:
        """Let what was waited for too long be sent again."""
        wait = self._wait.seconds
        lost = [flight for flight in self._unheard.values() if flight.sent + wait <= now]
        if lost:
            self._again(lost, now)
            self._wait.fruitless()

    def _miss(self, report: Report, now: float) -> None:
        """Let be sent again what later letters have overtaken."""
        until = now - 1.25 * self._wait.trip
        lost = [
            flight
            for flight in self._unheard.values()
            if flight.number + REORDERED <= report.highest and flight.sent < until
        ]
        if lost:
            self._again(lost, now)

    def _again(self, lost: list[Flight], now: float) -> None:
        for flight in lost:
            del self._unheard[flight.number]
        # The lowest first: what the receiver cannot take yet must not stand before what it can.
        self._waiting = deque(sorted((*lost, *self._waiting), key=_order))
        if now >= self._calm:
            self._burst = max(LEAST_BURST, self._burst / 2)
            self._calm = now + self._wait.trip

    def _hear(self, report: Report, now: float) -> None:
        """Let go of what has arrived."""
        for number in [number for number in self._unheard if report.has_heard(number)]:
            flight = self._unheard.pop(number)
            if flight.tries == 1:
                self._wait.took(now - flight.sent)
            # As in slow start while nothing was lost, by one for each round trip then.
            self._burst += 1.0 if self._calm == 0.0 else 1.0 / self._burst
        self._burst = min(self._burst, float(self._window))
        if self._waiting and self._waiting[0].number >= 0:
            self._waiting = deque(
                flight
                for flight in self._waiting
                if flight.number < 0 or not report.has_heard(flight.number)
            )

    def _keep(self, report: Report) -> list[Packed]:
        """Forget what is kept."""
        if (report.kept, report.kept_beyond) == self._kept:
            return []
        self._kept = report.kept, report.kept_beyond
        done = []
        for number in [number for number in self._flying if report.has_kept(number)]:
            letter = self._flying.pop(number).letter
            self._unheard.pop(number, None)
            del self._letters[letter.first, letter.last]
            done.append(letter)
        if done:
            self._probe = FIRST_PROBE
        return done
