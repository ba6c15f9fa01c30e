"""Tallies of a job's fetches since its first day: by status, media type and kind.

They are what the reports ``statuses``, ``types`` and ``crawl`` show, so that none of them reads
the fetch log. A server can name as many media types as it likes; only so many have a row, and
those that are known to be some always have one.
"""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass, field
from typing import Any

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.storage.store import Store

OTHER = "(other)"
KEYS_MAX = 1_000
"""Most rows of one table; what comes after that is counted under `OTHER`."""
UNUSUAL_MAX = 200
"""Most media types that are in no list of them: a server may make them up, and must not leave
those that are without a row."""
USUAL = frozenset(
    name for table in mimetypes.MimeTypes().types_map for name in table.values()
) | {"-", OTHER, "application/rss+xml", "application/atom+xml", "application/xhtml+xml"}

_KEY = b"tallies"

Table = dict[str, list[int]]
"""Key -> fetches, bytes of their bodies, milliseconds that they took."""


@dataclass(slots=True)
class Tallies:
    """Three tables of the same fetches. *changed*: since they were last saved or loaded."""

    statuses: Table = field(default_factory=dict)
    """By HTTP status; fetches without an answer by their event."""
    types: Table = field(default_factory=dict)
    """By media type; "-" where there is none."""
    kinds: Table = field(default_factory=dict)
    """``page``, ``robots`` and ``aside`` (without a visit: media, a component's own)."""
    changed: bool = False

    def count(self, status: str, media_type: str, kind: str, size: int, ms: int) -> None:
        """Count one fetch of *size* bytes that took *ms* milliseconds."""
        for table, key in (
            (self.statuses, status), (self.types, self._row_of(media_type)), (self.kinds, kind),
        ):  # fmt: skip
            _count(table, key, 1, size, ms)
        self.changed = True

    def _row_of(self, media_type: str) -> str:
        known = self.types
        if media_type in known or media_type in USUAL or len(known) < UNUSUAL_MAX:
            return media_type
        return media_type if sum(name not in USUAL for name in known) < UNUSUAL_MAX else OTHER

    def add(self, other: Tallies) -> None:
        """Count what *other* counted."""
        for ours, theirs in (
            (self.statuses, other.statuses), (self.types, other.types), (self.kinds, other.kinds),
        ):  # fmt: skip
            for key, row in theirs.items():
                _count(ours, key, *row)
        self.changed |= other.changed

    def total(self) -> tuple[int, int, int]:
        """Fetches, bytes and milliseconds in all."""
        rows = self.kinds.values()
        return sum(r[0] for r in rows), sum(r[1] for r in rows), sum(r[2] for r in rows)

    def save(self, store: Store) -> None:
        """Put the tallies into the store's next batch."""
        row = {"statuses": self.statuses, "types": self.types, "kinds": self.kinds}
        store.kv("counters").put(_KEY, msgpack.packb(row))
        self.changed = False

    @classmethod
    def load(cls, store: Store) -> Tallies:
        """Read the tallies back; empty in a new job. Raises `JobDamagedError`."""
        data = store.kv("counters").get(_KEY)
        if data is None:
            return cls()
        try:
            row = msgpack.unpackb(data)
            return cls(_table(row["statuses"]), _table(row["types"]), _table(row["kinds"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise JobDamagedError(f"the job's tallies cannot be read ({error})") from error


def _count(table: Table, key: str, fetches: int, size: int, ms: int) -> None:
    row = table.get(key)
    if row is None:
        if len(table) >= KEYS_MAX:
            key = OTHER
        row = table.setdefault(key, [0, 0, 0])
    row[0] += fetches
    row[1] += size
    row[2] += ms


def _table(row: dict[Any, Any]) -> Table:
    return {str(key): [int(a), int(b), int(c)] for key, (a, b, c) in row.items()}
