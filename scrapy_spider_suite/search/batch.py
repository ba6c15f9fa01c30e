"""One batch: what is new in packs, as far as it fits, put into the index in one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from scrapy_spider_suite.packs import cdxj
from scrapy_spider_suite.packs.cdxj import Entry
from scrapy_spider_suite.packs.pack_file import final
from scrapy_spider_suite.packs.reader import PAGES, Packs, Page
from scrapy_spider_suite.packs.scan import Damage
from scrapy_spider_suite.packs.selection import page_of
from scrapy_spider_suite.packs.sorted_lines import identity
from scrapy_spider_suite.search.journal import Journal
from scrapy_spider_suite.search.reading import PackReading, Read
from scrapy_spider_suite.search.saying import Meaning, document_of, meaning
from scrapy_spider_suite.search.schema import Document
from scrapy_spider_suite.search.writing import Change, Cursor

PAGES_MAX: Final = 2_000
TEXT_MAX: Final = 32 << 20
SECONDS_MAX: Final = 20.0
"""A batch is written when it has as many pages or characters, or has taken as long."""

Unchanged: TypeAlias = dict[str, tuple[Cursor, tuple[int, int, int]]]
"""Packs that have been read to their end, and the files that they were then."""


class Found(NamedTuple):
    """What is damaged in a pack."""

    pack: str
    damage: Damage


@dataclass(slots=True)
class Progress:
    """What one batch came to.

    Attributes:
        pages: pages whose words are in the index now.
        gone: URLs that have no words any more, or never had any.
        skipped: pages that ended the process, or took too long, again and again.
        damaged: what could not be read.
        behind: bytes of packs that are still to be read.
        more: whether there was more than a batch may have.
        rebuilt: why the index was begun anew; "" if it was not.
    """

    pages: int = 0
    gone: int = 0
    skipped: int = 0
    damaged: list[Found] = field(default_factory=list)
    behind: int = 0
    more: bool = False
    rebuilt: str = ""


class Batch:
    """One batch for the index in *path*, of *packs*, each from its cursor on.

    *cursors* and *unchanged* are brought up to date; *due*: says that time is up.
    """

    def __init__(
        self, path: Path, packs: Packs, cursors: dict[str, Cursor], unchanged: Unchanged,
        journal: Journal, due: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.progress = Progress()
        self._path = path
        self._packs = packs
        self._cursors = cursors
        self._unchanged = unchanged
        self._journal = journal
        self._due = due
        self._made: Change | None = None
        self._text = 0

    def run(self) -> None:
        """Read and write. Raises `SearchDamagedError` and `OSError`: nothing was changed."""
        for path in self._packs.files():
            try:
                self._pack(path)
            except FileNotFoundError:  # it was closed just now, or taken away
                self.progress.more |= final(path).exists()
        if self._made is not None:
            self._made.commit()

    def discard(self) -> None:
        """Leave the index as it was."""
        if self._made is not None:
            self._made.discard()

    @property
    def _change(self) -> Change:
        """What is written: nothing, if nothing is to be."""
        if self._made is None:
            self._made = Change(self._path)
        return self._made

    @property
    def _full(self) -> bool:
        progress = self.progress
        return progress.pages + progress.gone >= PAGES_MAX or self._text > TEXT_MAX or self._due()

    def _pack(self, path: Path) -> None:
        """Read a pack on from where it was left."""
        name, file = final(path).name, identity(path.stat())
        cursor = self._cursors.get(name)
        if cursor is not None and self._unchanged.get(name) == (cursor, file):
            return
        reading = PackReading(path)
        try:
            after = self._go_on(cursor or Cursor(name), path, reading)
        finally:
            reading.close()
        if after != cursor:
            self._change.put_cursor(after)
            self._cursors[name] = after
        if after.size:
            self._unchanged[name] = after, file
        else:
            self.progress.behind += reading.size - after.offset

    def _go_on(self, cursor: Cursor, path: Path, reading: PackReading) -> Cursor:
        """Read a pack from *cursor* on; return where it is then."""
        if cursor.offset and reading.tail(cursor.offset) != cursor.tail:
            self.revive(self._change.forget(cursor.name), cursor.name)
            cursor = Cursor(cursor.name)
        if cursor.size == reading.size and not reading.written:
            return cursor
        if self._full:
            self.progress.more = True
            return cursor
        offset, whole = cursor.offset, True
        for found in reading.fetches(offset):
            if isinstance(found, Damage):
                self.progress.damaged.append(Found(cursor.name, found))
                continue
            self._fetch(path, found)
            # Within a group there is no place to go on from.
            whole = found.next == found.records[0][1].offset or not self._full
            offset = found.next
            if not whole:
                self.progress.more = True
                break
        size = reading.size if whole and not reading.written else 0
        if (offset, size) == (cursor.offset, cursor.size):
            return cursor
        return Cursor(cursor.name, offset, reading.tail(offset), size)

    def _fetch(self, path: Path, found: Read) -> None:
        if found.records[0][0].kind not in PAGES:
            return
        entry = cdxj.entries(found.records, final(path).name)[0]
        self._take(page_of(self._packs, final(path), found.records), entry)

    def _take(self, page: Page, entry: Entry) -> bool:
        """Put a page into the index, if it is the newest of its URL; whether that is settled."""
        what = meaning(entry)
        if what is Meaning.NOTHING:
            return False
        if not self._change.newest(Document(entry)):
            return True
        document = self._words(page, entry) if what is Meaning.WORDS else Document(entry)
        if document is None:
            return False
        self._change.put(document)
        self._text += len(document.text)
        if document.has_words:
            self.progress.pages += 1
        else:
            self.progress.gone += 1
        return True

    def _words(self, page: Page, entry: Entry) -> Document | None:
        """What a page says; None if that cannot be read."""
        known = self._change.opened.page(entry.url)
        if known is not None and _same(known.entry, entry, page):
            return known._replace(entry=entry)
        where = f"{entry.filename} {entry.place.offset} {entry.place.start}"
        if self._journal.barred(where):
            self.progress.skipped += 1
            return Document(entry)
        with self._journal.reading(where):
            return document_of(page, entry)

    def revive(self, urls: Iterable[str], name: str = "") -> None:
        """Bring back what there is of *urls* in other packs than *name*."""
        for url in urls:
            for page, entry in self._packs.versions(url):
                if entry.filename != name and self._take(page, entry):
                    break


def _same(known: Entry, entry: Entry, page: Page) -> bool:
    """Whether *page* says what is *known*: it is the same fetch, or a revisit of it."""
    same_time = known.stamp == entry.stamp
    return bool(entry.digest) and known.digest == entry.digest and (same_time or page.is_revisit)
