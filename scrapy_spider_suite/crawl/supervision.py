"""Whoever watches over a crawl is told how it goes, and how it ended.

By the exit code of ``scrapy crawl``, by ``status.json`` in the job, by systemd's notifications;
and a crawl that stands still is ended, so that somebody can start it again. A script that runs a
crawl among other things keeps its exit code and its life, unless it sets SUITE_STALL_TIMEOUT.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy.commands import ScrapyCommand

from scrapy_spider_suite.crawl.diskguard import temporary_folder
from scrapy_spider_suite.fetch.connections import idle_limit, raise_file_limit
from scrapy_spider_suite.guards.checks import CrawlNeeds, findings
from scrapy_spider_suite.guards.notify import Notifier
from scrapy_spider_suite.guards.stall import Stillness, Watchdog, stacks, tasks
from scrapy_spider_suite.runtime.refusal import (
    STALLED,
    ExitCode,
    exit_code_for_reason,
    running_command,
)
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.project import is_crawl
from scrapy_spider_suite.store.job_status import StatusFile, read_status
from scrapy_spider_suite.store.rocks_store import RocksStore

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.context import Crawl
    from scrapy_spider_suite.scheduler import FrontierScheduler

logger = logging.getLogger(__name__)

_TELLING = 10.0
"""Seconds that the end of a stalled crawl may take to be told: the log may be what stalls."""
STACKS = "stacks.txt"
_SAYING = 2.0
"""Seconds that the last word waits for the one before it."""

_codes: WeakKeyDictionary[ScrapyCommand, dict[int, ExitCode]] = WeakKeyDictionary()


class Leaving:
    """The exit code of the command that runs the crawl of *crawl*.

    Attributes:
        command: None in a script, which has an exit code of its own.
    """

    def __init__(self, crawl: Crawl) -> None:
        self.command = running_command() if is_crawl(crawl.crawler) else None
        self._crawl = crawl

    def leave(self, code: ExitCode) -> int | None:
        """Let the command end with *code*, or a higher one of another crawl of its own.

        Returns the exit code of the command; None in a script.
        """
        if self.command is None:
            return None
        codes = _codes.setdefault(self.command, {})
        codes[id(self)] = code if self._crawl.settings.exit_codes else ExitCode.FINISHED
        self.command.exitcode = int(max(codes.values()))
        return self.command.exitcode


class Supervision:
    """One per crawl; see the module."""

    def __init__(self, crawl: Crawl, scheduler: FrontierScheduler) -> None:
        self._crawl = crawl
        self._scheduler = scheduler
        self._leaving = Leaving(crawl)
        asked = crawl.crawler.settings["SUITE_STALL_TIMEOUT"] is not None
        # A script is ended only if it was asked for.
        self._unasked = None if asked or self._leaving.command else crawl.settings.stall_timeout
        environment = {} if self._leaving.command is None else os.environ
        self._notifier = Notifier.from_environment(environment)
        counters = crawl.frontier.counters  # said also by a crawl that is refused before it begins
        self._status = None if crawl.job is None else StatusFile(
            crawl.job.folder, process=os.getpid(), started=time.time(), ended=None,
            finish_reason=None, exit_code=None, done=counters.done, failed=counters.failed,
            pending=counters.pending,
        )  # fmt: skip
        # Renaming waits for the disk now and then, which the crawl need not.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="status")
        self._saying: Future[None] | None = None
        self._stillness = Stillness()
        self._watchdog = Watchdog(self._limit, self._loop_stands_still)
        self._stopping = False
        crawl.at_end = self._ended
        # Until it has ended otherwise: two signals in a hurry leave no time to say so, nor does one
        # before it has begun.
        self._leaving.leave(ExitCode.INTERRUPTED)

    def start(self) -> None:
        """The crawl begins."""
        for line in findings(crawl_of(self._crawl)):
            logger.warning("Check of %s", line)
        self._watchdog.beat()
        self._notifier.send(READY=1, STATUS="the crawl begins")

    def beat(self) -> None:
        """The loop turns."""
        self._watchdog.beat()

    def pulse(self, now: float, facts: dict[str, Any]) -> None:
        """A second has gone by; *facts* are what there is to say."""
        pauses = self._scheduler.pauses
        if self._status is not None and (self._saying is None or self._saying.done()):
            self._saying = self._worker.submit(self._status.update, pauses=pauses, **facts)
        done, failed = counted(facts["done"], "page"), counted(facts["failed"], "URL")
        line = f"{done} done, {failed} failed, {facts['pending']:,} to go"
        if pauses:
            line += f"; paused: {', '.join(pauses)}"
        self._notifier.send(STATUS=line)
        if self._notifier.watchdog:
            self._notifier.send(WATCHDOG=1)
        # systemd counts TimeoutStopSec from this word on. A crawl that ends by itself may take
        # longer (pipelines, feeds), so of that end it hears when it has come.
        if facts["closing"] and not self._crawl.crawler.crawling and not self._stopping:
            self._stopping = True
            self._notifier.send(STOPPING=1)
        self._look_at_fetching(now)

    def stop(self) -> None:
        """Nothing more is fetched; what is left to do may take its time."""
        self._watchdog.stop()

    def _ended(self, reason: str) -> None:
        """The crawl has ended, and the job is still ours."""
        self._say_last(reason, self._leaving.leave(exit_code_for_reason(reason)))
        self._notifier.send(STOPPING=1, STATUS=f"the crawl ended: {reason}")
        self._notifier.close()

    def _say_last(self, reason: str, code: int | None) -> None:
        """Say how it ended, after what is being said; a disk that stands still is not waited for.
        """
        self._worker.shutdown(wait=False, cancel_futures=True)
        wait([] if self._saying is None else [self._saying], _SAYING)
        status, self._status = self._status, None
        if status is not None:
            status.update(ended=time.time(), finish_reason=reason, exit_code=code)

    # Standing still

    def _limit(self) -> float:
        limit = self._crawl.settings.stall_timeout
        return 0.0 if limit == self._unasked else limit

    def _look_at_fetching(self, now: float) -> None:
        """See whether no fetch began or ended for a long time, while hosts are ready."""
        crawl, limit = self._crawl, self._limit()
        counters = crawl.frontier.counters
        under_way = frozenset(map(id, self._scheduler.under_way))
        state = (counters.done, counters.failed, counters.retried, under_way)
        looks = self._stillness.look(state, excused=not limit)
        closing = self._scheduler.closing
        held = self._scheduler.paused or crawl.caps.pause(now) > 0
        held = held or (crawl.sharing is not None and crawl.sharing.away)
        if looks and not closing and (held or not crawl.frontier.ready_hosts(now)):
            self._stillness = Stillness()
            return
        # A download may take its time, and another if it is tried again at once.
        if looks < max(limit, 2 * crawl.settings.project.download_timeout):
            return
        self._stillness = Stillness()
        if closing:
            self._end_process(f"the crawl has not come to its end for {looks} s")
        logger.critical(
            "nothing was fetched for %d s although hosts are ready (SUITE_STALL_TIMEOUT): the "
            "crawl is stopped\n%s\n%s", looks, stacks(), tasks(asyncio.get_running_loop()),
        )  # fmt: skip
        self._scheduler.stop(STALLED)

    def _loop_stands_still(self) -> None:
        """Called by the watchdog's thread, or as a signal."""
        self._end_process(f"the event loop has stood still for {self._limit():g} s")

    def _end_process(self, why: str) -> None:
        """Say what everything is doing, and be gone.

        Another thread says it: the log's lock, or the log itself, may be what all wait for.
        """
        teller = threading.Thread(target=self._tell, args=(why, stacks()), daemon=True)
        teller.start()
        teller.join(_TELLING)
        os._exit(ExitCode.STALLED)

    def _tell(self, why: str, report: str) -> None:
        crawl = self._crawl
        if crawl.job is not None:
            (crawl.job.folder / STACKS).write_text(f"{why}\n\n{report}")
        self._say_last(STALLED, int(ExitCode.STALLED))
        self._notifier.send(STATUS="the crawl stood still")
        logger.critical(
            "%s (SUITE_STALL_TIMEOUT): the process ends with exit code %d\n%s",
            why, ExitCode.STALLED, report,
        )  # fmt: skip


def crawl_of(crawl: Crawl) -> CrawlNeeds:
    """What the checks at the start have to know of a crawl."""
    settings = crawl.settings
    files = raise_file_limit()
    on_disk = isinstance(crawl.store, RocksStore)
    status = {} if crawl.job is None else read_status(crawl.job.folder) or {}
    when = status.get("when")
    return CrawlNeeds(
        concurrency=settings.project.concurrent_requests,
        idle=idle_limit(files),
        files=files,
        memory=2 * settings.memory if on_disk else 0,
        job=None if crawl.job is None else crawl.job.path,
        begins=crawl.job is not None and not crawl.job.resumed,
        temporary=temporary_folder() if on_disk and crawl.job is None else None,
        last_write=when if isinstance(when, int | float) else None,
        now=time.time(),
    )
