"""What went wrong with a page after it had come: in its callback, or with its items."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.core import CrawlCore
from scrapy_spider_suite.crawl.events import is_disk_full
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.signals import item_not_exported
from scrapy_spider_suite.store.rocks_store import reading

if TYPE_CHECKING:
    from scrapy_spider_suite.storage.leases import Lease


class Faults:
    """Notes the faults of each page in its lease; *full* is told of a full disk."""

    def __init__(self, core: CrawlCore, full: Callable[[str], None]) -> None:
        self._core = core
        self._full = full
        connect = core.crawler.signals.connect
        connect(self._callback_failed, signals.spider_error)
        connect(self._item_failed, signals.item_error)
        connect(self._item_failed, item_not_exported)
        connect(self._item_dropped, signals.item_dropped)

    def lease_of(self, response: Response | Failure | None) -> Lease | None:
        """The lease of the page that *response* is, if it came of one that is still out."""
        request = getattr(response, "request", None)
        return None if request is None else self._core.leases.get(request)

    def hold(
        self, response: Response | Failure | None, durable: asyncio.Future[Any],
        then: Callable[[], None],
    ) -> bool:  # fmt: skip
        """See `sinks.hold`; *then* is called when the page is held no more."""
        lease, core = self.lease_of(response), self._core
        if lease is None or lease.settled:
            return False
        lease.holds += 1

        def resolved(future: asyncio.Future[Any]) -> None:
            if future.cancelled() or future.exception() is not None:
                lease.faults.add(Event.INTERRUPTED)
            with reading(core.store):
                core.frontier.unhold(lease, core.now())
            then()
            core.wake()

        durable.add_done_callback(resolved)
        return True

    def _callback_failed(self, failure: Failure, response: Response | Failure) -> None:
        self._note(response, Event.CALLBACK_ERROR)

    def _item_failed(self, response: Response | Failure | None, failure: Failure) -> None:
        if is_disk_full(failure.value):
            self._note(response, Event.DISK_FULL)
            self._full(f"an item cannot be written: {failure.value}")
        else:
            self._note(response, Event.PIPELINE_ERROR)

    def _item_dropped(self, response: Response | Failure | None) -> None:
        self._note(response, Event.NOT_STORED)

    def _note(self, response: Response | Failure | None, event: Event) -> None:
        lease = self.lease_of(response)
        if lease is not None:
            lease.faults.add(event)
