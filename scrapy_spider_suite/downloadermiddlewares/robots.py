"""robots.txt by RFC 9309, for any Scrapy project.

Replaces Scrapy's ``RobotsTxtMiddleware`` with the same settings, meta key, stats and signal.
What differs: 429, 5xx and no answer mean that nothing is allowed for now (Scrapy allows
everything), other errors mean that everything is (Scrapy obeys the body of a 404), rules expire,
what is kept is bounded, and at most 500 KiB of a robots.txt are read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from functools import cached_property
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.http import Request
from scrapy.robotstxt import ProtegoRobotParser, RobotParser
from scrapy.utils.datatypes import LocalCache
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from scrapy_spider_suite.crawl.crawl_policy import PolicyFile, get_policy_file
from scrapy_spider_suite.crawl.robots import RobotsFetcher, RobotsStore
from scrapy_spider_suite.exceptions import RobotsForbidden, RobotsUnavailable
from scrapy_spider_suite.frontier.robots_rules import TTL as ROBOTS_TTL
from scrapy_spider_suite.frontier.robots_rules import (
    RobotsRules,
    RobotsVerdict,
    judge_robots,
    origin_of,
)
from scrapy_spider_suite.settings.suite import suite_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector

logger = logging.getLogger(__name__)

_FRONTIER = "scrapy_spider_suite.scheduler.FrontierScheduler"
_MEANING = {
    RobotsVerdict.RULES: "its last rules go on to hold",
    RobotsVerdict.ALLOW_ALL: "everything is allowed",
    RobotsVerdict.DISALLOW_FOR_NOW: "nothing is allowed",
}
_NO_RULES = RobotsRules("", RobotsVerdict.ALLOW_ALL, None, 0.0, 0.0, math.inf)
_PARSERS_MAX = 1000  # parsers of a project's own class that are kept, one for each origin


class RulesParser(RobotParser):
    """`RobotsRules` as Scrapy's interface wants them, for receivers of ``robots_parsed``."""

    def __init__(self, rules: RobotsRules) -> None:
        self.rules = rules

    @classmethod
    def from_crawler(cls, crawler: Crawler, robotstxt_body: bytes) -> Self:
        """Parse a body without an origin, which RFC 9309 does not need."""
        return cls(judge_robots("", 200, robotstxt_body, now=0.0))

    def allowed(self, url: str | bytes, user_agent: str | bytes) -> bool:
        """Return whether *user_agent* may fetch *url*."""
        return self.rules.allowed(_text(url), _text(user_agent))

    def crawl_delay(self, user_agent: str | bytes) -> float | None:
        """Return the seconds of ``Crawl-delay`` for *user_agent*, or None."""
        return self.rules.crawl_delay(_text(user_agent))


class RobotsMiddleware:
    """Refuses what robots.txt does not allow, and tells a scheduler what it says.

    Settings: ``ROBOTSTXT_OBEY``, ``ROBOTSTXT_USER_AGENT``, ``USER_AGENT``, ``ROBOTSTXT_PARSER``
    (a class other than Scrapy's default decides what is allowed by the body of a 2xx answer).
    Meta: ``dont_obey_robotstxt``. Only http and https URLs have a robots.txt; all others pass.

    Stats: ``robotstxt/request_count``, ``response_count``, ``response_status_count/N``,
    ``exception_count/TYPE`` and ``forbidden`` as Scrapy's middleware, a robots.txt with its
    redirects counting once; ``robotstxt/unavailable``: requests refused because nothing is
    allowed for now. Signal: ``robots_parsed`` (Scrapy 2.18), with the request that had the
    robots.txt fetched, or the robots.txt's own if `fetch` was called without one.

    Concurrent questions about one origin share one fetch, which outlives the one that asked.
    """

    DOWNLOAD_PRIORITY = 1000

    def __init__(self, crawler: Crawler, *, clock: Callable[[], float] = time.time) -> None:
        """Read the settings. *clock* gives seconds since the epoch."""
        if crawler.stats is None:
            raise RuntimeError("the crawler has no stats collector yet")
        self._crawler = crawler
        self._stats: StatsCollector = crawler.stats
        self._clock = clock
        project = suite_settings(crawler).project
        self._obeys = crawler.settings.getbool("ROBOTSTXT_OBEY")
        self._own_agent = project.robotstxt_user_agent
        self.user_agent = self._own_agent or project.user_agent
        scheduler = crawler.settings.get("SCHEDULER")
        name = scheduler if isinstance(scheduler, str) else global_object_name(scheduler)
        # Alone it has a failure retried first, because a refused request does not come back.
        self._has_frontier = name == _FRONTIER
        self._fetcher = RobotsFetcher(
            self._stats, priority=self.DOWNLOAD_PRIORITY, maxsize=project.download_maxsize,
            retries=not self._has_frontier,
        )  # fmt: skip
        self._parser_class = _foreign_parser(crawler)
        self._parsers: LocalCache[str, tuple[RobotsRules, RobotParser]]
        self._parsers = LocalCache(_PARSERS_MAX)
        self._fetches: dict[str, asyncio.Task[RobotsRules]] = {}
        self.listener: Callable[[RobotsRules], None] | None = None  # told of each fetch

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*.

        Raises:
            NotConfigured: the project does not obey robots.txt, and has no file of exceptions.
        """
        obeys = crawler.settings.getbool("ROBOTSTXT_OBEY")
        if not obeys and suite_settings(crawler).overrides is None:
            raise NotConfigured  # without a message, as Scrapy's own: it is no news
        return cls(crawler)

    @cached_property
    def _policy_file(self) -> PolicyFile:
        """Made at the first question: a bad file has been refused by then, in one line."""
        return get_policy_file(self._crawler)

    @cached_property
    def store(self) -> RobotsStore:
        """What is known; opened at the first question, since the job opens after middlewares."""
        from scrapy_spider_suite.store.job_directory import job_kv

        kv = job_kv(self._crawler, "robots")
        return RobotsStore(kv, user_agent=self.user_agent or "*")

    def peek(self, url: str) -> RobotsRules | None:
        """Return what holds for the origin of *url*, or None if it has to be fetched first.

        For a URL that no robots.txt holds for (`origin_of`), that is rules that allow everything.
        """
        origin = origin_of(url)
        return self.store.get(origin, self._clock()) if origin else _NO_RULES

    def obeys(self, url: str) -> bool:
        """Return whether robots.txt counts for *url*: as its host's rule says, or the project."""
        said = self._policy_file.obeys_robots(url)
        return self._obeys if said is None else said

    def crawl_delay(self, url: str) -> float | None:
        """Return the seconds that robots.txt asks to leave between requests, if known, or None."""
        rules = self.peek(url)
        return None if rules is None else rules.crawl_delay(self._agent_for(url))

    async def rules_for(self, url: str, cause: Request | None = None) -> RobotsRules:
        """Return what holds for the origin of *url*, after fetching its robots.txt if need be.

        Raises: as `fetch`.
        """
        return self.peek(url) or await self.fetch(origin_of(url), cause)

    async def fetch(self, origin: str, cause: Request | None = None) -> RobotsRules:
        """Fetch the robots.txt of *origin*, of `origin_of`, now; *cause* had it fetched.

        Raises:
            SuiteError, CannotResolveHostError: the host has no address that may be connected to,
                or we have no file left. That says nothing of robots, and its pages will fail of
                the same, so nothing is recorded.
            RobotsUnavailable: the crawl is not running.
        """
        task = self._fetches.get(origin)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(origin, cause))
            self._fetches[origin] = task
            task.add_done_callback(lambda done: self._fetched(origin, done))
        return await asyncio.shield(task)

    async def process_request(self, request: Request) -> None:
        """Let *request* pass, after fetching its robots.txt if need be.

        Raises:
            RobotsForbidden: robots.txt does not allow it.
            RobotsUnavailable: nothing is allowed for now.
            SuiteError, CannotResolveHostError: as `fetch`.
        """
        if request.meta.get("dont_obey_robotstxt") or not self.obeys(request.url):
            return
        rules = await self.rules_for(request.url, request)
        if rules.verdict is RobotsVerdict.DISALLOW_FOR_NOW:
            self._stats.inc_value("robotstxt/unavailable")
            raise RobotsUnavailable(f"No robots.txt of {rules.origin} for now", rules.expires_at)
        if not self._parser(rules).allowed(request.url, self._agent_of(request)):
            self._stats.inc_value("robotstxt/forbidden")
            logger.debug("Forbidden by robots.txt: %(request)s", {"request": request})
            raise RobotsForbidden("Forbidden by robots.txt")

    def _agent_of(self, request: Request) -> str:
        header = None if self._own_agent else request.headers.get(b"User-Agent")
        return self._agent_for(request.url, None if header is None else _text(header))

    def _agent_for(self, url: str, own: str | None = None) -> str:
        """Return as whom *url* is asked for: as its host's rule says, as *own*, or the project."""
        return self._policy_file.user_agent(url) or own or self.user_agent

    def _parser(self, rules: RobotsRules) -> RobotParser:
        """Return what answers for *rules*: themselves, or the project's own parser class."""
        if self._parser_class is None or rules.verdict is not RobotsVerdict.RULES:
            return RulesParser(rules)
        known = self._parsers.get(rules.origin)
        if known is not None and known[0] == rules:
            return known[1]
        parser = self._parser_class.from_crawler(self._crawler, rules.body)
        self._parsers[rules.origin] = rules, parser
        return parser

    def _fetched(self, origin: str, task: asyncio.Task[RobotsRules]) -> None:
        del self._fetches[origin]
        if not task.cancelled():
            task.exception()  # whoever asked may be gone: it is not unhandled for that

    async def _fetch(self, origin: str, cause: Request | None) -> RobotsRules:
        """Fetch, judge and keep."""
        engine = self._crawler.engine
        if engine is None or engine.spider is None:
            raise RobotsUnavailable("The crawl is not running", self._clock())
        answer = await self._fetcher.fetch(engine, origin)
        rules = judge_robots(
            origin, answer.status, answer.body, now=self._clock(), max_age=answer.age,
            previous=self.store.last(origin), ttl=ROBOTS_TTL,
        )  # fmt: skip
        self.store.put(rules)
        if self.listener is not None:
            self.listener(rules)
        self._log_failure(rules, answer.why)
        if answer.status is not None:
            await self._announce(rules, cause or answer.request)
        return rules

    def _log_failure(self, rules: RobotsRules, why: object) -> None:
        """Say that there was no answer, aloud if refused pages may not come back.

        In the spider profile a page may fail for it without a word, as an ``IgnoreRequest``: there
        the first failure of a row is told. In the broad one a page always comes back.
        """
        if rules.unreachable_since is None:
            return
        first = rules.unreachable_since == rules.checked_at
        spider = suite_settings(self._crawler).profile == "spider"
        told = (spider and first) or not self._has_frontier
        loud = rules.verdict is RobotsVerdict.DISALLOW_FOR_NOW and told
        logger.log(
            logging.WARNING if loud else logging.DEBUG,
            "robots.txt of %s cannot be had (%s): %s for %d s",
            rules.origin, why, _MEANING[rules.verdict], rules.expires_at - rules.checked_at,
        )  # fmt: skip

    async def _announce(self, rules: RobotsRules, cause: Request) -> None:
        signal = getattr(signals, "robots_parsed", None)  # since Scrapy 2.18
        if signal is not None:
            await self._crawler.signals.send_catch_log_async(
                signal=signal, robotparser=self._parser(rules), request=cause
            )


def _foreign_parser(crawler: Crawler) -> type[RobotParser] | None:
    """Return the project's own ``ROBOTSTXT_PARSER``, or None if it left Scrapy's default.

    It is tried once, so that one whose library is missing stops the start.
    """
    parser_class: type[RobotParser] = load_object(crawler.settings["ROBOTSTXT_PARSER"])
    if parser_class is ProtegoRobotParser:
        return None
    parser_class.from_crawler(crawler, b"")
    return parser_class


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", errors="replace")
