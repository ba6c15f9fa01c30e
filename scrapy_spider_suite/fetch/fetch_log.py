"""One fetch as one line of text, and back: the format of the fetch log (architecture, §4.10).

Twelve fields at most, with one space between them, in this order; ``-`` stands for what is not
known or does not apply:

1. when it ended, UTC to the millisecond, as in RFC 3339 (``2026-11-21T19:03:59.123Z``)
2. HTTP status
3. bytes of the body as it came over the wire, before decompression
4. milliseconds from the start of the request to the end of the answer
5. URL
6. via: the page that led there
7. depth: links from a seed
8. media type, without parameters
9. digest: SHA-1 of those bytes in base 32, as in a WARC's payload digest
10. IP address that was connected to
11. reason: what came of it, an event of the outcome table
12. remarks about it, separated by commas (``robots``, ``aside``, ``POST``, ``cut``, …)

Whatever is not a visible ASCII character is percent-encoded as UTF-8, so nothing that a server or
a page says can end a field or a line. URLs are cut at `URL_MAX` characters, with the remark
``cut``, and every other field has its own limit: no line is longer than `LINE_MAX` bytes.

The files of a fetch log: what they are called, which times they cover, how they are compressed.

``fetch.log`` is being written; ``fetch-FIRST-LAST.log.zst`` holds what was written from FIRST to
LAST, and for a moment, until it is compressed, has no ``.zst``. Zstandard at level 3: a line of
177 bytes becomes 37 with it, 39 with gzip at level 6, which takes five times as long to pack and
1.6 times as long to read back (``benchmarks/evidence.py``).

Writing the fetch log: buffered, whole lines, rotated by size, compressed beside the crawl.

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
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from functools import lru_cache
from io import BufferedIOBase
from pathlib import Path
from typing import NamedTuple

from backports import zstd

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.runtime.text import counted

logger = logging.getLogger(__name__)

URL_MAX = 2_100
LINE_MAX = 5_120
CUT = "cut"
FIELDS = (
    "time", "status", "bytes", "ms", "url", "via", "depth", "type", "digest", "address", "reason",
    "remarks",
)  # fmt: skip
HEAD = b"# fetch log 1: " + " ".join(FIELDS).encode() + b"\n"
"""The first line of every file. Lines that begin with ``#`` are comments."""

_NONE = "-"
_SHORT = 64
"""Most characters of a field that is no URL."""
_REMARKS_MAX = 8
_COUNT_MAX = (1 << 53) - 1
_LATEST = 253_402_300_799.0  # the end of the year 9999
_UNSAFE = re.compile(r"[^\x21-\x7e]+")
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Fetch(NamedTuple):
    """One fetch. *time* is when it ended, in seconds since the epoch; None and "": not known."""

    time: float
    status: int | None
    bytes: int
    ms: int
    url: str
    via: str = ""
    depth: int | None = None
    type: str = ""
    digest: str = ""
    address: str = ""
    reason: str = ""
    remarks: tuple[str, ...] = ()


def write(fetch: Fetch) -> bytes:
    """Return the line for *fetch*, with its line break."""
    when, status, size, ms, url, via, depth, type_, digest, address, reason, remarks = fetch
    url, via = _escape(url), _escape(via)
    if len(url) > URL_MAX or len(via) > URL_MAX:
        url, via = url[:URL_MAX], via[:URL_MAX]
        if CUT not in remarks:
            remarks = (CUT, *remarks)
    line = (
        f"{stamp(when)} {_count(status)} {_count(size)} {_count(ms)} {url} {via} {_count(depth)} "
        f"{_word(type_)} {_short(digest)} {_word(address)} {_word(reason)}"
    )
    if said := ",".join(_remark(remark) for remark in remarks[:_REMARKS_MAX] if remark):
        line += " " + said
    return line.encode("ascii") + b"\n"


def read(line: bytes) -> Fetch:
    """Return the fetch that *line* tells of, fields as they stand there (percent-encoded).

    Raises:
        ValueError: the line is a comment, torn, or was not made by `write`.
    """
    fields = line.rstrip(b"\n").decode("ascii").split(" ")
    if len(fields) not in (11, 12):
        raise ValueError(f"a line of the fetch log with {counted(len(fields), 'field')}")
    when, status, size, ms, url, via, depth, type_, digest, address, reason, *remarks = fields
    return Fetch(
        read_stamp(when.encode()), _number(status), _number(size) or 0, _number(ms) or 0,
        _text(url), _text(via), _number(depth), _text(type_), _text(digest), _text(address),
        _text(reason), tuple(remarks[0].split(",")) if remarks else (),
    )  # fmt: skip


def url_field(url: str) -> str:
    """Return *url* as a line has it: percent-encoded where need be, and cut if it is too long."""
    return _escape(url)[:URL_MAX]


def stamp(when: float) -> str:
    """Return *when*, seconds since the epoch, as the first field has it."""
    thousandths = round(max(0.0, min(when, _LATEST)) * 1_000)
    return f"{_second(thousandths // 1_000)}.{thousandths % 1_000:03}Z"


def read_stamp(text: bytes) -> float:
    """Return the seconds since the epoch that *text* stands for. Raises ValueError."""
    if not _STAMP.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no time of the fetch log")
    return datetime.strptime(text.decode(), "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()


@lru_cache(256)  # many lines tell of the same second
def _second(when: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when))


def _escape(text: str) -> str:
    """Return *text* as one field."""
    if not text:
        return _NONE
    if text == _NONE:
        return "%2D"
    if text.isascii() and text.isprintable() and " " not in text:
        return text
    return _UNSAFE.sub(_percent, text)


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _short(text: str) -> str:
    return _escape(text[:_SHORT])[:_SHORT]


@lru_cache(4_096)  # there are few media types, reasons, and addresses at a time
def _known_word(text: str) -> str:
    return _short(text)


def _word(text: str) -> str:
    # Cut first: a server's header may have 64 KiB, which must not be kept thousands of times.
    return _known_word(text[:_SHORT])


def _remark(text: str) -> str:
    return _word(text.replace(",", "%2C"))


def _count(number: int | None) -> int | str:
    if number is None:
        return _NONE
    return number if 0 <= number <= _COUNT_MAX else max(0, min(number, _COUNT_MAX))


def _number(field: str) -> int | None:
    if field == _NONE:
        return None
    if not (field.isascii() and field.isdigit()):
        raise ValueError(f"{field[:40]!r} is no number of the fetch log")
    return int(field)


def _text(field: str) -> str:
    if not field:
        raise ValueError("an empty field in the fetch log")
    return "" if field == _NONE else field


ACTIVE = "fetch.log"
FOLDER = "fetches"
"""Where it lies in a job's ``suite`` folder."""
LEVEL = 3
ZST = ".zst"
NEW = ".new"

_BLOCK = 1 << 20
_NAME = re.compile(r"fetch-(\d{8}T\d{6}\.\d{3})Z-(\d{8}T\d{6}\.\d{3})Z(-\d+)?\.log(\.zst)?")

ReadError = zstd.ZstdError, EOFError, OSError
"""What reading a damaged file raises."""


def closed_name(folder: Path, first: float, last: float) -> Path:
    """Return a path for what was written from *first* to *last* (seconds since the epoch)."""
    name = f"fetch-{_stamp(first)}-{_stamp(last)}"
    number = 1
    path = folder / f"{name}.log"
    while path.exists() or path.with_name(path.name + ZST).exists():
        number += 1
        path = folder / f"{name}-{number}.log"
    return path


def times(path: Path) -> tuple[float, float] | None:
    """Return from when to when *path* reaches, by its name; None if it is no such file."""
    match = _NAME.fullmatch(path.name)
    try:
        return None if match is None else (_seconds(match[1]), _seconds(match[2]))
    except ValueError:  # no such day
        return None


def closed_files(folder: Path) -> list[Path]:
    """Return the files of *folder* that are written no more, the oldest first.

    Of one that is just being compressed, only the one that is whole.
    """
    found = {path for path in folder.glob("fetch-*") if times(path) is not None}
    whole = {p for p in found if p.suffix == ZST or p.with_name(p.name + ZST) not in found}
    return sorted(whole, key=lambda path: (times(path), path.name))


def uncompressed(folder: Path) -> list[Path]:
    """Return the files of *folder* that are still to be compressed, the oldest first."""
    return sorted(path for path in folder.glob("fetch-*.log") if times(path) is not None)


def compress(path: Path, stop: Callable[[], bool] = lambda: False) -> None:
    """Put a compressed file in the place of *path*; whatever happens, one of them is whole.

    *stop* is asked after each megabyte; if it says so, *path* stays as it is.

    Raises:
        OSError: there is no room; *path* stays as it is.
    """
    done = path.with_name(path.name + ZST)
    new = done.with_name(done.name + NEW)
    try:
        with path.open("rb") as source, new.open("wb") as target:
            with zstd.ZstdFile(target, "wb", level=LEVEL) as packed:
                while (block := source.read(_BLOCK)) and not stop():
                    packed.write(block)
            if block:
                new.unlink()
                return
            target.flush()
            os.fsync(target.fileno())
        os.replace(new, done)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    path.unlink()


def trim(folder: Path, room: int) -> list[Path]:
    """Remove the oldest closed files of *folder* until those left take *room* bytes at most.

    Returns those that were removed. Raises `OSError`: one cannot be.
    """
    sizes = {path: path.stat().st_size for path in closed_files(folder)}
    total, removed = sum(sizes.values()), []
    for path, size in sizes.items():
        if total <= room:
            break
        path.unlink()
        removed.append(path)
        total -= size
    return removed


def clean(folder: Path) -> None:
    """Remove what an end in the middle of `compress` left in *folder*."""
    for new in folder.glob(f"fetch-*{ZST}{NEW}"):
        new.unlink(missing_ok=True)
    for path in folder.glob(f"fetch-*.log{ZST}"):
        path.with_suffix("").unlink(missing_ok=True)


def opened(path: Path) -> BufferedIOBase:
    """Open *path* to be read, compressed or not; it may have been compressed in between.

    Raises:
        OSError: it cannot be read.
    """
    if path.suffix == ZST:
        return zstd.ZstdFile(path, "rb")
    try:
        return path.open("rb")
    except FileNotFoundError:
        return opened(path.with_name(path.name + ZST))


def blocks(file: BufferedIOBase) -> Iterator[bytes]:
    """Yield *file* in blocks of whole lines; a torn last line is left out."""
    rest = b""
    while block := file.read(_BLOCK):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:  # longer than any line: nothing of it is one
            rest = (rest + block)[-LINE_MAX:]


def _stamp(when: float) -> str:
    moment = datetime.fromtimestamp(max(0.0, when), UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1_000:03}Z"


def _seconds(text: str) -> float:
    return datetime.strptime(text, "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC).timestamp()


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
