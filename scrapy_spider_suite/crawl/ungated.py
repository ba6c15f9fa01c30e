"""Crawls whose project has a downloader of its own: what becomes of a visit without the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import Request, signals
from scrapy.http import Response

from scrapy_spider_suite.frontier.outcomes import Event, event_of_status

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore
    from scrapy_spider_suite.storage.leases import Lease


class Ungated:
    """Gives visits back as far as the engine tells of them.

    A host's delay runs from the answer, so visits keep it; nobody asks for the rest (redirects,
    retries, media) before it goes out.
    """

    def __init__(self, core: CrawlCore) -> None:
        self._core = core
        core.crawler.signals.connect(self._came, signals.response_received)

    def _came(self, response: Response, request: Request) -> None:
        lease = self._core.leases.get(request)
        if lease is not None:
            self._end(lease)
            self._core.visits.heard(lease, event_of_status(response.status), response)
            self._core.caps.received(request, lease, response)
            self._core.visits.fetched(lease, response, None)

    def left(self, lease: Lease) -> None:
        """The request of *lease* has left the engine; without an answer it has failed."""
        if lease.visit is not None:
            self._end(lease)
            lease.event = Event.DOWNLOAD_ERROR
            self._core.caps.settle(lease)
            self._core.visits.release(lease, self._core.now())

    def _end(self, lease: Lease) -> None:
        """Let the delays run from now on."""
        visit, workbench, now = lease.visit, self._core.frontier.workbench, self._core.now()
        if visit is not None:
            workbench.begin(visit.host, visit.address, now, visit=True)
            workbench.end(visit.host, visit.address, now, visit=True)
