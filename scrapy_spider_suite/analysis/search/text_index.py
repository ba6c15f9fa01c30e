"""The documents of the text index, and one change of it: pages and cursors in one commit.

A *page* has words. A *gone* document says that its URL has none since then, so that an older
version does not return. A *pack* document is a cursor. Of a URL the newest version counts, in any
order of arrival. A document suffices to copy the index without the packs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import tantivy
import xxhash

from scrapy_spider_suite.analysis.search.index_place import tantivy_errors
from scrapy_spider_suite.errors import PackDamagedError, SearchDamagedError
from scrapy_spider_suite.packs import cdxj
from scrapy_spider_suite.packs.cdxj import IndexEntry
from scrapy_spider_suite.urls.hosts import host_of_any

PAGE: Final = "page"
GONE: Final = "gone"
PACK: Final = "pack"

TEXT_MAX: Final = 1 << 20
WORD_MAX: Final = 80
"""Bytes of a word; longer ones are data."""

_WORDS: Final = "words"
# Scripts that put no space between words (Thai, Lao, Myanmar, Khmer, Han, Kana and what stands
# with them): each sign counts as a word, and a query of several signs is a phrase.
_UNSPACED: Final = (
    r"\u{0E00}-\u{0EFF}\u{1000}-\u{109F}\u{1780}-\u{17FF}\u{2E80}-\u{31FF}\u{3400}-\u{9FFF}"
    r"\u{F900}-\u{FAFF}\u{20000}-\u{3FFFF}"
)
_TOKEN: Final = rf"[\w&&[^_{_UNSPACED}]]+|[\w&&[{_UNSPACED}]]"


class Document(NamedTuple):
    """A page as it is stored; *text* and *title* are "" if it is gone."""

    entry: IndexEntry
    title: str = ""
    text: str = ""
    language: str = ""
    mime: str = ""

    @property
    def has_words(self) -> bool:
        return bool(self.text or self.title)

    @property
    def version(self) -> Version:
        """Orders the fetches of a URL."""
        entry = self.entry
        return Version(entry.stamp, entry.filename, entry.place.offset, entry.place.start)


class Version(NamedTuple):
    """Time of a fetch to the second, then its place."""

    stamp: str
    filename: str
    offset: int
    start: int


@cache
def schema() -> tantivy.Schema:
    build = tantivy.SchemaBuilder()
    for name in ("key", "kind", "pack", "host"):
        build.add_text_field(name, tokenizer_name="raw", index_option="basic")
    for name in ("language", "mime"):
        build.add_text_field(name, stored=True, tokenizer_name="raw", index_option="basic")
    for name in ("title", "text"):
        build.add_text_field(name, stored=True, tokenizer_name=_WORDS)
    build.add_text_field("url", tokenizer_name=_WORDS)
    for name in ("status", "time"):
        build.add_unsigned_field(name, indexed=True, fast=True)
    build.add_bytes_field("line", stored=True)
    return build.build()


@cache
def _analyzer() -> tantivy.TextAnalyzer:
    words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(_TOKEN))
    for each in (
        tantivy.Filter.remove_long(WORD_MAX), tantivy.Filter.lowercase(),
        tantivy.Filter.ascii_fold(),
    ):  # fmt: skip
        words = words.filter(each)
    return words.build()


def words_of(text: str) -> list[str]:
    """Return the words of *text* as the index has them."""
    return _analyzer().analyze(_plain(text))


def url_key(url: str) -> str:
    return xxhash.xxh3_128_hexdigest(url.encode("utf-8", "surrogatepass"))


def host_terms(host: str) -> Iterator[str]:
    """Yield *host*, and ``*.`` before it and each of its parent domains."""
    if not host:
        return
    yield host
    labels = host.split(".")
    for place in range(len(labels)):
        yield f"*.{'.'.join(labels[place:])}"


def to_tantivy(document: Document) -> tantivy.Document:
    entry = document.entry
    fields: dict[str, Any] = {
        "key": url_key(entry.url),
        "kind": PAGE if document.has_words else GONE,
        "pack": entry.filename,
        "line": entry.line(),
        "time": int(entry.stamp),
        "status": entry.status,
    }
    if fields["kind"] == PAGE:
        fields |= {
            "host": list(host_terms(host_of_any(entry.url))),
            "url": _plain(entry.url),
            "title": _plain(document.title),
            "text": _plain(document.text[:TEXT_MAX]),
            "language": document.language,
            "mime": document.mime,
        }
    return tantivy.Document.from_dict(fields, schema())


def to_document(found: tantivy.Document) -> Document:
    """Reverse `to_tantivy`. Raises `SearchDamagedError`."""
    try:
        entry = cdxj.parse_entry(line_of(found))
    except PackDamagedError as error:
        raise SearchDamagedError(f"the index of texts: {error}") from error
    said = (str(found.get_first(name) or "") for name in ("title", "text", "language", "mime"))
    return Document(entry, *said)


def line_of(found: tantivy.Document) -> bytes:
    """Return the stored index line of a page, or the position in a pack."""
    return bytes(found.get_first("line") or b"")


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


HEAP: Final = 64 << 20
"""Bytes of memory for pages that are not written yet."""
_ALL: Final = 1 << 24


class PackCursor(NamedTuple):
    """How far a pack was read. *offset*: of the next page. *tail*: digest of the bytes before, to
    detect a rewritten pack. *size*: of a pack read to its end, else 0.
    """

    name: str
    offset: int = 0
    tail: str = ""
    size: int = 0


class OpenIndex:
    """The last commit of the index in *path*. Raises `SearchDamagedError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with tantivy_errors(path):
            self.index = tantivy.Index.open(str(path))
            # The files of the index do not keep the tokenizer.
            self.index.register_tokenizer(_WORDS, _analyzer())
            self.schema = schema()
            self.searcher = self.index.searcher()

    def find(self, field: str, value: str, limit: int = _ALL) -> Iterator[tantivy.Document]:
        """Yield the documents with *value* in *field*, in no order."""
        with tantivy_errors(self.path):
            if not self.searcher.doc_freq(field, value):
                return
            query = tantivy.Query.term_query(self.schema, field, value, "basic")
            most = max(1, min(limit, self.searcher.num_docs))
            hits = self.searcher.search(query, most, count=False).hits
        for _, address in hits:
            with tantivy_errors(self.path):
                document = self.searcher.doc(address)
            yield document

    def page(self, url: str) -> Document | None:
        return next(map(to_document, self.find("key", url_key(url), 1)), None)

    def cursors(self) -> dict[str, PackCursor]:
        rows = (json.loads(line_of(each)) for each in self.find("kind", PACK))
        return {row["name"]: PackCursor(**row) for row in rows}


class IndexChange:
    """The next commit of the index in *path*; for one process at a time. Raises
    `SearchDamagedError` and `OSError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        with tantivy_errors(path):
            if not tantivy.Index.exists(str(path)):
                tantivy.Index(schema(), str(path))
            self.opened = OpenIndex(path)
            self._writer = self.opened.index.writer(HEAP, 1)
        self._new: dict[str, Version] = {}
        self._forgotten: set[str] = set()

    def newest(self, document: Document) -> bool:
        """Whether no newer version of its URL is known."""
        known = self._new.get(url_key(document.entry.url))
        if known is None:
            found = self.opened.page(document.entry.url)
            if found is not None and found.entry.filename not in self._forgotten:
                known = found.version
        return known is None or known < document.version

    def put(self, document: Document) -> None:
        key = url_key(document.entry.url)
        self._replace(key, to_tantivy(document))
        self._new[key] = document.version

    def put_cursor(self, cursor: PackCursor) -> None:
        key = f"{PACK} {cursor.name}"
        line = json.dumps(cursor._asdict()).encode()
        row = {"key": key, "kind": PACK, "line": line}
        self._replace(key, tantivy.Document.from_dict(row, self.opened.schema))

    def _replace(self, key: str, document: tantivy.Document) -> None:
        with tantivy_errors(self.path):
            if key in self._new or self.opened.searcher.doc_freq("key", key):
                self._writer.delete_documents_by_term("key", key)
            self._writer.add_document(document)

    def remove(self, field: str, value: str) -> None:
        with tantivy_errors(self.path):
            self._writer.delete_documents_by_term(field, value)

    def remove_pack(self, name: str) -> list[str]:
        """Remove the pages and the cursor of the pack *name*; return their URLs."""
        urls = [to_document(each).entry.url for each in self.opened.find("pack", name)]
        self._forgotten.add(name)
        self._new = {key: each for key, each in self._new.items() if each.filename != name}
        self.remove("pack", name)
        self.remove("key", f"{PACK} {name}")
        return urls

    def copy(
        self, old: OpenIndex, cursor: PackCursor, accepts: Callable[[str, str], bool] | None = None
    ) -> list[str]:
        """Copy the documents of a pack and its *cursor* from *old*, without pages that *accepts*
        accepts by URL and text; return their URLs.
        """
        out = []
        for document in map(to_document, old.find("pack", cursor.name)):
            url = document.entry.url
            if accepts is not None and accepts(url, f"{document.title}\n{document.text}"):
                out.append(url)
            else:
                self.put(document)
        self.put_cursor(cursor)
        return out

    def commit(self) -> None:
        """Write and sync; the change is used up."""
        with tantivy_errors(self.path):
            self._writer.commit()
            # Parts are merged in the background; they are whole when the next change begins.
            self._writer.wait_merging_threads()

    def discard(self) -> None:
        with tantivy_errors(self.path):
            self._writer.rollback()
            self._writer.wait_merging_threads()
