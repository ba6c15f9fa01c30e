"""Pages out of packs: as WARC files that other tools open, or as a file for each page."""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import xxhash

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs.choosing import Bundle, Choice, fetches, pages
from scrapy_spider_suite.packs.formats import OPEN, container
from scrapy_spider_suite.packs.packfile import PackFile
from scrapy_spider_suite.packs.page import Page
from scrapy_spider_suite.packs.pages import Crawl, warcinfo
from scrapy_spider_suite.packs.reader import Packs
from scrapy_spider_suite.runtime import files as durable
from scrapy_spider_suite.urls.hosts import host_of

FILE_MAX: Final = 1 << 30
"""Bytes at which a file of several is ended, as is usual with WARC."""
LIST: Final = "pages.jsonl"
"""What says which page is in which file."""


@dataclass
class Exported:
    """What was exported. *failed*: pages that could not be read, by their URLs, and why."""

    pages: int = 0
    files: list[Path] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)


def export_warc(
    packs: Packs,
    choice: Choice,
    target: Path,
    crawl: Crawl,
    now: float,
    told: Callable[[int], object],
    form: str = "gz",
    file_max: int = FILE_MAX,
) -> Exported:
    """Write the pages of *choice*, with their requests and metadata, as WARC, compressed by record.

    *form* is ``gz`` or ``zst``. *target* is a file ``*.warc.gz`` or ``*.warc.zst``, or a folder,
    made if need be, that gets several of *file_max* bytes. Each has an index beside it and is a
    pack itself. Until it is whole, its name ends with ``.open``. *now* in seconds since the epoch;
    *told* is called with 1 for each page. Raises `PackError` (a file is there already, or has
    another name) and `OSError` (nothing is left of an unfinished file).
    """
    done = Exported()
    extension = f".warc.{form}"
    folder = not target.name.endswith(extension)
    if folder and not target.suffix:
        target.mkdir(parents=True, exist_ok=True)
    if folder and not target.is_dir():
        raise PackError(f"neither a folder nor a name that ends with {extension}: {target}")
    pack: PackFile | None = None
    try:
        for _, bundle in fetches(packs, choice):
            if pack is None or (folder and pack.size >= file_max):
                if pack is not None:
                    pack.close()
                number = len(done.files) + 1
                path = target / f"pages-{number:05d}{extension}" if folder else target
                pack = _begin(path, form, crawl, now)
                done.files.append(pack.path)
            _append(pack, bundle)
            done.pages += 1
            told(1)
        if pack is not None:
            pack.close()
            pack = None
    finally:
        if pack is not None:
            pack.discard()
    return done


def _begin(path: Path, form: str, crawl: Crawl, now: float) -> PackFile:
    if path.exists():
        raise PackError(f"it is there already: {path}")
    try:
        pack = PackFile(path, container(form), now)
    except FileExistsError as error:
        raise PackError(f"an export was not finished: remove {path}{OPEN}") from error
    first = warcinfo(crawl, path.name, now)
    pack.append([first], [first.to_bytes()])
    return pack


def _append(pack: PackFile, bundle: Bundle) -> None:
    records = [record for record, _ in bundle]
    pack.append(records, [record.to_bytes() for record in records])


def export_files(
    packs: Packs, choice: Choice, folder: Path, told: Callable[[int], object]
) -> Exported:
    """Write the body of each page of *choice*, decompressed, to a file in a folder for its host.

    ``pages.jsonl`` names page, time and status of each. What is there under the same name is
    replaced; no page can lead out of *folder*. Raises `OSError`.
    """
    done = Exported()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        durable.replacing(folder / LIST) as new,
        new.open("w", encoding="utf-8") as listing,
    ):
        for page, body in bodies(packs, choice, done):
            name = file_name(page)
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(body)
            listing.write(json.dumps({"file": name, **facts(page)}) + "\n")
            done.pages += 1
            told(1)
    done.files.append(folder / LIST)
    return done


def bodies(packs: Packs, choice: Choice, done: Exported) -> Iterator[tuple[Page, bytes]]:
    """Yield each page of *choice* with its body; *done* notes those whose body cannot be read."""
    for page in pages(packs, choice):
        try:
            yield page, page.body
        except PackError as error:
            done.failed.append((page.url, str(error)))


def facts(page: Page) -> dict[str, Any]:
    """What there is to say of *page* beside its body."""
    return {"url": page.url, "time": page.record.get("WARC-Date"), "status": page.status,
            "mime": page.mime, "digest": page.digest, "revisit": page.is_revisit}  # fmt: skip


def file_name(page: Page) -> str:
    """Return a name for the body of *page*, for it alone: ``example.com/a-page-1f0c….html``."""
    host = re.sub(r"[^a-z0-9.-]+", "_", host_of(page.url)).strip(".-")[:100] or "_"
    rest = re.sub(r"^[a-z+.-]+://[^/?#]*", "", page.url, flags=re.IGNORECASE)
    words = re.sub(r"[^A-Za-z0-9]+", "-", rest).strip("-")[:80].strip("-") or "index"
    own = f"{xxhash.xxh3_64_intdigest(page.record.id.encode()):016x}"
    return f"{host}/{words}-{own}{mimetypes.guess_extension(page.mime) or '.bin'}"
