"""``scrapy packs ls``, ``get``, ``cat``, ``links``, ``search`` and ``index``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy.exceptions import UsageError

from scrapy_spider_suite.analysis.search import open_index, require
from scrapy_spider_suite.analysis.search.index_process import IndexProcess
from scrapy_spider_suite.commands.packs_verbs import options as shared
from scrapy_spider_suite.errors import PackError, SearchError
from scrapy_spider_suite.operate import verb
from scrapy_spider_suite.packs import pack_file
from scrapy_spider_suite.packs.cdxj import IndexEntry, timestamp
from scrapy_spider_suite.packs.http_records import split_message
from scrapy_spider_suite.packs.pack_file import Damage, is_pack
from scrapy_spider_suite.packs.reader import Selection, pack_entries, pages, select
from scrapy_spider_suite.runtime.text import counted, printable
from scrapy_spider_suite.urls.normalize import normalize

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.search.text_index import Hit

_COLUMNS = ("name", "pages", "bytes", "from", "to", "state")


def _run_ls(call: verb.Invocation) -> int:
    packs, choice = shared.packs_of(call), shared.choice_of(call.options)
    if call.options.pages:
        for pack, entry in select(packs, choice):
            page = _page(pack, entry)
            line = (page["time"], page["status"] or "-", page["mime"] or "-", page["url"])
            print(json.dumps(page) if call.json else "\t".join(printable(str(x)) for x in line))
        shared.tell_absent(packs)
        return 0
    files, away = packs.files(), packs.away()
    with shared.progress(len(files) + len(away), "packs") as move:
        rows = []
        for path, done in [*((path, None) for path in files), *away]:
            rows.append(_pack(path, choice, done))
            move(1)
    uploaded = any(row["uploaded"] is not None for row in rows)
    call.table(rows, (*_COLUMNS, "uploaded") if uploaded else _COLUMNS)
    if not call.json:
        for form in sorted({pack_file.format_of(path) for path in files}):
            print(f"*.warc.{form}: {pack_file.FORMATS[form].readers}", file=sys.stderr)
    return 0


def _pack(path: Path, choice: Selection, away: pack_file.Uploaded | None) -> verb.Row:
    done, state = away or pack_file.find_upload(path), "away"
    size = away.size if away else 0
    if away is None:
        with pack_file.open_pack(pack_file.closed_path(path)) as file:
            size = file.seek(0, 2)
        # It may have been closed meanwhile.
        state = "open" if path.name.endswith(pack_file.OPEN) and path.exists() else "closed"
    count, first, last = 0, "", ""
    for entry in pack_entries(path):
        if choice.accepts(entry):
            count += 1
            first = min(first or entry.stamp, entry.stamp)
            last = max(last, entry.stamp)
    return {"name": pack_file.closed_path(path).name, "folder": str(path.parent), "pages": count,
            "bytes": size, "from": _time(first), "to": _time(last), "state": state,
            "uploaded": None if done is None else done.url}  # fmt: skip


def _time(stamp: str) -> str | None:
    if not stamp:
        return None
    return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[8:10]}:{stamp[10:12]}:{stamp[12:]}Z"


def _page(pack: Path, entry: IndexEntry) -> verb.Row:
    return {"url": entry.url, "time": _time(entry.stamp), "status": entry.status,
            "mime": entry.mime, "digest": entry.digest, "pack": str(pack),
            "offset": entry.place.offset, "length": entry.place.length}  # fmt: skip


def _at(text: str) -> datetime:
    digits = timestamp(text, last=True)
    return datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def _get(call: verb.Invocation) -> int:
    options, packs, page = call.options, shared.packs_of(call), None
    for url in dict.fromkeys((options.url, normalize(options.url))):
        page = page or (packs.get(url, options.at) if url else None)
    if page is None:
        when = f" by {options.at:%Y-%m-%dT%H:%M:%SZ}" if options.at else ""
        print(f"scrapy packs: {printable(options.url)} is not in these packs{when}",
              file=sys.stderr)  # fmt: skip
        return 1
    if options.links:
        for link in page.links:
            text = f"{link.url}\t{link.kind}\t{'nofollow' if link.nofollow else ''}".rstrip()
            print(json.dumps(link._asdict()) if call.json else text)
    elif options.record:
        sys.stdout.buffer.write(page.record.to_bytes())
    elif call.json:
        print(json.dumps({
            "url": page.url, "time": page.record.get("WARC-Date"), "status": page.status,
            "mime": page.mime, "headers": page.headers, "digest": page.digest,
            "revisit": page.is_revisit, "via": page.via, "hops": page.hops,
            "pack": str(page.path), "offset": page.place.offset, "length": page.place.length,
        }))  # fmt: skip
    elif options.headers:
        sys.stdout.buffer.write(split_message(page.record.block)[0] if page.status else b"")
    else:
        sys.stdout.buffer.write(page.body)
    return 0


def _cat(call: verb.Invocation) -> int:
    if not call.options.path:
        raise UsageError("which packs? give PATHs", print_help=False)
    code = 0
    packs = shared.packs_of(call)
    files = packs.files()
    with shared.progress(sum(path.stat().st_size for path in files), "B") as move:
        for path in files:
            for part in pack_file.scan(path):
                if not isinstance(part, Damage):
                    sys.stdout.buffer.write(part.data)
                elif not (part.torn and path.name.endswith(pack_file.OPEN)):
                    closed = pack_file.closed_path(path)
                    shared.tell_damage(closed, part.offset, part.length, part.why)
                    code = 1
                move(part.length)
    shared.tell_absent(packs)
    return code


def _run_links(call: verb.Invocation) -> int:
    packs = shared.packs_of(call)
    with shared.progress(None, "pages") as move:
        for page in pages(packs, shared.choice_of(call.options)):
            for link in page.links:
                if call.json:
                    time = page.record.get("WARC-Date")
                    print(json.dumps({"page": page.url, "time": time, **link._asdict()}))
                else:
                    flag = "nofollow" if link.nofollow else "-"
                    print(page.url, link.url, link.kind, flag, sep="\t")
            move(1)
    return shared.tell_left_out(packs)


_TRIES: Final = 10  # processes that are started in a row; a page may end one
_WAIT: Final = 60.0  # seconds to wait for another process that writes


def _search(call: verb.Invocation) -> int:
    options = call.options
    found = open_index(*shared.paths_of(call)).search(
        options.query, selection=shared.choice_of(options), languages=options.lang,
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


def _index(call: verb.Invocation) -> int:
    require()
    code = 0
    for folder in shared.paths_of(call):
        if not folder.is_dir():
            raise PackError(f"a folder of packs has an index, {folder} is none")
    for folder in shared.packs_of(call).paths:
        code = max(code, _Indexing(folder, rebuild=call.options.rebuild).run(call))
    return code


class _Indexing:
    """Indexes a folder in a process, and starts another process when a page ends it."""

    def __init__(self, folder: Path, *, rebuild: bool) -> None:
        self._folder = folder
        self._rebuild = rebuild
        self._sums = dict.fromkeys(("pages", "gone", "skipped", "damaged"), 0)
        self._rebuilt = ""
        self._move: Callable[[int], object] = id
        self._left = 0
        self._end = (0, "")

    def run(self, call: verb.Invocation) -> int:
        """Index all packs. Raises `SearchError`."""
        self._left = sum(path.stat().st_size for path in self._folder.iterdir() if is_pack(path))
        with shared.progress(self._left, "B") as self._move:
            for _ in range(_TRIES):
                process = IndexProcess(self._folder, self._told, self._ended,
                                       rebuild=self._rebuild, wait=_WAIT)  # fmt: skip
                try:
                    process.finish()
                    process.wait()
                except KeyboardInterrupt:
                    process.stop()
                    process.wait()
                    raise
                if self._end[0] >= 0:
                    break
        code, words = self._end
        if code:
            raise SearchError(words or f"the process that indexes has ended with {code}")
        call.facts({"folder": str(self._folder), **self._sums, "rebuilt": self._rebuilt or None})
        return 1 if self._sums["damaged"] else 0

    def _told(self, row: dict[str, Any]) -> None:
        for name in ("pages", "gone", "skipped"):
            self._sums[name] += row[name]
        self._sums["damaged"] += len(row["damaged"])
        for pack, (offset, length, why, _) in row["damaged"]:
            shared.tell_damage(self._folder / pack, offset, length, why)
        if row["rebuilt"]:
            self._rebuilt = row["rebuilt"]
            print(f"scrapy packs: {self._rebuilt}: the index is made anew", file=sys.stderr)
        self._move(self._left - row["behind"])
        self._left = row["behind"]

    def _ended(self, code: int, words: str) -> None:
        self._end = code, words


VERBS = (
    verb.Verb(
        "ls", "packs, or with --pages the pages in them", _run_ls,
        (
            shared.PATHS,
            verb.option("--pages", action="store_true", help="list pages, not packs"),
            *shared.CHOICE,
        ),
        "[PATH...]",
        about=(
            "Counts and times are of the selected pages, by the indexes: answers and revisits,\n"
            "not requests and metadata. A line of a page has time, status, type (warc/revisit\n"
            "for a revisit) and URL, separated by tabs. Uploaded packs are listed with their\n"
            "place. A pack that was deleted here after its upload is 'away'; its pages are not\n"
            "listed. Standard error says which tools read the format of the packs."
        ),
        examples=(
            "ls crawls/news/packs other-machine/packs --json",
            "ls crawls/news/packs --pages --mime text/html --from 2026-11-01 --to 2026-11",
        ),
    ),
    verb.Verb(
        "get", "a page as it came: its body, decompressed, on stdout", _get,
        (
            verb.option("url", metavar="URL"),
            shared.PATHS,
            verb.option(
                "--at", type=verb.argument_type(_at), metavar="TIME",
                help="the version at this time: 2026-11-22 (its end), 2026-11-22T10:15 (UTC)",
            ),
            verb.one_of(
                verb.option("--headers", action="store_true", help="print the response's head"),
                verb.option("--record", action="store_true", help="print the WARC record"),
                verb.option("--links", action="store_true", help="print the links of the page"),
            ),
        ),
        "URL [PATH...]",
        about=(
            "The last version, or the version at a time. The body of a revisit is the body of\n"
            "the page that it repeats. --json prints the facts about the page, without its body."
        ),
        examples=(
            "get https://example.com/ crawls/news/packs --at 2026-11-22 > index.html",
            "get https://example.com/ crawls/news/packs --record | warcio check /dev/stdin",
        ),
        exits={1: "the page is not in the packs"},
    ),
    verb.Verb(
        "cat", "the WARC records of packs, decompressed", _cat, (shared.PATHS,), "PATH...",
        about=(
            "Works for every format. Of a pack that is being written, prints the complete\n"
            "records. Damaged places are named on stderr and left out."
        ),
        examples=(
            "cat crawls/news/packs/news-20261122101458-00001-a.warc.lzo | less",
            "cat crawls/news/packs | warcio index -",
        ),
        exits={1: "something is damaged"},
    ),
    verb.Verb(
        "links", "the links of pages, as the crawl found them", _run_links,
        (shared.PATHS, *shared.CHOICE, shared.SAMPLE), "[PATH...]",
        about=(
            "A line for each link of each page: page, link, kind (a, area, frame, redirect,\n"
            "refresh, canonical, sitemap) and nofollow or -, separated by tabs. A page that was\n"
            "fetched twice comes twice. Graphs with numbers for pages: docs/links.md."
        ),
        examples=(
            "links crawls/news/packs > edges.tsv",
            "links crawls/news/packs --host example.com --json",
        ),
        exits={1: "something is damaged, and was left out"},
    ),
    verb.Verb(
        "search", "pages by their words, the best first", _search,
        (
            verb.option("query", metavar="QUERY"),
            shared.PATHS,
            *shared.CHOICE,
            verb.option(
                "--lang", action="append", default=[], type=str.lower, metavar="CODE",
                help="pages in this language (ISO 639-1: en, de, ja); may be given again",
            ),
            verb.LIMIT,
        ),
        "QUERY [PATH...]",
        about=(
            "A page is found if its title or text has every word of QUERY. \"a b\": these words\n"
            "in this order. -word: pages without the word. a OR b: pages with one of the words.\n"
            "title:word, url:word: the word in this part. *: every page. The newest version of\n"
            "each URL is found. A crawl with SUITE_INDEX, or `scrapy packs index`, makes the index."
        ),
        examples=(
            "search '\"page rank\" -google' crawls/news/packs other-machine/packs --limit 50",
            "search crawler --host '*.example.com' --lang de --from 2026-11 --json",
        ),
        exits={1: "nothing is found"},
    ),
    verb.Verb(
        "index", "index the words of pages, for search", _index,
        (shared.PATHS, verb.option(
            "--rebuild", action="store_true",
            help="make a new index of the packs here; the old index is used until it is complete",
        )),
        "[PATH...]",
        about=(
            "Adds the pages that the index does not have yet, beside a running crawl too. Damaged\n"
            "places of packs are named on stderr and left out. A damaged index is made anew."
        ),
        examples=("index crawls/news/packs", "index crawls/news/packs --rebuild"),
        exits={1: "something in the packs is damaged"},
    ),
)  # fmt: skip
