"""Pages as a WACZ file, which replayweb.page and its like open (WACZ 1.1.1, specs.webrecorder.net).

It is a ZIP file, nothing in it compressed once more: WARC in ``archive/``, its index in blocks of
lines that are compressed by themselves in ``indexes/``, a list of pages, and a data package that
has the SHA-256 of all of them.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from w3lib.encoding import html_to_unicode

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs.choosing import Choice, entries_of
from scrapy_spider_suite.packs.exporting import Exported, export_warc
from scrapy_spider_suite.packs.page import Page
from scrapy_spider_suite.packs.pages import Crawl
from scrapy_spider_suite.packs.reader import Packs, open_packs
from scrapy_spider_suite.runtime import files

VERSION: Final = "1.1.1"
LINES: Final = 3000
"""Lines of the index that are compressed together."""
_DATA = "data.warc.gz"
_STEP = 1 << 20
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{1,2000})</title", re.IGNORECASE)


def export_wacz(
    packs: Packs,
    choice: Choice,
    target: Path,
    crawl: Crawl,
    now: float,
    told: Callable[[int], object],
    manifest: bytes = b"",
) -> Exported:
    """Write the pages of *choice* to the WACZ file *target*.

    *now* in seconds since the epoch. *manifest*: what is known of the crawl, as JSON, to be put
    with it as ``crawl/manifest.json``. Needs twice the room of the file for a time. Raises
    `PackError` (it is there already) and `OSError`: nothing is left of it, then.
    """
    if target.exists():
        raise PackError(f"it is there already: {target}")
    with (
        files.replacing(target) as new,
        tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as name,
    ):
        folder = Path(name)
        for part in ("archive", "indexes", "pages"):
            (folder / part).mkdir()
        done = export_warc(packs, choice, folder / "archive" / _DATA, crawl, now, told)
        if not done.pages:
            raise PackError("there is no such page: an empty WACZ is none")
        done.failed = _write_index_and_pages(folder)
        if manifest:
            (folder / "crawl").mkdir()
            (folder / "crawl" / "manifest.json").write_bytes(manifest)
        _write_package(folder, crawl, now)
        _zip(folder, new, now)
    done.files = [target]
    return done


def _write_index_and_pages(folder: Path) -> list[tuple[str, str]]:
    data = folder / "archive" / _DATA
    lines = (entry._replace(metadata=None).line() + b"\n" for entry in entries_of(data))
    _write_index(lines, folder / "indexes")
    data.with_name(f"{_DATA}.cdxj").unlink()
    return _write_pages(data, folder / "pages" / "pages.jsonl")


def _write_index(lines: Iterator[bytes], folder: Path) -> None:
    """Write *lines*, compressed by the thousand, and where each such block is."""
    head = {"format": "cdxj-gzip-1.0", "filename": "index.cdx.gz"}
    offset = 0
    with (folder / "index.cdx.gz").open("wb") as data, (folder / "index.idx").open("wb") as index:
        index.write(f"!meta 0 {json.dumps(head)}\n".encode())
        while block := list(islice(lines, LINES)):
            packed = gzip.compress(b"".join(block), mtime=0)
            key = b" ".join(block[0].split(b" ", 2)[:2]).decode()
            place = {"offset": offset, "length": len(packed), "digest": _sha256([packed]),
                     "filename": "index.cdx.gz"}  # fmt: skip
            index.write(f"{key} {json.dumps(place)}\n".encode())
            data.write(packed)
            offset += len(packed)


def _write_pages(data: Path, target: Path) -> list[tuple[str, str]]:
    """List what people would call a page: HTML that was answered 200."""
    failed = []
    with target.open("w", encoding="utf-8") as file:
        head = {"format": "json-pages-1.0", "id": "pages", "title": "All Pages"}
        file.write(json.dumps(head) + "\n")
        for page in open_packs(data):
            if page.status == 200 and not page.is_revisit and "html" in page.mime:
                try:
                    file.write(json.dumps(_page(page)) + "\n")
                except PackError as error:  # its body is not what its head says
                    failed.append((page.url, str(error)))
    return failed


def _page(page: Page) -> dict[str, Any]:
    time = page.time or datetime.fromtimestamp(0, UTC)
    row = {"id": _id(page), "url": page.url, "ts": f"{time:%Y-%m-%dT%H:%M:%SZ}"}
    title = title_of(page.body, page.head.get("Content-Type"))
    return {**row, "title": title} if title else row


def _id(page: Page) -> str:
    """An id for the page: that of its record, if it has one."""
    found = re.search(r"urn:uuid:([0-9a-fA-F-]{36})", page.record.id)
    return found[1] if found else str(uuid.uuid5(uuid.NAMESPACE_URL, page.url))


def title_of(body: bytes, content_type: str) -> str:
    """Return the title of an HTML page, "" if it has none in its first part."""
    _, text = html_to_unicode(content_type or None, body[: 1 << 16])
    found = _TITLE.search(text)
    return " ".join(html.unescape(found[1]).split()) if found else ""


def _write_package(folder: Path, crawl: Crawl, now: float) -> None:
    """Name all files with their digests, and the digest of that."""
    package = {
        "profile": "data-package",
        "wacz_version": VERSION,
        "title": crawl.name,
        "created": f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "software": crawl.software,
        "resources": [
            {"name": path.name, "path": f"{path.parent.name}/{path.name}",
             "hash": _sha256(_steps(path)), "bytes": path.stat().st_size}
            for path in sorted(folder.glob("*/*"))
        ],
    }  # fmt: skip
    data = json.dumps(package, indent=2).encode()
    (folder / "datapackage.json").write_bytes(data)
    digest = {"path": "datapackage.json", "hash": _sha256([data])}
    (folder / "datapackage-digest.json").write_text(json.dumps(digest, indent=2))


def _zip(folder: Path, target: Path, now: float) -> None:
    date = datetime.fromtimestamp(max(now, 315_532_800.0), UTC).timetuple()[:6]  # from 1980 on
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = zipfile.ZipInfo(str(path.relative_to(folder)), date)
            info.external_attr = 0o644 << 16
            info.file_size = path.stat().st_size
            with archive.open(info, "w") as file:
                for step in _steps(path):
                    file.write(step)


def _steps(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while step := file.read(_STEP):
            yield step


def _sha256(steps: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for step in steps:
        digest.update(step)
    return f"sha256:{digest.hexdigest()}"
