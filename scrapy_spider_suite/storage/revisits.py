"""Which pages are to be visited again, and when: rows of the job's store (T12).

A page that is done has a plan: when it is due, what its visits found, and what to ask its server
by. While it is due and waits, it stands in an index by time; who takes it from there makes it
pending in the same batch, so that a kill finds it in one of the two.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.revisits import Demand, History, Mode, Revisiting
from scrapy_spider_suite.frontier.validators import Validators
from scrapy_spider_suite.storage.kv import KV

_PLAN, _DUE, _DEMAND = b"p", b"d", b"m"
_TIME = struct.Struct(">Q")
_BUCKET = 5
"""Bytes of a time in microseconds by which the index is looked into: 17 seconds at a time, so that
nobody walks over the remains of all that was taken."""


@dataclass(frozen=True, slots=True)
class Plan:
    """*rate*: the page's, as it is counted. *digest*: of the body of the last visit, in which a
    change shows."""

    due: float
    history: History
    rate: float
    validators: Validators
    digest: bytes

    def to_bytes(self) -> bytes:
        """As a row holds it."""
        history, validators = self.history.to_bytes(), self.validators.to_bytes()
        data: bytes = msgpack.packb((self.due, history, self.rate, validators, self.digest))
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Read it back. Raises `JobDamagedError`."""
        try:
            due, history, rate, validators, digest = msgpack.unpackb(data)
            return cls(
                float(due), History.from_bytes(history), float(rate),
                Validators.from_bytes(validators), bytes(digest),
            )  # fmt: skip
        except (ValueError, TypeError) as error:
            raise JobDamagedError(f"a row of the revisits is damaged ({error})") from error


class Revisits:
    """Plans in *rows*, a mapping of the job's store that nothing else uses. Times are wall times.

    Everything changes with the store's next batch; `save` has to come before it.
    """

    def __init__(self, rows: KV, settings: Revisiting) -> None:
        self.settings = settings
        self.price = 0.0
        """Seconds of freshness that a visit has to bring; 0 until it is known (`tick`)."""
        self._rows = rows
        self._demand = self._load()
        self._saved = self._demand.bins
        first = next(rows.items(_DUE), None)
        self._head = None if first is None else _bucket(first[0])

    def __len__(self) -> int:
        """How many pages have a plan."""
        return len(self._demand)

    def get(self, identity: bytes) -> Plan | None:
        """The plan of a page, or None. Raises `JobDamagedError`."""
        data = self._rows.get(_PLAN + identity)
        return None if data is None else Plan.from_bytes(data)

    def visited(
        self, identity: bytes, now: float, digest: bytes, validators: Validators, *,
        unchanged: bool = False,
    ) -> Plan | None:  # fmt: skip
        """A page was visited: plan the next visit. None if there is to be none.

        *unchanged*: the server said so (304), whatever the *digest* is.
        """
        before = self.get(identity)
        if self.settings.mode is Mode.OFF:
            return None
        if before is None:
            history = History(now)
        else:
            unchanged = unchanged or digest == before.digest
            history = before.history.visited(
                now, changed=not unchanged, modified=validators.modified
            )
            if unchanged:
                digest, validators = before.digest, before.validators.renewed(validators)
            self._leave(identity, before)
        rate = history.rate(self.settings.prior)
        self._demand.changed(None, rate)
        plan = Plan(now + self._interval(history), history, rate, validators, digest)
        self._put(identity, plan)
        return plan

    def hasten(self, identity: bytes, due: float) -> bool:
        """Let a page be due at *due*, if that is sooner (a sitemap says that it changed).

        False if it has no plan, or was taken already.
        """
        plan = self.get(identity)
        if plan is None or self._rows.get(_index(plan.due, identity)) is None:
            return False
        if due < plan.due:
            self._rows.delete(_index(plan.due, identity))
            self._put(identity, replace(plan, due=due))
        return True

    def take(self, now: float, limit: int) -> list[tuple[bytes, Plan]]:
        """Up to *limit* pages that are due, the most overdue first; they wait here no longer.

        Whoever takes them makes them pending in the same batch. Raises `JobDamagedError`.
        """
        found: list[tuple[bytes, Plan]] = []
        while self._head is not None:
            for key, _ in self._rows.items(_DUE + self._head.to_bytes(_BUCKET, "big")):
                if len(found) == limit or _time(key) > now:
                    return found
                identity = key[len(_DUE) + _TIME.size :]
                plan = self.get(identity)
                if plan is not None:
                    found.append((identity, plan))
                self._rows.delete(key)
            self._head = self._next_bucket(self._head)
        return found

    def _next_bucket(self, empty: int) -> int | None:
        """The first bucket after *empty* that is not; sought nearby first, then further off."""
        near = _DUE + empty.to_bytes(_BUCKET, "big")
        for length in range(len(near) - 1, 0, -1):
            for key, _ in self._rows.items(near[:length]):
                return _bucket(key)
        return None

    def forget(self, identity: bytes) -> None:
        """A page is gone, or is to be visited no more."""
        plan = self.get(identity)
        if plan is not None:
            self._leave(identity, plan)
            self._rows.delete(_PLAN + identity)

    def tick(self, visits: float) -> None:
        """Find the price anew: there are *visits* a second for revisits. To be called now and then;
        takes a millisecond."""
        bounds = self.settings
        self.price = self._demand.price(visits, bounds.least, bounds.most)

    def save(self) -> None:
        """Put what is counted into the store's next batch."""
        bins = self._demand.bins
        if bins != self._saved:
            self._rows.put(_DEMAND, msgpack.packb(bins))
            self._saved = bins

    def _interval(self, history: History) -> float:
        """Seconds to the next visit: as with ``fixed`` as long as there is no price."""
        wanted = self.settings.interval(history, self.price) if self.price else None
        return wanted or self.settings.seconds

    def _leave(self, identity: bytes, plan: Plan) -> None:
        """Take a plan out of what is counted, and out of the index if it stands there."""
        self._demand.changed(plan.rate, None)
        self._rows.delete(_index(plan.due, identity))

    def _put(self, identity: bytes, plan: Plan) -> None:
        self._rows.put(_PLAN + identity, plan.to_bytes())
        key = _index(plan.due, identity)
        self._rows.put(key, b"")
        bucket = _bucket(key)
        self._head = bucket if self._head is None else min(self._head, bucket)

    def _load(self) -> Demand:
        data = self._rows.get(_DEMAND)
        if data is None:
            return Demand()
        try:
            return Demand([int(number) for number in msgpack.unpackb(data)])
        except (ValueError, TypeError) as error:
            raise JobDamagedError(f"the revisits' counts are damaged ({error})") from error


def _index(due: float, identity: bytes) -> bytes:
    return _DUE + _TIME.pack(max(0, int(due * 1e6))) + identity


def _time(key: bytes) -> float:
    microseconds: int = _TIME.unpack_from(key, len(_DUE))[0]
    return microseconds / 1e6


def _bucket(key: bytes) -> int:
    return int.from_bytes(key[len(_DUE) : len(_DUE) + _BUCKET], "big")
