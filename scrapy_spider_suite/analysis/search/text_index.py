"""What the index holds of a page, and how text becomes words.

A *page* is a document with its words; a *gone* one only says that its URL has none since then, so
that an older version that is read later does not bring it back; a *pack* says how far that pack has
been read. All that is stored of a page are its line in the packs' index, title, text, language and
media type: what else is in the index is made of these, so that it can be copied without the packs.

One change of the index: pages, and how far each pack has been read, in one commit.

So the index and its place in the packs agree whenever it is killed. Of a URL the newest version is
there, in whatever order versions come.
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
"""Characters of a page that are indexed: as many as a novel has."""
WORD_MAX: Final = 80
"""Bytes of a word; what is longer is none, but data."""

_WORDS: Final = "words"
# Scripts that put no space between words (Thai, Lao, Myanmar, Khmer, Han, Kana and what stands
# with them): each sign counts as a word, and a query of several signs is a phrase.
_UNSPACED: Final = (
    r"\u{0E00}-\u{0EFF}\u{1000}-\u{109F}\u{1780}-\u{17FF}\u{2E80}-\u{31FF}\u{3400}-\u{9FFF}"
    r"\u{F900}-\u{FAFF}\u{20000}-\u{3FFFF}"
)
_TOKEN: Final = rf"[\w&&[^_{_UNSPACED}]]+|[\w&&[{_UNSPACED}]]"


class Document(NamedTuple):
    """A page as the index stores it: *text* and *title* are "" of one that is gone."""

    entry: IndexEntry
    title: str = ""
    text: str = ""
    language: str = ""
    mime: str = ""

    @property
    def has_words(self) -> bool:
        """Whether there is anything in it to be found."""
        return bool(self.text or self.title)

    @property
    def version(self) -> Version:
        """Which of two fetches of a URL is the newer one."""
        entry = self.entry
        return Version(entry.stamp, entry.filename, entry.place.offset, entry.place.start)


class Version(NamedTuple):
    """When a page was fetched, to the second; of two in one second, what lies further on."""

    stamp: str
    filename: str
    offset: int
    start: int


@cache
def schema() -> tantivy.Schema:
    """The fields."""
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
    """Words in lower case, without accents; of every language, so without stems."""
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


def add_tokenizer(index: tantivy.Index) -> tantivy.Index:
    """Let *index* know what a word is: that is not kept in its files."""
    index.register_tokenizer(_WORDS, _analyzer())
    return index


def url_key(url: str) -> str:
    """What stands for *url*: of 128 bits, and not to be turned back."""
    return xxhash.xxh3_128_hexdigest(url.encode("utf-8", "surrogatepass"))


def host_terms(host: str) -> Iterator[str]:
    """The terms for *host*: itself, and ``*.`` before it and each domain that it is of."""
    if not host:
        return
    yield host
    labels = host.split(".")
    for place in range(len(labels)):
        yield f"*.{'.'.join(labels[place:])}"


def to_tantivy(document: Document) -> tantivy.Document:
    """Return what is put into the index for a page."""
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
    """Return the page that `to_tantivy` has put in. Raises `SearchDamagedError`: it is none."""
    try:
        entry = cdxj.parse_entry(line_of(found))
    except PackDamagedError as error:
        raise SearchDamagedError(f"the index of texts: {error}") from error
    said = (str(found.get_first(name) or "") for name in ("title", "text", "language", "mime"))
    return Document(entry, *said)


def line_of(found: tantivy.Document) -> bytes:
    """What is stored beside the words: the line of a page, or how far a pack was read."""
    return bytes(found.get_first("line") or b"")


def _plain(text: str) -> str:
    """*text* without halves of characters, which no UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode()


HEAP: Final = 64 << 20
"""Bytes of memory for pages that are not written yet; what is more becomes a part of its own."""
_ALL: Final = 1 << 24


class PackCursor(NamedTuple):
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


class OpenIndex:
    """The index in the folder *path* as of its last commit. Raises `SearchDamagedError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with tantivy_errors(path):
            self.index = add_tokenizer(tantivy.Index.open(str(path)))
            self.schema = schema()
            self.searcher = self.index.searcher()

    def find(self, field: str, value: str, limit: int = _ALL) -> Iterator[tantivy.Document]:
        """What has *value* in *field*, in no order."""
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
        """What is known of *url*."""
        return next(map(to_document, self.find("key", url_key(url), 1)), None)

    def cursors(self) -> dict[str, PackCursor]:
        """How far each pack has been read."""
        rows = (json.loads(line_of(each)) for each in self.find("kind", PACK))
        return {row["name"]: PackCursor(**row) for row in rows}


class IndexChange:
    """What is put into the index in *path* by the next `commit`; by one process at a time.

    Raises `SearchDamagedError` and `OSError`.
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
        """Whether nothing newer is known of its URL."""
        known = self._new.get(url_key(document.entry.url))
        if known is None:
            found = self.opened.page(document.entry.url)
            if found is not None and found.entry.filename not in self._forgotten:
                known = found.version
        return known is None or known < document.version

    def put(self, document: Document) -> None:
        """Let *document* be what is known of its URL."""
        key = url_key(document.entry.url)
        self._replace(key, to_tantivy(document))
        self._new[key] = document.version

    def put_cursor(self, cursor: PackCursor) -> None:
        """Note how far a pack has been read."""
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
        """Leave out what has *value* in *field*."""
        with tantivy_errors(self.path):
            self._writer.delete_documents_by_term(field, value)

    def remove_pack(self, name: str) -> list[str]:
        """Leave out the pages of the pack *name*, and how far it was read; return their URLs."""
        urls = [to_document(each).entry.url for each in self.opened.find("pack", name)]
        self._forgotten.add(name)
        self._new = {key: each for key, each in self._new.items() if each.filename != name}
        self.remove("pack", name)
        self.remove("key", f"{PACK} {name}")
        return urls

    def copy(
        self, old: OpenIndex, cursor: PackCursor, takes: Callable[[str, str], bool] | None = None
    ) -> list[str]:
        """Put in what *old* has of a pack, and its *cursor* there.

        Pages that *takes* takes, by their URL and text, are left out; returns their URLs.
        """
        out = []
        for document in map(to_document, old.find("pack", cursor.name)):
            url = document.entry.url
            if takes is not None and takes(url, f"{document.title}\n{document.text}"):
                out.append(url)
            else:
                self.put(document)
        self.put_cursor(cursor)
        return out

    def commit(self) -> None:
        """Write it, on the medium; nothing more can be put into this change."""
        with tantivy_errors(self.path):
            self._writer.commit()
            # Parts are merged in the background; they are whole when the next change begins.
            self._writer.wait_merging_threads()

    def discard(self) -> None:
        """Leave the index as it was."""
        with tantivy_errors(self.path):
            self._writer.rollback()
            self._writer.wait_merging_threads()
