"""``scrapy packs ls``, ``get``, ``cat`` and ``links``."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands.packs_verbs.options import (
    add_choice,
    add_paths,
    choice_of,
    packs_of,
    progress,
    tell_absent,
    tell_left_out,
)
from scrapy_spider_suite.operate.verb import Invocation, Row, Verb, argument_type
from scrapy_spider_suite.packs import Page
from scrapy_spider_suite.packs.cdxj import IndexEntry, timestamp
from scrapy_spider_suite.packs.http_records import split_message
from scrapy_spider_suite.packs.pack_file import (
    FORMATS,
    OPEN,
    Damage,
    Uploaded,
    closed_path,
    find_upload,
    format_of,
    open_pack,
    scan,
)
from scrapy_spider_suite.packs.reader import Selection, pack_entries, pages, select
from scrapy_spider_suite.runtime.text import printable
from scrapy_spider_suite.urls.normalize import normalize

_COLUMNS = ("name", "pages", "bytes", "from", "to", "state")


def _add_ls_options(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument("--pages", action="store_true", help="list pages, not packs")
    add_choice(parser)


def _run_ls(call: Invocation) -> int:
    packs, choice = packs_of(call), choice_of(call.options)
    if call.options.pages:
        for pack, entry in select(packs, choice):
            print(json.dumps(_page(pack, entry)) if call.json else _line(entry))
        tell_absent(packs)
        return 0
    rows = []
    files, away = packs.files(), packs.away()
    with progress(len(files) + len(away), "packs") as move:
        for path in files:
            rows.append(_pack(path, choice))
            move(1)
        for path, done in away:
            rows.append(_row(path, choice, done.size, "away", done))
            move(1)
    uploaded = any(row["uploaded"] is not None for row in rows)
    call.table(rows, (*_COLUMNS, "uploaded") if uploaded else _COLUMNS)
    if not call.json:
        for form in sorted({format_of(path) for path in files}):
            print(f"*.warc.{form}: {FORMATS[form].readers}", file=sys.stderr)
    return 0


def _pack(path: Path, choice: Selection) -> Row:
    done = find_upload(path)
    with open_pack(closed_path(path)) as file:
        size = file.seek(0, 2)
    # It may have been closed meanwhile.
    state = "open" if path.name.endswith(OPEN) and path.exists() else "closed"
    return _row(path, choice, size, state, done)


def _row(path: Path, choice: Selection, size: int, state: str, done: Uploaded | None) -> Row:
    count, first, last = 0, "", ""
    for entry in pack_entries(path):
        if choice.accepts(entry):
            count += 1
            first = min(first or entry.stamp, entry.stamp)
            last = max(last, entry.stamp)
    return {"name": closed_path(path).name, "folder": str(path.parent), "pages": count,
            "bytes": size, "from": _time(first), "to": _time(last), "state": state,
            "uploaded": None if done is None else done.url}  # fmt: skip


def _time(stamp: str) -> str | None:
    if not stamp:
        return None
    return (f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T"
            f"{stamp[8:10]}:{stamp[10:12]}:{stamp[12:]}Z")  # fmt: skip


def _page(pack: Path, entry: IndexEntry) -> Row:
    return {"url": entry.url, "time": _time(entry.stamp), "status": entry.status,
            "mime": entry.mime, "digest": entry.digest, "pack": str(pack),
            "offset": entry.place.offset, "length": entry.place.length}  # fmt: skip


def _line(entry: IndexEntry) -> str:
    what = (_time(entry.stamp), entry.status or "-", entry.mime or "-", entry.url)
    return "\t".join(printable(str(each)) for each in what)


def _at(text: str) -> datetime:
    digits = timestamp(text, last=True)
    return datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def _get_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL")
    add_paths(parser)
    parser.add_argument(
        "--at", type=argument_type(_at), metavar="TIME",
        help="the version at this time: 2026-11-22 (its end), 2026-11-22T10:15 (UTC)",
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--headers", action="store_true", help="print the head of the response")
    form.add_argument("--record", action="store_true", help="print the WARC record")
    form.add_argument("--links", action="store_true", help="print the links of the page")


def _get(call: Invocation) -> int:
    options, packs, page = call.options, packs_of(call), None
    for url in dict.fromkeys((options.url, normalize(options.url))):
        page = page or (packs.get(url, options.at) if url else None)
    if page is None:
        when = f" by {options.at:%Y-%m-%dT%H:%M:%SZ}" if options.at else ""
        print(f"scrapy packs: {printable(options.url)} is not in these packs{when}",
              file=sys.stderr)  # fmt: skip
        return 1
    if options.links:
        _links(page, call)
    elif options.record:
        sys.stdout.buffer.write(page.record.to_bytes())
    elif call.json:
        print(json.dumps(_get_facts(page)))
    elif options.headers:
        sys.stdout.buffer.write(split_message(page.record.block)[0] if page.status else b"")
    else:
        sys.stdout.buffer.write(page.body)
    return 0


def _links(page: Page, call: Invocation) -> None:
    for link in page.links:
        text = f"{link.url}\t{link.kind}\t{'nofollow' if link.nofollow else ''}".rstrip()
        print(json.dumps(link._asdict()) if call.json else text)


def _get_facts(page: Page) -> dict[str, Any]:
    return {
        "url": page.url, "time": page.record.get("WARC-Date"), "status": page.status,
        "mime": page.mime, "headers": page.headers, "digest": page.digest,
        "revisit": page.is_revisit, "via": page.via, "hops": page.hops, "pack": str(page.path),
        "offset": page.place.offset, "length": page.place.length,
    }  # fmt: skip


def _cat(call: Invocation) -> int:
    if not call.options.path:
        raise UsageError("which packs? give PATHs", print_help=False)
    code = 0
    packs = packs_of(call)
    files = packs.files()
    with progress(sum(path.stat().st_size for path in files), "B") as move:
        for path in files:
            for part in scan(path):
                if not isinstance(part, Damage):
                    sys.stdout.buffer.write(part.data)
                elif not (part.torn and path.name.endswith(OPEN)):
                    where = f"{part.length} bytes at {part.offset}"
                    print(f"{closed_path(path)}: damaged, {where}: {part.why}", file=sys.stderr)
                    code = 1
                move(part.length)
    tell_absent(packs)
    return code


def _add_links_options(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    add_choice(parser, sample=True)


def _run_links(call: Invocation) -> int:
    packs = packs_of(call)
    with progress(None, "pages") as move:
        for page in pages(packs, choice_of(call.options)):
            for link in page.links:
                if call.json:
                    time = page.record.get("WARC-Date")
                    print(json.dumps({"page": page.url, "time": time, **link._asdict()}))
                else:
                    flag = "nofollow" if link.nofollow else "-"
                    print(page.url, link.url, link.kind, flag, sep="\t")
            move(1)
    return tell_left_out(packs)


VERBS = (
    Verb(
        "ls", "packs, or with --pages the pages in them", _run_ls, _add_ls_options, "[PATH...]",
        about=(
            "Counts and times are of the selected pages, by the indexes: answers and revisits,\n"
            "not requests and metadata. A line of a page has time, status, type (warc/revisit\n"
            "for a revisit) and URL, separated by tabs. Uploaded packs are listed with their\n"
            "place. A pack that was deleted here after its upload is 'away'; its pages are not\n"
            "listed. Standard error says which tools read the format of the packs."
        ),
        examples=(
            "ls",
            "ls crawls/news/packs other-machine/packs --json",
            "ls crawls/news/packs --host '*.example.com' --status 404",
            "ls crawls/news/packs --pages --mime text/html --from 2026-11-01 --to 2026-11",
        ),
    ),
    Verb(
        "get", "a page as it came: its body, decompressed, on stdout", _get, _get_options,
        "URL [PATH...]",
        about=(
            "The last version, or the version at a time. The body of a revisit is the body of\n"
            "the page that it repeats. --json prints the facts about the page, without its body."
        ),
        examples=(
            "get https://example.com/ > index.html",
            "get https://example.com/ crawls/news/packs --at 2026-11-22",
            "get https://example.com/ crawls/news/packs --headers",
            "get https://example.com/ crawls/news/packs --links",
            "get https://example.com/ crawls/news/packs --record | warcio check /dev/stdin",
        ),
        exits={1: "the page is not in the packs"},
    ),
    Verb(
        "cat", "the WARC records of packs, decompressed", _cat, add_paths, "PATH...",
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
    Verb(
        "links", "the links of pages, as the crawl found them", _run_links, _add_links_options,
        "[PATH...]",
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
)  # fmt: skip
