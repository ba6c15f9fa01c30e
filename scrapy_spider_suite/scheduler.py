"""The scheduler: the frontier behind Scrapy's scheduler interface, and the waker of its engine.

The only module that reaches into the engine: it replaces the slot's set of requests in progress, to
hear when a page's output has been through the pipelines; it schedules the slot's next call when a
host becomes ready; it stands before a foreign downloader (`ForeignDownloader`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sized
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.http import Response
from scrapy.utils.defer import _schedule_coro, deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name
from twisted.internet.defer import succeed
from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.assembly import CrawlParts, open_crawl
from scrapy_spider_suite.crawl.context import Crawl, stays_open, write_changes
from scrapy_spider_suite.crawl.deferred_links import DeferredLinks
from scrapy_spider_suite.crawl.empty_runs import EmptyRun
from scrapy_spider_suite.crawl.fetch_loop import FetchLoop
from scrapy_spider_suite.crawl.loop_plan import LoopPlan, reasons_for_engine
from scrapy_spider_suite.crawl.maintenance import Maintenance
from scrapy_spider_suite.crawl.preparation import HostPreparation
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.requests import BULK, hostname, in_errback
from scrapy_spider_suite.crawl.seeds import CrawlSeeds
from scrapy_spider_suite.crawl.sinks.commit_log import FrontierLog, PageFaults, finish_quietly
from scrapy_spider_suite.crawl.visits import ForeignDownloader, InProgress, RequestSource
from scrapy_spider_suite.downloader import PoliteDownloader
from scrapy_spider_suite.downloadermiddlewares.robotstxt import RobotsMiddleware
from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError, SuiteError
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.operate.executors.running_crawl import make_action_runner
from scrapy_spider_suite.operate.machine import DiskGuard
from scrapy_spider_suite.operate.supervision import Supervision
from scrapy_spider_suite.pipelines import sink_pipelines
from scrapy_spider_suite.runtime.refusal import NO_PAGES, SEEDS_UNREAD, refuse
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.store.rocks_store import DamageGuard
from scrapy_spider_suite.urls.url_lists import check_sources

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import ClusterAgent, Partners
    from scrapy_spider_suite.cluster.ledger.shared_limits import SharedLimits

logger = logging.getLogger(__name__)

_SCRAPY_DUPEFILTER = "scrapy.dupefilters.RFPDupeFilter"
_SUITE_DUPEFILTERS = "scrapy_spider_suite.dupefilter."
_UNDER_WAY = Request("about:blank")
"""Stands for all fetches of the fetch loop in the engine's set of requests in progress."""
_BATCH = 0.015  # seconds for which changes are gathered
_LINKS = 80  # links of pages that are committed in one turn


class Duplicates:
    """Known requests: by the frontier, or a project's own dupefilter."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._log = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._dupefilter: BaseDupeFilter | None = None
        # For Scrapy's and the suite's the frontier does the work. The suite's remember a request
        # at once, the frontier in the commit of its page: a kill would lose requests to them.
        chosen = load_object(crawler.settings["DUPEFILTER_CLASS"])
        if global_object_name(chosen).startswith(_SUITE_DUPEFILTERS):
            logger.warning(
                "DUPEFILTER_CLASS = %r is not used: the suite's scheduler knows itself what was "
                "seen; it is for other schedulers",
                global_object_name(chosen),
            )
        elif chosen is not load_object(_SCRAPY_DUPEFILTER):
            self._dupefilter = build_from_crawler(chosen, crawler)

    def open(self) -> Any:
        """Open the project's dupefilter; return its Deferred, if any."""
        return None if self._dupefilter is None else self._dupefilter.open()

    async def close(self, reason: str) -> None:
        if self._dupefilter is not None:
            await maybe_deferred_to_future(self._dupefilter.close(reason) or succeed(None))

    def filters(self, request: Request | None, entry: Entry, crawl: Crawl) -> bool:
        """Whether *entry*, of *request* if it has one, is a duplicate; counts it."""
        again = entry.flags & Flag.START and crawl.job is not None and crawl.job.resumed
        if entry.flags & Flag.DONT_FILTER and not again:
            return False
        if self._dupefilter is not None:
            request = request or crawl.translator.request(entry)
            if not self._dupefilter.request_seen(request):
                entry.flags |= Flag.DONT_FILTER
                return False
            spider = self._crawler.spider
            if spider is not None:
                self._dupefilter.log(request, spider)
            return True
        return self.is_known(request or entry.url, entry.identity, crawl)

    def need_no_entry(self, request: Request) -> bool:
        """Whether for *request* `is_known` decides alone, and not `filters`."""
        return self._dupefilter is None and not (request.dont_filter or BULK in request.meta)

    def is_known(self, asked: Request | str, identity: bytes, crawl: Crawl) -> bool:
        """Whether the frontier knows what was *asked* for; counts it."""
        if not crawl.frontier.states.known(identity):
            return False
        retry_failed = crawl.frontier.admission.retry_failed
        if retry_failed.by_age and retry_failed.due(identity, crawl.frontier.wall(crawl.now())):
            return False
        if self._log:
            logger.debug("Filtered duplicate request: %s", asked)
        self._crawler.stats.inc_value("dupefilter/filtered")
        return True


class FrontierScheduler(BaseScheduler):
    """Hands the engine the next request, and commits its outcome."""

    is_suite_scheduler: ClassVar = True
    """What `uses_suite_scheduler` asks for: a subclass has it, too."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._duplicates = Duplicates(crawler)
        self._flushing: asyncio.TimerHandle | None = None
        self._flushed = 0.0
        self._closed = True  # until it is open
        self._stopped = False
        self._pauses: set[str] = set()
        self._agent: ClusterAgent | None = None
        self._limits: SharedLimits | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> FrontierScheduler:
        return cls(crawler)

    def open(self, spider: Spider) -> Any:
        """Open the frontier and hook into the engine. Raises `SuiteError`; a command ends."""
        crawler = self._crawler
        parts: CrawlParts | None = None
        try:
            check_sources(suite_settings(crawler).seeds)
            self._parts = parts = open_crawl(crawler)
            self.crawl: Crawl = parts.crawl
            self._join(parts.crawl)
            self._disk = DiskGuard(parts.crawl, self)
            log = FrontierLog(parts.crawl, self, self._disk.pause_for)
            for pipeline in sink_pipelines(crawler):
                parts.sinks.append(pipeline.sink(log))
        except SuiteError as error:
            for sink in () if parts is None else parts.sinks:
                _schedule_coro(finish_quietly(sink.close()))
            refuse(error)
        self._closed = False
        self._loop = asyncio.get_running_loop()
        engine = crawler.engine
        if engine is None or engine._slot is None:
            raise RuntimeError("the scheduler is opened by the engine")
        self._engine = engine
        self._slot = engine._slot
        self._slot.inprogress = InProgress(self._settled)
        crawl, visits = self.crawl, parts.visits
        parts.preparation = HostPreparation(parts)
        parts.deferred_links = DeferredLinks(parts, self)
        self._empty_run = EmptyRun(crawl)
        self._operator = make_action_runner(crawl, self, partial(write_changes, crawl))
        supervision = Supervision(crawl, self, visits.caps)
        self._maintenance = Maintenance(parts, self, self._operator, self._disk, supervision)
        crawl.engine = self
        self._outgoing = RequestSource(parts, self, self._maintenance)
        self._seeding = CrawlSeeds(crawl, self.enqueue_request)
        self._add_pushed_seeds()
        # After whoever connects to signals as the spider opens.
        crawler.signals.connect(self._choose_way, signals.spider_opened)
        if self.gate is None:
            ForeignDownloader(crawl, visits, parts.redirects, engine.downloader)
        self._faults = PageFaults(crawl, self._disk.pause_for)
        crawler.signals.connect(self._idle, signals.spider_idle)
        others: Partners = [each for each in (self._limits, self._agent) if each]
        return deferred_from_coro(self._begin_among(others)) if others else self._begin()

    def _choose_way(self) -> None:
        parts, crawl = self._parts, self.crawl
        reasons = "; ".join(reasons_for_engine(parts, self._engine))
        parts.path = f"engine path: {reasons}" if reasons else "fetch loop"
        if crawl.settings.broad:
            logger.info("URLs are fetched this way: %s", parts.path)
        if reasons and parts.outside is not None:
            logger.error("SUITE_URL_SERVER needs the fetch loop: %s", reasons)
            self.stop("refused")
        if not reasons and not self._closed:
            plan = LoopPlan(parts, self._engine)
            parts.loop = FetchLoop(parts, self, self._engine, self._outgoing, plan)
            self._outgoing.loop = parts.loop
            parts.loop.schedule()

    def _join(self, crawl: Crawl) -> None:
        """Make this process one of several. Raises `SettingsError`."""
        if crawl.settings.cluster or crawl.settings.rate_ledger is not None:
            # A crawl of one process loads nothing of this, redis-py least of all.
            from scrapy_spider_suite.cluster.agent import make_agent
            from scrapy_spider_suite.cluster.ledger.shared_limits import make_shared_limits

            self._agent = crawl.agent = make_agent(crawl)
            self._limits = crawl.rates = make_shared_limits(crawl, crawl.settings)
        if self._agent is not None:
            crawl.frontier.admission.router = self._agent.routing
            crawl.translator.owner_elsewhere = self._agent.routing.other
        middleware = crawl.crawler.get_downloader_middleware(RobotsMiddleware)
        crawl.robots = None if middleware is None else middleware.service

    def _add_pushed_seeds(self) -> None:
        if not hasattr(self._crawler.spider, "redis_key"):
            return
        from scrapy_spider_suite.cluster.pushed_seeds import pushed_seeds  # redis is an extra

        if (source := pushed_seeds(self.crawl, self._seeding.schedule)) is not None:
            self._seeding.sources.append(source)

    def _begin(self) -> Any:
        self._maintenance.start()
        seeds = self.crawl.settings.seeds
        self._seeding.open(() if self.crawl.seeds.elsewhere else seeds)
        return self._duplicates.open()

    async def _begin_among(self, others: Partners) -> None:
        from scrapy_spider_suite.cluster.agent import join_cluster
        from scrapy_spider_suite.operate.executors.call_executor import make_call_service

        if self._agent is not None:
            self._agent.services.append(make_call_service)
        await join_cluster(others, self)
        await maybe_deferred_to_future(self._begin() or succeed(None))

    def abandon(self) -> None:
        """Do not begin the crawl: `close` has nothing to do."""
        self._closed = True

    def close(self, reason: str) -> Any:
        """Write everything and close, with nothing in progress."""
        if self._closed:
            return None  # it was never open
        self._closed = self.crawl.stopping = True
        self._seeding.stop()
        self._outgoing.stop()
        if self._flushing is not None:
            self._flushing.cancel()
        if self._parts.loop is not None:
            self._parts.loop.stop()
        self._empty_run.explain(reason)
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        self._settle_deferred(sys.maxsize)
        self._parts.preparation.cancel()
        await self._parts.preparation.finish()
        for sink in self._parts.sinks:
            await finish_quietly(sink.finish())
        if self._agent is not None:
            await self._agent.close(reason)
        await self._maintenance.archive_rest(reason)
        self._maintenance.stop()
        try:
            self.crawl.frontier.close()
        except StoreWriteError as error:
            logger.error("%s: what is not written yet is fetched again by the next run", error)
        for sink in self._parts.sinks:
            await finish_quietly(sink.close())
        await self._duplicates.close(reason)

    @property
    def closing(self) -> bool:
        """Whether the engine has been told to stop."""
        return self._closed or self._stopped or self._slot.closing is not None

    @property
    def starting(self) -> bool:
        """Whether ``start()``, or a list of seeds, goes on."""
        return self._engine._start is not None or self._seeding.busy

    def has_pending_requests(self) -> bool:
        """Whether there is work, or another agent may have some."""
        return self.has_work() or not (self.crawl.agent is None or self.crawl.agent.ended)

    def has_work(self) -> bool:
        """Whether anything is pending, leased, waiting or unread."""
        crawl = self.crawl
        frontier = crawl.frontier
        waiting = frontier.pending or frontier.states.in_sieve or self._parts.visits.outside
        if waiting or len(self._parts.preparation) or len(self._parts.deferred_links):
            return True
        return self._seeding.busy or (self._operator is not None and self._operator.waits)

    @property
    def mqs(self) -> Sized:
        """The queue's length, for ``est()`` of the telnet console."""
        return range(self.crawl.frontier.pending)

    dqs = None  # Scrapy's other queue, for ``est()``

    def enqueue_request(self, request: Request, mark: str = "") -> bool:
        """Make *request* pending; False: a duplicate, or not to be queued. *mark*: of a seed."""
        crawl = self.crawl
        fetch = crawl.translator.parents.pop(request, None)
        if fetch is None and not crawl.settings.broad and self._is_of_operator(request):
            self._parts.trusted.add(hostname(request))
        identity = crawl.translator.identity(request)
        # Most links are known, and of them nothing more is asked.
        quick = not mark and self._duplicates.need_no_entry(request)
        if quick and self._duplicates.is_known(request, identity, crawl):
            return False
        entry = crawl.translator.entry(request, identity)
        entry.seed_note = mark
        return self.enqueue_entry(entry, fetch, request, checked=quick)

    def enqueue_entry(
        self, entry: Entry, fetch: Fetch | None, request: Request | None = None, *,
        checked: bool = False,
    ) -> bool:  # fmt: skip
        """Make *entry*, which came from the page of *fetch*, pending; see `enqueue_request`.

        *checked*: it is known to be no duplicate.
        """
        crawl, mark = self.crawl, entry.seed_note
        if fetch is not None and entry.hops > fetch.entry.hops:
            crawl.frontier.traps.learn_redirect(fetch.entry, entry.url)
        if not checked and self._duplicates.filters(request, entry, crawl):
            if mark:
                foreign = self._agent is not None and not self._agent.routing.owns(entry)
                if foreign or crawl.frontier.states.known(entry.identity):
                    # Its agent may not know it, and what is known of it here has no tag yet.
                    given = not crawl.seeds.pushed
                    crawl.frontier.admission.schedule([entry], crawl.now(), given=given)
            return False
        if not crawl.filters.admits(entry, fetch):
            return False
        if entry.volatile and not self._may_be_volatile(entry, fetch):
            return False
        crawl.frontier.admission.adopt(fetch, [entry], crawl.now(), given=not crawl.seeds.pushed)
        place = "memory" if entry.volatile or not crawl.store.durable else "disk"
        stats = self._crawler.stats
        stats.inc_value("scheduler/enqueued")
        stats.inc_value(f"scheduler/enqueued/{place}")
        self.flush_soon()
        return True

    def _is_of_operator(self, request: Request) -> bool:
        # Of start(), or of a component that calls the engine: not of a page.
        if in_errback() or self.crawl.seeds.pushed:
            return False
        # Without the gate nobody knows what runs in an errback.
        return self.gate is not None or bool(request.meta.get("is_start_request"))

    def _may_be_volatile(self, entry: Entry, fetch: Fetch | None) -> bool:
        crawl = self.crawl
        if entry.flags & Flag.START:
            crawl.seeds.volatile = True
        if not crawl.settings.require_durable:
            return True
        logger.error(
            "%s cannot be stored, and SUITE_REQUIRE_DURABLE is set: the crawl stops", entry.payload
        )
        if fetch is not None:
            fetch.faults.add(Event.INTERRUPTED)
        self.stop("unstorable_request")
        return False

    def next_request(self) -> Request | None:
        """Return the next request, or None; then `wake` follows in time."""
        with DamageGuard(self.crawl.store):
            return self._outgoing.next()
        return None

    def wake(self) -> None:
        """Have whoever fetches ask for more, once the engine has opened everything."""
        if self._parts.loop is not None:
            self._parts.loop.schedule()
        self.wake_engine()

    def wake_engine(self) -> None:
        if not self._closed and self._engine.scraper.slot is not None:
            self._slot.nextcall.schedule()

    def hold_open(self) -> None:
        self._slot.add_request(_UNDER_WAY)

    def let_close(self) -> None:
        self._slot.remove_request(_UNDER_WAY)
        self.wake()  # it may be idle now

    def _settled(self, request: Request) -> None:
        fetch = self.crawl.fetches.pop(request, None)
        if fetch is not None:
            with DamageGuard(self.crawl.store):
                self.settle(fetch)
            # At once: its spider may ask for the same again, and is answered by what is known.
            self._settle_deferred(sys.maxsize)
            if self._parts.loop is not None:
                self._parts.loop.schedule()  # it may have waited for the place

    def settle(self, fetch: Fetch) -> None:
        """Store *fetch*, which is over; it is committed with others. Raises `JobDamagedError`."""
        crawl = self.crawl
        if crawl.stopping and self._maintenance.cut:
            fetch.faults.add(Event.INTERRUPTED)
        self._store_page(fetch)
        crawl.frontier.commit.defer(fetch)
        self.flush_soon()

    def _store_page(self, fetch: Fetch) -> None:
        # Raises JobDamagedError.
        parts = self._parts
        try:
            if fetch.found is not None or fetch.likeness is not None:
                packed = parts.deferred_links.packs_for(fetch) is not None
                parts.revisits.settle(fetch, packed=packed)
                parts.duplicates.settle(fetch, packed=packed)
            if fetch.unread is not None:
                parts.deferred_links.settle(fetch)
            for sink in parts.sinks:
                sink.settled(fetch)
        except JobDamagedError:
            raise
        except Exception:  # whatever it is: a fetch that stays out keeps the crawl from ending
            logger.exception("What came of %s cannot be kept", fetch.entry.url)
            fetch.faults.add(Event.PIPELINE_ERROR)

    def flush_soon(self) -> None:
        """Write what has changed, with what else changes in the next moments."""
        if self._flushing is None and not self._closed:
            self._flushing = self._loop.call_later(_BATCH, self._flush)

    def _flush(self) -> None:
        self._flushing = None
        if self._closed:
            return
        crawl, now = self.crawl, self.crawl.now()
        more = self._settle_deferred(_LINKS)
        if more:  # others have a turn first
            self._flushing = self._loop.call_later(0.0, self._flush)
        if not more or now - self._flushed >= _BATCH:
            self._flushed = now
            with DamageGuard(crawl.store):
                self._maintenance.flush()
                self._parts.deferred_links.poll(starving=False)
        if not crawl.frontier.pending:
            self.wake()  # it may be idle now
        elif self._parts.loop is not None:
            self._parts.loop.schedule()  # there may be new URLs

    def _settle_deferred(self, most: int) -> bool:
        with DamageGuard(self.crawl.store):
            try:
                return self.crawl.frontier.commit.settle_deferred(self.crawl.now(), most)
            except JobDamagedError:
                raise
            except Exception:  # whatever it is: fetches that stay out keep the crawl from ending
                logger.exception("Pages cannot be committed: the next run fetches them again")
                self.stop("commit_failed")
        return False

    def flush(self) -> None:
        """Write all changes, or pause the crawl until that is possible."""
        self._maintenance.flush()

    def _idle(self) -> None:
        if self._maintenance.end_if_damaged():
            raise DontCloseSpider  # it ends for the damage
        if stays_open(self.crawl):
            raise DontCloseSpider
        if self.crawl.seeds.unread:
            raise CloseSpider(SEEDS_UNREAD)
        # Newer releases of Scrapy have a reason of their own for a start() that raised.
        if self._empty_run.has_no_pages and not getattr(self._engine, "_start_error", False):
            raise CloseSpider(NO_PAGES)

    def pause(self, why: str) -> None:
        """Send nothing until `unpause` for every reason *why*."""
        self._pauses.add(why)
        self._engine.pause()

    def unpause(self, why: str) -> None:
        """Remove the reason *why*; continue if it was the last."""
        self._pauses.discard(why)
        if not self._pauses:
            self._engine.unpause()
            self.wake()

    @property
    def paused(self) -> bool:
        """Whether the engine is paused, by the suite or by another component."""
        return bool(self._engine.paused)

    @property
    def pauses(self) -> list[str]:
        return sorted(self._pauses)

    @property
    def gate(self) -> PoliteDownloader | None:
        """The gate; None with a project's own downloader."""
        downloader = self._engine.downloader
        return downloader if isinstance(downloader, PoliteDownloader) else None

    def stop(self, reason: str) -> None:
        if not self.closing:
            self._stopped = True  # the engine begins to close in the loop's next turn
            _schedule_coro(self._engine.close_spider_async(reason=reason))


def hold(
    crawler: Crawler, response: Response | Failure | None, durable: asyncio.Future[Any]
) -> bool:
    """Let the page of *response* be done only when *durable* is.

    For components that write items later. If *durable* fails or is cancelled, or the crawl ends
    before, the page is fetched again::

        def item_scraped(self, item, response):  # a handler of signals.item_scraped
            block = self.append(item)  # block.written: an asyncio.Future
            hold(self.crawler, response, block.written)

    Call it in a handler of ``item_scraped`` or ``response_received``. Returns whether the page
    waits: not for items of ``start()``, nor with another scheduler.
    """
    slot = None if crawler.engine is None else crawler.engine._slot
    scheduler = None if slot is None else slot.scheduler
    # Not isinstance(): to Scrapy's metaclass every scheduler is an instance of any other's class.
    if FrontierScheduler not in type(scheduler).__mro__:
        return False
    own: Any = scheduler
    held: bool = own._faults.hold(response, durable, own.flush_soon)
    return held
