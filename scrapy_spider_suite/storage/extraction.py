"""Links that are read later than their pages were fetched: what that is to the frontier (E4)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.storage.demand import Demand
from scrapy_spider_suite.storage.records import UrlState
from scrapy_spider_suite.storage.unextracted import Unextracted, Unread

if TYPE_CHECKING:
    from scrapy_spider_suite.storage.leases import Lease
    from scrapy_spider_suite.storage.ledger import Ledger
    from scrapy_spider_suite.storage.residents import Residents
    from scrapy_spider_suite.storage.scheduling import Scheduling
    from scrapy_spider_suite.storage.store import Store


def _nothing() -> None:
    """Nothing is known of the page that could be counted."""


class Extraction:
    """Keeps the pages whose links are to be read, and takes what they lead to.

    Attributes:
        waiting: those pages.
        demand: chooses among them.
    """

    def __init__(
        self, store: Store, residents: Residents, ledger: Ledger, scheduling: Scheduling
    ) -> None:
        self._store = store
        self._residents = residents
        self._ledger = ledger
        self._scheduling = scheduling
        self.waiting = Unextracted(store, ledger.counters)
        self.demand = Demand(self.waiting, residents.left)

    def concluded(self, lease: Lease) -> bool:
        """The page of *lease* is over, in the batch that says so: whether its links come later."""
        place = b""
        if lease.stored is not None:
            with suppress(ValueError):  # it could not be written, and its host was given up
                place = lease.stored.to_bytes()
        if place:
            self.waiting.add(lease.entry, place)
        self.demand.met(lease.entry.host)
        return bool(place)

    def read(
        self, page: Unread, lease: Lease, now: float, wall: float, counted: Callable[[], None]
    ) -> bool:
        """What *lease*, made for *page*, has brought becomes pending, and the page is extracted.

        *counted* is called in the batch that says so. False, and nothing is taken, if the page was
        dropped meanwhile.
        """
        here = page in self.waiting
        if here:
            self.demand.reading(page, lease)
            # First what it leads to: there may be so much of it that a batch is written in between.
            self._scheduling.spill(lease, now, wall)
            counted()
            self.waiting.remove(page)
        self.demand.over(page)
        self._scheduling.relieve()
        return here

    def give_up(
        self, page: Unread, event: Event, wall: float, counted: Callable[[], None] = _nothing
    ) -> bool:
        """The links of *page* cannot be had, because of *event*, which is its last word now.

        *counted* is called in the batch that says so. False, and nothing changes, if it was dropped
        meanwhile.
        """
        here = self.waiting.remove(page)
        if here:
            counted()
        self.demand.over(page)
        data = self._store.state(page.entry.identity) if here else None
        if data is not None:
            state, entry = UrlState.from_bytes(data), page.entry
            if state.state is State.DONE and state.event is not event:
                record = self._residents.touch(entry.host)
                self._ledger.take_back(entry.host, record, state)
                self._ledger.conclude(entry, record, event, state.status, wall)
                self._residents.save_touched()
        return here
