"""Asks the text indexes of folders of packs: queries, hits, snippets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import tantivy
from tantivy import FieldType, Occur, Query

from scrapy_spider_suite.analysis.search.index_place import IndexPlace, tantivy_errors
from scrapy_spider_suite.analysis.search.text_index import (
    PAGE,
    OpenIndex,
    Version,
    schema,
    to_document,
    words_of,
)
from scrapy_spider_suite.errors import QueryError, SearchDamagedError, SearchError
from scrapy_spider_suite.packs.cdxj import IndexEntry, file_identity
from scrapy_spider_suite.packs.reader import Packs, Page, Selection

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
        yield _any(map(_mime, selection.mimes))
    if selection.statuses:
        yield _any(map(_status, selection.statuses))
    if selection.first or selection.last:
        yield _range("time", selection.first or "0", selection.last or "99991231235959")


def _any(queries: Iterable[Query]) -> Query:
    return Query.boolean_query([(Occur.Should, each) for each in queries])


def _term(field: str, value: str) -> Query:
    return Query.term_query(schema(), field, value, "basic")


def _mime(wanted: str) -> Query:
    if wanted.endswith("*"):
        return Query.regex_query(schema(), "mime", f"{re.escape(wanted[:-1])}.*")
    return _term("mime", wanted)


def _status(wanted: str) -> Query:
    if wanted.endswith("xx"):
        return _range("status", f"{wanted[0]}00", f"{wanted[0]}99")
    return _range("status", wanted, wanted)


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
    def __init__(self, searcher: tantivy.Searcher, query: tantivy.Query, asked: str) -> None:
        self._make = tantivy.SnippetGenerator.create(searcher, query, schema(), "text")
        self._make.set_max_num_chars(CHARACTERS)
        self._words = words_of(asked)

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
    """A found page.

    Attributes:
        time: of the fetch, UTC. *status*: 0 without HTTP.
        mime: by content. *language*: ISO 639-1, or "".
        score: BM25; comparable within one search and folder.
        entry: its index entry.
    """

    url: str
    title: str
    time: datetime
    status: int
    mime: str
    language: str
    score: float
    snippet: Snippet
    entry: IndexEntry
    _packs: Packs = field(repr=False, compare=False)

    def page(self) -> Page | None:
        """Return the page from its pack, or None if it is gone. Raises `PackUploadedError`,
        `PackMissingError`, `PackDamagedError`, `OSError`.
        """
        return self._packs.page_of(self.entry)


class Results(list[Hit]):
    """Hits, the best first. *total*: the number of matching pages."""

    total: int = 0


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
        results, best = Results(), dict[str, tuple[Version, Hit]]()
        for index in self._indexes:
            total, hits = index.search(query, selection, languages, limit)
            results.total += total
            for version, hit in hits:
                known = best.get(hit.url)
                if known is None or known[0] < version:
                    best[hit.url] = version, hit
        results += sorted((hit for _, hit in best.values()), key=lambda hit: -hit.score)[:limit]
        return results


class _FolderIndex:
    def __init__(self, folder: Path) -> None:
        self._place = IndexPlace(folder)
        self._packs = Packs([folder])
        self._opened: OpenIndex | None = None
        self._state: tuple[int, int, int] | None = None

    def search(
        self, query: str, selection: Selection, languages: Iterable[str], limit: int
    ) -> tuple[int, list[tuple[Version, Hit]]]:
        opened = self._current()
        wanted, words = query_of(opened.index, query, selection, languages)
        with tantivy_errors(opened.path):
            # As many places are made ready as are asked for.
            found = opened.searcher.search(wanted, max(1, min(limit, opened.searcher.num_docs)))
            snippets = Snippets(opened.searcher, words, query)
            hits = []
            for score, address in found.hits[:limit]:  # one text at a time: they may be many
                document = to_document(opened.searcher.doc(address))
                entry = document.entry
                hit = Hit(
                    entry.url, document.title, entry.time, entry.status, document.mime,
                    document.language, round(score, 3), snippets.snippet_for(document.text), entry,
                    self._packs,
                )  # fmt: skip
                hits.append((document.version, hit))
        return found.count, hits  # type: ignore[attr-defined]

    def _current(self) -> OpenIndex:
        for attempt in range(3):
            path = self._place.current()
            try:
                state = file_identity((path / "meta.json").stat())
                if self._opened is None or (self._opened.path, self._state) != (path, state):
                    self._opened, self._state = OpenIndex(path), state
                return self._opened
            except FileNotFoundError:
                if not self._place.exists():
                    break
            except SearchDamagedError:
                # Another one took its place just now, or this one is damaged.
                if attempt or self._place.current() == path:
                    raise
        raise SearchError(f"no index of texts in {self._place.packs}: `scrapy packs index` makes "
                          "one, and a crawl with SUITE_INDEX")  # fmt: skip
