"""How a crawl that must not start is stopped: one line, an exit code, no traceback.

An add-on that raised NotConfigured would only be switched off, and the crawl would run without its
politeness; an exception would end in a traceback. ``SystemExit`` leaves an asyncio task, and so
the reactor, as it is. A Deferred swallows it, though (measured with CrawlerProcess: exit code 0),
and that is where Scrapy's older API calls add-ons from. :class:`RefusedCrawl` therefore carries the
refusal to the next moment that is a task under either API: the making of the scheduler.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, NoReturn

from scrapy.core.scheduler import BaseScheduler

from scrapy_spider_suite.guards.exitcodes import code_of_error

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


def say(reason: Exception | str) -> None:
    """Log *reason* as one line, and print it if the log does not go to the terminal."""
    line = " ".join(str(reason).split())
    logger.critical(line)
    handlers = logging.getLogger().handlers
    if handlers and not any(getattr(h, "stream", None) is sys.stderr for h in handlers):
        print(f"scrapy_spider_suite: {line}", file=sys.stderr)


def refuse(reason: Exception | str) -> NoReturn:
    """Say *reason* and end the process; to be called outside any Deferred.

    Raises:
        SystemExit: always, with the exit code for *reason* (`guards.exitcodes`).
    """
    say(reason)
    raise SystemExit(int(code_of_error(reason))) from None


class RefusedCrawl(BaseScheduler):
    """The scheduler of a crawl that was refused: making one ends the process."""

    reason: Exception | str = "the crawl was refused"

    @classmethod
    def because(cls, reason: Exception | str) -> type[RefusedCrawl]:
        """Return the scheduler of a crawl that was refused for *reason*."""
        return type(cls.__name__, (cls,), {"reason": reason})

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> RefusedCrawl:
        """Say why and end the process, below all that Scrapy logs at a start."""
        refuse(cls.reason)

    def has_pending_requests(self) -> bool:
        """Return False: there is no crawl."""
        return False

    def enqueue_request(self, request: Request) -> bool:
        """Accept nothing."""
        return False

    def next_request(self) -> Request | None:
        """Return None: there is no crawl."""
        return None
