"""``scrapy packs ls``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scrapy_spider_suite.commands.packs_verbs.common import (
    add_choice,
    add_paths,
    choice_of,
    packs_of,
    progress,
    tell_absent,
)
from scrapy_spider_suite.commands.verb import Call, Row, Verb
from scrapy_spider_suite.packs.cdxj import IndexEntry
from scrapy_spider_suite.packs.pack_file import (
    FORMAT_READERS,
    OPEN,
    Uploaded,
    closed_path,
    find_upload,
    format_of,
)
from scrapy_spider_suite.packs.scan import open_pack
from scrapy_spider_suite.packs.selection import Selection, pack_entries, select
from scrapy_spider_suite.runtime.text import printable

_COLUMNS = ("name", "pages", "bytes", "from", "to", "state")
_ALL_COLUMNS = (*_COLUMNS, "uploaded")


def _options(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument("--pages", action="store_true", help="list pages, not packs")
    add_choice(parser)


def _run(call: Call) -> int:
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
    columns = _COLUMNS if all(row["uploaded"] is None for row in rows) else _ALL_COLUMNS
    call.table(rows, columns)
    if not call.json:
        for form in sorted({format_of(path) for path in files}):
            print(f"*.warc.{form}: {FORMAT_READERS[form]}", file=sys.stderr)
    return 0


def _pack(path: Path, choice: Selection) -> Row:
    """A pack that is here in a row."""
    done = find_upload(path)
    with open_pack(closed_path(path)) as file:
        size = file.seek(0, 2)
    # It may have been closed meanwhile.
    state = "open" if path.name.endswith(OPEN) and path.exists() else "closed"
    return _row(path, choice, size, state, done)


def _row(path: Path, choice: Selection, size: int, state: str, done: Uploaded | None) -> Row:
    """A pack in a row; of its pages those that are wanted."""
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
    """A page in a line: separated by tabs, the URL last."""
    what = (_time(entry.stamp), entry.status or "-", entry.mime or "-", entry.url)
    return "\t".join(printable(str(each)) for each in what)


VERBS = (
    Verb(
        "ls", "packs, or with --pages the pages in them", _run, _options, "[PATH...]",
        about=(
            "Counts and times are those of the pages that are asked for, by the indexes: answers\n"
            "and revisits, not the requests and metadata beside them. Pages come pack by pack, by\n"
            "time, status, type (warc/revisit for a revisit) and URL, separated by tabs.\n"
            "Packs that were uploaded are named with the place where they are; those that are not\n"
            "here any more are away, and their pages are not listed.\n"
            "Standard error says how other tools read packs of each format."
        ),
        examples=(
            "ls",
            "ls crawls/news/packs other-machine/packs --json",
            "ls crawls/news/packs --host '*.example.com' --status 404",
            "ls crawls/news/packs --pages --mime text/html --from 2026-11-01 --to 2026-11",
        ),
    ),
)  # fmt: skip
