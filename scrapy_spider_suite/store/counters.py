"""Counts of a job since its first day: totals, by registered domain, by status and media type."""

from __future__ import annotations

import mimetypes
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.urls.hosts import load_suffixes, registered_domain
from scrapy_spider_suite.urls.traps import Trap

T = TypeVar("T")


@dataclass(slots=True)
class Counters:
    """Totals of a job; numbers of URLs unless stated otherwise."""

    sequence: int = 0  # the last sequence number given to an entry
    pending: int = 0
    done: int = 0
    failed: int = 0
    filtered: int = 0  # times that a URL was offered again
    retried: int = 0
    dead_hosts: int = 0  # hosts given up
    seconds: float = 0.0  # seconds of crawling, over all runs
    events: dict[Event, int] = field(default_factory=dict)  # concluded URLs by what concluded them
    bytes: int = 0
    """Bytes received, as far as the download handler tells them; else those of bodies."""
    traps: dict[Trap, int] = field(default_factory=dict)
    """URLs that were refused, failed or put last, by the trap that they lie in."""
    # Counted as it happens: these never fall.
    found: int = 0  # URLs that were not known before
    failures: int = 0  # times that a URL failed for good
    endings: dict[Event, int] = field(default_factory=dict)
    """Attempts, and URLs that were refused without one, by how they ended."""

    def __post_init__(self) -> None:
        self.traps = Counter(self.traps)
        self.endings = Counter(self.endings)

    @property
    def pages(self) -> int:
        """Fetches that ended *done*; a page that is fetched again counts again."""
        return sum(n for event, n in self.endings.items() if event.outcome.state is State.DONE)

    @property
    def has_urls(self) -> bool:
        return bool(self.sequence or self.events)

    def save(self, store: Store) -> None:
        store.kv("counters").put(b"counters", msgspec.msgpack.encode(self))

    @classmethod
    def load(cls, store: Store) -> Counters:
        """Read the counters back; all 0 in a new job. Raises `JobDamagedError`."""
        return _load(cls, store, "counters")


def _load(cls: type[T], store: Store, name: str) -> T:
    data = store.kv("counters").get(name.encode())
    if data is None:
        return cls()
    try:
        return msgspec.msgpack.decode(data, type=cls)
    except ValueError as error:
        raise JobDamagedError(f"the job's {name} cannot be read ({error})") from error


_CACHE = 20_000  # rows in memory; when there are more, all are dropped
_FAMILY = "domains"
_ROW = struct.Struct(">QQ")


class Domain(NamedTuple):
    hosts: int = 0  # hosts of which a URL was ever queued
    pages: int = 0  # URLs done


class DomainCounts:
    """Counts by registered domain. Methods get a host, and mean its domain."""

    def __init__(self, store: Store) -> None:
        load_suffixes()
        self._kv = store.kv(_FAMILY)
        self._known: dict[str, Domain] = {}
        self._leased: dict[str, int] = {}  # in memory only

    def get(self, host: str) -> Domain:
        return self._for_domain(registered_domain(host))

    def _for_domain(self, domain: str) -> Domain:
        found = self._known.get(domain)
        if found is None:
            if len(self._known) >= _CACHE:
                self._known.clear()
            found = self._known[domain] = _read(domain, self._kv.get(domain.encode()))
        return found

    def count(self, host: str, *, hosts: int = 0, pages: int = 0) -> None:
        domain = registered_domain(host)
        old = self._for_domain(domain)
        new = self._known[domain] = Domain(max(0, old.hosts + hosts), max(0, old.pages + pages))
        if any(new):
            self._kv.put(domain.encode(), _ROW.pack(*new))
        else:
            self._kv.delete(domain.encode())

    def lease(self, host: str) -> None:
        domain = registered_domain(host)
        self._leased[domain] = self._leased.get(domain, 0) + 1

    def unlease(self, host: str) -> None:
        domain = registered_domain(host)
        left = self._leased[domain] - 1
        if left:
            self._leased[domain] = left
        else:
            del self._leased[domain]

    def leased(self, host: str) -> int:
        return self._leased.get(registered_domain(host), 0)


def domain_row(store: Store, host: str) -> tuple[str, Domain]:
    domain = registered_domain(host)
    return domain, _read(domain, store.kv(_FAMILY).get(domain.encode()))


def wrong_rows(store: Store) -> Iterator[str]:
    """The rows that do not agree with the hosts of *store*, a line each."""
    totals: dict[str, Domain] = {}
    for host, record in store.records():
        if record.counted:
            domain = registered_domain(host)
            hosts, pages = totals.get(domain, (0, 0))
            totals[domain] = Domain(hosts + 1, pages + record.done)
    kv = store.kv(_FAMILY)
    rows = {key.decode(): _read(key.decode(), row) for key, row in kv.items()}
    for domain in sorted(totals.keys() | rows.keys()):
        row, total = rows.get(domain, Domain()), totals.get(domain, Domain())
        if row != total:
            counts = f"{counted(row.hosts, 'host')} and {counted(row.pages, 'page')}"
            yield (
                f"{domain} counts {counts}, its hosts are {total.hosts:,} and have {total.pages:,}"
            )


def _read(domain: str, row: bytes | None) -> Domain:
    if row is None:
        return Domain()
    try:
        return Domain(*_ROW.unpack(row))
    except struct.error as error:
        raise JobDamagedError(f"the row of the domain {domain} cannot be read ({error})") from error


OTHER = "(other)"
KEYS_MAX = 1_000  # most rows of one table; further keys are counted under `OTHER`
UNUSUAL_MAX = 200  # most media types outside the known list: a server may invent them
USUAL = frozenset(
    name for table in mimetypes.MimeTypes().types_map for name in table.values()
) | {"-", OTHER, "application/rss+xml", "application/atom+xml", "application/xhtml+xml"}

# Key -> fetches, bytes of their bodies, milliseconds that they took.
Table = dict[str, Annotated[list[int], msgspec.Meta(min_length=3, max_length=3)]]


@dataclass(slots=True)
class FetchTotals:
    """Three tables of the same fetches. *changed*: since the last save or load."""

    statuses: Table = field(default_factory=dict)
    """By HTTP status; fetches without an answer by their event."""
    types: Table = field(default_factory=dict)  # by media type; "-" where there is none
    kinds: Table = field(default_factory=dict)
    """``page``, ``robots`` and ``aside`` (without a visit: media, a component's own)."""
    changed: bool = False

    def count(self, status: str, media_type: str, kind: str, size: int, ms: int) -> None:
        statuses, types, kinds = self.statuses, self.types, self.kinds
        for row in (
            statuses.get(status) or _new_row(statuses, status),
            types.get(media_type) or _new_row(types, self._row_of(media_type)),
            kinds.get(kind) or _new_row(kinds, kind),
        ):
            row[0] += 1
            row[1] += size
            row[2] += ms
        self.changed = True

    def _row_of(self, media_type: str) -> str:
        known = self.types
        if media_type in USUAL or len(known) < UNUSUAL_MAX:
            return media_type
        return media_type if sum(name not in USUAL for name in known) < UNUSUAL_MAX else OTHER

    def add(self, other: FetchTotals) -> None:
        for ours, theirs in (
            (self.statuses, other.statuses), (self.types, other.types), (self.kinds, other.kinds),
        ):  # fmt: skip
            for key, row in theirs.items():
                mine = ours.get(key) or _new_row(ours, key)
                mine[:] = [old + new for old, new in zip(mine, row, strict=True)]
        self.changed |= other.changed

    def total(self) -> tuple[int, int, int]:
        """Fetches, bytes and milliseconds in all."""
        rows = self.kinds.values()
        return sum(r[0] for r in rows), sum(r[1] for r in rows), sum(r[2] for r in rows)

    def save(self, store: Store) -> None:
        self.changed = False
        store.kv("counters").put(b"tallies", msgspec.msgpack.encode(self))

    @classmethod
    def load(cls, store: Store) -> FetchTotals:
        """Read the tallies back; empty in a new job. Raises `JobDamagedError`."""
        return _load(cls, store, "tallies")


def _new_row(table: Table, key: str) -> list[int]:
    if key not in table and len(table) >= KEYS_MAX:
        key = OTHER
    return table.setdefault(key, [0, 0, 0])
