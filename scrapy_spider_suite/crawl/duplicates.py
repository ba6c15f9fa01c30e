"""Which requests are known already: by the frontier, or by a dupefilter of the project's own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name
from twisted.internet.defer import succeed

from scrapy_spider_suite.crawl.context import Crawl
from scrapy_spider_suite.frontier.entries import Entry, Flag

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter

logger = logging.getLogger(__name__)

_SCRAPYS = "scrapy.dupefilters.RFPDupeFilter"
_OURS = (
    "scrapy_spider_suite.dupefilter.SieveDupeFilter",
    "scrapy_spider_suite.dupefilter.TrieDupeFilter",
)
# Plain integers: operators of flags are Python code.
_START, _DONT_FILTER = int(Flag.START), int(Flag.DONT_FILTER)


class Duplicates:
    """One per crawl. Stats: ``dupefilter/filtered``, as Scrapy's dupefilter."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._dupefilter = _own_dupefilter(crawler)
        self._log = crawler.settings.getbool("DUPEFILTER_DEBUG")

    def open(self) -> Any:
        """Open the project's dupefilter; a Deferred, if that gives one."""
        return None if self._dupefilter is None else self._dupefilter.open()

    async def close(self, reason: str) -> None:
        """Close the project's dupefilter."""
        if self._dupefilter is not None:
            await maybe_deferred_to_future(self._dupefilter.close(reason) or succeed(None))

    def filters(self, request: Request, entry: Entry, crawl: Crawl) -> bool:
        """Whether *request*, whose entry is *entry*, is not to be asked for again; counts it."""
        again = entry.flags & _START and crawl.job is not None and crawl.job.resumed
        if request.dont_filter and not again:
            return False
        if self._dupefilter is not None:
            if not self._dupefilter.request_seen(request):
                entry.flags |= _DONT_FILTER
                return False
            spider = self._crawler.spider
            if spider is not None:
                self._dupefilter.log(request, spider)
            return True
        if not crawl.frontier.known(entry.identity):
            return False
        if crawl.frontier.chances.due(entry.identity, crawl.now() + crawl.frontier.wall_offset):
            return False
        if self._log:
            logger.debug("Filtered duplicate request: %s", request)
        self._crawler.stats.inc_value("dupefilter/filtered")
        return True


def _own_dupefilter(crawler: Crawler) -> BaseDupeFilter | None:
    """The project's own dupefilter; None for those whose work the frontier does.

    The suite's own ones remember a request at once. The frontier does so in the commit of the page
    that it came from: beside it they would know requests that a kill takes from the frontier.
    """
    chosen = load_object(crawler.settings["DUPEFILTER_CLASS"])
    if chosen is load_object(_SCRAPYS):
        return None
    if global_object_name(chosen) in _OURS:
        logger.warning(
            "DUPEFILTER_CLASS = %r is not used: the suite's scheduler knows itself what was seen; "
            "it is for other schedulers",
            global_object_name(chosen),
        )
        return None
    dupefilter: BaseDupeFilter = build_from_crawler(chosen, crawler)
    return dupefilter
