"""A pack on disk: its name, its groups, the index beside it, its upload mark.

A group is in a file completely or not at all. An open file ends with ``.open`` and is locked
(flock). An uploaded pack has a mark ``NAME.uploaded``; mark and index outlive it.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from scrapy_spider_suite.errors import PackDamagedError, PackError
from scrapy_spider_suite.packs.cdxj import RecordBundle, sort_lines
from scrapy_spider_suite.packs.containers import (
    RECORD_MAX,
    Container,
    GzipContainer,
    LzopContainer,
    RecordPlace,
    ZstdContainer,
)
from scrapy_spider_suite.packs.warc import END, Record, parse_record, record_extent
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.files import lock_file, write_all

logger = logging.getLogger(__name__)

FORMATS: Final[dict[str, type[Container]]] = {
    "lzo": LzopContainer, "gz": GzipContainer, "zst": ZstdContainer,
}  # fmt: skip
"""The values of ``SUITE_PACKS_FORMAT``."""

NAME: Final = rf".+\.warc\.({'|'.join(FORMATS)})"  # a pattern for the names of packs

OPEN: Final = ".open"

_NAME = re.compile(rf"{NAME}(\.open)?")


def make_container(form: str) -> Container:
    """Return the format of that name. Raises `PackError`."""
    if form not in FORMATS:
        raise PackError(f"no format for packs: {form!r}; there are {', '.join(FORMATS)}")
    return FORMATS[form]()


def format_of(path: Path) -> str:
    """Return the format's name by the file's name. Raises `PackError`: no pack."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        names = ", ".join(f"*.warc.{form}" for form in FORMATS)
        raise PackError(f"not a pack ({names}): {path}")
    return match[1]


def is_pack(path: Path) -> bool:
    """Whether *path* has the name of a pack, open ones included."""
    return _NAME.fullmatch(path.name) is not None


def closed_packs(folder: Path) -> list[Path]:
    """Return the closed packs of *folder*, by name. Raises `OSError`."""
    return sorted(path for path in folder.iterdir() if is_pack(path) and path.suffix != OPEN)


def pack_name(
    name: str, time: float, serial: int, agent: str, form: str, kind: str = "warc"
) -> str:
    """Return ``NAME-TIME-SERIAL-AGENT.KIND.FORM``. *time*: seconds since the epoch."""
    stamp = f"{datetime.fromtimestamp(time, UTC):%Y%m%d%H%M%S}"
    return f"{plain_name(name)}-{stamp}-{serial:05d}-{plain_name(agent)}.{kind}.{form}"


def closed_path(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(OPEN))


def plain_name(name: str) -> str:
    """Return *name* in letters, digits, ``_``, ``.``: hyphens separate the parts of a name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip(".")[:80] or "crawl"


class GroupFile:
    """A file written by groups. *path*: its closed name. *power*: sync each group."""

    _late = False

    def __init__(self, path: Path, time: float, start: bytes = b"", *, power: bool = False) -> None:
        self.path = path
        self.time = time
        self.open_path = path.with_name(path.name + OPEN)
        self._power = power
        self._ended = self.named = False
        self._file: BinaryIO = self.open_path.open("xb", buffering=0)
        try:
            lock_file(self._file)
            write_all(self._file, start)
            if power:
                files.sync_path(path.parent)
        except OSError:
            self._file.close()
            self.open_path.unlink(missing_ok=True)
            raise
        self.size = len(start)

    def add(self, parts: Iterable[bytes]) -> None:
        """Append *parts* as one group, or nothing (`OSError`; see `broken`)."""
        size = self.size
        try:
            for part in parts:
                write_all(self._file, part)
                size += len(part)
            if self._power:
                os.fsync(self._file.fileno())
        except BaseException:
            cut(self._file, self.size)
            raise
        if not os.fstat(self._file.fileno()).st_nlink:
            self._file.close()
            raise OSError(errno.ENOENT, f"{self.open_path.name} was deleted while it was written")
        self.size = size

    @property
    def broken(self) -> bool:
        """Whether it was deleted, or a failed write could not be undone."""
        return self._file.closed

    def end(self, mark: bytes = b"") -> None:
        """Write the end *mark* and sync. Idempotent, also after a failure. Raises `OSError`."""
        if self._ended:
            return
        try:
            write_all(self._file, mark)
            os.fsync(self._file.fileno())
        except OSError:
            cut(self._file, self.size)
            raise
        self._ended = True

    def close(self) -> None:
        """Give it its closed name. Idempotent. Raises `OSError`."""
        self.end()
        self.name()
        self.abandon()

    def close_or_abandon(self) -> bool:
        """Return whether it was closed, or abandoned: gone, broken. Raises `OSError`: try again."""
        try:
            self.close()
            return True
        except OSError as error:
            if isinstance(error, FileNotFoundError) or self.broken:
                logger.error("%s is left as it is, if it is there: %s", self.open_path, error)
                self.abandon()
                return False
            if not self._late:
                self._late = True
                logger.warning("Cannot close %s yet: %s", self.open_path, error)
            raise

    def name(self) -> None:
        """Give the file its closed name. Idempotent. Raises `OSError`."""
        if not self.named:
            os.rename(self.open_path, self.path)
            self.named = True
        files.sync_path(self.path.parent)

    def abandon(self) -> None:
        self._file.close()

    def discard(self) -> None:
        self.abandon()
        self.open_path.unlink(missing_ok=True)


def cut(file: BinaryIO, size: int) -> None:
    """Cut *file* off at *size*; if that fails, close it."""
    try:
        file.truncate(size)
        file.seek(size)
    except OSError:
        file.close()


INDEX = ".cdxj"


def index_path(pack: Path) -> Path:
    """Return the path of the index of *pack*: ``.cdxj.open`` while it is written."""
    if pack.name.endswith(OPEN):
        return pack.with_name(f"{closed_path(pack).name}{INDEX}{OPEN}")
    return pack.with_name(f"{pack.name}{INDEX}")


class PackFile(GroupFile):
    """An open pack and its index. *power*: `append` syncs."""

    def __init__(self, path: Path, form: Container, time: float, *, power: bool = False) -> None:
        super().__init__(
            path, time, form.begin(path.name.rpartition(".")[0], int(time)), power=power
        )
        self._form = form
        self._index_whole = True
        try:
            self._index: BinaryIO = index_path(self.open_path).open("wb", buffering=0)
        except OSError:
            super().abandon()
            self.open_path.unlink(missing_ok=True)
            raise

    def append(self, bundles: Sequence[RecordBundle]) -> list[RecordPlace]:
        """Append *bundles* in one group; return where each one begins. Raises as `add`."""
        data = list(chain.from_iterable([bundle.data for bundle in bundles]))
        group, places = self._form.encode(data, self.size)
        self.add((group,))
        firsts, lines, following = [], [], iter(places)
        for bundle in bundles:
            own = list(islice(following, len(bundle.data)))
            firsts.append(own[0])
            lines += [entry.at(self.path.name, own).line() for entry in bundle.entries]
        self._write_lines(lines)
        return firsts

    def _write_lines(self, lines: Iterable[bytes]) -> None:
        if not self._index_whole:
            return
        size = os.fstat(self._index.fileno()).st_size
        try:
            write_all(self._index, b"".join([line + b"\n" for line in lines]))
        except OSError:
            self._index_whole = False
            cut(self._index, size)

    def close(self) -> None:
        """Write end mark and sorted index; name the pack. Idempotent. Raises `OSError`."""
        self.end(self._form.end())
        notes, index = index_path(self.open_path), index_path(self.path)
        if self._index_whole and not self.named:
            try:
                sort_lines(notes, index)
            except OSError:  # a pack without an index is whole: `index.build` makes one
                index.unlink(missing_ok=True)
        self.name()
        notes.unlink(missing_ok=True)
        self.abandon()

    def abandon(self) -> None:
        super().abandon()
        self._index.close()

    def discard(self) -> None:
        index_path(self.open_path).unlink(missing_ok=True)
        super().discard()


MARK: Final = ".uploaded"
TEXT_INDEX: Final = "search"  # folder beside packs that holds the index of their texts


class Uploaded(msgspec.Struct, frozen=True):
    """A checked upload: *size* in bytes, *md5* in hexadecimal, *time* as in WARC records."""

    url: str
    size: int = 0
    md5: str = ""  # "" before the upload is finished
    time: str = ""


def find_upload(pack: Path) -> Uploaded | None:
    mark = _read_mark(pack)
    return mark if mark.md5 else None


def upload_url(pack: Path) -> str:
    """Return the URL where *pack* owns a file, complete or not; "" if nowhere."""
    return _read_mark(pack).url


def _read_mark(pack: Path) -> Uploaded:
    try:
        return msgspec.json.decode(pack.with_name(pack.name + MARK).read_bytes(), type=Uploaded)
    except (FileNotFoundError, ValueError, RecursionError):  # it is uploaded once more
        return Uploaded("")


def mark_uploaded(pack: Path, done: Uploaded) -> None:
    """Note the upload; without *md5*, that the file at its URL is the pack's. Raises `OSError`."""
    files.replace_file(pack.with_name(pack.name + MARK), msgspec.json.encode(done) + b"\n")


def packs_to_upload(
    folder: Path, agent: str = "", *, keep: bool = True, target: str = ""
) -> list[Path]:
    """Return the closed packs of *folder*, or of an *agent*, not yet at *target* (URL of a folder,
    "" for any). Without *keep*, uploaded packs that are still here count, too. Raises `OSError`.
    """
    ending = f"-{plain_name(agent)}.warc." if agent else ".warc."
    left = []
    for path in closed_packs(folder) if folder.is_dir() else []:
        done = find_upload(path) if keep and ending in path.name else None
        there = "" if done is None else done.url.removesuffix(f"/{path.name}")
        if ending in path.name and (done is None or target not in ("", there)):
            left.append(path)
    return left


def packs_away(folder: Path) -> Iterator[tuple[Path, Uploaded]]:
    """Yield the packs that were uploaded and are not here. Raises `OSError`."""
    for path in sorted(folder.glob(f"*{MARK}")):
        pack = path.with_name(path.name.removesuffix(MARK))
        done = find_upload(pack)
        if done is not None and is_pack(pack) and not pack.exists():
            yield pack, done


def packs_missing(folder: Path) -> Iterator[Path]:
    """Yield packs that are not here nor uploaded, but indexed. Raises `OSError`."""
    for index in sorted(folder.glob(f"*{INDEX}")):
        pack = index.with_name(index.name.removesuffix(INDEX))
        # Looked at in this order: it may be closed, or uploaded and deleted, meanwhile.
        names = (pack, pack.with_name(pack.name + OPEN), pack)
        if is_pack(pack) and not any(map(Path.exists, names)) and find_upload(pack) is None:
            yield pack


def open_pack(path: Path) -> BinaryIO:
    """Open *path* for reading, whether it is open or closed by now. Raises `OSError`."""
    for name in (path, path.with_name(path.name + OPEN)):
        with suppress(FileNotFoundError):
            return name.open("rb")
    return path.open("rb")  # it was closed in between


def read_records(
    path: Path, place: RecordPlace, other: RecordPlace | None = None, limit: int = RECORD_MAX
) -> tuple[Record, Record | None]:
    """Return the record at *place* of the pack *path* (without ``.open``), and that at *other*.

    *limit*: decompressed bytes. Raises `PackDamagedError` (no complete record there), `PackError`
    (no pack), `OSError`.
    """
    with open_pack(path) as file:
        data = read_group(path, file, place, limit)
        record = record_at(data, place)
        if other is None:
            return record, None
        if other[:2] != place[:2]:
            data = read_group(path, file, other, limit)
        return record, record_at(data, other)


def record_at(data: bytes, place: RecordPlace) -> Record:
    """Return the record at *place* of the decompressed *data*. Raises `PackDamagedError`."""
    record, end = parse_record(data, place.start)
    if place.size and end - place.start != place.size:
        raise PackDamagedError("the record is not of the size that the index says")
    return record


def read_group(path: Path, file: BinaryIO, place: RecordPlace, limit: int) -> bytes:
    """Return the decompressed group at *place* of *file*. Raises as `read_records`."""
    if place.length > limit:
        raise PackDamagedError(f"a place of {place.length} bytes is none in a pack")
    file.seek(place.offset)
    data = file.read(place.length)
    if len(data) < place.length:
        raise PackDamagedError("the pack ends before the record does")
    return _container(format_of(path)).decode(data, limit)


# To decode one takes no state of it; making one each time takes as long as reading.
_container = cache(make_container)


class RecordGroup(NamedTuple):
    """The records in the *length* bytes at *offset*; *data* is decompressed."""

    offset: int
    length: int
    data: bytes
    places: list[RecordPlace]

    def records(self) -> Iterator[tuple[Record, RecordPlace]]:
        """Yield each record and its place. Raises `PackDamagedError`."""
        for place in self.places:
            yield parse_record(self.data, place.start)[0], place


class Damage(NamedTuple):
    """Unreadable bytes. *torn*: at the end of the file. *length* 0: no end mark."""

    offset: int
    length: int
    why: str
    torn: bool


def scan(path: Path, limit: int = RECORD_MAX) -> Iterator[RecordGroup | Damage]:
    """Yield groups and damage, of open packs a torn end. Raises `PackError`, `OSError`."""
    form = make_container(format_of(path))
    with path.open("rb") as file:
        yield from scan_from(form, file, first_group_offset(form, file), limit)


def first_group_offset(form: Container, file: BinaryIO) -> int:
    """Return where the first group begins; 0 if the file's header is damaged."""
    try:
        return form.start(file)
    except PackDamagedError:
        return 0


def scan_from(
    form: Container, file: BinaryIO, offset: int, limit: int = RECORD_MAX
) -> Iterator[RecordGroup | Damage]:
    data, places = bytearray(), list[RecordPlace]()  # of a group that is not whole yet
    begin = end = need = 0
    why = ""  # what is wrong from *begin* on
    for frame in form.frames(file, offset, limit):
        problem = frame.problem
        if not problem:
            if not data:
                if why and not frame.data.startswith(b"WARC/"):
                    end = frame.end  # the rest of a group that is damaged
                    continue
                if why:
                    yield Damage(begin, end - begin, why, False)
                begin, need, why = frame.offset, 0, ""
            data += frame.data
            try:
                need = _split(data, places, need, limit)
            except PackDamagedError as error:
                problem = str(error)
        elif not data and not why:
            begin = frame.offset
        end = frame.end
        if not problem and need == len(data):
            found = [place._replace(offset=begin, length=end - begin) for place in places]
            yield RecordGroup(begin, end - begin, bytes(data), found)
        if problem or need == len(data):
            why = why or problem
            data.clear()
            places.clear()
    if data or why:
        yield Damage(begin, end - begin, why or "a record is cut off", True)


def _split(data: bytearray, places: list[RecordPlace], need: int, limit: int) -> int:
    # *need*: where the first record ends that is not whole, or where it begins.
    start = sum(places[-1][2:]) if places else 0
    while start < len(data) and need <= len(data):
        found = record_extent(data, start)
        if found is None:
            break
        need = found[1]
        if need - start > limit:
            raise PackDamagedError(f"a record of more than {limit} bytes")
        if need <= len(data):
            if data[need - len(END) : need] != END:
                raise PackDamagedError("a record does not end where it says")
            places.append(RecordPlace(0, 0, start, need - start))
            start = need
    if len(data) > 2 * limit:
        raise PackDamagedError(f"records of {len(data)} bytes, packed as one")
    return need
