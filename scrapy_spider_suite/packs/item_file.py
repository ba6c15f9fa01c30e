"""Item packs: JSON lines, compressed by blocks.

A block is a gzip member of whole lines: ``zcat`` opens a file up to the end of any block.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs.containers import RECORD_MAX, GzipContainer
from scrapy_spider_suite.packs.pack_file import OPEN, GroupFile, closed_path
from scrapy_spider_suite.runtime import files

logger = logging.getLogger(__name__)

ITEM_SUFFIX: Final = "jsonl.gz"
BLOCK: Final = 1 << 17  # bytes of lines that are compressed together, unless one line has more

_IN_MEMORY: Final = 1 << 20  # bytes of a buffer that stay in memory

_FORM: Final = GzipContainer()
_NAME = re.compile(rf".+\.{re.escape(ITEM_SUFFIX)}({re.escape(OPEN)})?")


class ItemBuffer:
    """Items to be written together; large buffers lie in a nameless file in *folder*, if given."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file: BytesIO | FileIO = BytesIO()
        self.items = 0
        self.size = 0

    def add(self, line: bytes) -> None:
        """Add an item. Raises `OSError`: only this item is missing."""
        size = self.size + len(line)
        if self._folder is not None and size > _IN_MEMORY and isinstance(self._file, BytesIO):
            self._file = _on_disk(self._folder, self._file.getvalue())
        self._file.seek(self.size)
        try:
            files.write_all(self._file, line)
        except OSError:
            self._file.truncate(self.size)
            raise
        self.items += 1
        self.size = size

    def lines(self) -> Iterator[bytes]:
        """Yield whole lines, many at a time, from the start. Raises `OSError`."""
        self._file.seek(0)
        reader = BufferedReader(self._file)
        try:
            while lines := reader.readlines(BLOCK):
                yield b"".join(lines)
        finally:
            reader.detach()

    def close(self) -> None:
        self._file.close()


def _on_disk(folder: Path, data: bytes) -> FileIO:
    folder.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
    # Unbuffered: what cannot be written is known with its line, not with a later one.
    file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 - the pile's `close` does
    try:
        files.write_all(file, data)
    except OSError:
        file.close()
        raise
    return file


class ItemFile(GroupFile):
    def append(self, lines: Iterable[bytes]) -> None:
        """Append whole lines, all or nothing. Raises `OSError`."""
        self.add(self._blocks(lines))

    def _blocks(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        block, size = [], 0
        for line in lines:
            block.append(line)
            size += len(line)
            if size >= BLOCK:
                yield _FORM.compress(b"".join(block))
                block, size = [], 0
        if block:
            yield _FORM.compress(b"".join(block))

    def close(self) -> None:
        """Name the file, or remove it if it is empty. Raises `OSError`."""
        if self.size:
            super().close()
        else:
            self.discard()


def recover_items(path: Path, size: int) -> tuple[int, int] | None:
    """Close the open item pack *path*, of which *size* bytes were committed.

    Return the bytes that were cut off, and the committed bytes that are missing (power failure);
    None if a process is writing it. Raises `OSError`: nothing has changed, or all but the name.
    """
    with path.open("r+b") as file:
        if not files.lock_file(file):
            return None
        there = kept = file.seek(0, 2)
        if there > size:
            kept = size
        elif there < size:
            kept = 0
            for frame in _FORM.frames(file, 0):
                if frame.problem:
                    break
                kept = frame.end
        file.truncate(kept)
        os.fsync(file.fileno())
    if kept:
        os.rename(path, closed_path(path))
    else:
        path.unlink()
    files.sync_path(path.parent)
    return there - kept, max(0, size - there)


def open_items(*paths: str | Path, limit: int = RECORD_MAX) -> Iterator[dict[str, Any]]:
    """Yield the items of files or folders.

    Open files are read as far as complete; damaged blocks and blocks over *limit* bytes are logged
    and skipped. Raises `PackError`: no such file or folder, no item pack.
    """
    for path in map(Path, paths):
        if path.is_dir():
            for file in sorted(path.iterdir()):
                if is_item_pack(file):
                    yield from _read(file, limit)
        elif path.exists() or closed_path(path).exists():
            yield from _read(path, limit)
        else:
            raise PackError(f"no such file or folder: {path}")


def _read(path: Path, limit: int) -> Iterator[dict[str, Any]]:
    if not is_item_pack(path):
        raise PackError(f"not an item pack (*.{ITEM_SUFFIX}): {path}")
    if not path.exists():  # it was closed meanwhile
        path = closed_path(path)
    with path.open("rb") as file:
        size = file.seek(0, 2)
        for frame in _FORM.frames(file, 0, limit):
            if frame.problem:
                if not (path.name.endswith(OPEN) and frame.end >= size):
                    logger.warning("%s, from byte %d on: %s", path, frame.offset, frame.problem)
                continue
            for line in frame.data.splitlines():
                yield json.loads(line)


def is_item_pack(path: Path) -> bool:
    """Whether *path* has the name of an item pack, open ones included."""
    return _NAME.fullmatch(path.name) is not None
