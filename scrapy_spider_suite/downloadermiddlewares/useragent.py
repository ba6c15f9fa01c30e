"""Who asks: the User-Agent that the overrides file names for a host, and the From of all."""

from __future__ import annotations

import logging
from functools import cached_property, partial
from typing import TYPE_CHECKING

from scrapy_spider_suite.crawl.crawl_policy import Overriding, overriding_of
from scrapy_spider_suite.crawl.preparation import mailbox_in
from scrapy_spider_suite.runtime.http_fields import field_text
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.signals import settings_changed

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from scrapy.crawler import Crawler
    from scrapy.http import Request

logger = logging.getLogger(__name__)

_BEFORE = "suite_user_agent"
"""Meta key: what stood there before, for the redirect that leads to another host. "": nothing."""


class HostUserAgentMiddleware:
    """Sets the User-Agent of requests, robots.txt and media too, where a rule names one.

    It wins over the project's and over a spider's own, and is taken back where a request is sent
    on to a host without such a rule. With SUITE_FROM_HEADER requests that have no From get one.
    """

    def __init__(self, overriding: Callable[[], Overriding]) -> None:
        """*overriding* is asked for at the first request: by then a bad file has been refused."""
        self._find = overriding
        self._mailbox = b""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it."""
        made = cls(partial(overriding_of, crawler))
        # Scrapy adds the project's own headers later, and only those that are not there.
        if "from" not in map(str.lower, crawler.settings.getdict("DEFAULT_REQUEST_HEADERS")):
            settings = suite_settings(crawler)
            made._settings_changed(None, settings)
            # The broad profile has it on for those who give an address.
            asked = crawler.settings["SUITE_FROM_HEADER"] is not None
            if asked and settings.from_header and not made._mailbox:
                logger.warning(
                    "SUITE_FROM_HEADER = True sends nothing: there is no e-mail address in "
                    "SUITE_OPERATOR = %r or USER_AGENT = %r",
                    settings.operator, settings.project.user_agent,
                )  # fmt: skip
            crawler.signals.connect(made._settings_changed, settings_changed)
        return made

    def _settings_changed(self, old: SuiteSettings | None, new: SuiteSettings) -> None:
        mailbox = mailbox_in(new.operator) or mailbox_in(new.project.user_agent)
        self._mailbox = mailbox.encode() if new.from_header else b""

    @cached_property
    def _overriding(self) -> Overriding:
        return self._find()

    def process_request(self, request: Request) -> None:
        """Set or take back the User-Agent; set the From."""
        if self._mailbox:
            request.headers.setdefault(b"From", self._mailbox)
        name = self._overriding.user_agent(request.url)
        before = request.meta.pop(_BEFORE, None)
        if before is None and name is None:
            return
        if before is None:
            before = field_text(request.headers, "User-Agent")
        if name is not None:
            request.meta[_BEFORE] = before
            request.headers[b"User-Agent"] = name
        elif before:
            request.headers[b"User-Agent"] = before
        else:
            request.headers.pop(b"User-Agent", None)
