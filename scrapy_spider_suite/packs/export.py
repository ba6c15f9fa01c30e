"""Exports pages: as WARC, as one file each, as WACZ 1.1.1 (specs.webrecorder.net)."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import mimetypes
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BufferedReader, BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Final

import xxhash
from w3lib.encoding import html_to_unicode

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs import pack_file, reader
from scrapy_spider_suite.packs.cdxj import RecordBundle, bundle_records
from scrapy_spider_suite.packs.reader import Packs, Page, Selection, pages
from scrapy_spider_suite.packs.warc import CrawlInfo, warcinfo
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.urls.hosts import host_of_any

FILE_MAX: Final = 1 << 30
PAGE_LIST: Final = "pages.jsonl"  # names the page of each file


@dataclass
class ExportResult:
    """*failed*: URLs of unreadable pages, and why."""

    pages: int = 0
    files: list[Path] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)


def export_warc(
    packs: Packs, selection: Selection, target: Path, crawl: CrawlInfo, now: float,
    progress: Callable[[int], object], form: str = "gz", file_max: int = FILE_MAX,
) -> ExportResult:  # fmt: skip
    """Write the selected pages, their requests and metadata as WARC (*form* ``gz`` or ``zst``).

    *target*: a file ``*.warc.FORM``, or a folder that gets files of *file_max* bytes; each is a
    pack with an index. *progress* is called with 1 for each page. Raises `PackError` (a file
    exists, or has another name) and `OSError`; no unfinished file is left.
    """
    done = ExportResult()
    extension = f".warc.{form}"
    folder = not target.name.endswith(extension)
    if folder and target.suffix and not target.is_dir():
        raise PackError(f"neither a folder nor a name that ends with {extension}: {target}")
    if folder:
        target.mkdir(parents=True, exist_ok=True)
    pack: pack_file.PackFile | None = None
    try:
        for _, bundle in reader.captures(packs, selection):
            if pack is None or (folder and pack.size >= file_max):
                if pack is not None:
                    pack.close()
                number = len(done.files) + 1
                path = target / f"pages-{number:05d}{extension}" if folder else target
                pack = _begin(path, form, crawl, now)
                done.files.append(pack.path)
            pack.append([bundle_records([record for record, _ in bundle])])
            done.pages += 1
            progress(1)
        if pack is not None:
            pack.close()
    except BaseException:
        if pack is not None:
            pack.discard()
        raise
    return done


def _begin(path: Path, form: str, crawl: CrawlInfo, now: float) -> pack_file.PackFile:
    if path.exists():
        raise PackError(f"it is there already: {path}")
    try:
        pack = pack_file.PackFile(path, pack_file.make_container(form), now)
    except FileExistsError as error:
        raise PackError(f"an export was not finished: remove {path}{pack_file.OPEN}") from error
    pack.append([RecordBundle([warcinfo(crawl, path.name, now)], [])])
    return pack


def export_files(
    packs: Packs, selection: Selection, folder: Path, progress: Callable[[int], object]
) -> ExportResult:
    """Write each body to ``HOST/NAME``, and the list `PAGE_LIST`; no path leaves *folder*."""
    done = ExportResult(files=[folder / PAGE_LIST])
    folder.mkdir(parents=True, exist_ok=True)
    with files.replacing_file(folder / PAGE_LIST) as new, new.open("w") as listing:
        for page, body in bodies(packs, selection, done):
            name = file_name(page)
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(body)
            row = {"file": name, "url": page.url, "time": page.record.get("WARC-Date"),
                   "status": page.status, "mime": page.mime, "digest": page.digest,
                   "revisit": page.is_revisit}  # fmt: skip
            listing.write(json.dumps(row) + "\n")
            done.pages += 1
            progress(1)
    return done


def bodies(packs: Packs, selection: Selection, done: ExportResult) -> Iterator[tuple[Page, bytes]]:
    """Yield each selected page with its body; *done* notes the pages without a readable body."""
    for page in pages(packs, selection):
        try:
            yield page, page.body
        except PackError as error:
            done.failed.append((page.url, str(error)))


def file_name(page: Page) -> str:
    """Return a unique file name for *page*: ``example.com/a-page-1f0c….html``."""
    host = re.sub(r"[^a-z0-9.-]+", "_", host_of_any(page.url)).strip(".-")[:100] or "_"
    rest = re.sub(r"^[a-z+.-]+://[^/?#]*", "", page.url, flags=re.IGNORECASE)
    words = re.sub(r"[^A-Za-z0-9]+", "-", rest).strip("-")[:80].strip("-") or "index"
    own = f"{xxhash.xxh3_64_intdigest(page.record.id.encode()):016x}"
    return f"{host}/{words}-{own}{mimetypes.guess_extension(page.mime) or '.bin'}"


WACZ_VERSION: Final = "1.1.1"
INDEX_LINES: Final = 3000
_DATA = "data.warc.gz"
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{1,2000})</title", re.IGNORECASE)


def export_wacz(
    packs: Packs, selection: Selection, target: Path, crawl: CrawlInfo, now: float,
    progress: Callable[[int], object], manifest: bytes = b"",
) -> ExportResult:  # fmt: skip
    """Write the selected pages to the WACZ file *target*; needs twice its room. *manifest*: JSON
    for ``crawl/manifest.json``. Raises `PackError` (it exists, no page) and `OSError`.
    """
    if target.exists():
        raise PackError(f"it is there already: {target}")
    with (
        files.replacing_file(target) as new,
        tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as name,
    ):
        folder = Path(name)
        for part in ("archive", "indexes", "pages"):
            (folder / part).mkdir()
        done = export_warc(packs, selection, folder / "archive" / _DATA, crawl, now, progress)
        if not done.pages:
            raise PackError("there is no such page: an empty WACZ is none")
        data = folder / "archive" / _DATA
        entries = (entry._replace(metadata=None) for entry in reader.pack_entries(data))
        _write_index((entry.line() + b"\n" for entry in entries), folder / "indexes")
        data.with_name(f"{_DATA}.cdxj").unlink()
        done.failed = _write_pages(data, folder / "pages" / "pages.jsonl")
        if manifest:
            (folder / "crawl").mkdir()
            (folder / "crawl" / "manifest.json").write_bytes(manifest)
        _write_package(folder, crawl, now)
        _zip(folder, new, now)
    done.files = [target]
    return done


def _write_index(lines: Iterator[bytes], folder: Path) -> None:
    head = {"format": "cdxj-gzip-1.0", "filename": "index.cdx.gz"}
    offset = 0
    with (folder / "index.cdx.gz").open("wb") as data, (folder / "index.idx").open("wb") as index:
        index.write(f"!meta 0 {json.dumps(head)}\n".encode())
        while block := list(islice(lines, INDEX_LINES)):
            packed = gzip.compress(b"".join(block), mtime=0)
            key = b" ".join(block[0].split(b" ", 2)[:2]).decode()
            place = {"offset": offset, "length": len(packed), "digest": _sha256(BytesIO(packed)),
                     "filename": "index.cdx.gz"}  # fmt: skip
            index.write(f"{key} {json.dumps(place)}\n".encode())
            data.write(packed)
            offset += len(packed)


def _write_pages(data: Path, target: Path) -> list[tuple[str, str]]:
    failed = []
    with target.open("w", encoding="utf-8") as file:
        head = {"format": "json-pages-1.0", "id": "pages", "title": "All Pages"}
        file.write(json.dumps(head) + "\n")
        for page in reader.open_packs(data):
            if page.status == 200 and not page.is_revisit and "html" in page.mime:
                try:
                    file.write(json.dumps(_page(page)) + "\n")
                except PackError as error:  # its body is not what its head says
                    failed.append((page.url, str(error)))
    return failed


def _page(page: Page) -> dict[str, Any]:
    time = page.time or datetime.fromtimestamp(0, UTC)
    row = {"id": page.record.id.strip("<>").removeprefix("urn:uuid:"), "url": page.url,
           "ts": f"{time:%Y-%m-%dT%H:%M:%SZ}"}  # fmt: skip
    title = title_of(page.body, page.head.get("Content-Type"))
    return {**row, "title": title} if title else row


def title_of(body: bytes, content_type: str) -> str:
    """Return the title in the first 64 KiB of an HTML page, or ""."""
    _, text = html_to_unicode(content_type or None, body[: 1 << 16])
    found = _TITLE.search(text)
    return " ".join(html.unescape(found[1]).split()) if found else ""


def _write_package(folder: Path, crawl: CrawlInfo, now: float) -> None:
    package = {
        "profile": "data-package",
        "wacz_version": WACZ_VERSION,
        "title": crawl.name,
        "created": f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "software": crawl.software,
        "resources": [
            {"name": path.name, "path": f"{path.parent.name}/{path.name}",
             "hash": _sha256(path.open("rb")), "bytes": path.stat().st_size}
            for path in sorted(folder.glob("*/*"))
        ],
    }  # fmt: skip
    data = json.dumps(package, indent=2).encode()
    (folder / "datapackage.json").write_bytes(data)
    digest = {"path": "datapackage.json", "hash": _sha256(BytesIO(data))}
    (folder / "datapackage-digest.json").write_text(json.dumps(digest, indent=2))


def _zip(folder: Path, target: Path, now: float) -> None:
    date = datetime.fromtimestamp(max(now, 315_532_800.0), UTC).timetuple()[:6]  # from 1980 on
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = zipfile.ZipInfo(str(path.relative_to(folder)), date)
            info.external_attr = 0o644 << 16
            info.file_size = path.stat().st_size
            with archive.open(info, "w") as file, path.open("rb") as source:
                shutil.copyfileobj(source, file)


def _sha256(file: BufferedReader | BytesIO) -> str:
    with file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
