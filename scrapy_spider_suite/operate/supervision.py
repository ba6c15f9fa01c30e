"""Exit code, status file and systemd notices of a crawl; the end of a crawl that stalls."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from scrapy.commands import ScrapyCommand

from scrapy_spider_suite.crawl.context import Crawl, Engine
from scrapy_spider_suite.crawl.gate import Caps
from scrapy_spider_suite.operate.machine import machine_findings
from scrapy_spider_suite.runtime.refusal import (
    STALLED,
    ExitCode,
    exit_code_for_reason,
    running_command,
)
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.project import is_crawl
from scrapy_spider_suite.store.job_reader import StatusFile

logger = logging.getLogger(__name__)

class SystemdNotifier:
    """Sends to the socket *address* (a path, or ``@`` and an abstract name); "" sends nowhere.

    *watchdog*: the manager wants ``WATCHDOG=1``. Errors of the socket are ignored.
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

    def send(self, **assignments: str | int) -> None:
        """Send *assignments*, such as ``READY=1``."""
        lines = (f"{name}={' '.join(str(value).split())}" for name, value in assignments.items())
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


TICK = 1.0  # seconds between two looks of the watchdog
_LEAST = 3  # fewest ticks of a stall: the first after a pause of the process says nothing


class StallCounter:
    """Counts in how many observations in a row a state was the same."""

    def __init__(self) -> None:
        self._last: object = object()
        self._count = 0

    def observe(self, state: object, *, excused: bool = False) -> int:
        """Return the count; 0 if *state* is new, or *excused*."""
        if excused or state != self._last:
            self._count = 0
            self._last = state
        else:
            self._count += 1
        return self._count


class Watchdog:
    """A thread that calls *tripped* once if `beat` is not called for *limit()* seconds; 0: never.

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
        self._stalls = StallCounter()
        self._once = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall watchdog", daemon=True)
        self._alarm = False
        self._beaten = 0.0  # processor time of the main thread

    def beat(self) -> None:
        """The watched thread is alive. The first call with a limit begins the watch."""
        self._beats += 1
        if self._thread.ident is None and self._limit() and not self._ended.is_set():
            with contextlib.suppress(ValueError, AttributeError):  # no main thread, or Windows
                if signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL:
                    signal.signal(signal.SIGVTALRM, self._on_alarm)
                    self._alarm = True
            self._thread.start()
        if self._alarm:
            self._beaten = time.thread_time()
            signal.setitimer(signal.ITIMER_VIRTUAL, self._limit())

    def stop(self) -> None:
        """End the watch; idempotent."""
        self._ended.set()
        if self._alarm:
            self._alarm = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL)

    def _watch(self) -> None:
        while not self._ended.wait(self._tick):
            limit = self._limit()
            ticks = self._stalls.observe(self._beats, excused=not limit)
            if ticks >= max(_LEAST, limit / self._tick):
                self._trip()

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        """All threads together used the limit: see how much of it the main thread used."""
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
    """The stacks of all threads of this process, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        lines = "".join(traceback.format_stack(frame))
        parts.append(f"Thread {names.get(ident, '?')} ({ident}):\n{lines}")
    return "\n".join(parts)


def tasks(loop: asyncio.AbstractEventLoop, most: int = 20) -> str:
    """The stacks of the first *most* tasks of *loop*; to be called there."""
    text = io.StringIO()
    found = sorted(asyncio.all_tasks(loop), key=asyncio.Task.get_name)
    for task in found[:most]:
        task.print_stack(limit=5, file=text)
    more = len(found) - most
    return text.getvalue() + (f"and {counted(more, 'more task')}\n" if more > 0 else "")


_REPORT = 10.0  # seconds for the report of a stalled crawl: the log may be stalled itself
STACKS = "stacks.txt"
_LAST_WRITE = 2.0  # seconds that the last status waits for the write before it

_codes: WeakKeyDictionary[ScrapyCommand, dict[int, ExitCode]] = WeakKeyDictionary()


class CommandExit:
    """The exit code of the command that runs *crawl*; a script has one of its own."""

    def __init__(self, crawl: Crawl) -> None:
        self.command = running_command() if is_crawl(crawl.crawler) else None  # None: a script
        self._crawl = crawl

    def leave(self, code: ExitCode) -> int | None:
        """Set *code*, unless another crawl of the command has a higher one; return that code."""
        if self.command is None:
            return None
        codes = _codes.setdefault(self.command, {})
        codes[id(self)] = code if self._crawl.settings.exit_codes else ExitCode.FINISHED
        self.command.exitcode = int(max(codes.values()))
        return self.command.exitcode


class Supervision:
    def __init__(self, crawl: Crawl, scheduler: Engine, caps: Caps) -> None:
        self._crawl = crawl
        self._caps = caps
        self._scheduler = scheduler
        self._exit = CommandExit(crawl)
        asked = crawl.crawler.settings["SUITE_STALL_TIMEOUT"] is not None
        # Without the setting, a script is never ended.
        self._ignored_limit = None if asked or self._exit.command else crawl.settings.stall_timeout
        environment = {} if self._exit.command is None else os.environ
        self._notifier = SystemdNotifier.from_environment(environment)
        counters = crawl.frontier.counters  # also of a crawl that is refused before it begins
        self._status = None if crawl.job is None else StatusFile(
            crawl.job.folder, process=os.getpid(), started=time.time(), ended=None,
            finish_reason=None, exit_code=None, done=counters.done, failed=counters.failed,
            pending=counters.pending,
        )  # fmt: skip
        # Renaming waits for the disk now and then, which the crawl need not.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="status")
        self._write: Future[None] | None = None
        self._stalls = StallCounter()
        self._watchdog = Watchdog(self._limit, lambda: self._end_process(
            f"the event loop has stood still for {self._limit():g} s"
        ))  # fmt: skip
        self._stopping = False
        crawl.closers.append(self._ended)
        # Until it has ended otherwise: two signals in a hurry leave no time to say so, nor does one
        # before it has begun.
        self._exit.leave(ExitCode.INTERRUPTED)

    def start(self) -> None:
        for line in machine_findings(self._crawl):
            logger.warning("Check of %s", line)
        self._watchdog.beat()
        self._notifier.send(READY=1, STATUS="the crawl begins")

    def beat(self) -> None:
        self._watchdog.beat()

    def pulse(self, now: float, facts: dict[str, Any]) -> None:
        """Called once a second with *facts* for the status file and systemd."""
        pauses = self._scheduler.pauses
        if self._status is not None and (self._write is None or self._write.done()):
            self._write = self._worker.submit(self._status.update, pauses=pauses, **facts)
        done = counted(facts["done"], "URL")
        line = f"{done} done, {facts['failed']:,} failed, {facts['pending']:,} to go"
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
        self._check_fetching(now)

    def stop(self) -> None:
        self._watchdog.stop()

    def _ended(self, reason: str) -> None:
        self._write_last_status(reason, self._exit.leave(exit_code_for_reason(reason)))
        self._notifier.send(STOPPING=1, STATUS=f"the crawl ended: {reason}")
        self._notifier.close()

    def _write_last_status(self, reason: str, code: int | None) -> None:
        """Write how the crawl ended, after the write before; do not wait for a stalled disk."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        wait([] if self._write is None else [self._write], _LAST_WRITE)
        status, self._status = self._status, None
        if status is not None:
            status.update(ended=time.time(), finish_reason=reason, exit_code=code)

    def _limit(self) -> float:
        limit = self._crawl.settings.stall_timeout
        return 0.0 if limit == self._ignored_limit else limit

    def _check_fetching(self, now: float) -> None:
        """Stop the crawl if no fetch began or ended for a long time, while hosts are ready."""
        crawl, limit = self._crawl, self._limit()
        counters = crawl.frontier.counters
        state = (counters.done, counters.failed, counters.retried, frozenset(self._under_way()))
        seconds = self._stalls.observe(state, excused=not limit)
        closing = self._scheduler.closing
        held = self._scheduler.paused or self._caps.pause(now) > 0
        held = held or (crawl.rates is not None and crawl.rates.away)
        if seconds and not closing and (held or not crawl.frontier.workbench.ready_hosts(now)):
            self._stalls = StallCounter()
            return
        # A download may take its time, and another if it is tried again at once.
        if seconds < max(limit, 2 * crawl.settings.project.download_timeout):
            return
        self._stalls = StallCounter()
        if closing:
            self._end_process(f"the crawl has not come to its end for {seconds} s")
        logger.critical(
            "nothing was fetched for %d s although hosts are ready (SUITE_STALL_TIMEOUT): the "
            "crawl is stopped\n%s\n%s", seconds, stacks(), tasks(asyncio.get_running_loop()),
        )  # fmt: skip
        self._scheduler.stop(STALLED)

    def _under_way(self) -> Iterator[int]:
        engine, parts = self._crawl.crawler.engine, self._crawl.parts
        yield from map(id, () if engine is None else engine.downloader.active)
        if parts is not None and parts.loop is not None:
            yield from map(id, parts.loop.flying)

    def _end_process(self, why: str) -> None:
        # Another thread reports: this one might wait for the log, or its lock, for ever.
        reporter = threading.Thread(target=self._report, args=(why, stacks()), daemon=True)
        reporter.start()
        reporter.join(_REPORT)
        os._exit(ExitCode.STALLED)

    def _report(self, why: str, report: str) -> None:
        crawl = self._crawl
        if crawl.job is not None:
            (crawl.job.folder / STACKS).write_text(f"{why}\n\n{report}")
        self._write_last_status(STALLED, int(ExitCode.STALLED))
        self._notifier.send(STATUS="the crawl stood still")
        logger.critical(
            "%s (SUITE_STALL_TIMEOUT): the process ends with exit code %d\n%s",
            why, ExitCode.STALLED, report,
        )  # fmt: skip
