"""robots.txt by RFC 9309, for any Scrapy project.

Replaces Scrapy's ``RobotsTxtMiddleware`` with the same settings, meta key, stats and signal. 429,
5xx and no answer allow nothing for now (Scrapy: everything); other errors allow everything (Scrapy
obeys the body of a 404). Rules expire, and at most 500 KiB of a robots.txt are read.
"""

from __future__ import annotations

import logging
from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Request
from scrapy.robotstxt import ProtegoRobotParser, RobotParser
from scrapy.statscollectors import StatsCollector
from scrapy.utils.datatypes import LocalCache
from scrapy.utils.misc import load_object

from scrapy_spider_suite.crawl.robots import DOWNLOAD_PRIORITY, RobotsService
from scrapy_spider_suite.exceptions import RobotsForbidden, RobotsUnavailable
from scrapy_spider_suite.frontier.robots_rules import RobotsRules, RobotsVerdict, judge_robots
from scrapy_spider_suite.settings.suite import suite_settings

logger = logging.getLogger(__name__)

_PARSERS_MAX = 1000  # parsers of a project's own class that are kept, one for each origin


class RulesParser(RobotParser):
    """`RobotsRules` behind Scrapy's interface, for receivers of ``robots_parsed``."""

    def __init__(self, rules: RobotsRules) -> None:
        self.rules = rules

    @classmethod
    def from_crawler(cls, crawler: Crawler, robotstxt_body: bytes) -> Self:
        """Parse a body; its origin is unknown."""
        return cls(judge_robots("", 200, robotstxt_body, now=0.0))

    def allowed(self, url: str | bytes, user_agent: str | bytes) -> bool:
        return self.rules.allowed(_text(url), _text(user_agent))

    def crawl_delay(self, user_agent: str | bytes) -> float | None:
        """Return the seconds of ``Crawl-delay`` for *user_agent*, or None."""
        return self.rules.crawl_delay(_text(user_agent))


class RobotsMiddleware:
    """Refuses requests that robots.txt does not allow.

    Settings: ``ROBOTSTXT_OBEY``, ``ROBOTSTXT_USER_AGENT``, ``USER_AGENT``, ``ROBOTSTXT_PARSER``
    (a class other than Scrapy's default decides what is allowed by the body of a 2xx answer).
    Meta: ``dont_obey_robotstxt``. Only http and https URLs have a robots.txt; all others pass.
    Signal: ``robots_parsed`` (Scrapy 2.18), with the request that had the robots.txt fetched, or
    the request for it.
    """

    DOWNLOAD_PRIORITY = DOWNLOAD_PRIORITY

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.service = RobotsService(crawler)
        self.service.announce = self._announce
        self._stats: StatsCollector = crawler.stats
        chosen: type[RobotParser] = load_object(crawler.settings["ROBOTSTXT_PARSER"])
        self._parser_class = None if chosen is ProtegoRobotParser else chosen
        if self._parser_class is not None:
            self._parser_class.from_crawler(crawler, b"")  # a missing library fails the start
        self._parsers: LocalCache[str, tuple[RobotsRules, RobotParser]]
        self._parsers = LocalCache(_PARSERS_MAX)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured`: robots.txt is not obeyed, and there is no overrides file."""
        obeys = crawler.settings.getbool("ROBOTSTXT_OBEY")
        if not obeys and suite_settings(crawler).overrides is None:
            raise NotConfigured  # without a message, as Scrapy's own: it is no news
        return cls(crawler)

    async def process_request(self, request: Request) -> None:
        """Raise `RobotsForbidden` or `RobotsUnavailable`, or as `RobotsService.fetch` does."""
        robots = self.service
        if request.meta.get("dont_obey_robotstxt") or not robots.obeys(request.url):
            return
        rules = await robots.rules_for(request.url, request)
        header = request.headers.get(b"User-Agent")
        agent = robots.agent_for(request.url, None if header is None else _text(header))
        self.check(rules, request.url, agent)

    def check(self, rules: RobotsRules, url: str, agent: str) -> None:
        """Raise `RobotsForbidden` or `RobotsUnavailable` unless *agent* may have *url*."""
        if rules.verdict is RobotsVerdict.DISALLOW_FOR_NOW:
            self._stats.inc_value("robotstxt/unavailable")
            raise RobotsUnavailable(f"No robots.txt of {rules.origin} for now", rules.expires_at)
        own = self._parser_class is None or rules.verdict is not RobotsVerdict.RULES
        if not (rules if own else self._parser(rules)).allowed(url, agent):
            self._stats.inc_value("robotstxt/forbidden")
            logger.debug("Forbidden by robots.txt: <GET %s>", url)
            raise RobotsForbidden("Forbidden by robots.txt")

    def _parser(self, rules: RobotsRules) -> RobotParser:
        if self._parser_class is None or rules.verdict is not RobotsVerdict.RULES:
            return RulesParser(rules)
        known = self._parsers.get(rules.origin)
        if known is not None and known[0] == rules:
            return known[1]
        parser = self._parser_class.from_crawler(self._crawler, rules.body)
        self._parsers[rules.origin] = rules, parser
        return parser

    async def _announce(self, rules: RobotsRules, cause: Request) -> None:
        signal = getattr(signals, "robots_parsed", None)  # since Scrapy 2.18
        if signal is not None:
            await self._crawler.signals.send_catch_log_async(
                signal=signal, robotparser=self._parser(rules), request=cause
            )


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", errors="replace")
