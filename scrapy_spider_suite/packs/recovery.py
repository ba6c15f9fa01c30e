"""Closes packs that a crash left open: the torn end is cut off, the end marked."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import BinaryIO, NamedTuple

from scrapy_spider_suite.packs.container import RECORD_MAX, Container
from scrapy_spider_suite.packs.formats import OPEN, container, final, format_of, is_pack, plain
from scrapy_spider_suite.packs.indexing import build_index
from scrapy_spider_suite.packs.packfile import index_path
from scrapy_spider_suite.packs.scan import Damage, Group, beginning, scan_from
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.files import locked

logger = logging.getLogger(__name__)

# What a kill leaves beside a pack that has its name already, or was recovered.
_LEFT = re.compile(r"(.+\.warc\.(?:lzo|gz|zst))\.(?:cdxj\.(?:open|new|raw)|open\.new)")


class Recovery(NamedTuple):
    """What became of a pack.

    *path*: its name now; None if no page was in it, and it was removed. *kept*: bytes of it that
    are in the pack still. *cut*: bytes that are not, at its end and where *damage* lay between
    whole groups. *records*: how many are in it.
    """

    path: Path | None
    kept: int
    cut: int
    records: int
    damage: list[Damage]


def recover_folder(folder: Path, agent: str = "") -> list[Recovery]:
    """Close every open pack in *folder* that nobody writes, or only those of an *agent*.

    Raises `OSError`.
    """
    ending = f"-{plain(agent)}.warc." if agent else ".warc."
    found = []
    for path in sorted(folder.glob(f"*{OPEN}")):
        if is_pack(path) and ending in path.name:
            recovery = recover(path)
            if recovery is not None:
                found.append(recovery)
    for path in folder.iterdir():
        left = _LEFT.fullmatch(path.name)
        if left and ending in path.name and not path.with_name(left[1] + OPEN).exists():
            path.unlink(missing_ok=True)
    return found


def recover(path: Path, limit: int = RECORD_MAX) -> Recovery | None:
    """Close the open pack *path*; None if a process is writing it.

    What is whole stays as it is, in its place, unless something before it is damaged (a power
    failure does that): then the pack is written anew without it. *limit*: bytes of the largest
    record. Raises `OSError` (the disk is full: nothing has changed, or all but the name).
    """
    form = container(format_of(path))
    with path.open("r+b") as file:
        if not locked(file):
            return None
        kept: list[tuple[int, int]] = []
        damage: list[Damage] = []
        records = 0
        start = beginning(form, file)
        for found in scan_from(form, file, start, limit):
            if isinstance(found, Group):
                kept.append((found.offset, found.length))
                records += len(found.places)
            else:
                damage.append(found)
        size = file.seek(0, 2)
        if not kept:
            _remove(path)
            return Recovery(None, 0, size, 0, damage)
        end = _put_right(path, file, form, start, kept)
    target = final(path)
    try:
        build_index(path, target)
    except OSError as error:  # a pack without an index is whole, and it can be made later
        logger.warning("No index for %s: %s", target, error)
    os.rename(path, target)
    index_path(path).unlink(missing_ok=True)
    files.sync(path.parent)
    lost = [part for part in damage if part.length]
    return Recovery(target, end, max(0, size - end), records, lost)


def _put_right(
    path: Path, file: BinaryIO, form: Container, start: int, kept: list[tuple[int, int]]
) -> int:
    """Leave *kept* in the pack and nothing else, and mark its end; return how long it is."""
    file.seek(0)
    header = file.read(start) or form.begin(final(path).name.rpartition(".")[0], 0)
    file.seek(0)
    sound = file.read(len(header)) == header
    end = len(header)
    for offset, length in kept:
        if offset != end or not sound:
            return _rewrite(path, file, header, form.end(), kept)
        end += length
    file.truncate(end)
    file.seek(end)
    file.write(form.end())
    file.flush()
    os.fsync(file.fileno())
    return end


def _rewrite(
    path: Path, file: BinaryIO, header: bytes, ending: bytes, kept: list[tuple[int, int]]
) -> int:
    with files.replacing(path) as new, new.open("wb") as out:
        out.write(header)
        for offset, length in kept:
            file.seek(offset)
            _copy(file, out, length)
        size = out.tell()
        out.write(ending)
    return size


def _copy(source: BinaryIO, target: BinaryIO, length: int) -> None:
    while length:
        data = source.read(min(length, 1 << 20))
        target.write(data)
        length -= len(data)


def _remove(path: Path) -> None:
    index_path(path).unlink(missing_ok=True)
    path.unlink()
    files.sync(path.parent)
