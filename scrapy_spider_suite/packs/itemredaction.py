"""Takes the items that name a host or a URL out of a folder of item packs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scrapy_spider_suite.packs.container import Frame
from scrapy_spider_suite.packs.formats import OPEN
from scrapy_spider_suite.packs.itemfile import container_of, is_item_pack
from scrapy_spider_suite.packs.redaction import Subject
from scrapy_spider_suite.runtime import files as durable


@dataclass(slots=True)
class ItemReceipt:
    """What was taken out.

    Attributes:
        items: items that named it, wherever in them.
        files: files that were written anew.
        damaged: bytes that could not be read, and were left out of these.
        open: files that are open: they were left as they are.
    """

    items: int = 0
    files: int = 0
    damaged: int = 0
    open: list[str] = field(default_factory=list)


def redact_items(
    folder: Path, subject: Subject, told: Callable[[int], object], *, dry: bool = False
) -> ItemReceipt:
    """Take every item out of *folder* that names *subject*; with *dry*, only count them.

    Each file is whole at any moment: as it was, or as it will be. *told* is called with the bytes
    of each that is done. Raises `OSError`.
    """
    receipt = ItemReceipt()
    for path in sorted(filter(is_item_pack, folder.iterdir())):
        size = path.stat().st_size
        if path.name.endswith(OPEN):
            receipt.open.append(path.name)
        else:
            _redact_file(path, subject, receipt, dry=dry)
        told(size)
    return receipt


def _redact_file(path: Path, subject: Subject, receipt: ItemReceipt, *, dry: bool) -> None:
    """Write *path* anew if an item of it is to go; blocks without one keep their bytes."""
    items = damaged = 0
    for frame, lines, kept in _blocks(path, subject):
        items += len(lines) - len(kept)
        damaged += frame.end - frame.offset if frame.problem else 0
    receipt.items += items
    if dry or not items:
        return
    form = container_of(path)
    with durable.replacing(path) as new, new.open("wb") as out, path.open("rb") as file:
        for frame, lines, kept in _blocks(path, subject):
            if len(kept) == len(lines) and not frame.problem:
                file.seek(frame.offset)
                out.write(file.read(frame.end - frame.offset))
            elif kept:
                out.write(form.compress(b"".join(kept)))
    receipt.files += 1
    receipt.damaged += damaged


def _blocks(path: Path, subject: Subject) -> Iterator[tuple[Frame, list[bytes], list[bytes]]]:
    """Yield the blocks of *path*, their lines, and those of them that stay."""
    pattern = subject.pattern()
    with path.open("rb") as file:
        for frame in container_of(path).frames(file, 0):
            lines = frame.data.splitlines(keepends=True)
            yield frame, lines, [line for line in lines if not pattern.search(line)]
