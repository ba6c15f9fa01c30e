"""A page that is to be read again soon: where it was put, and where it is when it is wanted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import PackDamagedError, PackError
from scrapy_spider_suite.packs import access
from scrapy_spider_suite.packs.away import uploaded
from scrapy_spider_suite.packs.container import Place
from scrapy_spider_suite.packs.packing import Location
from scrapy_spider_suite.packs.page import Page
from scrapy_spider_suite.packs.reader import Packs
from scrapy_spider_suite.packs.warc import clean_url, date


@dataclass(slots=True)
class Stored:
    """A page of *url*, fetched at *time* (seconds since the epoch); *location*, once it is written.

    *again*: it had been fetched before.
    """

    url: str
    time: float
    again: bool = False
    location: Location | None = None

    def to_bytes(self) -> bytes:
        """As a row holds it. Raises ValueError: it is not written yet."""
        if self.location is None:
            raise ValueError(f"{self.url} is in no pack yet")
        name, place = self.location
        data: bytes = msgpack.packb((self.url, self.time, self.again, name, *place))
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Stored:
        """Read it back. Raises `PackError` for anything else."""
        try:
            url, time, again, name, *place = msgpack.unpackb(data)
            location = Location(Path(name).name, Place(*map(int, place)))
            return cls(str(url), float(time), bool(again), location)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise PackError(f"it is not known where a page is ({error})") from error


class Finder:
    """Finds pages in *folders*, whichever has them. For one thread at a time."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(folders)
        self._packs: dict[Path, Packs] = {}

    def find(self, stored: Stored) -> Page:
        """Return the page; by the index where it has been moved, as in a pack that was redacted.

        Raises `PackError` (it is not in the packs any more, or damaged) and `OSError` (a folder is
        not there, or cannot be read: it may be there later).
        """
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
                elif (away := uploaded(folder / stored.location.filename)) is not None:
                    why = f"{stored.location.filename} was uploaded to {away.url}, and deleted here"
        if absent is not None:
            raise absent
        raise PackError(why)

    def _find(self, folder: Path, stored: Stored, location: Location) -> Page:
        path, when = folder / location.filename, date(stored.time)
        damage = ""
        try:
            record = access.read(path, location.place)
            packs = self._packs.setdefault(folder, Packs([folder]))  # the folder is there
            if record.url == clean_url(stored.url) and record.get("WARC-Date") == when:
                return Page(packs, path, location.place, record, None)
        except PackDamagedError as error:
            damage = str(error)
        found = self._packs.setdefault(folder, Packs([folder])).exact(stored.url, when)
        if found is None:
            raise PackError(f"{location.filename}: {damage or 'the page is not there any more'}")
        return found
