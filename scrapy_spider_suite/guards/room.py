"""Whether the disks that a crawl writes to have room left (SUITE_MIN_FREE)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

_COMPACTION = 25 * (64 << 20)
"""Most bytes that RocksDB merges at once: 25 files of the default size (max_compaction_bytes)."""
_SLACK = 1.1
"""How much more than enough there has to be before it is enough again."""


class Folder(NamedTuple):
    """A folder that is written to; *extra* are bytes that it may need for a while."""

    path: Path
    extra: int = 0


class Space(NamedTuple):
    """The file system that holds a folder, and its free bytes."""

    device: int
    free: int


class Shortage(NamedTuple):
    """A file system has fewer free bytes than are needed there."""

    path: Path
    free: int
    needed: int


def space(path: Path) -> Space:
    """Look at the file system of *path*. Raises `OSError`."""
    system = os.statvfs(path)
    return Space(os.stat(path).st_dev, system.f_bavail * system.f_frsize)


def headroom(stored: int, memory: int) -> int:
    """Bytes that a store of *stored* bytes, with *memory* for its buffers, needs beside them.

    A merge writes its result before it removes what it was made from, and the log of what is still
    in memory grows to as much as the buffers hold.
    """
    return min(stored, _COMPACTION) + memory


def shortage(
    folders: Iterable[Folder],
    least: int,
    *,
    is_short: bool = False,
    look: Callable[[Path], Space] = space,
) -> Shortage | None:
    """The first file system of *folders* with less than *least* bytes and the extras free.

    What *is_short* already has to get somewhat more, so that a crawl does not stop and go. What
    cannot be looked at is passed over: writing to it will say what is wrong.
    """
    systems: dict[int, Shortage] = {}
    for folder in folders:
        try:
            found = look(folder.path)
        except OSError:
            continue
        before = systems.get(found.device, Shortage(folder.path, found.free, least))
        systems[found.device] = before._replace(needed=before.needed + folder.extra)
    factor = _SLACK if is_short else 1.0
    for each in systems.values():
        if each.free < each.needed * factor:
            return each
    return None


def in_units(count: int) -> str:
    """*count* bytes for a person to read, rounded down: ``1.9G``."""
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count >= size:
            return f"{count * 10 // size / 10:g}{unit}"
    return f"{count} bytes"
