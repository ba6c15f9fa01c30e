"""The writer of packs: a thread of its own compresses and writes, others only hand in records."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from scrapy_spider_suite.errors import PackWriteError
from scrapy_spider_suite.packs.container import Container
from scrapy_spider_suite.packs.packing import Job, Location, Packing, Plan, Waiter
from scrapy_spider_suite.packs.pages import Fetch, size_of
from scrapy_spider_suite.packs.recovery import Recovery, recover_folder
from scrapy_spider_suite.packs.warc import Record


class PackWriter:
    """Writes packs as *plan* says. Usable from several threads.

    Packs that a crash left open in the folder are closed first (`recover_folder`), in the writer's
    thread: *recovery* will have what it found, or why it failed (then they are left as they are).
    *closed* is called for every pack that is complete, in the writer's thread.
    *backlog_max*: bytes of records that may wait to be compressed. *container*: another way to
    write the format of the plan. Without *recover* nothing is closed first: another writer of this
    process, that is not closed yet, has the same plan.

    Raises `PackError` (no such format), `OSError` (the folder cannot be read).
    """

    def __init__(
        self,
        plan: Plan,
        *,
        closed: Callable[[Path], None] = lambda path: None,
        backlog_max: float = 64 << 20,
        clock: Callable[[], float] = time.time,
        container: Container | None = None,
        recover: bool = True,
    ) -> None:
        self._packing = Packing(plan, closed, container)
        plan.folder.mkdir(parents=True, exist_ok=True)
        self.recovery: Future[list[Recovery]] = Future()
        if not recover:
            self.recovery.set_result([])
        self._plan = plan
        self._clock = clock
        self._jobs: deque[Job] = deque()
        self._backlog = 0
        self._backlog_max = backlog_max
        self._changed = threading.Condition()
        self._ending = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="packs", daemon=True)
        self._thread.start()

    @property
    def recovered(self) -> list[Recovery]:
        """What became of packs that were left open, once they are closed. Raises `OSError`."""
        return self.recovery.result()

    @property
    def backlog(self) -> int:
        """Bytes of records that wait to be compressed, roughly; they may not be made yet."""
        return self._backlog

    def append(self, records: Sequence[Record], *, wait: bool = True) -> Future[Location]:
        """Have *records* written side by side; the future has the place of the first of them.

        It is set, in the writer's thread, when they are on disk (``Plan.power``: on the medium), or
        to a `PackWriteError`: then nothing of them is in a pack, and they may be handed in again.
        While too much is waiting, this call waits too, or, without *wait*, raises `PackWriteError`.
        """
        if not records:
            raise ValueError("no records")
        future: Future[Location] = Future()
        future.set_running_or_notify_cancel()  # what is written is written
        with self._changed:
            while self._backlog > self._backlog_max and not self._ending:
                if not wait:
                    raise PackWriteError("too many pages wait to be written")
                self._changed.wait()
            size = sum([len(record.block) + 600 for record in records])
            self._put(Job(records, future, size))
        return future

    def pack(self, fetches: Sequence[Fetch], waiter: Waiter) -> None:
        """Have records made of *fetches*, in the writer's thread, and written side by side.

        *waiter* is told there as a future of `append` is, or of a `PackRefusedError`. This call
        never waits. Raises `PackWriteError`: the writer is closed.
        """
        size = sum([size_of(fetch) for fetch in fetches])
        with self._changed:
            self._put(Job((), waiter, size, fetches))

    def change(self, *, max_bytes: int, max_age: float, power: bool) -> None:
        """Go by another `Plan` in this, at once; *power* holds from the next pack on."""
        with self._changed:
            self._packing.change(max_bytes=max_bytes, max_age=max_age, power=power)
            self._changed.notify_all()

    def flush(self) -> Future[None]:
        """Have what was handed in written now; the future is set when it is."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            self._put(Job((), future))
        return future

    def close(self) -> None:
        """Write everything, close the pack, end the thread.

        Raises `PackWriteError`: a pack could not be closed; the next writer recovers it.
        """
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _put(self, job: Job) -> None:
        if self._ending:
            raise PackWriteError("the writer of packs is closed")
        self._jobs.append(job)
        self._backlog += job.size
        self._changed.notify_all()

    def _run(self) -> None:
        job: Job | None = None
        if not self.recovery.done():
            self._recover()
        try:
            while not self._ended():
                now = self._clock()
                job = self._next(now)
                if job is not None and job.size:
                    self._packing.take(job, now)
                elif job is not None:
                    self._packing.write(now)
                    job.future.set_result(None)
                self._packing.tick(self._clock())
            self._packing.close(self._clock())
        except Exception as error:  # nobody may wait for a thread that has ended
            self._error = error
            self._give_up(error, job)

    def _recover(self) -> None:
        try:
            found = recover_folder(self._plan.folder, self._plan.agent)
        except Exception as error:  # what is there stays as it is, whatever is wrong with it
            self.recovery.set_exception(error)
        else:
            self.recovery.set_result(found)

    def _ended(self) -> bool:
        with self._changed:
            return self._ending and not self._jobs

    def _next(self, now: float) -> Job | None:
        """Return the next job, or None when there is something else to do."""
        with self._changed:
            if not self._jobs and not self._ending:
                self._changed.wait(self._packing.patience(now))
            if not self._jobs:
                return None
            job = self._jobs.popleft()
            self._backlog -= job.size
            self._changed.notify_all()
            return job

    def _give_up(self, error: Exception, last: Job | None) -> None:
        self._packing.give_up(error)
        with self._changed:
            self._ending = True
            for job in [*filter(None, [last]), *self._jobs]:
                if not job.future.done():
                    job.future.set_exception(error)
            self._jobs.clear()
            self._changed.notify_all()
