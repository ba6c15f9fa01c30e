"""Crawls whose project has a downloader of its own: what becomes of a visit without the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.http import Response
from twisted.internet.defer import inlineCallbacks

from scrapy_spider_suite.crawl.events import event_of_error
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Health, event_of_status

if TYPE_CHECKING:
    from collections.abc import Generator

    from scrapy.core.downloader import Downloader
    from twisted.internet.defer import Deferred

    from scrapy_spider_suite.crawl.core import CrawlCore
    from scrapy_spider_suite.storage.leases import Lease


class Ungated:
    """Stands before ``fetch()`` of *downloader*, and gives visits back when a request is done.

    A host's delay runs from there, so visits keep it; nobody asks for the rest (redirects,
    retries, media) before it goes out.
    """

    def __init__(self, core: CrawlCore, downloader: Downloader) -> None:
        self._core = core
        self._fetch = downloader.fetch
        vars(downloader)["fetch"] = self.fetch

    @inlineCallbacks
    def fetch(
        self, request: Request, *spider: Spider
    ) -> Generator[Deferred[Any], Any, Request | Response]:
        """See Scrapy's downloader. The visit of *request* is released whatever becomes of it."""
        lease = self._core.leases.get(request)
        result: Request | Response | None = None
        error: BaseException | None = None
        try:
            result = yield self._fetch(request, *spider)
            return result
        except BaseException as raised:
            error = raised
            raise
        finally:
            if lease is not None:
                self._end(request, lease, result, error)

    def _end(
        self, request: Request, lease: Lease, result: Request | Response | None,
        error: BaseException | None,
    ) -> None:  # fmt: skip
        core = self._core
        if error is not None:
            core.visits.heard(lease, event_of_error(error))
        elif isinstance(result, Response):
            core.visits.heard(lease, event_of_status(result.status), result)
            core.caps.received(request, lease, result)
        visit, workbench, now = lease.visit, core.frontier.workbench, core.now()
        if visit is not None and (error is None or _touched_the_wire(error)):
            visit.wired = True
            workbench.begin(visit.host, visit.address, now, visit=True)
            workbench.end(visit.host, visit.address, now, visit=True)
        core.visits.fetched(lease, result, error)


def _touched_the_wire(error: BaseException) -> bool:
    return OUTCOMES[event_of_error(error)].health is not Health.NONE
