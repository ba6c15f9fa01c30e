"""Verifies packs: checksums, digests, and the index against the content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import xxhash

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs import cdxj, http_records, pack_file
from scrapy_spider_suite.packs.containers import RecordPlace
from scrapy_spider_suite.packs.folder_index import captures_of, index_entries, index_runs, run_lines
from scrapy_spider_suite.packs.warc import Record, sha1_digest
from scrapy_spider_suite.runtime.text import counted


class PackFinding(NamedTuple):
    """One fault, of a *kind* in docs/packs.md. *offset* and *length*: in the pack, or -1."""

    path: Path
    kind: str
    what: str
    url: str = ""
    offset: int = -1
    length: int = -1


def verify(*paths: str | Path) -> Iterator[PackFinding]:
    """Yield the faults of packs, folders, indexes. Raises `PackError` (no pack) and `OSError`."""
    for path in map(Path, paths):
        if path.is_dir():
            for pack in sorted(filter(pack_file.is_pack, path.iterdir())):
                yield from verify_pack(pack)
            yield from verify_missing(path)
            yield from verify_merged(path)
        else:
            yield from verify_pack(path)


def verify_pack(path: Path) -> Iterator[PackFinding]:
    found: list[PackFinding] = []
    count = total = 0
    for bundle in captures_of(_checked(path, found)):
        for entry in cdxj.entries_for(bundle, path.name):
            count += 1
            total += xxhash.xxh3_128_intdigest(entry.line())
        yield from found
        found.clear()
    yield from found
    if not path.name.endswith(pack_file.OPEN):
        yield from _verify_index(path, (count, total))


def _checked(path: Path, found: list[PackFinding]) -> Iterator[cdxj.Located]:
    written = path.name.endswith(pack_file.OPEN)
    for part in pack_file.scan(path):
        if isinstance(part, pack_file.Damage):
            if not (written and part.torn):
                kind = "torn" if part.torn else "damaged"
                found.append(PackFinding(path, kind, part.why, "", part.offset, part.length))
            continue
        for record, place in part.records():
            found += _check(path, record, place)
            yield record, place


def _check(path: Path, record: Record, place: RecordPlace) -> Iterator[PackFinding]:
    where = record.url, place.offset, place.length
    block = record.get("WARC-Block-Digest")
    if block.startswith("sha1:") and block != sha1_digest(record.block):
        yield PackFinding(path, "digest", "the record is not what it was", *where)
    payload = record.get("WARC-Payload-Digest")
    if payload.startswith("sha1:") and record.kind in ("response", "resource"):
        http = record.get("Content-Type").startswith("application/http")
        body = http_records.split_message(record.block)[1] if http else record.block
        if payload != sha1_digest(body):
            yield PackFinding(path, "digest", "the body is not what it was", *where)
    if record.time is None:
        yield PackFinding(path, "date", f"no date: {record.get('WARC-Date')[:40]!r}", *where)


def _verify_index(path: Path, true: tuple[int, int]) -> Iterator[PackFinding]:
    index = pack_file.index_path(path)
    try:
        lines = cdxj.SortedLines(index)
    except FileNotFoundError:
        yield PackFinding(path, "index", "there is no index: `scrapy packs merge` makes one")
        return
    disorder = sum(line <= before for before, line in pairwise(lines))
    if disorder:
        lines_are = counted(disorder, "line is", "lines are")
        yield PackFinding(index, "index", f"{lines_are} out of order, or there several times")
    if _sum(lines) != true:
        listed, found = set(map(_key, lines)), set[int]()
        for entry in index_entries(path, path.name):
            found.add(key := _key(entry.line()))
            if key not in listed:
                yield PackFinding(index, "index", "a page is not in the index", entry.url)
        for line in lines:
            if _key(line) not in found:
                try:
                    url, what = cdxj.parse_entry(line).url, "a line leads to no page"
                except PackDamagedError as error:
                    url, what = "", str(error)
                yield PackFinding(index, "index", what, url)


_key = xxhash.xxh3_64_intdigest


def verify_missing(folder: Path) -> Iterator[PackFinding]:
    """Yield the packs that are gone though their indexes list pages."""
    for pack in pack_file.packs_missing(folder):
        index = pack_file.index_path(pack).name
        what = f"its index is here, the pack is not: bring it back, or remove {index}"
        yield PackFinding(pack, "missing", what)


def verify_merged(folder: Path) -> Iterator[PackFinding]:
    """Yield the merged indexes that differ from the packs' own."""
    for run in index_runs(folder):
        if not run.merged:
            continue
        own = [folder / f"{pack}{pack_file.INDEX}" for pack in run.packs]
        with suppress(FileNotFoundError):  # it covers a pack without an index
            wanted = _sum(line for path in own for line in cdxj.SortedLines(path))
            if _sum(run_lines(run)) == wanted:
                continue
        what = "it is not what the indexes of its packs are: remove it and merge again"
        yield PackFinding(run.lines.path, "index", what)


def _sum(lines: Iterable[bytes]) -> tuple[int, int]:
    count = total = 0
    for line in lines:
        count += 1
        total += xxhash.xxh3_128_intdigest(line)
    return count, total
