"""Plans of revisits; each stands in an index by time until its page is pending again."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

import msgpack  # type: ignore[import-untyped]
import msgspec
from msgspec.structs import replace

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier import revisit_rules
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.store.rows import UrlState, pack_row, unpack_row

T = TypeVar("T")

_KEPT = Flag.USER | Flag.PROXIED | Flag.NO_ROBOTS


class PackedBody(NamedTuple):
    """The record that has a page's body, for revisit records (WARC 1.1 §6.7)."""

    url: str
    when: float  # its ``WARC-Date`` in wall seconds
    digest: str  # its ``WARC-Payload-Digest``


UNPACKED: Final = PackedBody("", 0.0, "")
"""The body was not to be packed. A page without a record is requested whole instead."""


class RevisitPlan(msgspec.Struct, frozen=True, array_like=True):
    """When a page is visited again, and the results of its visits. Times are wall times."""

    due: float  # of the next visit, or of the one that was popped
    history: revisit_rules.History
    rate: float  # changes a second, as the page is counted
    validators: revisit_rules.Validators
    digest: bytes  # of the body of the last visit
    misses: int = 0  # visits in a row that found no page
    claimed: bool = False  # a sitemap says that the page has changed since
    packed: PackedBody | None = None  # the record with its body; `UNPACKED`, or None
    host: str = ""  # its pacing key
    row: bytes = b""  # its queue row

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> RevisitPlan:
        """Read it back. Raises `JobDamagedError`."""
        return _decode(data, cls)

    def without(self, gone: Callable[[str], bool]) -> RevisitPlan:
        """The plan without referrer and packed body whose URLs are *gone*."""
        packed, row = self.packed, self.row
        if packed is not None and gone(packed.url):
            packed = None
        if row and gone((entry := unpack_row(self.host, b"", row)).referrer):
            entry.referrer = ""
            row = pack_row(entry)
        same = packed is self.packed and row is self.row
        return self if same else replace(self, packed=packed, row=row)

    def entry(self) -> Entry:
        """The page as it is queued once more. Raises `JobDamagedError`."""
        entry = unpack_row(self.host, b"", self.row)
        entry.attempts = 0
        entry.flags &= _KEPT
        return entry


ROWS: Final = "revisits"  # the mapping of a job's store that holds all of this
MISSES_MAX: Final = 3  # visits in a row that find no page, after which it is visited no more

_PLAN, _DUE, _DEMAND, _CLAIMS = b"p", b"d", b"m", b"c"
_TIME = struct.Struct(">Q")
_BUCKET = 5
"""Bytes of a time before which nothing waits (17 s): scans skip what was deleted earlier."""


def plan_of(rows: KV, identity: bytes) -> RevisitPlan | None:
    data = rows.get(_PLAN + identity)
    return None if data is None else RevisitPlan.from_bytes(data)


class RevisitPlans:
    """Plans in *rows*, a mapping of their own. Times are wall times.

    Changes go with the store's next batch; `save` comes before it. *found* counts the visits of
    this run by result: changed, same, unchanged (304), missed, gone. *idle*: nothing is planned.
    """

    def __init__(self, rows: KV, settings: revisit_rules.RevisitPolicy) -> None:
        self.price = 0.0  # seconds of freshness that a visit has to bring; 0 until `tick`
        self.found = dict.fromkeys(("changed", "same", "unchanged", "missed", "gone"), 0)
        self._rows = rows
        self._demand = self._load()
        self._number = len(self._demand)
        self.use(settings)
        self._counted = False  # something was, since `save`
        self._passed = b""  # the last key that `take_wanted` has looked at
        first = next(rows.items(_DUE), None)
        self._head = None if first is None else _bucket(first[0])

    def __len__(self) -> int:
        return self._number

    def use(self, settings: revisit_rules.RevisitPolicy) -> None:
        self.settings = settings
        self._count(0)

    def get(self, identity: bytes) -> RevisitPlan | None:
        return plan_of(self._rows, identity)

    def visited(
        self, identity: bytes, now: float, digest: bytes, validators: revisit_rules.Validators, *,
        unchanged: bool = False, packed: PackedBody | None = None, host: str = "", row: bytes = b"",
    ) -> RevisitPlan | None:  # fmt: skip
        """Plan the next visit of a page that was visited; None if there is to be none.

        *unchanged*: the server said so (304). *packed*: where its body is now; None: unchanged.
        *host* and *row* (`pack_row`) are those of its first visit.
        """
        before = self.get(identity)
        if before is None:
            if self.settings.mode is revisit_rules.Mode.OFF:
                return None
            history = revisit_rules.History(now)
        else:
            unchanged, said = unchanged or digest == before.digest, unchanged
            history = before.history.visited(
                now, changed=not unchanged, modified=validators.modified
            )
            if unchanged:
                digest, validators = before.digest, before.validators.renewed(validators)
                packed = packed or before.packed
            host, row = before.host, before.row
            self.found["changed" if not unchanged else "unchanged" if said else "same"] += 1
            if before.claimed:
                claims = self.claims(host).checked(changed=not unchanged)
                self._rows.put(_CLAIMS + host.encode(), msgpack.packb((claims.made, claims.true)))
            self._leave(identity, before)
        rate, due = history.rate(self.settings.prior), now + self._interval(history)
        plan = RevisitPlan(
            due, history, rate, validators, digest, packed=packed, host=host, row=row
        )
        self._add(identity, plan)
        return plan

    def import_plan(self, identity: bytes, plan: RevisitPlan, *, waits: bool) -> None:
        """Add another agent's *plan*, unless there is one; not *waits*: the page is pending."""
        if self.get(identity) is None:
            self._add(identity, plan)
            if not waits:
                self._unindex(identity, plan)

    def missed(self, identity: bytes, now: float) -> RevisitPlan | None:
        """A visit has found no page: plan another, unless it was the last one."""
        before = self.get(identity)
        if before is None:
            return None
        self.found["missed"] += 1
        self._unindex(identity, before)
        if before.misses + 1 >= MISSES_MAX:
            self.found["gone"] += 1
            self.forget(identity)
            return None
        due = now + self._interval(before.history)
        plan = replace(before, due=due, misses=before.misses + 1, claimed=False)
        self._put(identity, plan)
        return plan

    def claims(self, host: str) -> revisit_rules.LastmodTrust:
        """The trust in sitemaps that name pages of *host*."""
        data = self._rows.get(_CLAIMS + host.encode())
        counts = () if data is None else _decode(data, tuple[float, float])
        return revisit_rules.LastmodTrust(*counts)

    def claim(self, identity: bytes, lastmod: float, now: float) -> bool:
        """Whether a page is due at once, since a sitemap says that it changed at *lastmod*."""
        plan = self.get(identity)
        if plan is None:
            return False
        due = self.claims(plan.host).due(lastmod, plan.history, plan.due, now)
        return due < plan.due and self.hasten(identity, due)

    def hasten(self, identity: bytes, due: float) -> bool:
        """Make a page due at *due*, if that is sooner. False if it has no plan, or is pending."""
        plan = self.get(identity)
        if plan is None or not self.waits(identity, plan):
            return False
        if due < plan.due:
            self._unindex(identity, plan)
            self._put(identity, replace(plan, due=due, claimed=True))
        return True

    def waits(self, identity: bytes, plan: RevisitPlan) -> bool:
        """Whether a page with this *plan* stands in the index; else it was popped."""
        return self._rows.get(_index(plan.due, identity)) is not None

    def pop_due(self, now: float, limit: int) -> list[tuple[bytes, RevisitPlan]]:
        """Remove up to *limit* due pages from the index, oldest first, to be pending again."""
        found: list[tuple[bytes, RevisitPlan]] = []
        for key in self._keys():
            self._head = _bucket(key)
            if len(found) == limit or _time(key) > now:
                return found
            identity = _named(key)
            plan = self.get(identity)
            if plan is not None:
                found.append((identity, plan))
            self._rows.delete(key)
        self._head = None
        return found

    def pop_due_of(
        self, now: float, wanted: Callable[[bytes], bool], limit: int, looked: int
    ) -> list[tuple[bytes, RevisitPlan]]:
        """`pop_due` of *wanted* pages among the next *looked*; too few: later calls go on there."""
        found: list[tuple[bytes, RevisitPlan]] = []
        passed, self._passed = self._passed, b""
        for number, key in enumerate(self._keys(passed)):
            if _time(key) > now or len(found) == limit:
                break
            if number == looked:
                self._passed = passed
                break
            passed, identity = key, _named(key)
            if wanted(identity):
                plan = self.get(identity)
                if plan is not None:
                    found.append((identity, plan))
                self._rows.delete(key)
        return found

    def _keys(self, after: bytes = b"") -> Iterator[bytes]:
        if self._head is not None:
            # The first key that can follow *after*; nothing waits before the head.
            first = max(self._head.to_bytes(_BUCKET, "big"), after[len(_DUE) :] + b"\0")
            for key, _ in self._rows.items(_DUE, since=first):
                yield key

    def next_due(self) -> float | None:
        """When the first page is due, or was; None if none waits."""
        key = next(self._keys(), None)
        self._head = None if key is None else _bucket(key)
        return None if key is None else _time(key)

    def withdraw(self, identity: bytes) -> None:
        plan = self.get(identity)
        if plan is not None:
            self._unindex(identity, plan)

    def forget(self, identity: bytes) -> None:
        plan = self.get(identity)
        if plan is not None:
            self._leave(identity, plan)
            self._rows.delete(_PLAN + identity)

    def forget_claims(self, host: str) -> None:
        self._rows.delete(_CLAIMS + host.encode())

    def forget_referrers(self, gone: Callable[[str], bool]) -> Iterator[None]:
        """`RevisitPlan.without` for all plans, one with each step."""
        for identity, plan in self.planned():
            changed = plan.without(gone)
            if changed is not plan:
                self._rows.put(_PLAN + identity, changed.to_bytes())
                yield

    def planned(
        self, prefix: bytes = b"", since: bytes = b""
    ) -> Iterator[tuple[bytes, RevisitPlan]]:
        """The plans whose state keys begin with *prefix* and go on with at least *since*."""
        for key, data in self._rows.items(_PLAN + prefix, since):
            yield key[len(_PLAN) :], RevisitPlan.from_bytes(data)

    def indexed(self) -> Iterator[tuple[float, bytes]]:
        """The times and state keys of waiting pages, in order of time."""
        for key, _ in self._rows.items(_DUE):
            yield _time(key), _named(key)

    def tick(self, visits: float) -> None:
        """Find the price for *visits* revisits a second; takes a millisecond."""
        bounds = self.settings
        self.price = self._demand.price(visits, bounds.least, bounds.most)

    def save(self) -> None:
        if self._counted:
            self._counted = False
            self._rows.put(_DEMAND, msgpack.packb(self._demand.bins))

    def _interval(self, history: revisit_rules.History) -> float:
        wanted = self.settings.interval(history, self.price) if self.price else None
        return wanted or self.settings.seconds

    def _add(self, identity: bytes, plan: RevisitPlan) -> None:
        self._demand.changed(None, plan.rate)
        self._count(1)
        self._put(identity, plan)

    def _count(self, change: int) -> None:
        self._number += change
        self.idle = not self._number and self.settings.mode is revisit_rules.Mode.OFF

    def _leave(self, identity: bytes, plan: RevisitPlan) -> None:
        self._demand.changed(plan.rate, None)
        self._count(-1)
        self._counted = True
        self._unindex(identity, plan)

    def _unindex(self, identity: bytes, plan: RevisitPlan) -> None:
        self._rows.delete(_index(plan.due, identity))

    def _put(self, identity: bytes, plan: RevisitPlan) -> None:
        self._counted = True
        self._rows.put(_PLAN + identity, plan.to_bytes())
        key = _index(plan.due, identity)
        self._rows.put(key, b"")
        bucket = _bucket(key)
        self._head = bucket if self._head is None else min(self._head, bucket)

    def _load(self) -> revisit_rules.ChangeRates:
        data = self._rows.get(_DEMAND)
        return revisit_rules.ChangeRates(() if data is None else _decode(data, list[int]))


def _decode(data: bytes, form: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=form)
    except ValueError as error:
        raise JobDamagedError(f"a row of the revisits is damaged ({error!r})") from error


def _index(due: float, identity: bytes) -> bytes:
    return _DUE + _TIME.pack(max(0, int(due * 1e6))) + identity


def _named(key: bytes) -> bytes:
    return key[len(_DUE) + _TIME.size :]


def _time(key: bytes) -> float:
    microseconds: int = _TIME.unpack_from(key, len(_DUE))[0]
    return microseconds / 1e6


def _bucket(key: bytes) -> int:
    return int.from_bytes(key[len(_DUE) : len(_DUE) + _BUCKET], "big")


def wrong_plans(store: Store) -> Iterator[str]:
    """The disagreements of the plans of *store*, a line each."""
    revisits = RevisitPlans(store.kv(ROWS), revisit_rules.RevisitPolicy())
    number = 0
    for identity, plan in revisits.planned():
        number += 1
        if not revisits.waits(identity, plan):
            data = store.state(identity)
            if data is None or UrlState.from_bytes(data).state is not State.PENDING:
                yield f"{plan.entry().url} is to be visited again, but waits for nothing"
    if number != len(revisits):
        waiting = counted(number, "page is", "pages are")
        yield f"{waiting} to be visited again, but the job counts {len(revisits):,}"
    for when, identity in revisits.indexed():
        found = revisits.get(identity)
        if found is None or abs(when - found.due) > 1e-5:
            yield f"{identity!r} waits for another visit, but has no plan for that"
