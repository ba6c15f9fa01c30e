"""The files of a fetch log: what they are called, which times they cover, how they are compressed.

``fetch.log`` is being written; ``fetch-FIRST-LAST.log.zst`` holds what was written from FIRST to
LAST, and for a moment, until it is compressed, has no ``.zst``. Zstandard at level 3: a line of
177 bytes becomes 37 with it, 39 with gzip at level 6, which takes five times as long to pack and
1.6 times as long to read back (``benchmarks/evidence.py``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import BufferedIOBase
from pathlib import Path

from backports import zstd

from scrapy_spider_suite.monitor.fetchline import LINE_MAX

ACTIVE = "fetch.log"
FOLDER = "fetches"
"""Where it lies in a job's ``suite`` folder."""
LEVEL = 3
ZST = ".zst"
NEW = ".new"

_BLOCK = 1 << 20
_NAME = re.compile(r"fetch-(\d{8}T\d{6}\.\d{3})Z-(\d{8}T\d{6}\.\d{3})Z(-\d+)?\.log(\.zst)?")

ReadError = zstd.ZstdError, EOFError, OSError
"""What reading a damaged file raises."""


def closed_name(folder: Path, first: float, last: float) -> Path:
    """Return a path for what was written from *first* to *last* (seconds since the epoch)."""
    name = f"fetch-{_stamp(first)}-{_stamp(last)}"
    number = 1
    path = folder / f"{name}.log"
    while path.exists() or path.with_name(path.name + ZST).exists():
        number += 1
        path = folder / f"{name}-{number}.log"
    return path


def times(path: Path) -> tuple[float, float] | None:
    """Return from when to when *path* reaches, by its name; None if it is no such file."""
    match = _NAME.fullmatch(path.name)
    try:
        return None if match is None else (_seconds(match[1]), _seconds(match[2]))
    except ValueError:  # no such day
        return None


def closed_files(folder: Path) -> list[Path]:
    """Return the files of *folder* that are written no more, the oldest first.

    Of one that is just being compressed, only the one that is whole.
    """
    found = {path for path in folder.glob("fetch-*") if times(path) is not None}
    whole = {p for p in found if p.suffix == ZST or p.with_name(p.name + ZST) not in found}
    return sorted(whole, key=lambda path: (times(path), path.name))


def uncompressed(folder: Path) -> list[Path]:
    """Return the files of *folder* that are still to be compressed, the oldest first."""
    return sorted(path for path in folder.glob("fetch-*.log") if times(path) is not None)


def compress(path: Path, stop: Callable[[], bool] = lambda: False) -> None:
    """Put a compressed file in the place of *path*; whatever happens, one of them is whole.

    *stop* is asked after each megabyte; if it says so, *path* stays as it is.

    Raises:
        OSError: there is no room; *path* stays as it is.
    """
    done = path.with_name(path.name + ZST)
    new = done.with_name(done.name + NEW)
    try:
        with path.open("rb") as source, new.open("wb") as target:
            with zstd.ZstdFile(target, "wb", level=LEVEL) as packed:
                while (block := source.read(_BLOCK)) and not stop():
                    packed.write(block)
            if block:
                new.unlink()
                return
            target.flush()
            os.fsync(target.fileno())
        os.replace(new, done)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    path.unlink()


def trim(folder: Path, room: int) -> list[Path]:
    """Remove the oldest closed files of *folder* until those left take *room* bytes at most.

    Returns those that were removed. Raises `OSError`: one cannot be.
    """
    sizes = {path: path.stat().st_size for path in closed_files(folder)}
    total, removed = sum(sizes.values()), []
    for path, size in sizes.items():
        if total <= room:
            break
        path.unlink()
        removed.append(path)
        total -= size
    return removed


def clean(folder: Path) -> None:
    """Remove what an end in the middle of `compress` left in *folder*."""
    for new in folder.glob(f"fetch-*{ZST}{NEW}"):
        new.unlink(missing_ok=True)
    for path in folder.glob(f"fetch-*.log{ZST}"):
        path.with_suffix("").unlink(missing_ok=True)


def opened(path: Path) -> BufferedIOBase:
    """Open *path* to be read, compressed or not; it may have been compressed in between.

    Raises:
        OSError: it cannot be read.
    """
    if path.suffix == ZST:
        return zstd.ZstdFile(path, "rb")
    try:
        return path.open("rb")
    except FileNotFoundError:
        return opened(path.with_name(path.name + ZST))


def blocks(file: BufferedIOBase) -> Iterator[bytes]:
    """Yield *file* in blocks of whole lines; a torn last line is left out."""
    rest = b""
    while block := file.read(_BLOCK):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:  # longer than any line: nothing of it is one
            rest = (rest + block)[-LINE_MAX:]


def _stamp(when: float) -> str:
    moment = datetime.fromtimestamp(max(0.0, when), UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1_000:03}Z"


def _seconds(text: str) -> float:
    return datetime.strptime(text, "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC).timestamp()
