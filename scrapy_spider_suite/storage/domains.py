"""How many hosts and pages of each registered domain a job has had.

Whoever owns a domain can make up hosts below it without end (a wildcard in its DNS), so budgets of
hosts alone bound nothing. One small row for each domain is written in the batch of what it
counts, and so is as exact after a kill as that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.storage.store import Store
from scrapy_spider_suite.urls.hosts import load, registered_domain
from scrapy_spider_suite.wording import counted

_CACHE = 20_000
"""Rows in memory; when there are more, all are forgotten, and read again as they are needed."""
_AT_ONCE = 10_000
"""Hosts that are counted anew before what was counted is written."""
_FAMILY = "domains"
_ROW = struct.Struct(">QQ")
_WHOLE = b"\0whole"
"""The key that says that every host of the job is counted; no domain begins with a NUL."""


class Domain(NamedTuple):
    """What a job has had of one registered domain."""

    hosts: int = 0
    """Hosts of which a URL was ever queued."""
    pages: int = 0
    """URLs done."""


class Domains:
    """Counts by registered domain; hosts are given, and stand for theirs."""

    def __init__(self, store: Store) -> None:
        load()
        self._store = store
        self._kv = store.kv(_FAMILY)
        self._known: dict[str, Domain] = {}
        self._leased: dict[str, int] = {}
        if store.durable and self._kv.get(_WHOLE) is None:
            self._count_anew()

    def of(self, host: str) -> Domain:
        """What the job has had of the domain of *host*. Raises `JobDamagedError`."""
        return self._of(registered_domain(host))

    def _of(self, domain: str) -> Domain:
        found = self._known.get(domain)
        if found is None:
            if len(self._known) >= _CACHE:
                self._known.clear()
            found = self._known[domain] = _read(domain, self._kv.get(domain.encode()))
        return found

    def count(self, host: str, *, hosts: int = 0, pages: int = 0) -> None:
        """Add so many to the domain of *host* (fewer than 0: take away), in the next batch."""
        domain = registered_domain(host)
        old = self._of(domain)
        new = self._known[domain] = Domain(max(0, old.hosts + hosts), max(0, old.pages + pages))
        if any(new):
            self._kv.put(domain.encode(), _ROW.pack(*new))
        else:
            self._kv.delete(domain.encode())

    # Leases: in memory only

    def lease(self, host: str) -> None:
        """A URL of *host* is out."""
        domain = registered_domain(host)
        self._leased[domain] = self._leased.get(domain, 0) + 1

    def unlease(self, host: str) -> None:
        """A URL of *host* is no longer out."""
        domain = registered_domain(host)
        self._leased[domain] -= 1
        if not self._leased[domain]:
            del self._leased[domain]

    def leased(self, host: str) -> int:
        """How many URLs of the domain of *host* are out."""
        return self._leased.get(registered_domain(host), 0)

    # A job of a release that did not count them

    def _count_anew(self) -> None:
        for key, _ in self._kv.items():
            self._kv.delete(key)
        for number, (host, record) in enumerate(self._store.records(), 1):
            if record.counted:
                self.count(host, hosts=1, pages=record.done)
            if not number % _AT_ONCE:
                self._store.flush()
        self._kv.put(_WHOLE, b"")


def row_of(store: Store, host: str) -> tuple[str, Domain]:
    """The registered domain of *host*, and what the job in *store* has had of it."""
    domain = registered_domain(host)
    return domain, _read(domain, store.kv(_FAMILY).get(domain.encode()))


def wrong_rows(store: Store) -> Iterator[str]:
    """Say which rows do not agree with the hosts of *store*, a line each."""
    totals: dict[str, Domain] = {}
    for host, record in store.records():
        if record.counted:
            domain = registered_domain(host)
            hosts, pages = totals.get(domain, (0, 0))
            totals[domain] = Domain(hosts + 1, pages + record.done)
    kv = store.kv(_FAMILY)
    if kv.get(_WHOLE) is None:
        return  # the next run counts them anew
    rows = {key.decode(): _read(key.decode(), row) for key, row in kv.items() if key != _WHOLE}
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
