"""How much a job may take: pages, bytes, time, bandwidth, and how much of a page.

What a host or a registered domain may take is the frontier's (`storage.clearance`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.http import Response

from scrapy_spider_suite.fetch.exchange import MEDIA_TYPES, RECEIVED, TRUNCATE, TRUNCATED
from scrapy_spider_suite.frontier.politeness import Bandwidth
from scrapy_spider_suite.frontier.workbench import FOREVER
from scrapy_spider_suite.storage.leases import Lease

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore

REASONS = {"max_pages": "pages", "max_bytes": "bytes received", "max_time": "seconds of crawling"}
"""The settings of a job's caps, which are finish reasons too, and what each counts."""


class Caps:
    """Those of one crawl; the settings are read each time, since they may change."""

    def __init__(self, core: CrawlCore) -> None:
        self._core = core
        self._bandwidth = Bandwidth()

    def reached(self) -> str | None:
        """Which cap the job has reached, over all its runs; None: it may go on."""
        frontier, settings = self._core.frontier, self._core.settings
        counters = frontier.counters
        # A page that waits for what led from it to be done would wait for ever.
        counts = (counters.done + frontier.commits.held, counters.bytes, counters.seconds)
        for reason, count in zip(REASONS, counts, strict=True):
            cap = getattr(settings, reason)
            if cap and count >= cap:
                return reason
        return None

    def pause(self, now: float) -> float:
        """Seconds for which no page is to be asked for; FOREVER once a cap is reached."""
        if self.reached() is not None:
            return FOREVER
        self._bandwidth.rate = self._core.settings.max_bandwidth
        return self._bandwidth.wait(now)

    # Bandwidth

    def book(self, lease: Lease, now: float) -> None:
        """The request of *lease* goes out."""
        lease.booked = self._bandwidth.book(now)

    def settle(self, lease: Lease) -> None:
        """The download of *lease* is over."""
        if lease.booked:
            self._bandwidth.settle(lease.booked, lease.received, self._core.now())
            lease.booked, lease.received = 0.0, 0

    # One transfer

    @contextmanager
    def bounded(self, request: Request, lease: Lease | None) -> Iterator[None]:
        """Meanwhile the download handler knows how much of a page is wanted.

        What *request* itself says counts before the settings.
        """
        settings, meta = self._core.settings, request.meta
        mine: dict[str, object] = {}
        if lease is not None and settings.body_max and TRUNCATE not in meta:
            mine[TRUNCATE] = settings.body_max
        if lease is not None and settings.media_types and self._core.broad:
            mine |= {} if MEDIA_TYPES in meta else {MEDIA_TYPES: settings.media_types}
        meta.update(mine)
        try:
            yield
        finally:
            for key in mine:
                meta.pop(key, None)

    def received(self, request: Request, lease: Lease | None, response: Response | None) -> None:
        """The transfer of *request* is over: count what came, of a failed one too.

        Handlers that do not say how much that was are believed to have received the body alone.
        """
        body = 0 if response is None else len(response.body)
        size = request.meta.pop(RECEIVED, body)
        self._core.frontier.counters.bytes += size
        if lease is None:
            self._bandwidth.charge(size, self._core.now())
            return
        lease.received += size
        if response is not None and TRUNCATED in response.flags:
            self._core.crawler.stats.inc_value("suite/response/truncated")
