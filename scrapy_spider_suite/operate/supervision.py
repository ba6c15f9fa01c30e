"""Exit code, status file, systemd, and the end of a crawl that stalls."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy.commands import ScrapyCommand

from scrapy_spider_suite.fetch.connections import idle_limit, raise_file_limit
from scrapy_spider_suite.operate.machine_checks import CrawlNeeds, machine_findings
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
    from scrapy_spider_suite.crawl.context import Crawl, Engine
    from scrapy_spider_suite.crawl.gate import Caps

logger = logging.getLogger(__name__)

class SystemdNotifier:
    """Sends to the socket *address* (a path, or ``@`` and an abstract name); "" sends nowhere.

    *watchdog* is whether the manager wants to hear ``WATCHDOG=1``. What cannot be sent is not: a
    crawl does not end for it.
    """

    def __init__(self, address: str, *, watchdog: bool = False) -> None:
        self.watchdog = watchdog
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> SystemdNotifier:
        """As NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID say."""
        process = environment.get("WATCHDOG_PID", "")
        wanted = environment.get("WATCHDOG_USEC", "0").strip("0") != ""
        ours = process in ("", str(os.getpid()))
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog=wanted and ours)

    def send(self, **assignments: str | int) -> bool:
        """Send *assignments*, such as ``READY=1``; whether they went off."""
        if self._socket is None:
            return False
        lines = (f"{name}={' '.join(str(value).split())}" for name, value in assignments.items())
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Send no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


TICK = 1.0
"""Seconds between two looks of the watchdog."""
_LEAST = 3
"""Fewest ticks of a stall: the first after a pause of the process says nothing."""


class StallCounter:
    """Counts the looks at which something was the same as at the last one."""

    def __init__(self) -> None:
        self._last: object = object()
        self.looks = 0

    def look(self, state: object, *, excused: bool = False) -> int:
        """How many looks in a row nothing has moved; *excused* is whether nothing needs to."""
        if excused or state != self._last:
            self.looks = 0
            self._last = state
        else:
            self.looks += 1
        return self.looks


class Watchdog:
    """A thread that calls *tripped* once if `beat` is not called for *limit()* seconds.

    `beat` and `stop` are called by what is watched. A *limit* of 0 lets anything pass.

    Code that keeps all threads from running (an endless regular expression) keeps this one, too;
    against that an alarm counts the processor time of the main thread, which calls *tripped*
    there. It is set where nothing else uses SIGVTALRM.
    """

    def __init__(
        self, limit: Callable[[], float], tripped: Callable[[], None], tick: float = TICK
    ) -> None:
        self._limit = limit
        self._tripped = tripped
        self._tick = tick
        self._beats = 0
        self._stillness = StallCounter()
        self._once = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall watchdog", daemon=True)
        self._alarm = False
        self._beaten = 0.0  # processor time of the main thread

    def beat(self) -> None:
        """What is watched, and calls this, is alive; the first time there is a limit, begin."""
        self._beats += 1
        if self._thread.ident is None and self._limit() and not self._ended.is_set():
            self._start()
        if self._alarm:
            self._beaten = time.thread_time()
            signal.setitimer(signal.ITIMER_VIRTUAL, self._limit())

    def _start(self) -> None:
        with contextlib.suppress(ValueError, AttributeError):  # no main thread, or Windows
            if signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL:
                signal.signal(signal.SIGVTALRM, self._on_alarm)
                self._alarm = True
        self._thread.start()

    def stop(self) -> None:
        """End; stopping twice does nothing."""
        self._ended.set()
        if self._alarm:
            self._alarm = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL)

    def _watch(self) -> None:
        while not self._ended.wait(self._tick):
            limit = self._limit()
            looks = self._stillness.look(self._beats, excused=not limit)
            if looks >= max(_LEAST, limit / self._tick):
                self._trip()

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        """As much time was spent, by all threads; look how much of it was the main thread's."""
        limit = self._limit()
        left = limit - (time.thread_time() - self._beaten)
        if limit and left <= 0:
            self._trip()
        elif limit:
            signal.setitimer(signal.ITIMER_VIRTUAL, left)

    def _trip(self) -> None:
        if self._once.acquire(blocking=False):
            self._tripped()


def stacks() -> str:
    """What every thread of this process is doing, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        lines = "".join(traceback.format_stack(frame))
        parts.append(f"Thread {names.get(ident, '?')} ({ident}):\n{lines}")
    return "\n".join(parts)


def tasks(loop: asyncio.AbstractEventLoop, most: int = 20) -> str:
    """What the first *most* tasks of *loop* wait for; to be called there."""
    text = io.StringIO()
    found = sorted(asyncio.all_tasks(loop), key=asyncio.Task.get_name)
    for task in found[:most]:
        task.print_stack(limit=5, file=text)
    if len(found) > most:
        text.write(f"and {counted(len(found) - most, 'more task')}\n")
    return text.getvalue()


_TELLING = 10.0
"""Seconds that the end of a stalled crawl may take to be told: the log may be what stalls."""
STACKS = "stacks.txt"
_SAYING = 2.0
"""Seconds that the last word waits for the one before it."""

_codes: WeakKeyDictionary[ScrapyCommand, dict[int, ExitCode]] = WeakKeyDictionary()


class CommandExit:
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

    def __init__(self, crawl: Crawl, scheduler: Engine, caps: Caps) -> None:
        self._crawl = crawl
        self._caps = caps
        self._scheduler = scheduler
        self._leaving = CommandExit(crawl)
        asked = crawl.crawler.settings["SUITE_STALL_TIMEOUT"] is not None
        # A script is ended only if it was asked for.
        self._unasked = None if asked or self._leaving.command else crawl.settings.stall_timeout
        environment = {} if self._leaving.command is None else os.environ
        self._notifier = SystemdNotifier.from_environment(environment)
        counters = crawl.frontier.counters  # said also by a crawl that is refused before it begins
        self._status = None if crawl.job is None else StatusFile(
            crawl.job.folder, process=os.getpid(), started=time.time(), ended=None,
            finish_reason=None, exit_code=None, done=counters.done, failed=counters.failed,
            pending=counters.pending,
        )  # fmt: skip
        # Renaming waits for the disk now and then, which the crawl need not.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="status")
        self._saying: Future[None] | None = None
        self._stillness = StallCounter()
        self._watchdog = Watchdog(self._limit, self._loop_stands_still)
        self._stopping = False
        crawl.closers.append(self._ended)
        # Until it has ended otherwise: two signals in a hurry leave no time to say so, nor does one
        # before it has begun.
        self._leaving.leave(ExitCode.INTERRUPTED)

    def start(self) -> None:
        """The crawl begins."""
        for line in machine_findings(_needs_of_crawl(self._crawl)):
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
        held = self._scheduler.paused or self._caps.pause(now) > 0
        held = held or (crawl.rates is not None and crawl.rates.away)
        if looks and not closing and (held or not crawl.frontier.workbench.ready_hosts(now)):
            self._stillness = StallCounter()
            return
        # A download may take its time, and another if it is tried again at once.
        if looks < max(limit, 2 * crawl.settings.project.download_timeout):
            return
        self._stillness = StallCounter()
        if closing:
            self._end_process(f"the crawl has not come to its end for {looks} s")
        logger.critical(
            "nothing was fetched for %d s although hosts are ready (SUITE_STALL_TIMEOUT): the "
            "crawl is stopped\n%s\n%s", looks, stacks(), tasks(asyncio.get_running_loop()),
        )  # fmt: skip
        self._scheduler.stop(STALLED)

    def _loop_stands_still(self) -> None:
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


def _needs_of_crawl(crawl: Crawl) -> CrawlNeeds:
    settings = crawl.settings
    files = raise_file_limit()
    on_disk = isinstance(crawl.store, RocksStore)
    status = {} if crawl.job is None else read_status(crawl.job.folder) or {}
    when = status.get("when")
    temporary = None
    if on_disk and crawl.job is None:
        with contextlib.suppress(OSError):  # there is no folder for temporary files
            temporary = Path(tempfile.gettempdir())
    return CrawlNeeds(
        concurrency=settings.project.concurrent_requests,
        idle=idle_limit(files),
        files=files,
        memory=2 * settings.memory if on_disk else 0,
        job=None if crawl.job is None else crawl.job.path,
        begins=crawl.job is not None and not crawl.job.resumed,
        temporary=temporary,
        last_write=when if isinstance(when, int | float) else None,
        now=time.time(),
    )
