"""Lines of CDXJ indexes, as pywb and cdxj-indexer write them, and sorted files of lines.

In a grouped pack the record is *size* bytes from *start* on, decompressed. *metadata* locates the
page's links: start and size, or in other packs offset and length. Timestamps: 14 digits, UTC.
"""

from __future__ import annotations

import heapq
import json
import mmap
import os
import re
import tempfile
from calendar import monthrange
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes, urlsplit

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs.containers import RecordPlace
from scrapy_spider_suite.packs.http_records import split_message, status_and_type
from scrapy_spider_suite.packs.warc import FIELDS, Capture, Record, clean_url, format_capture
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.text import media_type

_STEP = 1 << 20


class SortedLines:
    """The sorted lines of *path*, which may be replaced, not changed. *kept*: it stays open."""

    def __init__(self, path: Path, *, kept: bool = True) -> None:
        self.path = path
        self._kept: mmap.mmap | bytes | None = None
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            self.identity = file_identity(found)
            self._size = found.st_size
            if kept:
                self._kept = _mapped(file)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        data, start = self._data(), 0
        while (end := data.find(b"\n", start)) >= 0:
            yield data[start:end]
            start = end + 1

    @property
    def torn(self) -> bool:
        data = self._data()
        return data[-1:] not in (b"", b"\n")

    def first_and_last(self) -> tuple[bytes, bytes]:
        """The first and the last line of a file that is not empty, nor torn."""
        data = self._data()
        return data[: data.find(b"\n")], data[data.rfind(b"\n", 0, -1) + 1 : -1]

    def find(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the lines that begin with *prefix*, in order."""
        data, size = self._data(), len(prefix)
        low, high = 0, len(data)
        while low < high:
            middle = (low + high) // 2
            start = max(data.rfind(b"\n", low, middle) + 1, low)
            if data[start : start + size] < prefix:
                end = data.find(b"\n", middle)
                low = end + 1 if end >= 0 else high
            else:
                high = start
        while data[low : low + size] == prefix and (end := data.find(b"\n", low)) >= 0:
            yield data[low:end]
            low = end + 1

    def _data(self) -> mmap.mmap | bytes:
        if self._kept is not None:
            return self._kept
        with self.path.open("rb") as file:
            return _mapped(file)


def _mapped(file: BinaryIO) -> mmap.mmap | bytes:
    size = os.fstat(file.fileno()).st_size
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""


class GrowingLines:
    """The unsorted lines of a growing file, whose end may be cut off again. Raises `OSError`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            yield from (line[:-1] for line in file if line.endswith(b"\n"))

    def find(self, prefix: bytes) -> Iterator[bytes]:
        wanted = b"\n" + prefix
        with self.path.open("rb") as file:
            rest = b"\n"
            while step := file.read(_STEP):
                data = rest + step
                last = data.rfind(b"\n")
                place = data.find(wanted, 0, last)
                while place >= 0:
                    end = data.find(b"\n", place + 1)
                    yield data[place + 1 : end]
                    place = data.find(wanted, end, last)
                rest = data[last:]

    def last(self) -> bytes:
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _STEP))
            lines = file.read().split(b"\n")
            return lines[-2] if len(lines) > 1 else b""


def file_identity(found: os.stat_result) -> tuple[int, int, int]:
    """Values that differ when the file was replaced or changed."""
    return found.st_ino, found.st_mtime_ns, found.st_size


CHUNK: Final = 4 << 20  # bytes sorted at once: no other thread runs meanwhile


def sort_lines(source: Path, target: Path) -> None:
    """Replace *target* by the sorted complete lines of *source*, synced. Raises `OSError`."""
    with ExitStack() as opened:
        file = opened.enter_context(source.open("rb"))
        runs: list[Iterable[bytes]] = []
        while lines := file.readlines(CHUNK):
            lines = sorted(line for line in lines if line.endswith(b"\n"))
            if len(runs) or file.peek(1):
                run = opened.enter_context(tempfile.TemporaryFile(dir=target.parent))
                run.writelines(lines)
                run.seek(0)
                runs.append(run)
            else:
                runs.append(lines)
        write_lines(heapq.merge(*runs), target)


def write_lines(lines: Iterable[bytes], target: Path) -> None:
    """Replace *target* by *lines*, synced. Raises `OSError`."""
    with files.replacing_file(target) as new, new.open("wb") as file:
        file.writelines(lines)


_URL = re.compile(r"(?i)(https?|ftp)://([^/?#]*)([^?#]*)(?:\?([^#]*))?")
_WWW = re.compile(r"^www\d*\.")
_PORTS: Final = {"http": ":80", "https": ":443", "ftp": ":21"}
# The ids of sessions that archives leave out: of ASP.NET in a path, and parameters.
_PATH_SESSION = re.compile(r"/\((?:[a-z]\([0-9a-z]{24}\)|[0-9a-z]{24})+\)(?=/.*\.aspx)")
_QUERY_SESSION = re.compile(r"(?:jsessionid|phpsessid|sid)=[0-9a-z]{32}"
                            r"|aspsessionid[a-z]{8}=[a-z]{24}|(?:cfid|cftoken)=.+")  # fmt: skip


def sort_key(url: str) -> str:
    """Return the SURT of *url*, ``com,example)/path?a=1&b=2``, as the package ``surt`` does.
    Several URLs may share a key; a URL of another scheme is its own key.
    """
    match = _URL.match(url)
    if match is None:
        return url.replace(" ", "%20") or "-"
    scheme, netloc, path, query = match.groups()
    path = _PATH_SESSION.sub("", _steps(_spell(path or "/")).lower())
    key = f"{_host_key(scheme, netloc)}){path.removesuffix('/') or '/'}"
    if query:
        pairs = _spell(query).lower().split("&")
        kept = [pair for pair in pairs if not _QUERY_SESSION.fullmatch(pair)]
        query = "&".join(sorted(kept, key=lambda pair: pair.partition("=")))
    return f"{key}?{query}" if query else key


@lru_cache(maxsize=1024)
def _host_key(scheme: str, netloc: str) -> str:
    host = netloc.rpartition("@")[2].lower().removesuffix(_PORTS[scheme.lower()])
    if host.startswith("["):
        return host[1:].replace("]", "", 1)
    name, colon, port = host.partition(":")
    name = _WWW.sub("", name.strip("."), count=1)
    return ",".join(reversed(name.split("."))) + colon + port


def _steps(path: str) -> str:
    if "/." not in path and "//" not in path:
        return path
    out: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del out[-1:]
        elif part not in ("", "."):
            out.append(part)
    tail = "/" if out and path.endswith(("/", "/.", "/..")) else ""
    return f"/{'/'.join(out)}{tail}"


def _spell(text: str) -> str:
    if "%" not in text and text.isascii() and text.isprintable() and " " not in text:
        return text
    data = text.encode("utf-8", "replace")
    while (plain := unquote_to_bytes(data)) != data:
        data = plain
    return "".join(chr(byte) if 0x20 < byte < 0x7F and byte not in b"#%" else f"%{byte:02X}"
                   for byte in data)  # fmt: skip


REVISIT: Final = "warc/revisit"
PAGE_KINDS: Final = frozenset({"response", "revisit", "resource"})
_LATER: Final = frozenset({408, 425, 429})
"""RFC 9110, 8470, 6585: the server has no time; the status says nothing of the page."""

Located: TypeAlias = tuple[Record, RecordPlace]


class IndexEntry(NamedTuple):
    """A page in an index. *stamp*: 14 digits, UTC. *status*: 0 for none."""

    key: str
    stamp: str
    url: str
    mime: str
    status: int
    digest: str
    filename: str
    place: RecordPlace
    metadata: RecordPlace | None = None

    @property
    def time(self) -> datetime:
        """Time of the fetch, to the second, UTC."""
        return datetime.strptime(self.stamp, "%Y%m%d%H%M%S").replace(tzinfo=UTC)

    @property
    def is_uninformative(self) -> bool:
        """Whether it says nothing of a page: robots.txt, or a temporary answer (5xx, 429)."""
        return self.status >= 500 or self.status in _LATER or is_robots(self.url)

    def line(self) -> bytes:
        """Return the line without its end; its object is spelt as by `json.dumps`."""
        place, metadata = self.place, self.metadata
        mime = f'"mime": {quoted(self.mime)}, ' if self.mime else ""
        status = f'"status": "{self.status}", ' if self.status else ""
        grouped = place.start or (metadata and metadata.offset == place.offset)
        rest = f', "start": {place.start}, "size": {place.size}' if grouped else ""
        if metadata is not None:
            first, second = metadata[2:] if grouped else metadata[:2]
            rest = f'{rest}, "metadata": [{first}, {second}]'
        return (
            f'{self.key} {self.stamp} {{"url": {quoted(self.url)}, {mime}{status}"digest": '
            f'{quoted(self.digest)}, "length": "{place.length}", "offset": "{place.offset}", '
            f'"filename": {quoted(self.filename)}{rest}}}'
        ).encode()


def parse_entry(line: bytes) -> IndexEntry:
    """Parse a line, also of another tool's index. Raises `PackDamagedError`."""
    try:
        key, stamp, text = line.decode().rstrip("\r\n").split(" ", 2)
        fields = json.loads(text)
        place = RecordPlace(int(fields["offset"]), int(fields["length"]),
                            int(fields.get("start", 0)), int(fields.get("size", 0)))  # fmt: skip
        metadata = None
        if "metadata" in fields:
            first, second = map(int, fields["metadata"])
            grouped = "size" in fields
            metadata = (place._replace(start=first, size=second) if grouped
                        else RecordPlace(first, second, 0, 0))  # fmt: skip
        status = str(fields.get("status", ""))
        entry = IndexEntry(key, stamp, str(fields["url"]), str(fields.get("mime", "")),
                      int(status) if status.isdigit() else 0, str(fields.get("digest", "")),
                      str(fields["filename"]), place, metadata)  # fmt: skip
        datetime.strptime(stamp, "%Y%m%d%H%M%S")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PackDamagedError(f"not a line of an index: {line[:80]!r}") from error
    if min(entry.place) < 0 or (metadata is not None and min(metadata) < 0):
        raise PackDamagedError(f"an index leads nowhere: {line[:80]!r}")
    return entry


def line_key(url: str) -> str:
    return clean_url(sort_key(url)) or "-"


def is_same_capture(record: Record, bundle: Sequence[Located]) -> bool:
    """Whether *record* belongs to the capture of the records before it."""
    ids = {other.id for other, _ in bundle}
    return any(tie in ids for tie in record.all("WARC-Concurrent-To"))


class PageEntry(NamedTuple):
    """An `IndexEntry` without a place. *page*, *metadata*: numbers in the bundle, or -1."""

    key: str
    stamp: str
    url: str
    mime: str
    status: int
    digest: str
    page: int
    metadata: int

    def at(self, filename: str, places: Sequence[RecordPlace]) -> IndexEntry:
        """Return the entry; *places*: of the bundle's records."""
        metadata = None if self.metadata < 0 else places[self.metadata]
        return IndexEntry(*self[:6], filename, places[self.page], metadata)


class RecordBundle(NamedTuple):
    """Records to write side by side, as bytes, and the entries of their pages."""

    data: list[bytes]
    entries: list[PageEntry]


def bundle_captures(captures: Iterable[Capture], ids: Iterator[str]) -> RecordBundle:
    """Return the records of *captures* with *ids* of `record_ids`. Raises as `format_capture`."""
    data: list[bytes] = []
    entries = []
    for capture in captures:
        made = format_capture(capture, ids)
        url, date, number = made.url.strip("<>"), made.date, len(data)
        status, mime = status_and_type(made.head)
        data += made.records
        stamp = f"{date[:4]}{date[5:7]}{date[8:10]}{date[11:13]}{date[14:16]}{date[17:19]}"
        kind = REVISIT if capture.original else media_type(mime)[:200]
        metadata = len(data) - 1 if made.has_metadata else -1
        entries.append(
            PageEntry(line_key(url), stamp, url, kind, status, made.digest, number, metadata)
        )
    return RecordBundle(data, entries)


def bundle_records(records: Sequence[Record]) -> RecordBundle:
    return RecordBundle([record.to_bytes() for record in records], page_entries(records))


def page_entries(records: Sequence[Record]) -> list[PageEntry]:
    metadata = {
        tie: number
        for number, record in enumerate(records)
        if record.kind == "metadata" and record.get("Content-Type") == FIELDS
        for tie in record.all("WARC-Concurrent-To")
    }
    return [
        _page_entry(record, number, metadata.get(record.id, -1))
        for number, record in enumerate(records)
        if record.kind in PAGE_KINDS
    ]


def _page_entry(record: Record, number: int, metadata: int) -> PageEntry:
    mime, status = record.get("Content-Type"), 0
    if mime.startswith("application/http"):
        status, mime = status_and_type(split_message(record.block)[0])
    if record.kind == "revisit":
        mime = REVISIT
    time, url, digest = record.time, record.url, record.get("WARC-Payload-Digest")
    stamp = f"{time:%Y%m%d%H%M%S}" if time and time.year > 999 else "19700101000000"
    kind = media_type(mime)[:200]
    return PageEntry(line_key(url), stamp, url, kind, status, digest, number, metadata)


def entries_for(records: Sequence[Located], filename: str) -> list[IndexEntry]:
    places = [place for _, place in records]
    return [each.at(filename, places) for each in page_entries([record for record, _ in records])]


def is_robots(url: str) -> bool:
    with suppress(ValueError):
        return "/robots.txt" in url and urlsplit(url).path == "/robots.txt"
    return False


def timestamp(text: str, *, last: bool = False) -> str:
    """Return the 14 digits of a time: ``2026``, ``2026-11-22``, ``2026-11-22T10:15:00``. Missing
    parts are the first moment, or the *last* one. Raises ValueError.
    """
    digits = re.sub(r"(\.\d+)?(Z|\+00:00)$|[-:T ]", "", text.strip())
    if not re.fullmatch(r"\d{4}(\d\d){0,5}", digits):
        raise ValueError(f"{text!r}: expected a time such as 2026-11-22 or 2026-11-22T10:15 (UTC)")
    rest = "1231235959" if last else "0101000000"
    full = digits + rest[len(digits) - 4 :]
    try:
        if last and len(digits) == 6:
            full = f"{digits}{monthrange(int(digits[:4]), int(digits[4:]))[1]}235959"
        datetime.strptime(full, "%Y%m%d%H%M%S")
    except ValueError:
        raise ValueError(f"{text!r}: there is no such time") from None
    return full


def timestamp_at(time: datetime | str) -> str:
    """Return *time* in 14 digits, UTC; of a text its last moment. Raises ValueError."""
    if isinstance(time, str):
        return timestamp(time, last=True)
    return f"{time if time.tzinfo is None else time.astimezone(UTC):%Y%m%d%H%M%S}"
