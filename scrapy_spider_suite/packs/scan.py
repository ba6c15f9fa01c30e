"""Reads a pack: all of it in one pass, or one record by its place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs.containers import RECORD_MAX, Container, PackFrame, RecordPlace
from scrapy_spider_suite.packs.pack_file import OPEN, format_of, make_container
from scrapy_spider_suite.packs.warc import END, Record, parse_record, record_extent


def open_pack(path: Path) -> BinaryIO:
    """Open *path* for reading, whether it is open or closed by now. Raises `OSError`."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        pass
    try:
        return path.with_name(path.name + OPEN).open("rb")
    except FileNotFoundError:  # it was closed in between
        return path.open("rb")


def read_record(path: Path, place: RecordPlace, limit: int = RECORD_MAX) -> Record:
    """Return the record at *place* of the pack *path* (without ``.open``).

    *limit*: decompressed bytes. Raises `PackDamagedError` (no complete record there), `PackError`
    (no pack), `OSError`.
    """
    with open_pack(path) as file:
        return record_at(read_group(path, file, place, limit), place)


def read_two_records(
    path: Path, place: RecordPlace, other: RecordPlace | None, limit: int = RECORD_MAX
) -> tuple[Record, Record | None]:
    """Like `read_record`; decompresses a shared group once."""
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
    """Return the decompressed group at *place* of *file*. Raises as `read_record`."""
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
    """Yield the groups and the damage of a pack, in order. An open pack ends with torn damage.

    *limit*: bytes of a record. Raises `PackError` (no pack) and `OSError`.
    """
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
    scanner = _GroupScanner(limit)
    for frame in form.frames(file, offset, limit):
        yield from scanner.add_frame(frame)
    yield from scanner.finish()


class _GroupScanner:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._records: list[RecordPlace] = []
        # Where the first record begins that is not whole yet, and its end once that is known.
        self._next = self._need = 0
        self._offset = self._end = 0
        self._why = ""

    def add_frame(self, frame: PackFrame) -> Iterator[RecordGroup | Damage]:
        if frame.problem:
            self._spoil(frame.offset, frame.problem)
            self._end = frame.end
            if frame.end == frame.offset:  # no end mark
                yield from self.finish()
            return
        if not self._data:
            if self._why and not frame.data.startswith(b"WARC/"):
                self._end = frame.end  # the rest of a group that is damaged
                return
            yield from self._report(torn=False)
            self._offset = frame.offset
        self._data += frame.data
        self._end = frame.end
        try:
            whole = self._split()
            if len(self._data) > 2 * self._limit:
                raise PackDamagedError(f"records of {len(self._data)} bytes, packed as one")
        except PackDamagedError as error:
            self._spoil(self._offset, str(error))
            return
        if whole:
            length = self._end - self._offset
            places = [place._replace(offset=self._offset, length=length)
                      for place in self._records]  # fmt: skip
            yield RecordGroup(self._offset, length, bytes(self._data), places)
            self._clear()

    def finish(self) -> Iterator[Damage]:
        if self._data:
            self._spoil(self._offset, "a record is cut off")
        yield from self._report(torn=True)

    def _split(self) -> bool:
        while self._next < len(self._data):
            if self._need > len(self._data):
                return False
            found = record_extent(self._data, self._next)
            if found is None:
                return False
            self._need = found[1]
            if self._need - self._next > self._limit:
                raise PackDamagedError(f"a record of more than {self._limit} bytes")
            if self._need > len(self._data):
                return False
            if self._data[self._need - len(END) : self._need] != END:
                raise PackDamagedError("a record does not end where it says")
            self._records.append(RecordPlace(0, 0, self._next, self._need - self._next))
            self._next = self._need
        return True

    def _spoil(self, offset: int, why: str) -> None:
        if not self._why:
            self._offset = self._offset if self._data else offset
            self._why = why
        self._clear()

    def _clear(self) -> None:
        self._data.clear()
        self._records = []
        self._next = self._need = 0

    def _report(self, *, torn: bool) -> Iterator[Damage]:
        if self._why:
            yield Damage(self._offset, self._end - self._offset, self._why, torn)
            self._why = ""
