"""How a crawl that must not start is stopped: a script gets an exception, a command says one line.

An add-on that raised NotConfigured would only be switched off, and the crawl would run without its
politeness. In a script, `refuse` raises the error, which comes out of ``crawl()``. Under
``scrapy crawl`` and its like an exception would end in a traceback: there the process ends, by
``SystemExit``, which leaves an asyncio task, and so the reactor, as it is. A Deferred swallows it,
though (measured with CrawlerProcess: exit code 0), and Scrapy's older API calls add-ons and makes
spiders in one. There :class:`RefusedCrawl` carries the refusal to the next moment that is a task
under either API: the making of the scheduler.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, NoReturn

from scrapy.commands import ScrapyCommand
from scrapy.core.scheduler import BaseScheduler
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.reactor import is_reactor_installed
from twisted.logger import globalLogBeginner

from scrapy_spider_suite.guards.exitcodes import code_of_error

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"

logger = logging.getLogger(__name__)


def running_command() -> ScrapyCommand | None:
    """The Scrapy command that this is called by; None in a script.

    It holds the exit code of its process, and Scrapy hands it to nobody.
    """
    frame = sys._getframe()
    while frame is not None:
        name = {"execute": "cmd", "run": "self"}.get(frame.f_code.co_name)
        if name is not None and isinstance(found := frame.f_locals.get(name), ScrapyCommand):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def refuse(error: Exception) -> NoReturn:
    """Say *error* and end the process; in a script, raise *error*.

    Under a command to be called outside any Deferred, see `refuse_crawl`.

    Raises:
        SystemExit: under a command, with the exit code for *error* (`guards.exitcodes`).
    """
    if running_command() is None:
        raise error
    line = " ".join(str(error).split())
    logger.critical(line)
    handlers = logging.getLogger().handlers
    if handlers and not any(getattr(h, "stream", None) is sys.stderr for h in handlers):
        print(f"scrapy_spider_suite: {line}", file=sys.stderr)
    _silence_twisted()
    raise SystemExit(int(code_of_error(error))) from None


def _silence_twisted() -> None:
    """Have nothing said of the Deferred that the process ends in.

    Nobody waits for it, and older releases of Twisted tell of it twice, with a traceback: once in
    the log, once where nobody has begun with Twisted's own.
    """
    logging.getLogger("twisted").disabled = True
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False)


def refuse_crawl(crawler: Crawler, error: Exception) -> None:
    """`refuse`, before the settings of *crawler* are frozen; also within a Deferred.

    Returns under a command's Deferred: then the process ends when the crawl makes its scheduler.
    """
    if running_command() is None:
        raise error
    if _in_task():
        refuse(error)
    highest, settings = SETTINGS_PRIORITIES["cmdline"] + 1, crawler.settings
    settings.set("SCHEDULER", RefusedCrawl.because(error), priority=highest)
    settings.set("ASYNCIO_EVENT_LOOP", None, priority=highest)
    if not is_reactor_installed():
        settings.set("TWISTED_REACTOR", ASYNCIO_REACTOR, priority=highest)


def is_refused(settings: BaseSettings) -> bool:
    """Whether the crawl with these *settings* was refused before, and ends soon."""
    # Not issubclass(): to Scrapy's metaclass every scheduler is a subclass of any other.
    return RefusedCrawl in getattr(settings["SCHEDULER"], "__mro__", ())


def _in_task() -> bool:
    """Whether this is called in an asyncio task, which ``SystemExit`` leaves."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no loop runs
        return False


class RefusedCrawl(BaseScheduler):
    """The scheduler of a crawl that was refused: making one ends the process."""

    reason: Exception

    @classmethod
    def because(cls, reason: Exception) -> type[RefusedCrawl]:
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
