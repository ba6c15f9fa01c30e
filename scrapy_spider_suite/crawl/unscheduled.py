"""Crawls with another scheduler: whom ``start()`` names, what comes, and how it ends.

The frontier counts nothing there, so the gate tells what it sees. Without the add-on nothing of the
suite stands between ``start()`` and the scheduler: there start requests are known by their meta.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from scrapy import Request, signals
from scrapy.exceptions import CloseSpider
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK

from scrapy_spider_suite.crawl.empty_runs import why_no_page
from scrapy_spider_suite.crawl.events import event_of_error, event_of_result
from scrapy_spider_suite.crawl.supervision import Leaving
from scrapy_spider_suite.crawl.trust import trust_start
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.runtime.refusal import NO_PAGES, ExitCode, code_of_reason
from scrapy_spider_suite.settings.project import is_crawl

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore

logger = logging.getLogger(__name__)

_BEGUN = "suite_begun"
"""In the meta of a start request that was here: what has the key has copied that meta."""


class Unscheduled:
    """One per crawl of *core*."""

    def __init__(self, core: CrawlCore) -> None:
        self._core = core
        self._answers = 0
        self._events: Counter[Event] = Counter()
        self._leaving = Leaving(core)
        self._leaving.leave(ExitCode.INTERRUPTED)  # until it has ended otherwise
        core.at_end = self._ended
        core.crawler.signals.connect(self._idle, signals.spider_idle)

    def begin(self, request: Request) -> None:
        """*request* has come to the downloader: trust its host if ``start()`` has yielded it.

        Redirects, and what callbacks make of a response, may have its meta: they name no host.
        """
        if request.meta.get("is_start_request") and _BEGUN not in request.meta:
            request.meta[_BEGUN] = True
            trust_start(self._core, request)

    def end(
        self, request: Request, result: Request | Response | None, error: BaseException | None
    ) -> None:
        """The downloader is done with *request*."""
        if request.callback is NO_CALLBACK:
            return  # robots.txt and media: no page
        if error is not None:
            self._events[event_of_error(error)] += 1
        elif result is not None:
            self._events[event_of_result(result)] += 1
            self._answers += isinstance(result, Response)

    def _idle(self) -> None:
        core = self._core
        # Newer releases of Scrapy have a reason of their own for a start() that raised.
        raised = getattr(core.crawler.engine, "_start_error", False)
        # Other agents, and earlier runs, may have pages.
        others = core.agency is not None or (core.job is not None and core.job.resumed)
        if raised or others or not is_crawl(core.crawler):
            return
        count = core.crawler.stats.get_value
        # A callback asked for the others.
        heard = self._answers > count("httperror/response_ignored_count", 0)
        if not heard and not count("item_scraped_count") and why_no_page(self._events):
            raise CloseSpider(NO_PAGES)

    def _ended(self, reason: str) -> None:
        if reason == NO_PAGES:
            logger.warning("no page was fetched: %s", why_no_page(self._events))
        self._leaving.leave(code_of_reason(reason))
