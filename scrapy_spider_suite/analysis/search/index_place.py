"""Where the index of a folder of packs lies, and who may write it.

Beside the packs is the folder ``search``; in it a numbered one, the index. One that is made anew
lies in ``new`` until it is complete, and takes the next number then: the highest is the index, what
is lower goes. Whoever writes holds the lock, for a batch of pages or until a new one is complete.

Is the index what was written? tantivy ends its files with a checksum, and looks at none.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from scrapy_spider_suite.errors import SearchBusyError, SearchDamagedError
from scrapy_spider_suite.packs.pack_file import TEXT_INDEX
from scrapy_spider_suite.packs.verify import PackFinding
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.files import lock_file

_NEW: Final = "new"
_OLD: Final = "old"
_LOCK: Final = "lock"
_TURN: Final = "turn"


class IndexPlace:
    """The place of the index of the packs in the folder *packs*."""

    def __init__(self, packs: Path) -> None:
        self.packs = packs
        self.folder = packs / TEXT_INDEX

    def exists(self) -> bool:
        """Whether there is an index. Raises `OSError`."""
        return bool(self._numbers())

    def current(self) -> Path:
        """Where the index is, or the first one will be. Raises `OSError`."""
        return self._numbered(max(self._numbers(), default=1))

    @contextmanager
    def locked(
        self, wait: float = 0.0, rest: Callable[[float], object] = time.sleep
    ) -> Iterator[None]:
        """Keep others from writing; what a kill left goes.

        Raises `SearchBusyError` (another one writes, for more than *wait* seconds), `OSError`.
        """
        self.folder.mkdir(exist_ok=True)
        with (self.folder / _LOCK).open("wb") as lock:
            self._take(lock, int(wait / 0.1), rest)
            self._tidy()
            yield

    def _take(self, lock: BinaryIO, rests: int, rest: Callable[[float], object]) -> None:
        """Take *lock* after at most so many *rests*. Raises `SearchBusyError` and `OSError`.

        Whoever waits has the turn meanwhile: who goes from batch to batch cannot pass it by.
        """
        with (self.folder / _TURN).open("wb") as turn:
            for file in (turn, lock):
                while not lock_file(file):
                    if rests <= 0:
                        raise SearchBusyError(
                            f"{self.folder}: another process writes it: try again"
                        )
                    rests -= 1
                    rest(0.1)

    def begin(self) -> Path:
        """Return an empty folder for an index that takes the place of this one. `OSError`."""
        new = self.folder / _NEW
        _remove(new)
        new.mkdir()
        return new

    def install(self) -> None:
        """Let what is in that folder be the index; not a byte of the other is left. `OSError`."""
        files.sync_path(self.folder / _NEW)
        (self.folder / _NEW).rename(self._numbered(max(self._numbers(), default=0) + 1))
        files.sync_path(self.folder)
        self._tidy()

    def clear(self) -> None:
        """Remove the index. Raises `OSError`."""
        for number in self._numbers():
            self._numbered(number).rename(self.folder / _OLD)
            _remove(self.folder / _OLD)
        files.sync_path(self.folder)

    def _tidy(self) -> None:
        for path in (self.folder / _NEW, self.folder / _OLD):
            _remove(path)
        for number in sorted(self._numbers())[:-1]:
            _remove(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self.folder / f"{number:08}"

    def _numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return [int(path.name) for path in self.folder.iterdir() if path.name.isdecimal()]


def _remove(path: Path) -> None:
    """Remove a folder, into which a thread of tantivy's may still write for a moment. `OSError`."""
    for _ in range(50):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.05)
    shutil.rmtree(path)


_TAIL: Final = struct.Struct("<II")
_MAGIC: Final = 1337
_FOOTER_MAX: Final = 1 << 16
_STEP: Final = 1 << 20
_SYSTEM: Final = re.compile(r"\(os error (\d+)\)")


def verify_files(index: Path) -> None:
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


def describe_damage(place: IndexPlace) -> str:
    """What is wrong with the index at *place*; "" if nothing is, or there is none. `OSError`."""
    while place.exists():
        before = _state(place)
        try:
            verify_files(place.current())
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
def tantivy_errors(index: Path) -> Iterator[None]:
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


def verify_index(folder: Path) -> Iterator[PackFinding]:
    """Yield what is wrong with the files of the index of texts of *folder*; see `search`."""
    place = IndexPlace(folder)
    what = describe_damage(place)
    if what:
        yield PackFinding(place.folder, "index", f"{what}: `scrapy packs index` makes another one")
