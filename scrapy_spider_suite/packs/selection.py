"""Selects pages of packs by host, time, status and type, or a sample.

Only their groups are read.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import xxhash

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs import cdxj
from scrapy_spider_suite.packs.cdxj import IndexEntry, Located
from scrapy_spider_suite.packs.folder_index import captures_of, index_entries
from scrapy_spider_suite.packs.pack_file import (
    OPEN,
    closed_path,
    format_of,
    index_path,
    make_container,
)
from scrapy_spider_suite.packs.reader import PAGE_KINDS, Packs, Page
from scrapy_spider_suite.packs.scan import Damage, RecordGroup, open_pack, scan_from
from scrapy_spider_suite.packs.sorted_lines import GrowingLines, SortedLines
from scrapy_spider_suite.urls.hosts import is_on_host

logger = logging.getLogger(__name__)

CaptureRecords: TypeAlias = list[Located]
"""The records of one capture: page, request, metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selected pages; an empty field selects all.

    Attributes:
        hosts: ``example.com``; ``*.example.com`` is the host and all below it.
        first, last: 14 digits, UTC, inclusive.
        statuses: ``404``; ``4xx``.
        mimes: ``text/html``; ``text/*``.
        sample: number of random pages, always the same; 0 for all.
    """

    hosts: tuple[str, ...] = ()
    first: str = ""
    last: str = ""
    statuses: tuple[str, ...] = ()
    mimes: tuple[str, ...] = ()
    sample: int = 0

    @property
    def all(self) -> bool:
        return self == Selection()

    def accepts(self, entry: IndexEntry) -> bool:
        """Whether *entry* is selected, apart from the sample."""
        status = f"{entry.status:03d}"
        return (
            (not self.first or self.first <= entry.stamp)
            and (not self.last or entry.stamp <= self.last)
            and (not self.statuses or any(_fits(status, wanted) for wanted in self.statuses))
            and (not self.mimes or any(_starts(entry.mime, wanted) for wanted in self.mimes))
            and (not self.hosts or any(is_on_host(entry.url, host) for host in self.hosts))
        )


class SelectedEntry(NamedTuple):
    pack: Path
    entry: IndexEntry


def pack_entries(pack: Path) -> Iterator[IndexEntry]:
    """Yield the entries of *pack*. Without an index, or for damaged lines, the pack is read.

    Raises `OSError`.
    """
    for path in (pack, closed_path(pack)):
        index = index_path(path)
        try:
            lines = GrowingLines(index) if path.name.endswith(OPEN) else SortedLines(index)
        except FileNotFoundError:
            continue
        whole = isinstance(lines, GrowingLines) or not lines.torn
        for line in lines:
            if entry := _parsed(line):
                yield entry
            else:
                whole = False
        if not whole:
            logger.warning("%s is damaged: the pack is read for what it should list", index)
            yield from _unlisted(closed_path(pack), lines)
        return
    yield from index_entries(
        closed_path(pack) if closed_path(pack).exists() else pack, closed_path(pack).name
    )


def _parsed(line: bytes) -> IndexEntry | None:
    try:
        return cdxj.parse_entry(line)
    except PackDamagedError:  # its neighbours are sound
        return None


def _unlisted(pack: Path, lines: Iterable[bytes]) -> Iterator[IndexEntry]:
    listed = {(entry.place.offset, entry.place.start) for entry in map(_parsed, lines) if entry}
    with suppress(FileNotFoundError):
        for entry in index_entries(pack, pack.name):
            if (entry.place.offset, entry.place.start) not in listed:
                yield entry


def select(packs: Packs, selection: Selection) -> Iterator[SelectedEntry]:
    """Yield the selected entries, pack by pack, by key and time. Raises `OSError`."""
    found = (SelectedEntry(closed_path(pack), entry) for pack in packs.files()
             for entry in pack_entries(pack) if selection.accepts(entry))  # fmt: skip
    if not selection.sample:
        return found
    sample = heapq.nsmallest(selection.sample, found, key=_draw)
    return iter(sorted(sample, key=lambda one: (one.pack.name, one.pack, one.entry.key)))


def captures(packs: Packs, selection: Selection) -> Iterator[tuple[Path, CaptureRecords]]:
    """Yield the pack and the records of each selected capture, in their order. Raises `OSError`."""
    if selection.all:
        for pack in packs.files():
            entries = {(entry.place.offset, entry.place.start) for entry in pack_entries(pack)}
            yield from _read(packs, closed_path(pack), entries)
        return
    wanted: dict[Path, set[tuple[int, int]]] = {}
    for pack, entry in select(packs, selection):
        wanted.setdefault(pack, set()).add((entry.place.offset, entry.place.start))
    for pack, places in wanted.items():
        yield from _read(packs, pack, places)


def page_of(packs: Packs, pack: Path, bundle: CaptureRecords) -> Page:
    record, place = bundle[0]
    found = (other for other, _ in bundle if other.kind == "metadata")
    return Page(packs, pack, place, record, next(found, None))


def pages(packs: Packs, selection: Selection) -> Iterator[Page]:
    """Yield every selected page. Raises `OSError`."""
    for pack, bundle in captures(packs, selection):
        yield page_of(packs, pack, bundle)


def _read(
    packs: Packs, pack: Path, places: set[tuple[int, int]]
) -> Iterator[tuple[Path, CaptureRecords]]:
    form = make_container(format_of(pack))
    with open_pack(pack) as file:
        for offset in sorted({offset for offset, _ in places}):
            located = _records(packs, pack, scan_from(form, file, offset, packs.limit))
            for bundle in captures_of(located):
                record, place = bundle[0]
                if place.offset != offset:
                    break
                if (offset, place.start) in places and record.kind in PAGE_KINDS:
                    yield pack, bundle


def _records(packs: Packs, pack: Path, parts: Iterable[RecordGroup | Damage]) -> Iterator[Located]:
    for part in parts:
        if isinstance(part, Damage):
            if not part.torn:
                packs.damage.append((pack, part))
            return
        yield from part.records()


def _draw(one: SelectedEntry) -> int:
    return xxhash.xxh3_64_intdigest(f"{one.entry.url} {one.entry.stamp}".encode())


def _fits(status: str, wanted: str) -> bool:
    return status == wanted or (wanted[1:] == "xx" and status[0] == wanted[0])


def _starts(mime: str, wanted: str) -> bool:
    return mime.startswith(wanted[:-1]) if wanted.endswith("*") else mime == wanted
