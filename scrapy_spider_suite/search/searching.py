"""Asks the indexes of folders of packs, while they are written too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from scrapy_spider_suite.errors import SearchDamagedError, SearchError
from scrapy_spider_suite.packs.cdxj import Entry
from scrapy_spider_suite.packs.reader import Packs, Page
from scrapy_spider_suite.packs.selection import Choice
from scrapy_spider_suite.packs.sorted_lines import identity
from scrapy_spider_suite.search.asking import query_of
from scrapy_spider_suite.search.checking import sound
from scrapy_spider_suite.search.place import IndexPlace
from scrapy_spider_suite.search.schema import Document, Version, from_tantivy
from scrapy_spider_suite.search.snippets import Snippet, Snippets
from scrapy_spider_suite.search.writing import Opened


@dataclass(frozen=True, slots=True)
class Hit:
    """A page that was found.

    Attributes:
        url, title: which page.
        time: when it was fetched, in UTC.
        status: of HTTP; 0 for what did not come by HTTP.
        mime: its media type, by its content. *language*: ISO 639-1; "" where it cannot be told.
        score: how well it fits (BM25); of one search, and one folder, the higher is the better.
        snippet: a part of its text.
        entry: its line in the index of the packs.
    """

    url: str
    title: str
    time: datetime
    status: int
    mime: str
    language: str
    score: float
    snippet: Snippet
    entry: Entry
    _packs: Packs = field(repr=False, compare=False)

    def page(self) -> Page | None:
        """Return the page from its pack; None if it is not there any more.

        Raises `PackAwayError` (the pack was uploaded), `PackMissingError` (it is gone, and its
        index is not), `PackDamagedError`, `OSError`.
        """
        return self._packs.page_of(self.entry)


class Results(list[Hit]):
    """What was found, the best first. *total*: how many pages fit, these and others."""

    total: int = 0


class TextIndex:
    """The indexes of the packs in *folders*; made by `open_index`. What is added is found."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._indexes = [_FolderIndex(folder) for folder in folders]

    def search(
        self, query: str, *, choice: Choice | None = None, languages: Iterable[str] = (),
        limit: int = 10,
    ) -> Results:  # fmt: skip
        """Return the *limit* pages that fit *query* best, of those that *choice* leaves.

        *languages*: ISO 639-1. Of several folders the newest version of a URL is returned; its text
        is not kept. Raises `QueryError` (*query* is none), `SearchDamagedError`, `SearchError` (no
        index), `OSError`.
        """
        choice, languages = choice or Choice(), tuple(languages)
        results, best = Results(), dict[str, tuple[Version, Hit]]()
        for index in self._indexes:
            total, hits = index.search(query, choice, languages, limit)
            results.total += total
            for version, hit in hits:
                known = best.get(hit.url)
                if known is None or known[0] < version:
                    best[hit.url] = version, hit
        results += sorted((hit for _, hit in best.values()), key=lambda hit: -hit.score)[:limit]
        return results


class _FolderIndex:
    """That of one folder."""

    def __init__(self, folder: Path) -> None:
        self._place = IndexPlace(folder)
        self._packs = Packs([folder])
        self._opened: Opened | None = None
        self._state: tuple[int, int, int] | None = None

    def search(
        self, query: str, choice: Choice, languages: Iterable[str], limit: int
    ) -> tuple[int, list[tuple[Version, Hit]]]:
        opened = self._current()
        wanted, words = query_of(opened.index, query, choice, languages)
        with sound(opened.path):
            # As many places are made ready as are asked for.
            found = opened.searcher.search(wanted, max(1, min(limit, opened.searcher.num_docs)))
            snippets = Snippets(opened.searcher, words, query)
            hits = []
            for score, address in found.hits[:limit]:  # one text at a time: they may be many
                document = from_tantivy(opened.searcher.doc(address))
                hits.append((document.version, self._hit(document, score, snippets)))
        return found.count, hits  # type: ignore[attr-defined]

    def _hit(self, document: Document, score: float, snippets: Snippets) -> Hit:
        entry = document.entry
        return Hit(
            entry.url, document.title, entry.time, entry.status, document.mime, document.language,
            round(score, 3), snippets.of(document.text), entry, self._packs,
        )  # fmt: skip

    def _current(self) -> Opened:
        """The index as it is now."""
        for attempt in range(3):
            path = self._place.current()
            try:
                state = identity((path / "meta.json").stat())
                if self._opened is None or (self._opened.path, self._state) != (path, state):
                    self._opened, self._state = Opened(path), state
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
