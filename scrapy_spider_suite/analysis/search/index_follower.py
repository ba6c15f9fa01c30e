"""Keeps the text index of a folder of packs up to date, a batch of pages at a time.

Packs are read by name, each from its cursor; a rewritten pack from its beginning. Pages of packs
that are gone stay in the index. tantivy keeps deleted bytes, so redaction copies the rest into a
new index.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import xxhash

from scrapy_spider_suite.analysis.page_text import extract_text
from scrapy_spider_suite.analysis.search import index_place, text_index
from scrapy_spider_suite.errors import PackDamagedError, PackError, SearchDamagedError, SearchError
from scrapy_spider_suite.packs import cdxj, pack_file
from scrapy_spider_suite.packs.containers import Container
from scrapy_spider_suite.packs.reader import Packs, Page, page_of

logger = logging.getLogger(__name__)

NAME: Final = "reading"
TRIES: Final = 3
_SUSPECTS: Final = 16


class CrashJournal(AbstractContextManager["CrashJournal"]):
    """Names the page being read: a page that ends the process (parsers are C++) is skipped after
    three tries. *seconds*: limit of a page by SIGALRM; 0 for none, or outside the main thread.
    """

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        self._file = (folder / NAME).open("a+b", buffering=0)
        self._seconds = seconds
        self._suspects: dict[str, int] = {}
        self._file.seek(0)
        with suppress(ValueError, TypeError, KeyError, AttributeError):  # it is new, or was torn
            row = json.loads(self._file.read())
            self._suspects = dict(list(row["suspects"].items())[-_SUSPECTS:])
            if now := row["now"]:
                self._suspects[now] = self._suspects.pop(now, 0) + 1

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def is_barred(self, page: str) -> bool:
        return self._suspects.get(page, 0) >= TRIES

    @contextmanager
    def reading(self, page: str) -> Iterator[None]:
        self._write(page)
        if self._seconds:
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            yield
        finally:
            if self._seconds:
                signal.setitimer(signal.ITIMER_REAL, 0)
        self._suspects.pop(page, None)
        self._write("")

    def _write(self, page: str) -> None:
        row = json.dumps({"now": page, "suspects": self._suspects})
        os.ftruncate(self._file.fileno(), 0)
        self._file.write(row.encode())


_TAIL: Final = 4096
RECORD_MAX: Final = 256 << 20  # bytes of a record; larger ones have no readable text


class PackTail:
    """Reads *path* from an offset; a torn end of an open pack is no damage. Raises `OSError`."""

    def __init__(self, path: Path) -> None:
        self.written = path.name.endswith(pack_file.OPEN)
        self._form: Container = pack_file.make_container(pack_file.format_of(path))
        self._file: BinaryIO = path.open("rb")
        self.size = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()

    def tail(self, offset: int) -> str:
        """Return a digest of the bytes before *offset*, which differs in a rewritten pack."""
        start = max(0, offset - _TAIL)
        self._file.seek(start)
        return xxhash.xxh3_64_hexdigest(self._file.read(offset - start))

    def captures(self, offset: int) -> Iterator[tuple[list[cdxj.Located], int] | pack_file.Damage]:
        """Yield damage and captures, with the offset behind each, from *offset* on; 0 for all."""
        held: list[cdxj.Located] = []
        offset = offset or pack_file.first_group_offset(self._form, self._file)
        for part in pack_file.scan_from(self._form, self._file, offset, RECORD_MAX):
            if isinstance(part, pack_file.Damage):
                if not (part.torn and self.written):
                    yield part
                continue
            try:
                records = list(part.records())
            except PackDamagedError as error:
                yield pack_file.Damage(part.offset, part.length, str(error), False)
                continue
            # A member may be part of a fetch that goes on in the next one; a group never is.
            for located in records:
                if held and not cdxj.is_same_capture(located[0], held):
                    yield held, located[1].offset
                    held = []
                held.append(located)
            offset = part.offset + part.length
            if self._form.grouped:
                yield held, offset
                held = []
        if held and not self.written:
            yield held, offset


_NOT_MODIFIED: Final = 304
_CODE: Final = frozenset({"text/css", "text/javascript", "text/ecmascript", "text/x-javascript"})


def has_words(entry: cdxj.IndexEntry) -> bool | None:
    """Whether the URL of a capture has words now; None: the capture does not tell."""
    status = entry.status
    if entry.is_uninformative or 0 < status < 200:
        return None
    if status == _NOT_MODIFIED:
        return True if entry.mime == cdxj.REVISIT else None
    return status < 300  # what did not come by HTTP has no status


def document_of(page: Page, entry: cdxj.IndexEntry) -> text_index.Document | None:
    """Return the text of *page*, None if its body cannot be read. Raises `OSError`."""
    try:
        origin = page.original if page.is_revisit else page
        if origin is None:
            return None
        said = extract_text(page.body, origin.head.get("Content-Type"))
    except (PackError, FileNotFoundError):
        return None
    if said.mime in _CODE or not (said.text.strip() or said.title):
        return text_index.Document(entry)
    text = said.text[:text_index.TEXT_MAX]
    return text_index.Document(entry, said.title, text, said.language, said.mime)


PAGES_MAX: Final = 2_000
BATCH_TEXT_MAX: Final = 32 << 20
SECONDS_MAX: Final = 20.0
"""Limits of a batch."""

Unchanged: TypeAlias = dict[str, tuple[text_index.PackCursor, tuple[int, int, int]]]


@dataclass(slots=True)
class IndexProgress:
    pages: int = 0
    gone: int = 0  # URLs without words
    skipped: int = 0  # pages that ended the process or took too long
    damaged: list[tuple[str, pack_file.Damage]] = field(default_factory=list)
    behind: int = 0  # bytes of packs that are left to read
    more: bool = False  # the batch was cut short
    rebuilt: str = ""  # why the index was begun anew


@dataclass(slots=True)
class IndexBatch:
    """One batch of *packs* for the index in *path*. *due*: time is up."""

    path: Path
    packs: Packs
    cursors: dict[str, text_index.PackCursor]
    unchanged: Unchanged
    journal: CrashJournal
    due: Callable[[], bool]
    progress: IndexProgress = field(default_factory=IndexProgress)
    _made: text_index.IndexChange | None = None
    _text: int = 0

    def run(self) -> None:
        """Read and write. Raises `SearchDamagedError`, `OSError`: the index is unchanged."""
        try:
            for path in self.packs.files():
                try:
                    self._index_pack(path)
                except FileNotFoundError:  # it was closed just now, or taken away
                    self.progress.more |= pack_file.closed_path(path).exists()
            if self._made is not None:
                self._made.commit()
        except BaseException:
            if self._made is not None:
                self._made.discard()
            raise

    @property
    def _change(self) -> text_index.IndexChange:
        if self._made is None:
            self._made = text_index.IndexChange(self.path)
        return self._made

    @property
    def _full(self) -> bool:
        progress = self.progress
        full = progress.pages + progress.gone >= PAGES_MAX
        return full or self._text > BATCH_TEXT_MAX or self.due()

    def _index_pack(self, path: Path) -> None:
        name, file = pack_file.closed_path(path).name, cdxj.file_identity(path.stat())
        cursor = self.cursors.get(name)
        if cursor is not None and self.unchanged.get(name) == (cursor, file):
            return
        reading = PackTail(path)
        try:
            after = self._read_pack(cursor or text_index.PackCursor(name), path, reading)
        finally:
            reading.close()
        if after != cursor:
            self._change.put_cursor(after)
            self.cursors[name] = after
        if after.size:
            self.unchanged[name] = after, file
        else:
            self.progress.behind += reading.size - after.offset

    def _read_pack(
        self, cursor: text_index.PackCursor, path: Path, reading: PackTail
    ) -> text_index.PackCursor:
        if cursor.offset and reading.tail(cursor.offset) != cursor.tail:
            self._change.remove_pack(cursor.name)
            cursor = text_index.PackCursor(cursor.name)
        if cursor.size == reading.size and not reading.written:
            return cursor
        if self._full:
            self.progress.more = True
            return cursor
        offset, whole = cursor.offset, True
        for found in reading.captures(offset):
            if isinstance(found, pack_file.Damage):
                self.progress.damaged.append((cursor.name, found))
                continue
            records, offset = found
            if records[0][0].kind in cdxj.PAGE_KINDS:
                entry = cdxj.entries_for(records, cursor.name)[0]
                page = page_of(self.packs, pack_file.closed_path(path), records)
                self._index_page(page, entry)
            # Within a group there is no place to go on from.
            whole = offset == records[0][1].offset or not self._full
            if not whole:
                self.progress.more = True
                break
        size = reading.size if whole and not reading.written else 0
        if (offset, size) == (cursor.offset, cursor.size):
            return cursor
        return text_index.PackCursor(cursor.name, offset, reading.tail(offset), size)

    def _index_page(self, page: Page, entry: cdxj.IndexEntry) -> None:
        words = has_words(entry)
        if words is None or not self._change.newest(text_index.Document(entry)):
            return
        document = self._document(page, entry) if words else text_index.Document(entry)
        if document is None:
            return
        self._change.put(document)
        self._text += len(document.text)
        if document.has_words:
            self.progress.pages += 1
        else:
            self.progress.gone += 1

    def _document(self, page: Page, entry: cdxj.IndexEntry) -> text_index.Document | None:
        known = self._change.opened.page(entry.url)
        if known is not None and entry.digest and known.entry.digest == entry.digest and (
            known.entry.stamp == entry.stamp or page.is_revisit
        ):  # fmt: skip
            return known._replace(entry=entry)
        where = f"{entry.filename} {entry.place.offset} {entry.place.start}"
        if self.journal.is_barred(where):
            self.progress.skipped += 1
            return text_index.Document(entry)
        with self.journal.reading(where):
            return document_of(page, entry)


class IndexFollower:
    """Writes the index of the packs in *folder*. *stop* asks for an early commit;
    *patience*: seconds per page, see `CrashJournal`.
    """

    def __init__(
        self, folder: Path, *, stop: Callable[[], bool] = lambda: False, patience: float = 0.0
    ) -> None:
        self.place = index_place.IndexPlace(folder)
        self._packs = Packs([folder], RECORD_MAX)
        self._stop = stop
        self._patience = patience
        self._verified: Path | None = None
        self._known: tuple[Path, tuple[int, int, int]] | None = None
        self._cursors: dict[str, text_index.PackCursor] = {}
        self._unchanged: Unchanged = {}

    def step(self, wait: float = 0.0) -> IndexProgress:
        """Index a batch. *wait*: seconds for other writers. Raises `SearchBusyError`, `OSError`."""
        with self.place.locked(wait):
            path = self.place.current()
            try:
                return self._batch(path)
            except SearchDamagedError as error:
                _clear(self.place, error)
                self._known = None
                done = self._batch(path)
                done.rebuilt = str(error)
                return done

    def rebuild(self, report: Callable[[IndexProgress], object], wait: float = 0.0) -> None:
        """Make the index anew, with the old documents of uploaded packs. *report* is called for
        each batch. Raises `SearchError` (no pack is here) and as `step`.
        """
        with self.place.locked(wait):
            if not self._packs.files():
                raise SearchError(f"{self.place.packs}: no pack is here: the index of texts cannot "
                                  "be made anew, and stays as it is")  # fmt: skip
            new, more = self.place.begin(), True
            if lost := self._copy_uploaded(new):
                report(IndexProgress(rebuilt=lost))
            while more and not self._stop():
                progress = self._batch(new)
                report(progress)
                more = progress.more
            if not more:
                self.place.install()

    def _copy_uploaded(self, new: Path) -> str:
        away = {pack.name for pack, _ in pack_file.packs_away(self.place.packs)}
        if not away or not self.place.exists():
            return ""
        try:
            index_place.verify_files(self.place.current())
            old, change = text_index.OpenIndex(self.place.current()), text_index.IndexChange(new)
            for cursor in old.cursors().values():
                if cursor.name in away:
                    change.copy(old, cursor)
            change.commit()
        except SearchDamagedError as error:
            self.place.begin()  # nothing half
            return f"{error}, and what it had of packs that are not here ({len(away)}) is lost"
        return ""

    def _batch(self, path: Path) -> IndexProgress:
        if path.exists() and self._verified != path:
            index_place.clear_unfinished(path)
            index_place.verify_files(path)
        state, cursors = index_place.index_state(path), self._cursors
        if state is None:
            cursors = {}
        elif state != self._known:
            cursors = text_index.OpenIndex(path).cursors()
        self._verified = self._known = None  # whatever fails
        due = time.monotonic() + SECONDS_MAX
        with CrashJournal(self.place.folder, self._patience) as journal:
            batch = IndexBatch(path, self._packs, cursors, self._unchanged, journal,
                               lambda: self._stop() or time.monotonic() > due)  # fmt: skip
            batch.run()
        self._verified, self._cursors, self._known = path, cursors, index_place.index_state(path)
        return batch.progress


def hide(folder: Path, field: str, value: str, wait: float) -> None:
    """See `analysis.search.hide_texts`; *field* is ``host`` or ``url``."""
    place = index_place.IndexPlace(folder)
    with place.locked(wait):
        try:
            change = text_index.IndexChange(place.current())
            if field == "url":
                field, value = "key", text_index.url_key(value)
            change.remove(field, value)
            change.commit()
        except SearchDamagedError as error:
            _clear(place, error)


def rewrite(folder: Path, accepts: Callable[[str, str], bool], wait: float) -> None:
    """See `analysis.search.remove_texts`."""
    place = index_place.IndexPlace(folder)
    with place.locked(wait):
        try:
            old = text_index.OpenIndex(place.current())
            change = text_index.IndexChange(place.begin())
            for cursor in old.cursors().values():
                change.copy(old, cursor, accepts)
            change.commit()
            place.install()
        except SearchDamagedError as error:
            _clear(place, error)
    follower = IndexFollower(folder)
    while follower.step(wait).more:
        pass


def _clear(place: index_place.IndexPlace, error: SearchDamagedError) -> None:
    logger.error("%s: it is made anew of the packs that are here", error)
    place.clear()
