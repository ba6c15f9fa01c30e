"""Takes a host or a URL out of packs and item packs, with receipts.

First the indexes lose it. Then each pack that holds some of it is rewritten; other records keep
their bytes. A kill leaves each pack whole; the same call again completes the redaction.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from scrapy_spider_suite.errors import PackDamagedError, PackError
from scrapy_spider_suite.packs import cdxj, http_records, pack_file
from scrapy_spider_suite.packs.containers import GzipContainer, PackFrame
from scrapy_spider_suite.packs.folder_index import build_index, is_indexed, lock_indexes
from scrapy_spider_suite.packs.item_file import is_item_pack
from scrapy_spider_suite.packs.warc import Record, sha1_digest, warc_date
from scrapy_spider_suite.packs.writer import recover_folder
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.urls.hosts import host_mentions, is_on_host, url_mentions

RECEIPTS: Final = "redactions.jsonl"  # the file of receipts; it has the target as a digest only
_UNFINISHED: Final = "unfinished"
_ELSEWHERE: Final = ("away", "uploaded")


@dataclass(slots=True)
class RedactionReceipt:
    """What a redaction removed. *open*, *away*, *uploaded*: see docs/packs-commands.md."""

    pages: int = 0  # of the target, revisits included
    revisits: int = 0  # elsewhere, of these pages
    mentions: int = 0  # pages elsewhere that name it; removed only on request
    notes: int = 0  # links to it and requests from it, in records that stay
    packs: int = 0  # rewritten
    damaged: int = 0  # unreadable bytes that were left out of these
    open: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)
    uploaded: list[str] = field(default_factory=list)


class ReceiptFile:
    """The receipts of *folder* for the target with this *name*."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / RECEIPTS
        self._lines: list[bytes] = []  # of other calls
        self._digest = hashlib.sha256(name.encode()).hexdigest()

    def note(self, receipt: RedactionReceipt, now: float) -> None:
        """Save what rewritten packs no longer tell; add that of a killed call to *receipt*."""
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        for row in filter(None, map(self._row_of, lines)):
            for name in _ELSEWHERE:
                urls = [*row.get(name, ()), *getattr(receipt, name)]
                setattr(receipt, name, list(dict.fromkeys(urls)))
        noted = {name: getattr(receipt, name) for name in _ELSEWHERE}
        self._lines = [line for line in lines if not self._row_of(line)]
        self._put({_UNFINISHED: True, **noted}, now)

    def finish(self, receipt: RedactionReceipt, now: float) -> None:
        """Replace the unfinished note by *receipt*. Raises `OSError`."""
        self._put(asdict(receipt), now)

    def _put(self, facts: dict[str, Any], now: float) -> None:
        row = {"id": uuid.uuid4().hex, "time": warc_date(now), "subject_sha256": self._digest}
        lines = [*self._lines, json.dumps(row | facts).encode()]
        files.replace_file(self._path, b"".join(line + b"\n" for line in lines))

    def _row_of(self, line: bytes) -> dict[str, Any]:
        with suppress(ValueError, TypeError, AttributeError):
            row: dict[str, Any] = json.loads(line)
            if row.get(_UNFINISHED) and row.get("subject_sha256") == self._digest:
                return row
        return {}


_NEW: Final = "redacting"
_HOST: Final = re.compile(r"[^\W_]")
_URL: Final = re.compile(r"[a-z][\w+.-]*:.*[^\W_]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RedactionTarget:
    """A *host* (``*.example.com``: with all below it) or one *url*. *mentions*: and pages of other
    hosts that name it. Raises `PackError` unless exactly one is given and is whole.
    """

    host: str = ""
    url: str = ""
    mentions: bool = False

    def __post_init__(self) -> None:
        named = _HOST.search(self.host) if self.host else _URL.match(self.url)
        if not named or (self.host and self.url):
            raise PackError(f"{self.host or self.url!r}: expected a host, or else a whole URL")

    def __str__(self) -> str:
        return f"host {self.host}" if self.host else f"url {self.url}"

    def accepts(self, url: str) -> bool:
        return bool(url) and (is_on_host(url, self.host) if self.host else url == self.url)

    def accepts_text(self, url: str, text: str) -> bool:
        return self.accepts(url) or (self.mentions and bool(self.pattern().search(text.encode())))

    def pattern(self) -> re.Pattern[bytes]:
        return host_mentions(self.host) if self.host else url_mentions(self.url)


class TextRedaction(Protocol):
    """Redacts the text index of a folder of packs, as the module `analysis.search` does."""

    def hide_texts(self, folder: Path, *, host: str = "", url: str = "") -> None: ...

    def remove_texts(self, folder: Path, accepts: Callable[[str, str], bool]) -> None: ...


def redact(
    folder: Path, target: RedactionTarget, now: float, progress: Callable[[int], object],
    texts: TextRedaction | None = None,
) -> RedactionReceipt:  # fmt: skip
    """Take *target* out of the packs of *folder*. *now*: seconds since the epoch. *progress* is
    called with the bytes of each finished pack. Raises `PackError` (indexes are being merged; a
    text index, no *texts*) and `OSError` (disk full: call again).
    """
    if texts is None and (folder / pack_file.TEXT_INDEX).exists():
        place = folder / pack_file.TEXT_INDEX
        raise PackError(f"{place} holds texts of these packs: name who redacts them")
    receipt, receipts = RedactionReceipt(), ReceiptFile(folder, str(target))
    with lock_indexes(folder) as mine:
        if not mine:
            raise PackError(f"{folder}: its indexes are being merged: try again")
        shutil.rmtree(folder / _NEW, ignore_errors=True)
        recover_folder(folder)
        receipt.open = sorted(path.name for path in folder.glob(f"*{pack_file.OPEN}")
                              if pack_file.is_pack(path))  # fmt: skip
        closed = pack_file.closed_packs(folder)
        gone = [pack for pack, _ in pack_file.packs_away(folder)]
        gone += pack_file.packs_missing(folder)
        receipt.away = _elsewhere(folder, target)
        # First what may have to wait for another process: nothing has begun until then.
        if texts is not None:
            texts.hide_texts(folder, host=target.host, url=target.url)
        receipts.note(receipt, now)
        for path in closed:
            if not is_indexed(path):  # a kill came between the pack and its index, or it is damaged
                build_index(path)
        _hide(folder, [*closed, *gone], target)
        for path in closed:
            size = path.stat().st_size
            keep = _RecordFilter(target, receipt)
            _redact_pack(path, keep, lambda: receipts.note(receipt, now))
            progress(size)
        shutil.rmtree(folder / _NEW, ignore_errors=True)
        if texts is not None:
            texts.remove_texts(folder, target.accepts_text)
        receipts.finish(receipt, now)
    return receipt


def count_redaction(
    folder: Path, target: RedactionTarget, progress: Callable[[int], object]
) -> RedactionReceipt:
    """Return the receipt that `redact` would give; open packs count, too. Raises `OSError`."""
    receipt = RedactionReceipt()
    for path in sorted(filter(pack_file.is_pack, folder.iterdir())):
        if _changes(path, _RecordFilter(target, receipt)):
            receipt.packs += 1
            receipt.uploaded += filter(None, [pack_file.upload_url(path)])
        if path.name.endswith(pack_file.OPEN):
            receipt.open.append(path.name)
        progress(path.stat().st_size)
    receipt.away = _elsewhere(folder, target)
    return receipt


def _hide(folder: Path, packs: list[Path], target: RedactionTarget) -> None:
    for index in filter(Path.exists, map(pack_file.index_path, packs)):
        found = cdxj.SortedLines(index)
        if any(_leads(line, target) for line in found):
            cdxj.write_lines((line + b"\n" for line in found if not _leads(line, target)), index)
    for path in folder.glob("merged-*.cdxj*"):  # those that were begun, too
        path.unlink(missing_ok=True)
    files.sync_path(folder)


def _elsewhere(folder: Path, target: RedactionTarget) -> list[str]:
    places = [(pack, done.url) for pack, done in pack_file.packs_away(folder)]
    places += [(pack, str(pack)) for pack in pack_file.packs_missing(folder)]
    indexed = ((pack_file.index_path(pack), place) for pack, place in places)
    return [place for index, place in indexed if index.exists()
            and any(_leads(line, target) for line in cdxj.SortedLines(index))]  # fmt: skip


def _leads(line: bytes, target: RedactionTarget) -> bool:
    try:
        return target.accepts(cdxj.parse_entry(line).url)
    except PackDamagedError:
        return True


class _RecordFilter:
    def __init__(self, target: RedactionTarget, receipt: RedactionReceipt) -> None:
        self.target = target
        self.receipt = receipt
        self._pattern = target.pattern()
        self._gone: set[str] = set()

    def filter_record(self, record: Record) -> Record | None:
        accepts = self.target.accepts
        if accepts(record.url):
            self.receipt.pages += record.kind in cdxj.PAGE_KINDS
        elif accepts(record.get("WARC-Refers-To-Target-URI")):
            self.receipt.revisits += 1
        elif not self._gone.isdisjoint(record.all("WARC-Concurrent-To")):
            pass
        elif record.kind in cdxj.PAGE_KINDS and self._names(record):
            self.receipt.mentions += 1
            if not self.target.mentions:
                return record
        else:
            return self._without_notes(record)
        self._gone.add(record.id)
        return None

    def _names(self, record: Record) -> bool:
        if self._pattern.search(record.block):
            return True
        head, body = http_records.split_message(record.block)
        with suppress(PackError):
            payload = http_records.decode_body(http_records.parse_head(head), body)
            return self._pattern.search(payload) is not None
        return False

    def _without_notes(self, record: Record) -> Record:
        if record.kind not in ("metadata", "request") or not self._pattern.search(record.block):
            return record
        head, empty, rest = record.block.partition(b"\r\n\r\n")
        # The first line of a request says what was asked for: without it, it is none.
        first = record.kind == "request"
        kept = [line for number, line in enumerate(head.split(b"\r\n"))
                if (first and not number) or not self._pattern.search(line)]  # fmt: skip
        self.receipt.notes += head.count(b"\r\n") + 1 - len(kept)
        block = b"\r\n".join(kept) + empty + rest
        changed = {"content-length": str(len(block)), "warc-block-digest": sha1_digest(block)}
        fields = tuple((name, changed.get(name.lower(), value)) for name, value in record.fields)
        return Record(fields, block)


def _changes(path: Path, keep: _RecordFilter) -> bool:
    found = False
    for part in pack_file.scan(path):
        if isinstance(part, pack_file.RecordGroup):
            for record, _ in part.records():
                found |= keep.filter_record(record) is not record
    return found


def _redact_pack(path: Path, keep: _RecordFilter, note: Callable[[], object]) -> None:
    counted = _RecordFilter(keep.target, RedactionReceipt())
    if not _changes(path, counted):
        keep.receipt.mentions += counted.receipt.mentions
        return
    form = pack_file.make_container(pack_file.format_of(path))
    new = path.parent / _NEW / path.name
    new.parent.mkdir(exist_ok=True)
    with path.open("rb") as old, new.open("wb") as file:
        size = pack_file.first_group_offset(form, old)
        old.seek(0)
        file.write(old.read(size) or form.begin("", 0))
        for part in pack_file.scan(path):
            if isinstance(part, pack_file.Damage):
                keep.receipt.damaged += part.length
                continue
            before = [record for record, _ in part.records()]
            after = [record for record in map(keep.filter_record, before) if record is not None]
            if len(after) == len(before) and all(map(operator.is_, after, before)):
                old.seek(part.offset)
                file.write(old.read(part.length))
            elif after:
                file.write(form.encode([record.to_bytes() for record in after])[0])
        file.write(form.end())
        file.flush()
        os.fsync(file.fileno())
    build_index(new)
    if there := pack_file.upload_url(path):
        keep.receipt.uploaded.append(there)
        note()
        pack_file.mark_uploaded(path, pack_file.Uploaded(there))  # it is to be uploaded once more
    # Without an index between the two, so that none leads to what is elsewhere by now.
    pack_file.index_path(path).unlink(missing_ok=True)
    os.replace(new, path)
    os.replace(pack_file.index_path(new), pack_file.index_path(path))
    files.sync_path(path.parent)
    keep.receipt.packs += 1


@dataclass(slots=True)
class ItemRedactionReceipt:
    """*items*: removed ones. *files*: rewritten. *damaged*: bytes left out. *open*: unchanged."""

    items: int = 0
    files: int = 0
    damaged: int = 0
    open: list[str] = field(default_factory=list)


def redact_items(
    folder: Path, target: RedactionTarget, progress: Callable[[int], object], *, dry: bool = False
) -> ItemRedactionReceipt:
    """Remove items of *folder* that name *target*; with *dry* only count. Raises `OSError`."""
    receipt = ItemRedactionReceipt()
    for path in sorted(filter(is_item_pack, folder.iterdir())):
        size = path.stat().st_size
        if path.name.endswith(pack_file.OPEN):
            receipt.open.append(path.name)
        else:
            found = [(frame.end - frame.offset if frame.problem else 0, len(lines) - len(kept))
                     for frame, lines, kept in _blocks(path, target)]  # fmt: skip
            items = sum(items for _, items in found)
            receipt.items += items
            if items and not dry:
                _redact_file(path, target)
                receipt.files += 1
                receipt.damaged += sum(damaged for damaged, _ in found)
        progress(size)
    return receipt


def _redact_file(path: Path, target: RedactionTarget) -> None:
    with files.replacing_file(path) as new, new.open("wb") as out, path.open("rb") as file:
        for frame, lines, kept in _blocks(path, target):
            if len(kept) == len(lines) and not frame.problem:
                file.seek(frame.offset)
                out.write(file.read(frame.end - frame.offset))
            elif kept:
                out.write(GzipContainer().compress(b"".join(kept)))


def _blocks(
    path: Path, target: RedactionTarget
) -> Iterator[tuple[PackFrame, list[bytes], list[bytes]]]:
    pattern = target.pattern()
    with path.open("rb") as file:
        for frame in GzipContainer().frames(file, 0):
            lines = frame.data.splitlines(keepends=True)
            yield frame, lines, [line for line in lines if not pattern.search(line)]
