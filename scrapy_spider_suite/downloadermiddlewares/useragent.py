"""The User-Agent that the overrides file names for a host, and the From of all requests."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Self

from scrapy.crawler import Crawler
from scrapy.http import Request

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.crawl_policy import PolicyFile
from scrapy_spider_suite.crawl.preparation import find_mailbox
from scrapy_spider_suite.runtime.text import field_text
from scrapy_spider_suite.settings.suite import suite_settings

logger = logging.getLogger(__name__)

_BEFORE = "suite_user_agent"
"""Meta key: the User-Agent before, for a redirect to another host; "" for none."""


class HostUserAgentMiddleware:
    """Sets the User-Agent of requests, robots.txt and media too, where a rule names one.

    It wins over the project's and a spider's own, and is taken back where a redirect leads to a
    host without such a rule. With SUITE_FROM_HEADER, requests without a From get one.
    """

    def __init__(self, crawler: Crawler, mailbox: str = "") -> None:
        self._crawler = crawler
        self.mailbox = mailbox.encode()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware; warns of a SUITE_FROM_HEADER without an address."""
        settings, mailbox = suite_settings(crawler), ""
        # Scrapy adds the project's own headers later, and only those that are missing.
        own = "from" in map(str.lower, crawler.settings.getdict("DEFAULT_REQUEST_HEADERS"))
        if settings.from_header and not own:
            mailbox = find_mailbox(settings.operator) or find_mailbox(settings.project.user_agent)
            # The broad profile has it on for those who give an address.
            if not mailbox and crawler.settings["SUITE_FROM_HEADER"] is not None:
                logger.warning(
                    "SUITE_FROM_HEADER = True sends nothing: there is no e-mail address in "
                    "SUITE_OPERATOR = %r or USER_AGENT = %r",
                    settings.operator, settings.project.user_agent,
                )  # fmt: skip
        return cls(crawler, mailbox)

    @cached_property
    def _policy_file(self) -> PolicyFile:
        return get_crawl(self._crawler).policy_file

    def process_request(self, request: Request) -> None:
        if self.mailbox:
            request.headers.setdefault(b"From", self.mailbox)
        name = self._policy_file.user_agent(request.url)
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
