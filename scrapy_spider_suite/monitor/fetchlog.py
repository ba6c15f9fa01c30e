"""Writing the fetch log: buffered, whole lines, rotated by size, compressed beside the crawl.

Lines are gathered by `FetchLog.add` and written by `FetchLog.flush`, once a second: an end without
warning loses the lines of that second, and never leaves half a line for good. What the disk does
not take is kept, up to a limit, and written when it does; beyond the limit lines are dropped and
counted, and a comment in the log says how many are missing. Nothing here stops a crawl.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.monitor.fetchfiles import (
    ACTIVE,
    clean,
    closed_name,
    compress,
    trim,
    uncompressed,
)
from scrapy_spider_suite.monitor.fetchline import HEAD, LINE_MAX, read_stamp

logger = logging.getLogger(__name__)

ROOM = 8 << 20
"""Bytes of lines that are kept while nothing can be written."""
_CLOSING = 2.0
"""Seconds that whoever closes the log waits at most for what is done beside."""


class FetchLog:
    """The fetch log in *folder*, which is made if need be, for one writer.

    *size*: bytes after which a new file is begun. *most*: bytes of all files, beyond which the
    oldest are removed; 0: none are. Both may be changed (then `tidy`). *lines*, *written*, *lost*
    count lines, bytes and dropped lines since the opening; *error* is what the disk said last,
    None if all is well.

    Raises `SettingsError` if the folder cannot be used, or another writer uses it.
    """

    def __init__(
        self, folder: Path, size: int = 64 << 20, most: int = 0, room: int = ROOM
    ) -> None:
        self.folder = folder
        self.lines = self.written = self.lost = 0
        self.error: OSError | None = None
        self.size = size
        self.most = most
        self._room = room
        self._lines: list[bytes] = []
        self._waiting = 0  # bytes in them
        self._rest = b""  # what a full disk took no more of
        self._missing = 0  # lost lines of which the log does not tell yet
        self._first = self._last = 0.0
        self._file: int | None = None
        self._at = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="fetch log")
        self._busy: Future[None] | None = None
        self._stopping = threading.Event()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(folder)
            try:
                clean(folder)
                self._open()
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            raise SettingsError(
                f"the fetch log in {str(folder)!r} cannot be written: {error.strerror}"
            ) from error
        self.tidy()

    def __repr__(self) -> str:
        return f"<FetchLog {self.folder}: {self.lines} lines, {self.lost} lost>"

    def add(self, line: bytes, when: float) -> None:
        """Take a line of a fetch that ended at *when*; it is on disk after the next `flush`."""
        if self._waiting + len(self._rest) >= self._room:
            self.lost += 1
            self._missing += 1
            return
        self._reach(when, when)
        self._lines.append(line)
        self._waiting += len(line)
        self.lines += 1

    def flush(self) -> None:
        """Write what there is. What cannot be written is kept, and *error* says why."""
        self._rest += b"".join(self._lines)
        self._lines.clear()
        self._waiting = 0
        try:
            if self._file is None:
                self._open()
            self._write()
            if self._missing:
                self._rest = b"# %d lines lost: there was no room\n" % self._missing
                self._missing = 0
                self._write()
            if self._at >= self.size and self._first:
                self._rotate()
        except OSError as error:
            self.error = error
        else:
            self.error = None

    def close(self) -> None:
        """Write what there is, for the last time; lines that the disk does not take are lost."""
        self.flush()
        self.lost += sum(not line.startswith(b"#") for line in self._rest.splitlines())
        # What is just being compressed stays as it is, for whoever opens the log next.
        self._stopping.set()
        self._worker.shutdown(wait=False, cancel_futures=True)
        if self._busy is not None:
            wait([self._busy], _CLOSING)
        if self._file is not None:
            os.close(self._file)
            self._file = None
        os.close(self._lock)

    # The file being written

    def _open(self) -> None:
        """Open the active file and cut off what an end without warning left of a last line."""
        path = self.folder / ACTIVE
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._at = _mend(file)
            first, last = _times(file, self._at)
        except BaseException:
            os.close(file)
            raise
        self._file = file
        self._reach(first, last)
        if not self._at:
            self._rest = HEAD + self._rest

    def _write(self) -> None:
        """Write the rest. Raises `OSError`; what was not written is the rest then."""
        while self._rest and self._file is not None:
            count = os.pwrite(self._file, self._rest, self._at)
            self._at += count
            self.written += count
            self._rest = self._rest[count:]

    def _rotate(self) -> None:
        """Give the file its final name, and begin another."""
        if self._file is None:
            return
        os.rename(self.folder / ACTIVE, closed_name(self.folder, self._first, self._last))
        os.close(self._file)
        self._file = None
        self._first = self._last = 0.0
        self._open()
        self.tidy()

    def _reach(self, first: float, last: float) -> None:
        """The file being written has lines from *first* to *last* (0.0: none)."""
        if first:
            self._first = min(self._first or first, first)
            self._last = max(self._last, last)

    # Beside the crawl

    def tidy(self) -> None:
        """Compress what is closed, and remove what is too much, in a thread; each rotation does."""
        # The thread lists the files: there may be thousands.
        if self._busy is None or self._busy.done():
            self._busy = self._worker.submit(self._tidy)

    def _tidy(self) -> None:
        for path in uncompressed(self.folder):
            if self._stopping.is_set():
                return
            with contextlib.suppress(OSError):  # no room: it stays as it is
                compress(path, self._stopping.is_set)
        if not self.most:
            return
        with contextlib.suppress(OSError):  # the next rotation tries again
            # The file being written may come to its full size before the next look.
            removed = trim(self.folder, max(0, self.most - self.size))
            if removed:
                logger.info(
                    "fetch log: the oldest files were removed (SUITE_FETCH_LOG_MAX), %d of them, "
                    "to %s", len(removed), removed[-1].name,
                )  # fmt: skip


def _take_lock(folder: Path) -> int:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise SettingsError(
                f"the fetch log in {str(folder)!r} is being written by another crawl: set "
                "SUITE_FETCH_LOG to a folder of this crawl's own, or to False"
            ) from None
        raise
    return lock


def _mend(file: int) -> int:
    """Cut a torn last line off *file*; return the size that is left."""
    size = os.fstat(file).st_size
    tail_at = max(0, size - 2 * LINE_MAX)
    tail = os.pread(file, size - tail_at, tail_at)
    end = tail.rfind(b"\n") + 1
    if not end and tail_at:  # no line is so long: whatever this is, it is not ours to cut
        return size + os.pwrite(file, b"\n", size)
    if tail_at + end != size:
        os.ftruncate(file, tail_at + end)
    return tail_at + end


def _times(file: int, size: int) -> tuple[float, float]:
    """From when to when the lines of *file* reach; zeros if there are none."""
    head = os.pread(file, 4 * LINE_MAX, 0)[:size]
    tail = os.pread(file, min(size, 4 * LINE_MAX), max(0, size - 4 * LINE_MAX))
    found = []
    for line in (*head.splitlines(), *tail.splitlines()):
        with contextlib.suppress(ValueError):  # a comment, or the end of a line
            found.append(read_stamp(line.partition(b" ")[0]))
    return (min(found), max(found)) if found else (0.0, 0.0)
