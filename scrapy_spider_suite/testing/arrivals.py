"""The arrival log: one line for each request that the in-vitro web was sent, and its reader.

A line has seven fields, separated by tabs::

    start   wall clock, seconds with microseconds, when the request's first byte was read
    end     likewise, when the last byte of the answer was handed to the kernel
    host    of the Host header: lower case, no port, no trailing dot
    address that was connected to
    path    request target as sent, cut after 2,000 characters, control characters escaped
    status  of the answer, 0 where there was none
    connection  number of the TCP connection, counted from 1 for each run of the server

Both times are the server's own, so politeness can be checked without trusting the crawler:
:func:`gaps` gives for each host or address the times from the end of an answer to the start of
the next request. Under load both are off by what the server needs for a few answers, and always to
the same side: a gap may be logged longer than it was, never shorter. (Only the end of an answer
that is too large for one write, some megabytes, may be logged late.)

How fast a polite crawl can be: an optimal schedule of what the server's log says was fetched.

The fetches of each host, in the order and with the service times in which they were answered,
are scheduled again in virtual time: a host begins its next fetch no sooner than its delay after
its last has ended, an address likewise. What a crawler needs beyond that is time it wasted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

FLUSH_BYTES = 1 << 18
MEMORY = 1_000_000
"""Arrivals kept in memory for in-process users; later ones are only counted."""

_HEADER = "#start\tend\thost\taddress\tpath\tstatus\tconnection\n"
_PATH_LENGTH = 2000


class Arrival(NamedTuple):
    """One request and its answer; the module says what each field is."""

    start: float
    end: float
    host: str
    address: str
    path: str
    status: int
    connection: int

    def line(self) -> str:
        """The arrival as one line of the log."""
        start, end, host, address, path, status, connection = self
        if len(path) > _PATH_LENGTH:
            path = path[:_PATH_LENGTH]
        if not path.isprintable():
            path = path.encode("unicode_escape").decode("ascii")
        if not host.isprintable():
            host = host.encode("unicode_escape").decode("ascii")
        return f"{start:.6f}\t{end:.6f}\t{host}\t{address}\t{path}\t{status}\t{connection}\n"

    @classmethod
    def parse(cls, line: str) -> Arrival:
        """Read what :meth:`line` wrote.

        Raises:
            ValueError: it is not a complete line of the log.
        """
        start, end, host, address, path, status, connection = line.rstrip("\n").split("\t")
        return cls(float(start), float(end), host, address, path, int(status), int(connection))


class LineLog:
    """Appends lines to a file in large writes; the owner calls :meth:`flush` now and then.

    The file is opened at once, so that a path that cannot be written is refused at the start.
    """

    def __init__(self, path: Path | None, header: str = "") -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._file = None if path is None else os.open(path, flags, 0o644)
        self._lines: list[str] = []
        self._size = 0
        if self._file is not None and header:
            self.add(header)

    def add(self, line: str) -> None:
        """Append *line*, which ends with a newline; without a file it is dropped."""
        if self._file is None:
            return
        self._lines.append(line)
        self._size += len(line)
        if self._size > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand all lines so far to the kernel: they survive a kill of this process."""
        if self._file is None or not self._lines:
            return
        data = "".join(self._lines).encode("utf-8", "backslashreplace")
        self._lines.clear()
        self._size = 0
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def close(self) -> None:
        """Flush and close the file; the log is of no use afterwards."""
        self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None


class ArrivalLog:
    """What the server writes: to a file if there is one, to memory if it is wanted there."""

    def __init__(self, path: Path | None = None, *, in_memory: bool = False) -> None:
        self._log = LineLog(path, _HEADER)
        self._to_file = path is not None
        self._in_memory = in_memory
        self.records: list[Arrival] = []
        self.count = 0
        self.flush = self._log.flush
        self.close = self._log.close

    def add(self, arrival: Arrival) -> None:
        """Note that *arrival* has been answered."""
        self.count += 1
        if self._to_file:
            self._log.add(arrival.line())
        if self._in_memory and len(self.records) < MEMORY:
            self.records.append(arrival)


class QueryLog:
    """The name server's log: lines of wall clock, name, type and answer (an RCODE name)."""

    def __init__(self, path: Path | None = None) -> None:
        self._log = LineLog(path, "#time\tname\ttype\tanswer\n")
        self.names: dict[str, int] = {}
        self.count = 0
        self.flush = self._log.flush
        self.close = self._log.close

    def add(self, name: str, kind: str, answer: str) -> None:
        """Note a query for *name*; how often each name was asked for is kept in memory."""
        self.count += 1
        if name in self.names or len(self.names) < MEMORY:
            self.names[name] = self.names.get(name, 0) + 1
        self._log.add(f"{time.time():.6f}\t{name}\t{kind}\t{answer}\n")


def read_arrivals(path: Path | str) -> Iterator[Arrival]:
    """Read an arrival log, in the order of the answers' ends, while it is written too.

    A last line that is not complete yet is left out.

    Raises:
        OSError: the file cannot be read.
        ValueError: a complete line is not one of an arrival log.
    """
    with open(path, encoding="utf-8", newline="\n") as lines:
        for line in lines:
            if line.endswith("\n") and not line.startswith("#"):
                yield Arrival.parse(line)


@dataclass
class Gaps:
    """The times between requests to one host or address, in seconds.

    ``values`` are in the order of the requests; ``smallest`` is the least of them, infinite when
    there was one request only; ``pair`` are the two arrivals on either side of the smallest gap.
    A gap is negative if a request began before an earlier answer had ended.
    """

    values: list[float] = field(default_factory=list)
    smallest: float = float("inf")
    pair: tuple[Arrival, Arrival] | None = None

    def shorter_than(self, seconds: float) -> int:
        """How many gaps are shorter than *seconds*."""
        return sum(1 for value in self.values if value < seconds)


def gaps(
    records: Iterable[Arrival], key: str | Callable[[Arrival], str] = "host"
) -> dict[str, Gaps]:
    """For each host (``"host"``), address (``"address"``) or own *key*: end -> next start.

    The end that counts is the latest of all earlier requests of that key, not just the previous.
    """
    name = key if callable(key) else (lambda arrival: str(getattr(arrival, key)))
    arrivals: dict[str, list[Arrival]] = {}
    for record in records:
        arrivals.setdefault(name(record), []).append(record)
    return {each: _gaps(sorted(found)) for each, found in arrivals.items()}


def _gaps(ordered: list[Arrival]) -> Gaps:
    found = Gaps()
    latest = ordered[0]
    for arrival in ordered[1:]:
        gap = arrival.start - latest.end
        found.values.append(gap)
        if gap < found.smallest:
            found.smallest, found.pair = gap, (latest, arrival)
        if arrival.end > latest.end:
            latest = arrival
    return found


Pause = Callable[[Arrival], float]
"""Seconds that a host must be left alone after the end of a fetch."""


@dataclass(slots=True)
class _Chain:
    """The fetches of one host that are still to be made, the next one last.

    *steps* are pairs of service time and pause after it; *left* is the time that they need at
    least; *ready* is when the next one may begin.
    """

    steps: list[tuple[float, float]]
    left: float
    ready: float = 0.0


def optimal_seconds(arrivals: Iterable[Arrival], pause: Pause, address_delay: float) -> float:
    """Seconds from the first request to the last answer in an optimal schedule of *arrivals*.

    Addresses are independent of each other, so the slowest one counts. At each the host that has
    most left goes first among those that may be visited; that is optimal whenever a single host,
    or the address itself, is what takes the time.
    """
    chains: dict[str, dict[str, list[Arrival]]] = {}
    for arrival in sorted(arrivals):
        chains.setdefault(arrival.address, {}).setdefault(arrival.host, []).append(arrival)
    return max((_schedule(each, pause, address_delay) for each in chains.values()), default=0.0)


def seconds_of(arrivals: Iterable[Arrival]) -> float:
    """Seconds from the first request to the last answer, as it was."""
    known = list(arrivals)
    return max(each.end for each in known) - min(each.start for each in known)


def _chain(fetches: list[Arrival], pause: Pause) -> _Chain:
    steps = [(each.end - each.start, pause(each)) for each in reversed(fetches)]
    return _Chain(steps, sum(map(sum, steps)) - steps[0][1])


def _schedule(hosts: dict[str, list[Arrival]], pause: Pause, delay: float) -> float:
    """Virtual time at which the last fetch at one address ends."""
    waiting = [_chain(fetches, pause) for fetches in hosts.values()]
    free = now = 0.0
    while waiting:
        now = max(free, min(chain.ready for chain in waiting))
        ready = [chain for chain in waiting if chain.ready <= now]
        chain = max(ready, key=lambda each: each.left)
        service, rest = chain.steps.pop()
        now += service
        chain.left -= service + rest
        chain.ready, free = now + rest, now + delay
        if not chain.steps:
            waiting.remove(chain)
    return now
