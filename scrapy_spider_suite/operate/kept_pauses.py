"""Politeness as kept: the pauses between requests to one host or address, by the fetch log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite.fetch.fetch_log import (
    FetchLogReader,
    closed_files,
    host_in_field,
    log_folder,
    parse_time,
    times_in_name,
)

_FILES: Final = 2  # closed files that are read at most, the latest: half a million lines or so
_CLOCK: Final = 0.002  # seconds by which a pause in the log may be too short: both ends are rounded
EDGES: Final = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 300.0)
"""Lower bounds of the classes of pauses, in seconds; the first has overlapping requests too."""


@dataclass(slots=True)
class _Pauses:
    """The pauses of all hosts, or of all addresses."""

    delay: float
    compared: int = 0
    shorter: int = 0
    least: float | None = None
    classes: list[int] = field(default_factory=lambda: [0] * len(EDGES))
    _ends: dict[bytes, float] = field(default_factory=dict)

    def add(self, key: bytes, began: float, ended: float) -> None:
        before = self._ends.get(key)
        self._ends[key] = ended if before is None else max(before, ended)
        if before is None:
            return
        pause = round(began - before, 3)
        self.compared += 1
        self.shorter += pause < self.delay - _CLOCK
        self.least = pause if self.least is None else min(self.least, pause)
        self.classes[max(0, bisect_right(EDGES, pause + _CLOCK / 2) - 1)] += 1

    def row(self, name: str) -> dict[str, Any]:
        return {
            "of": name, "delay": self.delay, "compared": self.compared, "least": self.least,
            "shorter": self.shorter, "classes": self.classes,
        }  # fmt: skip


def kept_pauses(folder: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The pauses in the latest lines of the fetch log of the job in *folder*: a row for hosts, one
    for addresses; nothing without a log. *settings* are the job's.

    ``shorter``: pauses below the delay of the settings, as overrides may allow them.
    """
    place = settings.get("fetch_log")
    folder = log_folder(folder, place)
    if not place or not folder.is_dir():
        return []
    spans = [span for path in closed_files(folder)[-_FILES:] if (span := times_in_name(path))]
    reader = FetchLogReader(folder)
    return pauses_of_lines(
        reader.lines(since=spans[0][0] if spans else 0.0),
        float(settings.get("host_delay") or 0), float(settings.get("ip_delay") or 0),
    )  # fmt: skip


def pauses_of_lines(
    lines: Iterable[bytes], host_delay: float, ip_delay: float
) -> list[dict[str, Any]]:
    """The pauses between the requests of *lines*, which are in the order of their ends."""
    hosts, addresses = _Pauses(host_delay), _Pauses(ip_delay)
    for line in lines:
        fields = line.split(b" ", 10)
        try:
            ended = _second(fields[0][:19]) + int(fields[0][20:23]) / 1_000
            began = ended - int(fields[3]) / 1_000
        except (ValueError, IndexError):
            continue
        hosts.add(host_in_field(fields[4]), began, ended)
        if fields[9] != b"-":
            addresses.add(fields[9], began, ended)
    return [hosts.row("hosts"), addresses.row("addresses")]


def add_pauses(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of several agents, added up."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        total = found.setdefault(row["of"], {**row, "compared": 0, "shorter": 0, "least": None,
                                             "classes": [0] * len(EDGES)})  # fmt: skip
        total["compared"] += row["compared"]
        total["shorter"] += row["shorter"]
        known = [each for each in (total["least"], row["least"]) if each is not None]
        total["least"] = min(known, default=None)
        total["classes"] = [*map(sum, zip(total["classes"], row["classes"], strict=True))]
    return list(found.values())


@lru_cache(256)
def _second(text: bytes) -> float:
    return parse_time(text + b".000Z")
