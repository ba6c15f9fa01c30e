"""The fetch log: one line of text for each fetch, in files that are rotated and compressed.

`FetchLog` writes, `FetchLogReader` reads, also while the log is written.

docs/evidence.md has the fields. All but visible ASCII is percent-encoded: no server or page can end
a field. URLs are cut at `URL_MAX` characters, lines at `LINE_MAX` bytes.

``fetch.log`` is being written; ``fetch-FIRST-LAST.log.zst`` has the lines from FIRST to LAST. A
kill loses the lines since the last flush. Unwritable lines are kept up to a limit, then counted as
lost.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from io import BufferedIOBase
from pathlib import Path
from typing import NamedTuple

from backports import zstd

from scrapy_spider_suite.errors import JobInUseError, SettingsError, StoreWriteError
from scrapy_spider_suite.runtime.files import lock_folder, replacing_file
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.urls.normalize import normalize

logger = logging.getLogger(__name__)

URL_MAX = 2_100
LINE_MAX = 5_120
CUT = "cut"
_UNKNOWN = "-"
_FIELD_MAX = 64  # most characters of a field that is no URL
_REMARKS_MAX = 8
_COUNT_MAX = (1 << 53) - 1
_LATEST = 253_402_300_799.0  # the end of the year 9999
_UNSAFE = re.compile(r"[^\x21-\x7e]+")
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class FetchLine(NamedTuple):
    """One fetch; *time*: its end in seconds since the epoch; None and "": unknown."""

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


HEAD = b"# fetch log 1: " + " ".join(FetchLine._fields).encode() + b"\n"
"""The first line of every file. Lines that begin with ``#`` are comments."""


def format_line(
    when: float, status: int | None, size: int, ms: int, url: str, via: str = "",
    depth: int | None = None, media_type: str = "", digest: str = "", address: str = "",
    reason: str = "", remarks: Sequence[str] = (),
) -> bytes:  # fmt: skip
    """The line of a fetch, of the fields of `FetchLine`."""
    texts = [url, via, media_type, digest, address, reason]
    text = " ".join(texts)
    # Nearly all lines are as they should be: one look at all of their texts is enough.
    if (
        not (text.isascii() and text.isprintable()) or text.count(" ") > 5 or _UNKNOWN in texts
        or len(url) > URL_MAX or len(via) > URL_MAX or max(map(len, texts[2:])) > _FIELD_MAX
    ):  # fmt: skip
        url, via = _escape(url), _escape(via)
        media_type, digest, address, reason = map(_field, texts[2:])
        if len(url) > URL_MAX or len(via) > URL_MAX:
            url, via = url[:URL_MAX], via[:URL_MAX]
            if CUT not in remarks:
                remarks = (CUT, *remarks)
    counts = [status or 0, size, ms, depth or 0]
    if min(counts) < 0 or max(counts) > _COUNT_MAX:
        counts = [max(0, min(count, _COUNT_MAX)) for count in counts]
    line = (
        f"{format_time(when)} {_UNKNOWN if status is None else counts[0]} {counts[1]} {counts[2]} "
        f"{url or _UNKNOWN} {via or _UNKNOWN} {_UNKNOWN if depth is None else counts[3]} "
        f"{media_type or _UNKNOWN} {digest or _UNKNOWN} {address or _UNKNOWN} {reason or _UNKNOWN}"
    )
    if remarks:
        said = [_field(each.replace(",", "%2C")) for each in remarks[:_REMARKS_MAX] if each]
        line += " " + ",".join(said) if said else ""
    return line.encode("ascii") + b"\n"


def parse_line(line: bytes) -> FetchLine:
    """Return the fetch of *line*, percent-encoded. Raises `ValueError`: comment, torn, foreign."""
    fields = line.rstrip(b"\n").decode("ascii").split(" ")
    if len(fields) not in (11, 12):
        raise ValueError(f"a line of the fetch log with {counted(len(fields), 'field')}")
    when, status, size, ms, url, via, depth, type_, digest, address, reason, *remarks = fields
    return FetchLine(
        parse_time(when.encode()), _parse_number(status), _parse_number(size) or 0,
        _parse_number(ms) or 0, _parse_text(url), _parse_text(via), _parse_number(depth),
        _parse_text(type_), _parse_text(digest), _parse_text(address), _parse_text(reason),
        tuple(remarks[0].split(",")) if remarks else (),
    )  # fmt: skip


def url_field(url: str) -> str:
    """Return *url* percent-encoded, and cut if too long."""
    return _escape(url)[:URL_MAX] or _UNKNOWN


def format_time(when: float) -> str:
    """Return *when*, in seconds since the epoch, as text."""
    thousandths = round(max(0.0, min(when, _LATEST)) * 1_000)
    return f"{_second(thousandths // 1_000)}.{thousandths % 1_000:03}Z"


def parse_time(text: bytes) -> float:
    """Return *text* of a line in seconds since the epoch. Raises `ValueError`."""
    if not _STAMP.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no time of the fetch log")
    return datetime.strptime(text.decode(), "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()


@lru_cache(256)  # many lines have the same second
def _second(when: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when))


def _escape(text: str) -> str:
    return "%2D" if text == _UNKNOWN else _UNSAFE.sub(_percent, text)


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _field(text: str) -> str:
    return _escape(text[:_FIELD_MAX])[:_FIELD_MAX]


def _parse_number(field: str) -> int | None:
    if field == _UNKNOWN:
        return None
    if not (field.isascii() and field.isdigit()):
        raise ValueError(f"{field[:40]!r} is no number of the fetch log")
    return int(field)


def _parse_text(field: str) -> str:
    if not field:
        raise ValueError("an empty field in the fetch log")
    return "" if field == _UNKNOWN else field


ACTIVE = "fetch.log"
LOG_FOLDER = "fetches"  # its name in a job's ``suite`` folder


def log_folder(folder: Path, chosen: object) -> Path:
    """The folder of the log of the job in *folder*; *chosen*: SUITE_FETCH_LOG as the job has it."""
    return Path(chosen) if isinstance(chosen, str) else folder / LOG_FOLDER
ZSTD_LEVEL = 3
ZST = ".zst"
NEW = ".new"

_BLOCK = 1 << 20
_NAME = re.compile(r"fetch-(\d{8}T\d{6}\.\d{3})Z-(\d{8}T\d{6}\.\d{3})Z(-\d+)?\.log(\.zst)?")

ReadError = zstd.ZstdError, EOFError, OSError
"""Raised by reading a damaged file."""


def times_in_name(path: Path) -> tuple[float, float] | None:
    """Return the times in the name of *path*, or None."""
    match = _NAME.fullmatch(path.name)
    try:
        return None if match is None else (_parse_name_time(match[1]), _parse_name_time(match[2]))
    except ValueError:  # no such day
        return None


def closed_files(folder: Path) -> list[Path]:
    """Return the closed files of *folder*, oldest first, each once."""
    found = {path for path in folder.glob("fetch-*") if times_in_name(path) is not None}
    whole = {p for p in found if p.suffix == ZST or p.with_name(p.name + ZST) not in found}
    return sorted(whole, key=lambda path: (times_in_name(path), path.name))


def uncompressed(folder: Path) -> list[Path]:
    """Return the closed files of *folder* that are not compressed, oldest first."""
    return sorted(path for path in folder.glob("fetch-*.log") if times_in_name(path) is not None)


def compress_file(path: Path, stop: Callable[[], bool] = lambda: False) -> None:
    """Replace *path* by a compressed file; one of them is whole at any time.

    *path* stays on `OSError`: an `InterruptedError` if *stop*, asked before each megabyte, is true.
    """
    with (
        replacing_file(path.with_name(path.name + ZST)) as new, path.open("rb") as source,
        zstd.ZstdFile(new, "wb", level=ZSTD_LEVEL) as packed,
    ):  # fmt: skip
        while block := source.read(_BLOCK):
            if stop():
                raise InterruptedError
            packed.write(block)
    path.unlink()


def remove_leftovers(folder: Path) -> None:
    for new in folder.glob(f"fetch-*{ZST}{NEW}"):
        new.unlink(missing_ok=True)
    for path in folder.glob(f"fetch-*.log{ZST}"):
        path.with_suffix("").unlink(missing_ok=True)


def open_log_file(path: Path) -> BufferedIOBase:
    """Open *path*, maybe compressed by now. Raises `OSError`."""
    if path.suffix == ZST:
        return zstd.ZstdFile(path, "rb")
    try:
        return path.open("rb")
    except FileNotFoundError:
        return open_log_file(path.with_name(path.name + ZST))


def line_blocks(file: BufferedIOBase) -> Iterator[bytes]:
    """Yield *file* in blocks of whole lines, without a torn last line."""
    rest = b""
    while block := file.read(_BLOCK):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:  # longer than any line: nothing of it is one
            rest = (rest + block)[-LINE_MAX:]


def _name_time(when: float) -> str:
    moment = datetime.fromtimestamp(max(0.0, when), UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1_000:03}Z"


def _parse_name_time(text: str) -> float:
    return datetime.strptime(text, "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC).timestamp()


LINES_KEPT_MAX = 8 << 20  # bytes of lines kept while the disk takes none
_CLOSE_TIME = 2.0  # most seconds that `FetchLog.close` waits for the thread


class FetchLog:
    """The fetch log in *folder*, for one writer.

    *size*: bytes of a file. *most*: bytes of all files, 0: no limit. *lines*, *written*, *lost*:
    lines, bytes and dropped lines; *error*: the disk's last error, None since a success.

    Raises `SettingsError`: the folder is unusable, or another writer has it.
    """

    def __init__(
        self, folder: Path, size: int = 64 << 20, most: int = 0, room: int = LINES_KEPT_MAX
    ) -> None:
        self.folder = folder
        self.lines = self.written = self.lost = 0
        self.error: OSError | None = None
        self.size = size
        self.most = most
        self._room = room
        self._lines: list[bytes] = []
        self._waiting = 0  # bytes in them
        self._rest = b""  # not written yet: the disk was full
        self._missing = 0  # lost lines for the next comment
        self._first = self._last = 0.0
        self._file: int | None = None
        self._at = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="fetch log")
        self._busy: Future[None] | None = None
        self._stopping = threading.Event()
        try:
            self._lock = lock_folder(folder)
            try:
                remove_leftovers(folder)
                self._open()
            except BaseException:
                os.close(self._lock)
                raise
        except JobInUseError:
            raise SettingsError(
                f"the fetch log in {str(folder)!r} is being written by another crawl: set "
                "SUITE_FETCH_LOG to a folder of this crawl's own, or to False"
            ) from None
        except (StoreWriteError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise SettingsError(
                f"the fetch log in {str(folder)!r} cannot be written: {why}"
            ) from error
        self.tidy()

    def add(self, line: bytes, when: float) -> None:
        """Add a line of a fetch that ended at *when*, for the next `flush`."""
        if self._waiting + len(self._rest) >= self._room:
            self.lost += 1
            self._missing += 1
            return
        self._reach(when, when)
        self._lines.append(line)
        self._waiting += len(line)
        self.lines += 1

    def flush(self) -> None:
        """Write the lines; unwritable ones are kept, and *error* is set."""
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
        """Write the lines for the last time; unwritable ones are lost."""
        self.flush()
        self.lost += sum(not line.startswith(b"#") for line in self._rest.splitlines())
        # What is just being compressed stays as it is, for whoever opens the log next.
        self._stopping.set()
        self._worker.shutdown(wait=False, cancel_futures=True)
        if self._busy is not None:
            wait([self._busy], _CLOSE_TIME)
        if self._file is not None:
            os.close(self._file)
            self._file = None
        os.close(self._lock)

    def _open(self) -> None:
        path = self.folder / ACTIVE
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._at = _cut_torn_line(file)
            first, last = _times_in_file(file, self._at)
        except BaseException:
            os.close(file)
            raise
        self._file = file
        self._reach(first, last)
        if not self._at:
            self._rest = HEAD + self._rest

    def _write(self) -> None:
        # Raises OSError; the unwritten bytes stay in the rest.
        while self._rest and self._file is not None:
            count = os.pwrite(self._file, self._rest, self._at)
            self._at += count
            self.written += count
            self._rest = self._rest[count:]

    def _rotate(self) -> None:
        if self._file is None:
            return
        name = f"fetch-{_name_time(self._first)}-{_name_time(self._last)}"
        number, path = 1, self.folder / f"{name}.log"
        while path.exists() or path.with_name(path.name + ZST).exists():
            number += 1
            path = self.folder / f"{name}-{number}.log"
        os.rename(self.folder / ACTIVE, path)
        os.close(self._file)
        self._file = None
        self._first = self._last = 0.0
        self._open()
        self.tidy()

    def _reach(self, first: float, last: float) -> None:
        if first:
            self._first = min(self._first or first, first)
            self._last = max(self._last, last)

    def tidy(self) -> None:
        """Compress closed files and remove the oldest, in a thread."""
        # The thread lists the files: there may be thousands.
        if self._busy is None or self._busy.done():
            self._busy = self._worker.submit(self._tidy)

    def _tidy(self) -> None:
        for path in uncompressed(self.folder):
            if self._stopping.is_set():
                return
            with contextlib.suppress(OSError):  # no room: it stays as it is
                compress_file(path, self._stopping.is_set)
        if not self.most:
            return
        with contextlib.suppress(OSError):  # the next rotation tries again
            # The file being written may come to its full size before the next look.
            room, removed = max(0, self.most - self.size), []
            sizes = {path: path.stat().st_size for path in closed_files(self.folder)}
            total = sum(sizes.values())
            for path, size in sizes.items():
                if total <= room:
                    break
                path.unlink()
                removed.append(path)
                total -= size
            if removed:
                logger.info(
                    "fetch log: the oldest files were removed (SUITE_FETCH_LOG_MAX), %d of them, "
                    "to %s", len(removed), removed[-1].name,
                )  # fmt: skip


def _cut_torn_line(file: int) -> int:
    size = os.fstat(file).st_size
    tail_at = max(0, size - 2 * LINE_MAX)
    tail = os.pread(file, size - tail_at, tail_at)
    end = tail.rfind(b"\n") + 1
    if not end and tail_at:  # no line is so long: whatever this is, it is not ours to cut
        return size + os.pwrite(file, b"\n", size)
    if tail_at + end != size:
        os.ftruncate(file, tail_at + end)
    return tail_at + end


def _times_in_file(file: int, size: int) -> tuple[float, float]:
    head = os.pread(file, 4 * LINE_MAX, 0)[:size]
    tail = os.pread(file, min(size, 4 * LINE_MAX), max(0, size - 4 * LINE_MAX))
    found = []
    for line in (*head.splitlines(), *tail.splitlines()):
        with contextlib.suppress(ValueError):  # a comment, or the end of a line
            found.append(parse_time(line.partition(b" ")[0]))
    return (min(found), max(found)) if found else (0.0, 0.0)


_URL, _ADDRESS = 4, 9


@dataclass(frozen=True, slots=True)
class FetchFilter:
    """Accepts lines with *needle* (lower case) whose fields *matches* accepts."""

    needle: bytes
    matches: Callable[[list[bytes]], bool]

    @classmethod
    def parse(cls, text: str) -> FetchFilter:
        """Return the filter for a URL, a host, ``.domain`` with all below, or an address.

        A URL matches as given and in normal form. Raises `ValueError`.
        """
        is_url, below = "://" in text, text.startswith(".")
        if is_url:
            host = host_in_field(url_field(text).encode())
        else:
            normal = normalize(f"http://{text.strip('.')}/")
            host = (text.strip(".").lower() if normal is None else normal.split("/")[2]).encode()
        if not host.strip():
            raise ValueError(f"{text[:80]!r} names no host, .domain, address or URL")
        if is_url:
            spellings = {url_field(each).encode() for each in (text, normalize(text)) if each}
            return cls(host, lambda fields: fields[_URL] in spellings)
        if below:
            return cls(host, lambda fields: _is_below(host_in_field(fields[_URL]), host))
        try:
            address = str(ipaddress.ip_address(text.strip("[]"))).encode()
        except ValueError:
            return cls(host, lambda fields: host_in_field(fields[_URL]) == host)
        return cls(
            address, lambda f: address in (f[_ADDRESS].lower(), host_in_field(f[_URL]).strip(b"[]"))
        )


class FetchLogReader:
    """Reads the fetch log in *folder*; *damaged* lists files not read whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[Path] = []

    def lines(self, target: FetchFilter | None = None, since: float = 0.0) -> Iterator[bytes]:
        """Yield the lines of *target* (None: all), oldest first, from *since* on."""
        earliest = format_time(since).encode() if since > 0 else b""
        for block in self._blocks(since):
            for line in _lines_with(block, b"" if target is None else target.needle):
                fields = line.split(b" ")
                if fields[0] < earliest or len(fields) < 11:
                    continue
                if target is None or target.matches([*fields[:-1], fields[-1].rstrip(b"\n")]):
                    yield line

    def _blocks(self, since: float) -> Iterator[bytes]:
        active = self.folder / ACTIVE
        try:
            # Opened before the others are listed: it may get its final name in between.
            last = active.open("rb")
        except FileNotFoundError:
            last = None
        try:
            inode = None if last is None else os.fstat(last.fileno()).st_ino
            for path in closed_files(self.folder):
                reach = times_in_name(path)
                if reach is None or reach[1] + 0.001 < since:
                    continue
                with contextlib.suppress(OSError):  # it is compressed by now
                    if path.stat().st_ino == inode:
                        continue
                try:
                    with open_log_file(path) as file:
                        yield from line_blocks(file)
                except ReadError:
                    self.damaged.append(path)
            if last is not None:
                yield from line_blocks(last)
        finally:
            if last is not None:
                last.close()


def host_in_field(url: bytes) -> bytes:
    """Return the host in the URL field *url*: lower case, no trailing dot."""
    rest = url.partition(b"://")[2]
    for end in (b"/", b"?", b"#"):
        rest = rest.partition(end)[0]
    rest = rest.rpartition(b"@")[2]
    name = rest.partition(b"]")[0] + b"]" if rest.startswith(b"[") else rest.partition(b":")[0]
    return name.lower().rstrip(b".")


def _is_below(host: bytes, domain: bytes) -> bool:
    return host == domain or host.endswith(b"." + domain)


def _lines_with(block: bytes, needle: bytes) -> Iterator[bytes]:
    lower = block.lower()
    at = lower.find(needle)
    while 0 <= at < len(block):
        begin = lower.rfind(b"\n", 0, at) + 1
        end = lower.find(b"\n", at) + 1 or len(block)
        if block[begin : begin + 1] != b"#":
            yield block[begin:end]
        at = lower.find(needle, end)


def parsed_lines(lines: Iterator[bytes]) -> Iterator[dict[str, object]]:
    """Yield *lines* as values for JSON, without unreadable ones."""
    for line in lines:
        try:
            fetch = parse_line(line)
        except ValueError:
            continue
        yield fetch._asdict() | {"time": format_time(fetch.time), "remarks": list(fetch.remarks)}
