"""The text index: its documents, changes of pages and cursors in one commit, and queries.

A *page* has words. A *gone* document says that its URL has none since then, so that an older
version does not return. A *pack* document is a cursor. Of a URL the newest version counts, in any
order of arrival. A document suffices to copy the index without the packs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import tantivy
import xxhash
from tantivy import FieldType, Occur, Query

from scrapy_spider_suite.analysis.search import index_place
from scrapy_spider_suite.errors import PackDamagedError, QueryError, SearchDamagedError, SearchError
from scrapy_spider_suite.packs import cdxj
from scrapy_spider_suite.packs.reader import Packs, Page, Selection
from scrapy_spider_suite.urls.hosts import host_of_any

PAGE: Final = "page"
GONE: Final = "gone"
PACK: Final = "pack"

TEXT_MAX: Final = 1 << 20
WORD_MAX: Final = 80  # bytes of a word; longer ones are data

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

    entry: cdxj.IndexEntry
    title: str = ""
    text: str = ""
    language: str = ""
    mime: str = ""

    @property
    def has_words(self) -> bool:
        return bool(self.text or self.title)

    @property
    def version(self) -> Version:
        entry = self.entry
        return entry.stamp, entry.filename, entry.place.offset, entry.place.start


Version: TypeAlias = tuple[str, str, int, int]
"""Orders the fetches of a URL: time to the second, pack, place in it."""


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
    words = words.filter(tantivy.Filter.remove_long(WORD_MAX))
    return words.filter(tantivy.Filter.lowercase()).filter(tantivy.Filter.ascii_fold()).build()


def url_key(url: str) -> str:
    return xxhash.xxh3_128_hexdigest(url.encode("utf-8", "surrogatepass"))


def to_tantivy(document: Document) -> tantivy.Document:
    entry = document.entry
    fields: dict[str, Any] = {
        "key": url_key(entry.url), "kind": PAGE if document.has_words else GONE,
        "pack": entry.filename, "line": entry.line(), "time": int(entry.stamp),
        "status": entry.status,
    }  # fmt: skip
    if fields["kind"] == PAGE:
        host = host_of_any(entry.url)
        parents = [f"*.{host.split('.', n)[n]}" for n in range(host.count(".") + 1)]
        fields |= {
            "host": [host, *parents] if host else [], "url": _plain(entry.url),
            "title": _plain(document.title), "text": _plain(document.text[:TEXT_MAX]),
            "language": document.language, "mime": document.mime,
        }  # fmt: skip
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


HEAP: Final = 64 << 20  # bytes of memory for pages that are not written yet
_ALL: Final = 1 << 24


class PackCursor(NamedTuple):
    """How far a pack was read. *tail*: digest of the bytes before. *size*: if read to the end."""

    name: str
    offset: int = 0
    tail: str = ""
    size: int = 0


class OpenIndex:
    """The last commit of the index in *path*. Raises `SearchDamagedError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with index_place.tantivy_errors(path):
            self.index = tantivy.Index.open(str(path))
            # The files of the index do not keep the tokenizer.
            self.index.register_tokenizer(_WORDS, _analyzer())
            self.searcher = self.index.searcher()

    def find(self, field: str, value: str, limit: int = _ALL) -> Iterator[tantivy.Document]:
        """Yield the documents with *value* in *field*, in no order."""
        with index_place.tantivy_errors(self.path):
            if not self.searcher.doc_freq(field, value):
                return
            query = tantivy.Query.term_query(schema(), field, value, "basic")
            most = max(1, min(limit, self.searcher.num_docs))
            hits = self.searcher.search(query, most, count=False).hits
        for _, address in hits:
            with index_place.tantivy_errors(self.path):
                document = self.searcher.doc(address)
            yield document

    def page(self, url: str) -> Document | None:
        return next(map(to_document, self.find("key", url_key(url), 1)), None)

    def cursors(self) -> dict[str, PackCursor]:
        rows = (json.loads(line_of(each)) for each in self.find("kind", PACK))
        return {row["name"]: PackCursor(**row) for row in rows}


class IndexChange:
    """The next commit of the index in *path*. Raises `SearchDamagedError` and `OSError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        with index_place.tantivy_errors(path):
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
        self._replace(key, tantivy.Document.from_dict(row, schema()))

    def _replace(self, key: str, document: tantivy.Document) -> None:
        with index_place.tantivy_errors(self.path):
            if key in self._new or self.opened.searcher.doc_freq("key", key):
                self._writer.delete_documents_by_term("key", key)
            self._writer.add_document(document)

    def remove(self, field: str, value: str) -> None:
        with index_place.tantivy_errors(self.path):
            self._writer.delete_documents_by_term(field, value)

    def remove_pack(self, name: str) -> None:
        self._forgotten.add(name)
        self._new = {key: each for key, each in self._new.items() if each[1] != name}
        self.remove("pack", name)
        self.remove("key", f"{PACK} {name}")

    def copy(
        self, old: OpenIndex, cursor: PackCursor,
        drops: Callable[[str, str], bool] = lambda url, text: False,
    ) -> None:  # fmt: skip
        """Copy a pack's pages and *cursor* from *old*, without those that *drops* accepts."""
        for document in map(to_document, old.find("pack", cursor.name)):
            if not drops(document.entry.url, f"{document.title}\n{document.text}"):
                self.put(document)
        self.put_cursor(cursor)

    def commit(self) -> None:
        """Write and sync; the change is used up."""
        with index_place.tantivy_errors(self.path):
            self._writer.commit()
            # Parts are merged in the background; they are whole when the next change begins.
            self._writer.wait_merging_threads()

    def discard(self) -> None:
        with index_place.tantivy_errors(self.path):
            self._writer.rollback()
            self._writer.wait_merging_threads()


FIELDS: Final = ("title", "text", "url", "host", "language", "mime", "status", "time")
_DEFAULT: Final = ["title", "text"]
_BOOSTS: Final = {"title": 3.0}
_FIELD: Final = re.compile(r"Field does not exist: '(.*)'")


def query_of(
    index: tantivy.Index, text: str, selection: Selection, languages: Iterable[str] = ()
) -> tuple[Query, Query]:
    """Return the query, and its part that marks words. Raises `QueryError`."""
    if not text.strip():
        raise QueryError("what is to be searched for? * stands for every page")
    try:
        words = index.parse_query(text, _DEFAULT, _BOOSTS, conjunction_by_default=True)
    except ValueError as error:
        raise QueryError(f"{text!r} is no query: {_why(str(error))}") from None
    filters = [_term("kind", PAGE), *_filters(selection, languages)]
    wanted = [words, *(Query.const_score_query(each, 0.0) for each in filters)]
    return Query.boolean_query([(Occur.Must, each) for each in wanted]), words


def _why(message: str) -> str:
    field = _FIELD.fullmatch(message)
    if field:
        return (f"there is no field {field[1]!r}, but {', '.join(FIELDS)}; what has a colon in it "
                f'is put into quotes: "{field[1]}:..."')  # fmt: skip
    if message.startswith("Syntax Error"):
        return "a quote or a bracket that is not closed, or a word of the query language alone"
    if "Only excluding" in message:
        return "it only says what is not wanted; * -word stands for every page without it"
    return message


def _filters(selection: Selection, languages: Iterable[str]) -> Iterable[Query]:
    if selection.hosts:
        yield _any(_term("host", host) for host in selection.hosts)
    if languages := tuple(languages):
        yield _any(_term("language", language) for language in languages)
    if selection.mimes:
        yield _any(
            Query.regex_query(schema(), "mime", f"{re.escape(mime[:-1])}.*")
            if mime.endswith("*") else _term("mime", mime) for mime in selection.mimes
        )  # fmt: skip
    if selection.statuses:
        yield _any(_range("status", code.replace("x", "0"), code.replace("x", "9"))
                   for code in selection.statuses)  # fmt: skip
    if selection.first or selection.last:
        yield _range("time", selection.first or "0", selection.last or "99991231235959")


def _any(queries: Iterable[Query]) -> Query:
    return Query.boolean_query([(Occur.Should, each) for each in queries])


def _term(field: str, value: str) -> Query:
    return Query.term_query(schema(), field, value, "basic")


def _range(field: str, first: str, last: str) -> Query:
    return Query.range_query(schema(), field, FieldType.Unsigned, int(first), int(last))


CHARACTERS: Final = 200
_WINDOW: Final = 2_000
_WINDOW_MAX: Final = 32_000
"""Characters of a long text that are searched; up to _WINDOW_MAX if no word is found literally."""


class Snippet(NamedTuple):
    """Some 200 characters of a text; *marks* are (begin, end) of matching words."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()

    def marked(self, before: str, after: str) -> str:
        """Return the text with *before* and *after* around each match."""
        out, place = [], 0
        for start, end in self.marks:
            out += [self.text[place:start], before, self.text[start:end], after]
            place = end
        return "".join([*out, self.text[place:]])


class Snippets:
    def __init__(self, searcher: tantivy.Searcher, query: Query, asked: str) -> None:
        self._make = tantivy.SnippetGenerator.create(searcher, query, schema(), "text")
        self._make.set_max_num_chars(CHARACTERS)
        self._words = _analyzer().analyze(_plain(asked))

    def snippet_for(self, text: str) -> Snippet:
        """Return the snippet of *text*; its beginning if no word matches."""
        part = self._part(text)
        found = self._make.snippet_from_doc(tantivy.Document.from_dict({"text": part}, schema()))
        # Places are counted in bytes of UTF-8.
        fragment = found.fragment()
        data = fragment.encode()
        marks: list[tuple[int, int]] = []
        for each in found.highlighted():
            start, end = len(data[: each.start].decode()), len(data[: each.end].decode())
            if marks and marks[-1][1] == start:  # signs of one phrase
                start = marks.pop()[0]
            marks.append((start, end))
        line = fragment if marks else text[:CHARACTERS]
        line = "".join(sign if sign.isprintable() else " " for sign in line)
        return Snippet(line, tuple(marks))

    def _part(self, text: str) -> str:
        if len(text) <= _WINDOW:
            return text
        lower = text.lower()
        places = [place for word in self._words if (place := lower.find(word)) >= 0]
        if not places:
            return text[:_WINDOW_MAX]
        first = max(places, key=lambda one: sum(one <= each < one + _WINDOW for each in places))
        start = max(0, first - CHARACTERS)
        return text[start : start + _WINDOW]


@dataclass(frozen=True, slots=True)
class Hit:
    """A found page. *time*: of the fetch, UTC. *status*: 0 without HTTP. *mime*: by content.
    *language*: ISO 639-1, or "". *score*: BM25; comparable within one search and folder.
    """

    url: str
    title: str
    time: datetime
    status: int
    mime: str
    language: str
    score: float
    snippet: Snippet
    entry: cdxj.IndexEntry
    _packs: Packs = field(repr=False, compare=False)

    def page(self) -> Page | None:
        """Return the page from its pack, or None if it is gone. Raises as `Packs.page_of`."""
        return self._packs.page_of(self.entry)


class Results(list[Hit]):
    """Hits, the best first."""

    total = 0  # the number of matching pages


class TextIndex:
    """The indexes of *folders* of packs; finds pages added later. Made by `open_index`."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._indexes = [_FolderIndex(folder) for folder in folders]

    def search(
        self, query: str, *, selection: Selection | None = None, languages: Iterable[str] = (),
        limit: int = 10,
    ) -> Results:  # fmt: skip
        """Return the best *limit* pages for *query* among the selected ones.

        *languages*: ISO 639-1. Of several folders the newest version of a URL counts. Raises
        `QueryError`, `SearchDamagedError`, `SearchError` (no index), `OSError`.
        """
        selection, languages = selection or Selection(), tuple(languages)
        results, hits = Results(), list[tuple[Version, Hit]]()
        for index in self._indexes:
            total, found = index.search(query, selection, languages, limit)
            results.total += total
            hits += found
        newest = {hit.url: hit for _, hit in sorted(hits, key=itemgetter(0))}
        results += sorted(newest.values(), key=lambda hit: -hit.score)[:limit]
        return results


class _FolderIndex:
    def __init__(self, folder: Path) -> None:
        self._place = index_place.IndexPlace(folder)
        self._packs = Packs([folder])
        self._opened: OpenIndex | None = None
        self._state: object = None

    def search(
        self, query: str, selection: Selection, languages: Iterable[str], limit: int
    ) -> tuple[int, list[tuple[Version, Hit]]]:
        opened = self._current()
        wanted, words = query_of(opened.index, query, selection, languages)
        with index_place.tantivy_errors(opened.path):
            # As many places are made ready as are asked for.
            found = opened.searcher.search(wanted, max(1, min(limit, opened.searcher.num_docs)))
            snippets = Snippets(opened.searcher, words, query)
            hits = []
            for score, address in found.hits[:limit]:  # one text at a time: they may be many
                page = to_document(opened.searcher.doc(address))
                entry, snippet = page.entry, snippets.snippet_for(page.text)
                hit = Hit(entry.url, page.title, entry.time, entry.status, page.mime, page.language,
                          round(score, 3), snippet, entry, self._packs)  # fmt: skip
                hits.append((page.version, hit))
        return found.count, hits  # type: ignore[attr-defined]

    def _current(self) -> OpenIndex:
        for attempt in range(3):
            path = self._place.current()
            if (state := index_place.index_state(path)) is None:
                if not self._place.exists():
                    break
                continue
            try:
                if self._opened is None or self._state != state:
                    self._opened, self._state = OpenIndex(path), state
                return self._opened
            except SearchDamagedError:
                # Another one took its place just now, or this one is damaged.
                if attempt or self._place.current() == path:
                    raise
        raise SearchError(f"no index of texts in {self._place.packs}: `scrapy packs index` makes "
                          "one, and a crawl with SUITE_INDEX")  # fmt: skip
