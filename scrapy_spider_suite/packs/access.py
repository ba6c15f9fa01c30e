"""One record from its place in a pack, without reading anything else of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import BinaryIO

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs.container import RECORD_MAX, Place
from scrapy_spider_suite.packs.formats import OPEN, container, format_of
from scrapy_spider_suite.packs.warc import Record, parse


def open_pack(path: Path) -> BinaryIO:
    """Open the pack *path* for reading, whether it is being written or closed by now.

    Raises `OSError`.
    """
    try:
        return path.open("rb")
    except FileNotFoundError:
        pass
    try:
        return path.with_name(path.name + OPEN).open("rb")
    except FileNotFoundError:  # it was closed in between
        return path.open("rb")


def read(path: Path, place: Place, limit: int = RECORD_MAX) -> Record:
    """Return the record at *place* of the pack *path* (without ``.open``).

    *limit*: bytes that may be decompressed for it. Raises `PackDamagedError` (no record is there,
    or not all of it), `PackError` (no pack) and `OSError`.
    """
    with open_pack(path) as file:
        return pick(decoded(path, file, place, limit), place)


def read_both(
    path: Path, place: Place, other: Place | None, limit: int = RECORD_MAX
) -> tuple[Record, Record | None]:
    """As `read`, of two records: those of one group are decompressed together."""
    with open_pack(path) as file:
        data = decoded(path, file, place, limit)
        record = pick(data, place)
        if other is None:
            return record, None
        if other[:2] != place[:2]:
            data = decoded(path, file, other, limit)
        return record, pick(data, other)


def pick(data: bytes, place: Place) -> Record:
    """Return the record that *place* says is in *data*. Raises `PackDamagedError`."""
    record, end = parse(data, place.start)
    if place.size and end - place.start != place.size:
        raise PackDamagedError("the record is not of the size that the index says")
    return record


def decoded(path: Path, file: BinaryIO, place: Place, limit: int) -> bytes:
    """Return what is at *place* of *file*, the pack *path*, decompressed. As `read` raises."""
    if place.length > limit:
        raise PackDamagedError(f"a place of {place.length} bytes is none in a pack")
    file.seek(place.offset)
    data = file.read(place.length)
    if len(data) < place.length:
        raise PackDamagedError("the pack ends before the record does")
    return _container(format_of(path)).decode(data, limit)


# To decode one takes no state of it; making one each time takes as long as reading.
_container = cache(container)
