"""Exit codes, and how a crawl that must not start is refused.

In a script `refuse` raises the error. Under a command it logs a line and raises ``SystemExit``,
which leaves an asyncio task, but not a Deferred: there `RefusedCrawl` refuses when it is made.
NotConfigured would only switch the add-on off, and the crawl would run without its politeness.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

from scrapy.commands import ScrapyCommand
from scrapy.core.scheduler import BaseScheduler
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.reactor import is_reactor_installed
from twisted.logger import globalLogBeginner

from scrapy_spider_suite.errors import JobDamagedError, JobInUseError

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

STALLED = "stalled"
"""The finish reason of a crawl that stood still for SUITE_STALL_TIMEOUT."""

SEEDS_UNREAD = "seeds_unread"
"""The finish reason of a crawl that is through but for lists of seeds that it could not read.

The next run reads them again.
"""

NO_PAGES = "no_pages"
"""The finish reason of a crawl that has nothing left, and never fetched a page."""

DISK_ERROR = "disk_error"
"""The finish reason of a crawl whose disk failed to write for long, although it had room."""

DAMAGED = "damaged"
"""The finish reason of a crawl that met something in its job directory which cannot be read."""


class ExitCode(IntEnum):
    """Exit codes of ``scrapy crawl`` and ``runspider``; of several crawls the highest holds."""

    FINISHED = 0
    NOT_STARTED = 1
    REFUSED = 2
    WORK_LEFT = 3
    INTERRUPTED = 4
    IN_USE = 5
    DAMAGED = 6
    STALLED = 7


MEANINGS: Mapping[ExitCode, tuple[str, str]] = {
    ExitCode.FINISHED: (
        "Finished: nothing is left. Or `drained`: other agents of the crawl have the rest.",
        "nothing"),
    ExitCode.NOT_STARTED: (
        "Scrapy could not start the crawl: an error in the project's code.", "read the traceback"),
    ExitCode.REFUSED: (
        "Refused before the first fetch, with one line that says what to do: a bad setting, a job "
        "directory of another format or begun with other fixed settings, a missing file of seeds, "
        "a `BroadSpider` without the add-on, or wrong usage of the command. Or `refused`: agents "
        "that it met later have another list, or other fixed settings.",
        "change what the line names"),
    ExitCode.WORK_LEFT: (
        "The crawl ended by itself before everything was fetched: `waiting`, `max_pages`, "
        "`max_bytes`, `max_time`, `seeds_unread` (the log names the list), `closespider_…`, "
        "`cancelled`, or a reason of the spider's own. Or `no_pages`: every seed failed, or there "
        "was no seed.",
        "start it again later; after a `max_…` with a higher cap; after `no_pages` do what the "
        "warning in the log says"),
    ExitCode.INTERRUPTED: (
        "A signal ended it (`shutdown`), or two signals.", "start it again"),
    ExitCode.IN_USE: (
        "Refused: another process uses the job directory.",
        "nothing, or wait for the other process to end"),
    ExitCode.DAMAGED: (
        "Refused: the job directory cannot be read. Or `damaged`: damage was found during the "
        "crawl, which wrote nothing from then on. Or `disk_error`: nothing could be written for "
        "15 minutes, although there was room.",
        "restore a copy, or begin a new job; after `disk_error` repair the disk, and start it "
        "again"),
    ExitCode.STALLED: (
        "It stood still for `SUITE_STALL_TIMEOUT` and was ended; the stacks are in the log and in "
        "the job's `stacks.txt`.", "start it again, and read the stacks"),
}  # fmt: skip
"""What each code means, and what is to be done."""

_REASONS = {
    "finished": ExitCode.FINISHED,
    "drained": ExitCode.FINISHED,
    "refused": ExitCode.REFUSED,
    "shutdown": ExitCode.INTERRUPTED,
    STALLED: ExitCode.STALLED,
    DISK_ERROR: ExitCode.DAMAGED,
    DAMAGED: ExitCode.DAMAGED,
}


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
    if _in_task():
        refuse(error)
    highest, settings = SETTINGS_PRIORITIES["cmdline"] + 1, crawler.settings
    settings.set("SCHEDULER", RefusedCrawl.because(error), priority=highest)
    settings.set("ASYNCIO_EVENT_LOOP", None, priority=highest)
    if not is_reactor_installed():
        settings.set("TWISTED_REACTOR", ASYNCIO_REACTOR, priority=highest)


def is_refused(settings: BaseSettings) -> bool:
    # Not issubclass(): to Scrapy's metaclass every scheduler is a subclass of any other.
    return RefusedCrawl in getattr(settings["SCHEDULER"], "__mro__", ())


def _in_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no loop runs
        return False


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

    def has_pending_requests(self) -> bool:
        return False

    def enqueue_request(self, request: Request) -> bool:
        return False

    def next_request(self) -> Request | None:
        return None
