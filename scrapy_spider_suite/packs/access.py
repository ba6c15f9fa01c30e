"""One record from its place in a pack, without reading anything else of it."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs.container import RECORD_MAX, Container, Place
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


def read_at(file: BinaryIO, form: Container, place: Place, limit: int = RECORD_MAX) -> Record:
    """Return the record at *place*. *limit*: bytes that may be decompressed for it.

    Raises `PackDamagedError` (no record is there, or not all of it) and `OSError`.
    """
    if place.length > limit:
        raise PackDamagedError(f"a place of {place.length} bytes is none in a pack")
    file.seek(place.offset)
    data = file.read(place.length)
    if len(data) < place.length:
        raise PackDamagedError("the pack ends before the record does")
    record, end = parse(form.decode(data, limit), place.start)
    if place.size and end - place.start != place.size:
        raise PackDamagedError("the record is not of the size that the index says")
    return record


def read(path: Path, place: Place, limit: int = RECORD_MAX) -> Record:
    """As `read_at`, of the pack *path* (without ``.open``). Raises `PackError`, too: no pack."""
    form = container(format_of(path))
    with open_pack(path) as file:
        return read_at(file, form, place, limit)
