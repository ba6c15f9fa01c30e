"""A job directory read from outside, while a crawl writes it or at rest: its check, its status."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite.errors import JobDamagedError, JobError
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.runtime.files import LockedFolder, lock_file
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.counters import Counters, wrong_rows
from scrapy_spider_suite.store.host_queues import NEVER, RESIDENT
from scrapy_spider_suite.store.residency import HELD
from scrapy_spider_suite.store.revisit_plans import wrong_plans
from scrapy_spider_suite.store.rocks_store import RocksStore, open_store
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.store.seen_index import DONE_200
from scrapy_spider_suite.store.seen_transfer import archived, entry_of, rows_in
from scrapy_spider_suite.store.unread_pages import UnreadPages
from scrapy_spider_suite.store.url_states import seed_tag

STATUS_FILE = "status.json"
_SILENT = 10.0  # seconds without a new status after which the event loop of a crawl stands still


class CrawlState(StrEnum):
    RUNNING = "running"
    SILENT = "silent"  # its process is there, but the status was not written for some seconds
    ENDED = "ended"
    KILLED = "killed"

    @property
    def running(self) -> bool:
        return self in (CrawlState.RUNNING, CrawlState.SILENT)


class StatusFile:
    """``status.json`` in *folder*: how a crawl is doing, or how it ended. *facts* come first."""

    def __init__(self, folder: Path, **facts: Any) -> None:
        self._path = folder / STATUS_FILE
        self._facts = facts

    def update(self, **facts: Any) -> None:
        """Add *facts*, and write all of them. While the disk is full the old file stays."""
        self._facts.update(facts)
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps(self._facts) + "\n")
            os.replace(new, self._path)
        except OSError:
            return  # the store logs it


def read_status(folder: Path) -> dict[str, Any] | None:
    try:
        status = json.loads((folder / STATUS_FILE).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return status if isinstance(status, dict) else None


def state_of(folder: Path, status: dict[str, Any], wall: float) -> CrawlState:
    if not status or status.get("ended"):
        return CrawlState.ENDED
    silent = wall - status.get("when", status.get("started", 0.0)) > _SILENT
    in_use: bool | None = False
    try:
        with (folder / "lock").open() as lock:
            if not lock_file(lock, shared=True):
                in_use = lock.read().strip() == f"process {status.get('process')}"
    except OSError:
        in_use = None
    if not in_use and (silent or in_use is not None):
        return CrawlState.KILLED
    return CrawlState.SILENT if silent else CrawlState.RUNNING


_BATCH = 1_000
_DONE = UrlState.from_bytes(DONE_200)
_FINGERPRINT = b"\xff"  # begins, after its host's key, an identity that does not say the URL


@dataclass(frozen=True, slots=True)
class UrlRow:
    url: str
    state: UrlState
    tag: str | None = None  # of a seed, "" without one; None for what is no seed


class StoreReader:
    """A read-only view of the store in the ``suite`` folder *folder*. Raises `JobDamagedError`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "store").is_dir():
            raise JobDamagedError(f"{folder} has no store")
        self._temporary = LockedFolder("scrapy-frontier-")
        try:
            secondary = self._temporary.path / "secondary"
            self.store = open_store(folder, memory=32 << 20, secondary=secondary)
        except BaseException:
            self._temporary.remove()
            raise

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
        self._temporary.remove()

    def counters(self) -> Counters:
        return Counters.load(self.store)

    def status(self) -> dict[str, Any] | None:
        return read_status(self.folder)

    def crawl_state(self, wall: float) -> CrawlState:
        return state_of(self.folder, self.status() or {}, wall)

    def pending(self, host: str) -> Iterator[Entry]:
        record = self.store.record(host)
        after = b"" if record is None else record.head
        while rows := self.store.rows(host, after, _BATCH):
            yield from rows
            after = rows[-1].key

    def urls(self, host: str) -> Iterator[UrlRow]:
        """Every URL of *host* that the job knows; those in the archive come last."""
        prefix, queued = host_key(host), None
        for identity, data in self.store.states(prefix):
            state = UrlState.from_bytes(data)
            url = state.url or identity.decode("utf-8", "replace")
            if not state.url and identity[:1] == _FINGERPRINT:
                if queued is None:
                    queued = {entry.identity: entry.url for entry in self.pending(host)}
                url = queued.get(prefix + identity, url)
            yield UrlRow(url, state, seed_tag(self.store, prefix + identity))
        for identity in archived(self.store, host):
            url = identity.decode("utf-8", "replace")
            yield UrlRow(url, _DONE, seed_tag(self.store, prefix + identity))

    @property
    def unextracted(self) -> UnreadPages:
        """The stored pages whose links nobody has read yet; not to be changed."""
        return UnreadPages(self.store, self.counters())

    def in_sieve(self) -> int:
        return sum(len(keys) for _, _, keys in rows_in(self.store))

    def sifted(self, identity: bytes) -> Entry | None:
        """The link with this state key that waits for the sieve, if it may still be new."""
        for number, way, keys in rows_in(self.store):
            if way is not None and identity in keys:
                sieve = self.store.sieve
                verdict = None if sieve is None else sieve.sieve.under_way
                at = number + keys.index(identity)
                if verdict is None or at >= verdict.end or verdict.is_new(at):
                    return entry_of(identity, way)
        return None

    def check(self) -> Iterator[str]:
        """Yield what is wrong with the store, a line each; nothing if all of it agrees."""
        counters = self.counters()
        rows: dict[str, int] = {}
        for entry in self.store.all_rows():
            rows[entry.host] = rows.get(entry.host, 0) + 1
            state = self.store.state(entry.identity)
            if state is None:
                yield f"{entry.url} is queued, but has no state"
            elif UrlState.from_bytes(state).state is not State.PENDING and not (
                entry.flags & Flag.DONT_FILTER  # may be queued again after it was done
            ):
                yield f"{entry.url} is queued, but its state is {UrlState.from_bytes(state).state}"
        yield from self._check_hosts(rows, counters)
        yield from wrong_rows(self.store)
        yield from self.unextracted.wrong()
        yield from wrong_plans(self.store)
        if self.store.archive is not None:
            for finding in self.store.archive.urls.check():
                yield f"{finding.what} (`scrapy frontier check --repair`)"
        yield from self._check_sieve()

    def _check_sieve(self) -> Iterator[str]:
        if self.store.sieve is None:
            return
        for damage in self.store.sieve.sieve.parts.check():
            yield f"{damage} (`scrapy frontier check --repair`)"
        after, decided = None, self.store.sieve.sieve.decided
        for number, _, keys in rows_in(self.store):
            expected = min(number, decided) if after is None else after
            if number != expected:
                yield f"links that wait for the sieve are missing from {expected} to {number}"
            after = number + len(keys)

    def _check_hosts(self, rows: dict[str, int], counters: Counters) -> Iterator[str]:
        due = {host for _, host in self.store.due(None)}
        totals = {"pending": 0, "done": 0, "failed": 0}
        for host, record in self.store.records():
            for name in totals:
                totals[name] += getattr(record, name)
            if record.pending != rows.get(host, 0):
                queued = rows.get(host, 0)
                pending = counted(record.pending, "pending URL")
                yield f"{host} counts {pending}, but its queue has {queued:,}"
            if record.pending and host not in due:
                yield f"{host} has pending URLs, but is not on the waiting list"
            if host in due and record.due is None:
                yield f"{host} is on the waiting list, but its record does not say so"
        for name, total in totals.items():
            if total != getattr(counters, name):
                urls = counted(getattr(counters, name), f"{name} URL")
                yield f"the job counts {urls}, its hosts {total:,}"


def wait_reason(record: HostRecord, wall: float) -> str:
    """Why a host with this record is not being fetched at time *wall* (seconds since the epoch)."""
    if record.dead:
        return f"given up: {record.dead.replace('_', ' ')}"
    if not record.pending:
        return "nothing pending"
    if record.next_fetch > wall:
        reason = record.why or "its delay"
        if record.next_fetch >= NEVER:
            return reason
        return f"{reason}: next visit in {record.next_fetch - wall:.0f} s"
    if record.due is not None and record.due < RESIDENT:
        if 1.0 < record.due - wall <= HELD:  # its clock gives no reason
            return "held back: another agent has it, or it is on its way from one to the other"
        return "waits on disk for room in memory"
    return "ready: visited as its address and the crawl's places allow"


_OF_A_START: Final = frozenset({
    ("kv", b"agent\0names"), ("kv", b"counters\0counters"), ("kv", b"terms\0terms"),
    ("kv", b"near\0m"),
})  # fmt: skip
"""The rows that any start writes, beside facts about the job itself."""


def is_fresh(folder: Path) -> bool:
    """Whether nothing has happened to the unused job in *folder*; False if it cannot be read."""
    try:
        with StoreReader(folder) as reader:
            return is_fresh_store(reader.store)
    except (JobError, OSError):
        return False


def is_fresh_store(store: RocksStore) -> bool:
    """Whether the job of *store* met no URL, host or agent. Raises `JobDamagedError`."""
    if Counters.load(store) != Counters():
        return False
    if store.archive is not None and len(store.archive.urls):
        return False
    if store.sieve is not None and len(store.sieve.sieve):
        return False
    rows = store.every_row()
    return all(family == "meta" or (family, key) in _OF_A_START for family, key, _ in rows)
