"""Is the index what was written? tantivy ends its files with a checksum, and looks at none."""

from __future__ import annotations

import errno
import json
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scrapy_spider_suite.errors import SearchBusyError, SearchDamagedError
from scrapy_spider_suite.search.place import IndexPlace

_TAIL: Final = struct.Struct("<II")
_MAGIC: Final = 1337
_FOOTER_MAX: Final = 1 << 16
_STEP: Final = 1 << 20
_SYSTEM: Final = re.compile(r"\(os error (\d+)\)")


def verify(index: Path) -> None:
    """Read the files of the index in the folder *index*.

    Raises `SearchDamagedError`: one is missing, or not what was written.
    """
    for segment, deletes in _segments(index):
        files = list(index.glob(f"{segment}.*"))
        if not any(path.suffix == ".store" for path in files):
            raise SearchDamagedError(f"{index}: the files of {segment} are missing")
        for path in files:
            why = "" if _is_unfinished(path, deletes) else _wrong(path)
            if why:
                raise SearchDamagedError(f"{path}: {why}")


def clear_unfinished(index: Path) -> None:
    """Delete the lists of deleted pages that a kill left before a commit named them.

    The next commit may have the same number, and tantivy refuses to write over a file. For who
    alone may write. Raises `SearchDamagedError`.
    """
    for segment, deletes in _segments(index):
        for path in index.glob(f"{segment}.*"):
            if _is_unfinished(path, deletes):
                path.unlink(missing_ok=True)


def _is_unfinished(path: Path, deletes: str) -> bool:
    return path.suffix == ".del" and path.name.split(".")[1] != deletes


def damage(place: IndexPlace) -> str:
    """What is wrong with the index at *place*; "" if nothing is, or there is none. `OSError`."""
    while place.exists():
        before = _state(place)
        try:
            verify(place.current())
            return ""
        except (SearchDamagedError, FileNotFoundError) as error:
            if _state(place) == before:  # it was not written meanwhile
                return str(error)
    return ""


def _state(place: IndexPlace) -> tuple[Path, int]:
    path = place.current()
    try:
        return path, (path / "meta.json").stat().st_mtime_ns
    except FileNotFoundError:
        return path, 0


@contextmanager
def sound(index: Path) -> Iterator[None]:
    """Say what is wrong with the files of *index*, whatever tantivy makes of it.

    It raises ValueErrors, of the system's errors too, or panics. Raises `SearchBusyError`,
    `OSError` (a full disk, too many open files) and, for all else, `SearchDamagedError`.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, ValueError):
            raise
        number = _SYSTEM.search(str(error))
        if number and int(number[1]) != errno.ENOENT:
            raise OSError(int(number[1]), f"{index}: {error}") from error
        if "in a thread" in str(error):  # what it was is not told: most likely a full disk
            raise OSError(errno.EIO, f"{index}: it cannot be written: {error}") from error
        if "LockBusy" in str(error):
            raise SearchBusyError(f"{index}: another process writes it: try again") from error
        raise SearchDamagedError(f"{index}: {error}") from error
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise SearchDamagedError(f"{index}: {error}") from error
        raise


def _segments(index: Path) -> Iterator[tuple[str, str]]:
    """What the names of files of the last commit begin with, and which list of deletions counts."""
    if not any(index.glob("*.store")) and not (index / "meta.json").exists():
        return  # it was about to be made
    try:
        meta = json.loads((index / "meta.json").read_bytes())
        for each in meta["segments"]:
            deletes = each.get("deletes") or {}
            yield str(each["segment_id"]).replace("-", ""), str(deletes.get("opstamp", ""))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SearchDamagedError(f"{index}: meta.json: {error}") from error


def _wrong(path: Path) -> str:
    """What is wrong with a file; "" if nothing is."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL.size))
        tail = file.read()
        length, magic = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, 0)
        end = size - _TAIL.size - length
        if magic != _MAGIC or length > _FOOTER_MAX or end < 0:
            return "its end is damaged"
        file.seek(end)
        try:
            expected = int(json.loads(file.read(length))["crc"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return "its end is damaged"
        file.seek(0)
        found = 0
        while end > 0 and (step := file.read(min(_STEP, end))):
            found = zlib.crc32(step, found)
            end -= len(step)
    return "" if found == expected else "its checksum is another"
