"""The exit codes of ``scrapy crawl`` and ``scrapy runspider``: one table for code and docs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from scrapy_spider_suite.errors import JobDamagedError, JobInUseError

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
    """What a supervisor is told; of several crawls of one command the highest holds."""

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
        "Finished: nothing is left; or `drained`: other agents of the crawl have what is left.",
        "nothing"),
    ExitCode.NOT_STARTED: (
        "Scrapy could not start it: an error in the project's code.", "read the traceback"),
    ExitCode.REFUSED: (
        "Refused before anything was fetched, with one line that says what to do: a bad setting, "
        "a job directory of a newer format or begun with other fixed settings, a file of seeds "
        "that is not there, a `BroadSpider` without the add-on; or wrong usage of the command. Or "
        "`refused`: agents that it met later have another list, or other fixed settings.",
        "change what the line names"),
    ExitCode.WORK_LEFT: (
        "It ended by itself before everything was fetched: `waiting`, `max_pages`, `max_bytes`, "
        "`max_time`, `seeds_unread` (the log says which list), `closespider_…`, `cancelled`, or a "
        "reason of the spider's own. Or `no_pages`: every seed failed, or there was no seed.",
        "start it again, later; after a `max_…` with a higher cap; after `no_pages` do what the "
        "log's warning says"),
    ExitCode.INTERRUPTED: (
        "A signal ended it (`shutdown`), or two of them in a hurry.", "start it again"),
    ExitCode.IN_USE: (
        "Refused: another process uses the job directory.", "nothing, or wait for that to end"),
    ExitCode.DAMAGED: (
        "Refused: what the job directory holds cannot be read; or `damaged`: that was found in the "
        "middle of a crawl, which wrote nothing from then on. Or `disk_error`: nothing could be "
        "written for 15 minutes, although there was room.",
        "restore a copy, or begin anew; after `disk_error` see to the disk, and start it again"),
    ExitCode.STALLED: (
        "It stood still for `SUITE_STALL_TIMEOUT` and was ended; the stacks are in the log and in "
        "the job's `stacks.txt`.", "start it again, and read them"),
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


def code_of_reason(reason: str) -> ExitCode:
    """The code of a crawl that ended with the finish *reason*."""
    return _REASONS.get(reason, ExitCode.WORK_LEFT)


def code_of_error(error: object) -> ExitCode:
    """The code of a crawl that was refused because of *error*."""
    if isinstance(error, JobInUseError):
        return ExitCode.IN_USE
    return ExitCode.DAMAGED if isinstance(error, JobDamagedError) else ExitCode.REFUSED
