"""Reads and selects pages of packs, also while they are written: `Packs`, `Page`, `Selection`."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path

import xxhash

from scrapy_spider_suite.errors import (
    PackDamagedError,
    PackError,
    PackMissingError,
    PackUploadedError,
)
from scrapy_spider_suite.packs import cdxj, folder_index, http_records, pack_file, warc
from scrapy_spider_suite.packs.containers import RECORD_MAX, RecordPlace
from scrapy_spider_suite.runtime.text import media_type
from scrapy_spider_suite.urls.extract import PageContext, extract_edges
from scrapy_spider_suite.urls.hosts import is_on_host

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Page:
    """A response, a revisit, or a resource: its *record*, the *metadata* record with its links, the
    *path* of the pack (without ``.open``), and the *place* in it.
    """

    _packs: Packs
    path: Path
    place: RecordPlace
    record: warc.Record
    metadata: warc.Record | None

    def __repr__(self) -> str:
        return f"<Page {self.url} {self.record.get('WARC-Date')}>"

    @property
    def url(self) -> str:
        return self.record.url

    @property
    def time(self) -> datetime | None:
        return self.record.time

    @cached_property
    def head(self) -> http_records.Head:
        """The head of the response; status 0 if there is none."""
        mime = self.record.get("Content-Type")
        if not mime.startswith("application/http"):
            return http_records.Head(0, (("Content-Type", mime),))
        with suppress(PackDamagedError):  # it was stored as it came
            return http_records.parse_head(http_records.split_message(self.record.block)[0])
        return http_records.Head(0, ())

    @property
    def status(self) -> int:
        """The HTTP status; 0 without HTTP."""
        return self.head.status

    @property
    def headers(self) -> dict[str, str]:
        """Fields by lower-case name; repeated ones are joined."""
        found: dict[str, str] = {}
        for name, value in self.head.fields:
            name = name.lower()
            found[name] = f"{found[name]}, {value}" if name in found else value
        return found

    @property
    def mime(self) -> str:
        """The declared media type without parameters, or ""."""
        return media_type(self.head.get("Content-Type"))

    @property
    def is_revisit(self) -> bool:
        return self.record.kind == "revisit"

    @cached_property
    def original(self) -> Page | None:
        """The page that a revisit refers to, or a later equal version, or None."""
        if not self.is_revisit:
            return None
        url, date = map(self.record.get, ("WARC-Refers-To-Target-URI", "WARC-Refers-To-Date"))
        found = self._packs.page_at(url, date)
        if found is None and url and self.digest:
            alike = self._packs.page_with_digest
            found = alike(url, self.digest) or alike(self.url, self.digest)
        return found

    @cached_property
    def body(self) -> bytes:
        """The body, joined and decompressed; of a revisit the original's. Raises `PackDamagedError`
        (wrongly encoded or too large) and `PackError` (no original here, unknown compression).
        """
        if self.is_revisit:
            if self.original is None or self.original.is_revisit:
                raise PackError(f"the page that {self.url} is the same as is not in these packs")
            return self.original.body
        if not self.head.status:
            return self.record.block
        body = http_records.split_message(self.record.block)[1]
        return http_records.decode_body(self.head, body, self._packs.limit)

    @property
    def digest(self) -> str:
        return self.record.get("WARC-Payload-Digest")

    @property
    def links(self) -> list[warc.Link]:
        """The links that the crawl found; unread links are read from the body if it is readable."""
        later = self._note(warc.LINKS_READ_LATER)
        if not later:
            return [] if self.metadata is None else warc.outlinks_of(self.metadata)
        try:
            body = self.body
        except PackError:
            return []
        tags = [value for name, value in self.head.fields if name.lower() == "x-robots-tag"]
        content_type, robot = self.head.get("Content-Type") or None, later.partition(" ")[2]
        context = PageContext(self.url, content_type, x_robots_tag=tags, robot=robot)
        return [warc.Link(*edge) for edge in extract_edges(body, context)[1]]

    @property
    def via(self) -> str:
        """The page that led here; "" for a seed."""
        return self._note("via")

    @property
    def hops(self) -> str:
        """A letter for each hop from a seed."""
        return self._note("hopsFromSeed")

    def _note(self, name: str) -> str:
        found = () if self.metadata is None else warc.warc_fields(self.metadata)
        return next((value for field, value in found if field == name), "")


def open_packs(*paths: str | Path, limit: int = RECORD_MAX) -> Packs:
    """Open files and folders. *limit*: decompressed bytes of a page; a larger page is damage.
    Raises `PackError`: neither pack nor folder.
    """
    found = [Path(path) for path in paths]
    for path in found:
        there = path.exists() or pack_file.closed_path(path).exists()
        if not path.is_dir() and not (there and pack_file.is_pack(path)):
            raise PackError(f"neither a pack nor a folder of packs: {path}")
    return Packs(found, limit)


class Packs:
    """Pages in packs: iterate, or ask for a URL. Made by `open_packs`. *damage*: the unreadable
    parts so far, by pack; they are logged, and the pages around them are read.
    """

    def __init__(self, paths: Iterable[Path], limit: int = RECORD_MAX) -> None:
        self.paths = list(paths)
        self.limit = limit
        self.damage: list[tuple[Path, pack_file.Damage]] = []
        folders = {path if path.is_dir() else path.parent for path in self.paths}
        self._indexes = [folder_index.FolderIndex(folder) for folder in sorted(folders)]
        self._unindexed = folder_index.TemporaryIndexes()

    def files(self) -> list[Path]:
        """The packs by name. Raises `OSError`."""
        found: dict[Path, Path] = {}
        for path in self.paths:
            inside = sorted(filter(pack_file.is_pack, path.iterdir())) if path.is_dir() else [path]
            # A pack that was closed just now may be listed under both names.
            found |= {pack_file.closed_path(pack): pack for pack in reversed(inside)}
        return [found[name] for name in sorted(found, key=lambda name: (name.name, name))]

    def __iter__(self) -> Iterator[Page]:
        for path in self.files():
            yield from self.pages(path)

    def records(self) -> Iterator[warc.Record]:
        for path in self.files():
            for record, _ in self._located(path):
                yield record

    def pages(self, path: Path) -> Iterator[Page]:
        """The pages of one pack. Raises `OSError`."""
        last = _last_complete(path)
        for bundle in folder_index.captures_of(self._located(path)):
            record, place = bundle[0]
            if record.kind in cdxj.PAGE_KINDS:
                if last is not None and place.offset > last:
                    return
                yield page_of(self, pack_file.closed_path(path), bundle)

    def history(self, url: str) -> list[cdxj.IndexEntry]:
        found = [entry for _, entry in self._find(url)]
        return sorted(found, key=lambda entry: entry.stamp)

    def away(self) -> list[tuple[Path, pack_file.Uploaded]]:
        """The packs that were uploaded and are not here."""
        return list(chain(*map(pack_file.packs_away, filter(Path.is_dir, self.paths))))

    def missing(self) -> list[Path]:
        """The packs that are neither here nor uploaded, but indexed."""
        return list(chain(*map(pack_file.packs_missing, filter(Path.is_dir, self.paths))))

    def get(self, url: str, at: datetime | str | None = None) -> Page | None:
        """Return the last version of *url*, or the one valid *at* a time, or None.

        *at* is UTC; a text such as ``2026-11`` means its end. Raises ValueError (no time),
        `PackDamagedError`, `PackUploadedError`, `PackMissingError`, `OSError`.
        """
        found = self._find(url)
        if at is not None:
            latest = cdxj.timestamp_at(at)
            found = [(folder, entry) for folder, entry in found if entry.stamp <= latest]
        return self._page(*max(found, key=lambda pair: pair[1].stamp)) if found else None

    def page_at(self, url: str, date: str) -> Page | None:
        """Return the page fetched at that WARC-Date that is no revisit, or None."""
        if (time := warc.parse_date(date)) is None:
            return None
        stamp = cdxj.timestamp_at(time)
        found = (self._page(folder, entry) for folder, entry in self._find(url)
                 if entry.stamp == stamp and entry.mime != cdxj.REVISIT)  # fmt: skip
        return next((page for page in found if page.time == time), None)

    def page_with_digest(self, url: str, digest: str) -> Page | None:
        """Return a version of *url* with that payload digest that is no revisit, or None."""
        found = (pair for pair in self._find(url)
                 if pair[1].digest == digest and pair[1].mime != cdxj.REVISIT)  # fmt: skip
        return next((self._page(*pair) for pair in found), None)

    def page_of(self, entry: cdxj.IndexEntry) -> Page | None:
        """Return the page of *entry*, also if it has moved since, or None. Raises as `get`."""
        for index in self._indexes:
            with suppress(PackDamagedError, PackMissingError, FileNotFoundError):
                page = self._page(index.folder, entry)
                if page.time is None or cdxj.timestamp_at(page.time) == entry.stamp:
                    return page
        found = (pair for pair in self._find(entry.url)
                 if (pair[1].stamp, pair[1].digest) == (entry.stamp, entry.digest))  # fmt: skip
        return next((self._page(*pair) for pair in found), None)

    def _find(self, url: str) -> list[tuple[Path, cdxj.IndexEntry]]:
        found = {}
        for index in self._indexes:
            entries = index.find(url)
            for pack in index.unindexed:
                entries += self._unindexed.find(pack, url)
            for entry in entries:
                place = index.folder, entry.filename, entry.place.offset, entry.place.start
                found[place] = index.folder, entry
        return list(found.values())

    def _page(self, folder: Path, entry: cdxj.IndexEntry) -> Page:
        path = folder / Path(entry.filename).name  # an index leads to no other folder
        try:
            record, metadata = pack_file.read_records(path, entry.place, entry.metadata, self.limit)
        except FileNotFoundError:
            if (elsewhere := pack_file.find_upload(path)) is not None:
                raise PackUploadedError(
                    f"{entry.url} is in a pack that is elsewhere: {elsewhere.url}"
                ) from None
            if not folder.is_dir():
                raise
            raise PackMissingError(
                f"{entry.url} is in {path.name}, which is not in {folder} any more: bring it back, "
                f"or remove {pack_file.index_path(path).name} and merged-*{pack_file.INDEX}, which "
                "list its pages"
            ) from None
        if record.url != entry.url:
            raise PackDamagedError(f"the index of {path} leads to {record.url}, not {entry.url}")
        return Page(self, path, entry.place, record, metadata)

    def _located(self, path: Path) -> Iterator[tuple[warc.Record, RecordPlace]]:
        written = path.name.endswith(pack_file.OPEN)
        try:
            for part in pack_file.scan(path, self.limit):
                if isinstance(part, pack_file.RecordGroup):
                    yield from part.records()
                elif not (written and part.torn):
                    logger.warning("%s, %d bytes at %d: %s", path, *part[1::-1], part.why)
                    self.damage.append((path, part))
        except FileNotFoundError:
            if not written:
                raise
            yield from self._located(pack_file.closed_path(path))


def _last_complete(path: Path) -> int | None:
    if not path.name.endswith(pack_file.OPEN):
        return None
    with suppress(PackDamagedError):
        try:
            line = cdxj.GrowingLines(pack_file.index_path(path)).last()
            return cdxj.parse_entry(line).place.offset
        except FileNotFoundError:
            return None if pack_file.closed_path(path).exists() else -1
    return -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selected pages; an empty field selects all."""

    hosts: tuple[str, ...] = ()  # ``example.com``; ``*.example.com``: and all below it
    first: str = ""  # 14 digits, UTC
    last: str = ""  # inclusive
    statuses: tuple[str, ...] = ()  # ``404``; ``4xx``
    mimes: tuple[str, ...] = ()  # ``text/html``; ``text/*``
    sample: int = 0  # that many pages by chance, always the same

    def accepts(self, entry: cdxj.IndexEntry) -> bool:
        """Whether *entry* is selected, apart from the sample."""
        status, statuses = f"{entry.status:03d}", (each.replace("x", "?") for each in self.statuses)
        return (
            (not self.first or self.first <= entry.stamp)
            and (not self.last or entry.stamp <= self.last)
            and (not self.statuses or any(fnmatchcase(status, each) for each in statuses))
            and (not self.mimes or any(fnmatchcase(entry.mime, each) for each in self.mimes))
            and (not self.hosts or any(is_on_host(entry.url, host) for host in self.hosts))
        )


def pack_entries(pack: Path) -> Iterator[cdxj.IndexEntry]:
    """Yield the entries of *pack*, read from it where the index is damaged. Raises `OSError`."""
    closed = pack_file.closed_path(pack)
    for path in (pack, closed):
        index = pack_file.index_path(path)
        try:
            lines = cdxj.SortedLines(index) if path == closed else cdxj.GrowingLines(index)
        except FileNotFoundError:
            continue
        whole = isinstance(lines, cdxj.GrowingLines) or not lines.torn
        for line in lines:
            try:
                yield cdxj.parse_entry(line)
            except PackDamagedError:  # its neighbours are sound
                whole = False
        if not whole and closed.exists():
            logger.warning("%s is damaged: the pack is read for what it should list", index)
            listed = set(lines)
            yield from (entry for entry in folder_index.index_entries(closed, closed.name)
                        if entry.line() not in listed)  # fmt: skip
        return
    yield from folder_index.index_entries(closed if closed.exists() else pack, closed.name)


def select(packs: Packs, selection: Selection) -> Iterator[tuple[Path, cdxj.IndexEntry]]:
    """Yield the selected entries, pack by pack, by key and time. Raises `OSError`."""
    found = ((pack_file.closed_path(pack), entry) for pack in packs.files()
             for entry in pack_entries(pack) if selection.accepts(entry))  # fmt: skip
    if not selection.sample:
        return found
    sample = heapq.nsmallest(
        selection.sample, found,
        key=lambda one: xxhash.xxh3_64_intdigest(f"{one[1].url} {one[1].stamp}".encode()),
    )  # fmt: skip
    return iter(sorted(sample, key=lambda one: (one[0].name, one[0], one[1].key)))


def captures(packs: Packs, selection: Selection) -> Iterator[tuple[Path, list[cdxj.Located]]]:
    """Yield the pack and the records of each selected capture, in their order. Raises `OSError`."""
    for pack, found in groupby(select(packs, selection), key=itemgetter(0)):
        places = {(entry.place.offset, entry.place.start) for _, entry in found}
        form = pack_file.make_container(pack_file.format_of(pack))
        with pack_file.open_pack(pack) as file:
            for offset in sorted({offset for offset, _ in places}):
                parts = pack_file.scan_from(form, file, offset, packs.limit)
                for bundle in folder_index.captures_of(_records(packs, pack, parts)):
                    record, place = bundle[0]
                    if place.offset != offset:
                        break
                    if (offset, place.start) in places and record.kind in cdxj.PAGE_KINDS:
                        yield pack, bundle


def page_of(packs: Packs, pack: Path, bundle: list[cdxj.Located]) -> Page:
    record, place = bundle[0]
    found = (other for other, _ in bundle if other.kind == "metadata")
    return Page(packs, pack, place, record, next(found, None))


def pages(packs: Packs, selection: Selection) -> Iterator[Page]:
    """Yield every selected page. Raises `OSError`."""
    for pack, bundle in captures(packs, selection):
        yield page_of(packs, pack, bundle)


def _records(
    packs: Packs, pack: Path, parts: Iterable[pack_file.RecordGroup | pack_file.Damage]
) -> Iterator[cdxj.Located]:
    for part in parts:
        if isinstance(part, pack_file.Damage):
            if not part.torn:
                packs.damage.append((pack, part))
            return
        yield from part.records()
