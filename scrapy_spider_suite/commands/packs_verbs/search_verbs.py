"""``scrapy packs search`` and ``index``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_spider_suite.analysis.search import open_index, require
from scrapy_spider_suite.analysis.search.index_process import IndexProcess
from scrapy_spider_suite.commands.packs_verbs.options import (
    add_choice,
    add_paths,
    choice_of,
    packs_of,
    paths_of,
    progress,
)
from scrapy_spider_suite.errors import PackError, SearchError
from scrapy_spider_suite.operate.verb import Invocation, Verb, add_limit
from scrapy_spider_suite.packs.pack_file import is_pack
from scrapy_spider_suite.runtime.text import counted, printable

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.search.text_index import Hit

_TRIES: Final = 10  # processes that are started in a row; a page may end one
_WAIT: Final = "60"  # seconds to wait for another process that writes


def _search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY")
    add_paths(parser)
    add_choice(parser)
    parser.add_argument(
        "--lang", action="append", default=[], type=str.lower, metavar="CODE",
        help="pages in this language (ISO 639-1: en, de, ja); may be given again",
    )  # fmt: skip
    add_limit(parser)


def _search(call: Invocation) -> int:
    options = call.options
    found = open_index(*paths_of(call)).search(
        options.query, selection=choice_of(options), languages=options.lang,
        limit=options.limit or sys.maxsize,
    )  # fmt: skip
    before, after = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("**", "**")
    for hit in found:
        if call.json:
            print(json.dumps(_row(hit)))
            continue
        about = f"{hit.time:%Y-%m-%d %H:%M:%S}  {hit.language or '-'}  {hit.score:.2f}"
        print(f"{printable(hit.title) or '-'}\n  {printable(hit.url)}\n  {about}")
        if hit.snippet.text:
            print(f"  {hit.snippet.marked(before, after)}")
        print()
    if not call.json:
        print(f"{len(found)} of {counted(found.total, 'page')}")
    return 0 if found else 1


def _row(hit: Hit) -> dict[str, Any]:
    return {
        "url": hit.url, "title": hit.title, "time": f"{hit.time:%Y-%m-%dT%H:%M:%SZ}",
        "status": hit.status, "mime": hit.mime, "language": hit.language, "score": hit.score,
        "snippet": hit.snippet.text, "marks": hit.snippet.marks, "pack": hit.entry.filename,
    }  # fmt: skip


def _index_options(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument(
        "--rebuild", action="store_true",
        help="make a new index of the packs here; the old index is used until it is complete",
    )  # fmt: skip


def _index(call: Invocation) -> int:
    require()
    code = 0
    for folder in paths_of(call):
        if not folder.is_dir():
            raise PackError(f"a folder of packs has an index, {folder} is none")
    for folder in packs_of(call).paths:
        code = max(code, _Indexing(folder, rebuild=call.options.rebuild).run(call))
    return code


class _Indexing:
    """Indexes a folder in a process, and starts another process when a page ends it."""

    def __init__(self, folder: Path, *, rebuild: bool) -> None:
        self._folder = folder
        self._arguments = ["--wait", _WAIT, *(["--rebuild"] if rebuild else [])]
        self._sums = dict.fromkeys(("pages", "gone", "skipped", "damaged"), 0)
        self._rebuilt = ""
        self._move: Callable[[int], object] = id
        self._left = 0
        self._end = (0, "")

    def run(self, call: Invocation) -> int:
        """Index all packs. Raises `SearchError`."""
        self._left = sum(path.stat().st_size for path in self._folder.iterdir() if is_pack(path))
        with progress(self._left, "B") as self._move:
            for _ in range(_TRIES):
                self._follow()
                if self._end[0] >= 0:
                    break
        code, words = self._end
        if code:
            raise SearchError(words or f"the process that indexes has ended with {code}")
        call.facts({"folder": str(self._folder), **self._sums, "rebuilt": self._rebuilt or None})
        return 1 if self._sums["damaged"] else 0

    def _follow(self) -> None:
        process = IndexProcess(self._folder, self._told, self._ended, *self._arguments)
        try:
            process.finish()
            process.wait()
        except KeyboardInterrupt:
            process.stop()
            process.wait()
            raise

    def _told(self, row: dict[str, Any]) -> None:
        for name in ("pages", "gone", "skipped"):
            self._sums[name] += row[name]
        self._sums["damaged"] += len(row["damaged"])
        for pack, (offset, length, why, _) in row["damaged"]:
            print(f"{self._folder / pack}: damaged, {length} bytes at {offset}: {why}",
                  file=sys.stderr)  # fmt: skip
        if row["rebuilt"]:
            self._rebuilt = row["rebuilt"]
            print(f"scrapy packs: {self._rebuilt}: the index is made anew", file=sys.stderr)
        self._move(self._left - row["behind"])
        self._left = row["behind"]

    def _ended(self, code: int, words: str) -> None:
        self._end = code, words


VERBS = (
    Verb(
        "search", "pages by their words, the best first", _search, _search_options,
        "QUERY [PATH...]",
        about=(
            "A page is found if its title or text has every word of QUERY. \"a b\": these words\n"
            "in this order. -word: pages without the word. a OR b: pages with one of the words.\n"
            "title:word, url:word: the word in this part. *: every page. The newest version of\n"
            "each URL is found. A crawl with SUITE_INDEX, or `scrapy packs index`, makes the index."
        ),
        examples=(
            "search 'full text'",
            "search '\"page rank\" -google' crawls/news/packs other-machine/packs --limit 50",
            "search crawler --host '*.example.com' --lang de --from 2026-11 --json",
        ),
        exits={1: "nothing is found"},
    ),
    Verb(
        "index", "index the words of pages, for search", _index, _index_options, "[PATH...]",
        about=(
            "Adds the pages that the index does not have yet, beside a running crawl too. Damaged\n"
            "places of packs are named on stderr and left out. A damaged index is made anew."
        ),
        examples=("index crawls/news/packs", "index crawls/news/packs --rebuild"),
        exits={1: "something in the packs is damaged"},
    ),
)  # fmt: skip
