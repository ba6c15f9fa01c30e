"""Pages whose links are read later: where each was stored, and how it is found again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from scrapy_spider_suite.errors import PackDamagedError, PackError
from scrapy_spider_suite.packs import pack_file
from scrapy_spider_suite.packs.containers import RECORD_MAX, RecordPlace
from scrapy_spider_suite.packs.reader import Packs, Page
from scrapy_spider_suite.packs.warc import Record, clean_url, warc_date
from scrapy_spider_suite.packs.writer import RecordLocation

_GROUPS_MAX: Final = 8 << 20  # bytes of decompressed groups that stay in memory
_MOMENT: Final = 0.05  # seconds
_SUMS: Final = 16  # bytes at the start of an lzop block, its checksums among them


class StoredPage(msgspec.Struct, array_like=True):
    """A page fetched at *time* (seconds since the epoch). *location*: None until written. *again*:
    fetched and counted before. *visited*: in the crawl before. *first*: of its host.
    """

    url: str
    time: float
    again: bool = False
    location: RecordLocation | None = None
    visited: bool = False
    first: bool = False

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> StoredPage:
        """Parse a row. Raises `PackError`."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except ValueError as error:
            raise PackError(f"it is not known where a page is ({error})") from error


class StoredPageFinder:
    """Finds pages in *folders*. For one thread at a time."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(folders)
        self._packs: dict[Path, Packs] = {}
        # The last groups, decompressed; *_size* is their bytes.
        self._groups: OrderedDict[tuple[str, int, int, bytes], bytes] = OrderedDict()
        self._size = 0

    def add(self, folder: Path) -> None:
        """Search *folder*, too, and first; from any thread."""
        if folder not in self._folders:
            self._folders = [folder, *self._folders]

    def find(self, stored: StoredPage) -> Page:
        """Return the page, by the index if it has moved. Raises `PackError` and `OSError`."""
        if stored.location is None:
            raise PackError(f"{stored.url} is in no pack yet")
        absent: OSError | None = None
        why = f"{stored.location.filename} is not there any more"
        for folder in self._folders:
            try:
                return self._find(folder, stored, stored.location)
            except PackError as error:
                why = str(error)
            except FileNotFoundError as error:
                if not folder.is_dir():
                    absent = error
                elif (away := pack_file.find_upload(folder / stored.location.filename)) is not None:
                    why = f"{stored.location.filename} was uploaded to {away.url}, and deleted here"
        if absent is not None:
            raise absent
        raise PackError(why)

    def _find(self, folder: Path, stored: StoredPage, location: RecordLocation) -> Page:
        path, when = folder / location.filename, warc_date(stored.time)
        record, why = None, "the page is not there any more"
        try:
            record = self._read(path, location.place)
        except PackDamagedError as error:
            why = str(error)
        # Not before the folder is known to be there.
        packs = self._packs.get(folder) or self._packs.setdefault(folder, Packs([folder]))
        if record and record.url == clean_url(stored.url) and record.get("WARC-Date") == when:
            return Page(packs, path, location.place, record, None)
        for pause in (0.0, _MOMENT):  # a pack that is just written anew has no index so long
            time.sleep(pause)
            if (found := packs.page_at(stored.url, when)) is not None:
                return found
        raise PackError(f"{location.filename}: {why}")

    def _read(self, path: Path, place: RecordPlace) -> Record:
        with pack_file.open_pack(path) as file:
            file.seek(place.offset)
            # With the sums of its first block: the pack may have been written anew.
            key = (path.name, *place[:2], file.read(_SUMS))
            data = self._groups.get(key) or pack_file.read_group(path, file, place, RECORD_MAX)
        record = pack_file.record_at(data, place)
        if place.size < len(data):
            if key not in self._groups:
                self._groups[key] = data
                self._size += len(data)
            self._groups.move_to_end(key)
            while self._size > _GROUPS_MAX:
                self._size -= len(self._groups.popitem(last=False)[1])
        return record
