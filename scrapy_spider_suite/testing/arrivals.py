"""The arrival log: a line for each request that the in-vitro web got; gaps between requests.

docs/fakeweb.md has the fields of a line. Times are the server's own, in seconds (wall). Under load
a gap may be logged longer than it was, never shorter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

FLUSH_BYTES = 1 << 18
MEMORY = 1_000_000  # arrivals kept in memory; later ones are only counted

_HEADER = "#start\tend\thost\taddress\tpath\tstatus\tconnection\n"
_PATH_LENGTH = 2000


class Arrival(NamedTuple):
    start: float
    end: float
    host: str
    address: str
    path: str
    status: int
    connection: int

    def line(self) -> str:
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
        start, end, host, address, path, status, connection = line.rstrip("\n").split("\t")
        return cls(float(start), float(end), host, address, path, int(status), int(connection))


class LineLog:
    """Appends lines to a file in large writes; the owner calls `flush` regularly."""

    def __init__(self, path: Path | None, header: str = "") -> None:
        self._file = None if path is None else path.open(
            "a", FLUSH_BYTES, encoding="utf-8", errors="backslashreplace", newline="\n"
        )
        self.write(header)

    def write(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line)

    def flush(self) -> None:
        """Write all lines: they survive a kill of this process."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class ArrivalLog(LineLog):
    def __init__(self, path: Path | None = None, *, in_memory: bool = False) -> None:
        super().__init__(path, _HEADER)
        self._in_memory = in_memory
        self.records: list[Arrival] = []
        self.count = 0

    def add(self, arrival: Arrival) -> None:
        self.count += 1
        if self._file is not None:
            self.write(arrival.line())
        if self._in_memory and len(self.records) < MEMORY:
            self.records.append(arrival)


class QueryLog(LineLog):
    """The name server's log: time, name, type, and answer or RCODE name."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path, "#time\tname\ttype\tanswer\n")
        self.names: dict[str, int] = {}
        self.count = 0

    def add(self, name: str, kind: str, answer: str) -> None:
        self.count += 1
        if name in self.names or len(self.names) < MEMORY:
            self.names[name] = self.names.get(name, 0) + 1
        self.write(f"{time.time():.6f}\t{name}\t{kind}\t{answer}\n")


def read_arrivals(path: Path | str) -> Iterator[Arrival]:
    """Yield the complete lines, also while the log is written. Raises OSError and ValueError."""
    with open(path, encoding="utf-8", newline="\n") as lines:
        for line in lines:
            if line.endswith("\n") and not line.startswith("#"):
                yield Arrival.parse(line)


@dataclass
class Gaps:
    """Seconds between requests; negative: one began before an earlier answer ended."""

    values: list[float] = field(default_factory=list)
    smallest: float = float("inf")
    pair: tuple[Arrival, Arrival] | None = None


def gaps(
    records: Iterable[Arrival], key: str | Callable[[Arrival], str] = "host"
) -> dict[str, Gaps]:
    """By host, address or own *key*: from the latest end of all earlier requests to the start."""
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
