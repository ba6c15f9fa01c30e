"""Links that are read later than their pages were fetched: what that is to the frontier (E4)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.unread_pages import Demand, Unextracted, Unread

if TYPE_CHECKING:
    from scrapy_spider_suite.storage.leases import Lease
    from scrapy_spider_suite.storage.scheduling import Scheduling
    from scrapy_spider_suite.store.host_queues import HostRecords
    from scrapy_spider_suite.store.interface import Store
    from scrapy_spider_suite.store.url_states import Ledger


class Counting(Protocol):
    """What is told of each URL that is over, in the operation that says so."""

    def concluded(self, lease: Lease, event: Event) -> None:
        """The URL of *lease* is done, or has failed."""

    def save(self) -> None:
        """Put what was counted into the store's next batch."""


class Extraction:
    """Keeps the pages whose links are to be read, and takes what they lead to.

    Attributes:
        waiting: those pages.
        demand: chooses among them.
        counting: hears of each page, of those whose links come later when they are read.
    """

    def __init__(
        self, store: Store, records: HostRecords, ledger: Ledger, scheduling: Scheduling
    ) -> None:
        self.counting: Counting | None = None
        self._store = store
        self._records = records
        self._ledger = ledger
        self._scheduling = scheduling
        self.waiting = Unextracted(store, ledger.counters)
        self.demand = Demand(self.waiting, records.left)

    def concluded(self, lease: Lease, event: Event) -> None:
        """The URL of *lease* is over, in the batch that says so; its links may come later."""
        place = b""
        if lease.stored is not None:
            with suppress(ValueError):  # it could not be written, and its host was given up
                place = lease.stored.to_bytes()
        if place:
            self.waiting.add(lease.entry, place)
        elif self.counting is not None:
            self.counting.concluded(lease, event)
        self.demand.met(lease.entry.host)

    def read(self, page: Unread, lease: Lease, now: float, wall: float) -> bool:
        """What *lease*, made for *page*, has brought becomes pending, and the page is extracted.

        False, and nothing is taken, if the page was dropped meanwhile.
        """
        here = page in self.waiting
        if here:
            self.demand.reading(page, lease)
            # First what it leads to: there may be so much of it that a batch is written in between.
            self._scheduling.spill(lease, now, wall)
            if self.counting is not None:
                self.counting.concluded(lease, Event.SUCCESS)
            self.waiting.remove(page)
        self.demand.over(page)
        self._scheduling.relieve()
        return here

    def give_up(self, page: Unread, event: Event, wall: float, lease: Lease | None = None) -> bool:
        """The links of *page* cannot be had, because of *event*, which is its last word now.

        With a *lease*, made for it, the page is counted, as it is when links are read at once.
        False, and nothing changes, if it was dropped meanwhile.
        """
        here = self.waiting.remove(page)
        if here and lease is not None and self.counting is not None:
            self.counting.concluded(lease, event)
        self.demand.over(page)
        data = self._store.state(page.entry.identity) if here else None
        if data is not None:
            state, entry = UrlState.from_bytes(data), page.entry
            if state.state is State.DONE and state.event is not event:
                record = self._records.touch(entry.host)
                self._ledger.take_back(entry.host, record, state)
                self._ledger.conclude(entry, record, event, state.status, wall)
                self._records.save()
        return here
