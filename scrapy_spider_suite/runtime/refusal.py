"""Exit codes, and how a crawl that must not start is refused.

In a script `refuse` raises the error. Under a command it logs a line and raises ``SystemExit``,
which leaves an asyncio task, but not a Deferred: there `RefusedCrawl` refuses when it is made.
NotConfigured would only switch the add-on off, and the crawl would run without its politeness.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from enum import IntEnum
from typing import NoReturn

from scrapy.commands import ScrapyCommand
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.reactor import is_reactor_installed
from twisted.logger import globalLogBeginner

from scrapy_spider_suite.errors import JobDamagedError, JobInUseError

logger = logging.getLogger(__name__)

# Finish reasons: the crawl …
STALLED = "stalled"  # stood still for SUITE_STALL_TIMEOUT
SEEDS_UNREAD = "seeds_unread"  # is through but for lists of seeds, which the next run reads again
NO_PAGES = "no_pages"  # has nothing left, and never fetched a page
DISK_ERROR = "disk_error"  # could not write for long, although the disk had room
DAMAGED = "damaged"  # met something in its job directory which cannot be read


class ExitCode(IntEnum):
    """Exit codes of a crawl, explained in docs/running.md; of several crawls the highest holds."""

    FINISHED = 0
    NOT_STARTED = 1
    REFUSED = 2
    WORK_LEFT = 3
    INTERRUPTED = 4
    IN_USE = 5
    DAMAGED = 6
    STALLED = 7


_REASONS = {
    "finished": ExitCode.FINISHED, "drained": ExitCode.FINISHED, "refused": ExitCode.REFUSED,
    "shutdown": ExitCode.INTERRUPTED, STALLED: ExitCode.STALLED, DISK_ERROR: ExitCode.DAMAGED,
    DAMAGED: ExitCode.DAMAGED,
}  # fmt: skip


def exit_code_for_reason(reason: str) -> ExitCode:
    return _REASONS.get(reason, ExitCode.WORK_LEFT)


def exit_code_for_error(error: object) -> ExitCode:
    if isinstance(error, JobInUseError):
        return ExitCode.IN_USE
    return ExitCode.DAMAGED if isinstance(error, JobDamagedError) else ExitCode.REFUSED


ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"


def running_command() -> ScrapyCommand | None:
    """The running Scrapy command, from the frames of the stack; None in a script.

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
    """Log *error* and end the process; in a script, raise *error*.

    Not for use within a Deferred under a command: see `refuse_crawl`.

    Raises:
        SystemExit: under a command, with the exit code for *error*.
    """
    if running_command() is None:
        raise error
    line = " ".join(str(error).split())
    logger.critical(line)
    handlers = logging.getLogger().handlers
    if handlers and not any(getattr(h, "stream", None) is sys.stderr for h in handlers):
        print(f"scrapy_spider_suite: {line}", file=sys.stderr)
    # Older releases of Twisted report the unhandled Deferred twice, with a traceback.
    logging.getLogger("twisted").disabled = True
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False)
    raise SystemExit(int(exit_code_for_error(error))) from None


def refuse_crawl(crawler: Crawler, error: Exception) -> None:
    """`refuse`, before the settings of *crawler* are frozen; also within a Deferred.

    Returns within a command's Deferred: the process ends when the crawl makes its scheduler.
    """
    if running_command() is None:
        raise error
    with suppress(RuntimeError):  # no loop runs
        if asyncio.current_task() is not None:
            refuse(error)
    highest, settings = SETTINGS_PRIORITIES["cmdline"] + 1, crawler.settings
    settings.set("SCHEDULER", RefusedCrawl.because(error), priority=highest)
    settings.set("ASYNCIO_EVENT_LOOP", None, priority=highest)
    if not is_reactor_installed():
        settings.set("TWISTED_REACTOR", ASYNCIO_REACTOR, priority=highest)


def is_refused(settings: BaseSettings) -> bool:
    # Not issubclass(): to Scrapy's metaclass every scheduler is a subclass of any other.
    return RefusedCrawl in getattr(settings["SCHEDULER"], "__mro__", ())


class RefusedCrawl(BaseScheduler):
    """The scheduler of a refused crawl: making one ends the process."""

    reason: Exception

    @classmethod
    def because(cls, reason: Exception) -> type[RefusedCrawl]:
        return type(cls.__name__, (cls,), {"reason": reason})

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> RefusedCrawl:
        """Refuse, after all that Scrapy logs at a start."""
        refuse(cls.reason)
