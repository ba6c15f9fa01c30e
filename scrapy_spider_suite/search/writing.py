"""One change of the index: pages, and how far each pack has been read, in one commit.

So the index and its place in the packs agree whenever it is killed. Of a URL the newest version is
there, in whatever order versions come.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import tantivy

from scrapy_spider_suite.search.checking import sound
from scrapy_spider_suite.search.schema import (
    PACK,
    Document,
    Version,
    equip,
    from_tantivy,
    key_of,
    line_of,
    schema,
    to_tantivy,
)

HEAP: Final = 64 << 20
"""Bytes of memory for pages that are not written yet; what is more becomes a part of its own."""
_ALL: Final = 1 << 24


class Cursor(NamedTuple):
    """How far the pack *name* has been read.

    Attributes:
        offset: where its next page begins.
        tail: a digest of what lies before it, by which a pack that was written anew is known.
        size: bytes that it had when all of it had been read; 0 before.
    """

    name: str
    offset: int = 0
    tail: str = ""
    size: int = 0


class Opened:
    """The index in the folder *path* as of its last commit. Raises `SearchDamagedError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sound(path):
            self.index = equip(tantivy.Index.open(str(path)))
            self.schema = schema()
            self.searcher = self.index.searcher()

    def find(self, field: str, value: str, limit: int = _ALL) -> Iterator[tantivy.Document]:
        """What has *value* in *field*, in no order."""
        with sound(self.path):
            if not self.searcher.doc_freq(field, value):
                return
            query = tantivy.Query.term_query(self.schema, field, value, "basic")
            most = max(1, min(limit, self.searcher.num_docs))
            hits = self.searcher.search(query, most, count=False).hits
        for _, address in hits:
            with sound(self.path):
                document = self.searcher.doc(address)
            yield document

    def page(self, url: str) -> Document | None:
        """What is known of *url*."""
        return next(map(from_tantivy, self.find("key", key_of(url), 1)), None)

    def cursors(self) -> dict[str, Cursor]:
        """How far each pack has been read."""
        rows = (json.loads(line_of(each)) for each in self.find("kind", PACK))
        return {row["name"]: Cursor(**row) for row in rows}


class Change:
    """What is put into the index in *path* by the next `commit`; by one process at a time.

    Raises `SearchDamagedError` and `OSError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        with sound(path):
            if not tantivy.Index.exists(str(path)):
                tantivy.Index(schema(), str(path))
            self.opened = Opened(path)
            self._writer = self.opened.index.writer(HEAP, 1)
        self._new: dict[str, Version] = {}
        self._forgotten: set[str] = set()

    def newest(self, document: Document) -> bool:
        """Whether nothing newer is known of its URL."""
        known = self._new.get(key_of(document.entry.url))
        if known is None:
            found = self.opened.page(document.entry.url)
            if found is not None and found.entry.filename not in self._forgotten:
                known = found.version
        return known is None or known < document.version

    def put(self, document: Document) -> None:
        """Let *document* be what is known of its URL."""
        key = key_of(document.entry.url)
        self._replace(key, to_tantivy(document))
        self._new[key] = document.version

    def put_cursor(self, cursor: Cursor) -> None:
        """Note how far a pack has been read."""
        key = f"{PACK} {cursor.name}"
        line = json.dumps(cursor._asdict()).encode()
        row = {"key": key, "kind": PACK, "line": line}
        self._replace(key, tantivy.Document.from_dict(row, self.opened.schema))

    def _replace(self, key: str, document: tantivy.Document) -> None:
        with sound(self.path):
            if key in self._new or self.opened.searcher.doc_freq("key", key):
                self._writer.delete_documents_by_term("key", key)
            self._writer.add_document(document)

    def remove(self, field: str, value: str) -> None:
        """Leave out what has *value* in *field*."""
        with sound(self.path):
            self._writer.delete_documents_by_term(field, value)

    def forget(self, name: str) -> list[str]:
        """Leave out the pages of the pack *name*, and how far it was read; return their URLs."""
        urls = [from_tantivy(each).entry.url for each in self.opened.find("pack", name)]
        self._forgotten.add(name)
        self._new = {key: each for key, each in self._new.items() if each.filename != name}
        self.remove("pack", name)
        self.remove("key", f"{PACK} {name}")
        return urls

    def copy(
        self, old: Opened, cursor: Cursor, takes: Callable[[str, str], bool] | None = None
    ) -> list[str]:
        """Put in what *old* has of a pack, and its *cursor* there.

        Pages that *takes* takes, by their URL and text, are left out; returns their URLs.
        """
        out = []
        for document in map(from_tantivy, old.find("pack", cursor.name)):
            url = document.entry.url
            if takes is not None and takes(url, f"{document.title}\n{document.text}"):
                out.append(url)
            else:
                self.put(document)
        self.put_cursor(cursor)
        return out

    def commit(self) -> None:
        """Write it, on the medium; nothing more can be put into this change."""
        with sound(self.path):
            self._writer.commit()
            # Parts are merged in the background; they are whole when the next change begins.
            self._writer.wait_merging_threads()

    def discard(self) -> None:
        """Leave the index as it was."""
        with sound(self.path):
            self._writer.rollback()
            self._writer.wait_merging_threads()
