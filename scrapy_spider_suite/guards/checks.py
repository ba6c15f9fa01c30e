"""What is wrong with the machine for a crawl of these settings: a line each, none if all is well.

Nothing here stops a crawl: each of these may be meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scrapy_spider_suite.guards.limits import ROOT, memory_limit, tracking
from scrapy_spider_suite.guards.mounts import mount_of
from scrapy_spider_suite.guards.room import in_units
from scrapy_spider_suite.guards.scrapy_queue import FOLDER, count_pending
from scrapy_spider_suite.runtime.text import counted

_OTHER_FILES = 320
"""Files beside connections: the store keeps up to 256 open."""
_PROCESS = 192 << 20
"""Bytes for Python, Scrapy and their pages under way."""
_REMEMBERED = 120
"""Seconds for which a firewall follows a connection that was closed (nf_conntrack's TIME_WAIT)."""
_FULL = 0.8
_CLOCK = 60.0
"""Seconds that a clock may be set back without a word."""


@dataclass(frozen=True, kw_only=True)
class CrawlNeeds:
    """A crawl as far as the machine is concerned.

    Attributes:
        concurrency: most connections in use, *idle* of those kept open beside.
        files: the limit of open files, after it was raised.
        memory: bytes for hosts and for the store together, 0 if neither is bounded.
        job: the job directory, which *begins* with this run or goes on.
        temporary: the folder that is used instead of one.
        last_write: when the job was written to last, in seconds since the epoch, like *now*.
    """

    concurrency: int
    idle: int
    files: int
    memory: int = 0
    job: Path | None = None
    begins: bool = False
    temporary: Path | None = None
    last_write: float | None = None
    now: float = 0.0


def findings(crawl: CrawlNeeds, root: Path = ROOT) -> list[str]:
    """Look at all of it; *root* is where ``proc`` and ``sys`` are looked for."""
    return [
        *_files(crawl),
        *_memory(crawl, root),
        *_connections(crawl, root),
        *_folders(crawl, root),
        *_clock(crawl),
        *_queue(crawl),
    ]


def _files(crawl: CrawlNeeds) -> Iterator[str]:
    needed = crawl.concurrency + crawl.idle + _OTHER_FILES
    if crawl.files < needed:
        yield (
            f"open files: {crawl.files} are allowed, CONCURRENT_REQUESTS = {crawl.concurrency} and "
            f"{counted(crawl.idle, 'idle connection')} may need {needed}; raise the limit "
            "(ulimit -n, LimitNOFILE=)"
        )


def _memory(crawl: CrawlNeeds, root: Path) -> Iterator[str]:
    limit = memory_limit(root) if crawl.memory else None
    needed = crawl.memory + _PROCESS
    if limit is not None and limit.limit < needed:
        yield (
            f"memory: {limit.by} allows {in_units(limit.limit)}, this crawl may need "
            f"{in_units(needed)}; lower SUITE_MEMORY, or raise the limit"
        )


def _connections(crawl: CrawlNeeds, root: Path) -> Iterator[str]:
    table = tracking(root)
    if table is None:
        return
    if table.used > table.limit * _FULL:
        yield (
            f"connections: the firewall's table is nearly full, {table.used} of {table.limit}; "
            "raise net.netfilter.nf_conntrack_max"
        )
    elif table.limit < crawl.concurrency * _REMEMBERED:
        yield (
            f"connections: the firewall follows at most {table.limit}, and each for {_REMEMBERED} "
            f"s after its end; CONCURRENT_REQUESTS = {crawl.concurrency} may come to "
            f"{crawl.concurrency * _REMEMBERED}; raise net.netfilter.nf_conntrack_max"
        )


def _folders(crawl: CrawlNeeds, root: Path) -> Iterator[str]:
    job = None if crawl.job is None else mount_of(crawl.job, root)
    if job is not None and job.remote:
        yield (
            f"JOBDIR = {str(crawl.job)!r} is on another machine ({job.type} at {job.point}): it is "
            "slow, and its locks and writes may not hold; use a local disk"
        )
    if job is not None and job.in_memory:
        yield f"JOBDIR = {str(crawl.job)!r} is in memory ({job.type}): it ends with the machine"
    temporary = None if crawl.temporary is None else mount_of(crawl.temporary, root)
    if temporary is not None and temporary.in_memory:
        yield (
            f"the temporary folder {crawl.temporary} is in memory ({temporary.type}), and what "
            "waits to be fetched is kept there; set JOBDIR, or TMPDIR to a disk"
        )
    if temporary is not None and temporary.read_only:
        yield f"the temporary folder {crawl.temporary} cannot be written; set JOBDIR, or TMPDIR"


def _clock(crawl: CrawlNeeds) -> Iterator[str]:
    behind = 0.0 if crawl.last_write is None else crawl.last_write - crawl.now
    if behind > _CLOCK:
        yield (
            f"the clock is {behind:.0f} s behind the job's last write: hosts may wait that much "
            "longer, and times in the fetch log go back"
        )


def _queue(crawl: CrawlNeeds) -> Iterator[str]:
    # Whoever goes on with the job has been told.
    left = count_pending(crawl.job) if crawl.job is not None and crawl.begins else 0
    if left:
        yield (
            f"the job directory: {FOLDER} holds {counted(left, 'request')} of Scrapy's own "
            "scheduler, pickled, which the suite does not read; finish that crawl with "
            "SUITE_ENABLED = False, or use another JOBDIR for this one"
        )
