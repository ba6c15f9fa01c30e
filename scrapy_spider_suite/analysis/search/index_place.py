"""Where the text index of a folder of packs lies, who may write it, and whether it is sound.

In ``search`` beside the packs the folder with the highest number is the index; ``new`` becomes the
next one. A writer holds the lock for a batch, or until a new index is complete.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from scrapy_spider_suite.errors import SearchBusyError, SearchDamagedError
from scrapy_spider_suite.packs.cdxj import file_identity
from scrapy_spider_suite.packs.pack_file import TEXT_INDEX
from scrapy_spider_suite.packs.verify import PackFinding
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.files import lock_file

_NEW: Final = "new"
_OLD: Final = "old"
_LOCK: Final = "lock"
_TURN: Final = "turn"


class IndexPlace:
    """The place of the index of the folder *packs*. Methods raise `OSError`."""

    def __init__(self, packs: Path) -> None:
        self.packs = packs
        self.folder = packs / TEXT_INDEX

    def exists(self) -> bool:
        return bool(self._numbers())

    def current(self) -> Path:
        """Where the index is, or the first one will be."""
        return self._numbered(max(self._numbers(), default=1))

    @contextmanager
    def locked(self, wait: float = 0.0) -> Iterator[None]:
        """Keep other writers away. Raises `SearchBusyError` after *wait* seconds."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / _LOCK).open("wb") as lock:
            self._acquire(lock, int(wait / 0.1))
            self._tidy()
            yield

    def _acquire(self, lock: BinaryIO, rests: int) -> None:
        # A waiter has the turn: a process that locks batch after batch cannot overtake it.
        with (self.folder / _TURN).open("wb") as turn:
            for file in (turn, lock):
                while not lock_file(file):
                    if rests <= 0:
                        why = f"{self.folder}: another process writes it: try again"
                        raise SearchBusyError(why)
                    rests -= 1
                    time.sleep(0.1)

    def begin(self) -> Path:
        new = self.folder / _NEW
        _remove(new)
        new.mkdir()
        return new

    def install(self) -> None:
        """Replace the index by the new one and remove every byte of the old one."""
        files.sync_path(self.folder / _NEW)
        (self.folder / _NEW).rename(self._numbered(max(self._numbers(), default=0) + 1))
        files.sync_path(self.folder)
        self._tidy()

    def clear(self) -> None:
        for number in self._numbers():
            self._numbered(number).rename(self.folder / _OLD)
            _remove(self.folder / _OLD)
        files.sync_path(self.folder)

    def _tidy(self) -> None:
        old = map(self._numbered, sorted(self._numbers())[:-1])
        for path in (self.folder / _NEW, self.folder / _OLD, *old):
            _remove(path)

    def _numbered(self, number: int) -> Path:
        return self.folder / f"{number:08}"

    def _numbers(self) -> list[int]:
        return [int(path.name) for path in self.folder.glob("[0-9]*") if path.name.isdecimal()]


def _remove(path: Path) -> None:
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
    """Check the checksums of *index*, which tantivy does not. Raises `SearchDamagedError`."""
    for segment, deletes in _segments(index):
        files = list(index.glob(f"{segment}.*"))
        if not any(path.suffix == ".store" for path in files):
            raise SearchDamagedError(f"{index}: the files of {segment} are missing")
        for path in files:
            why = "" if _is_unfinished(path, deletes) else _wrong(path)
            if why:
                raise SearchDamagedError(f"{path}: {why}")


def clear_unfinished(index: Path) -> None:
    """Delete lists of deleted pages that a kill left: tantivy refuses to overwrite them."""
    for segment, deletes in _segments(index):
        for path in index.glob(f"{segment}.*"):
            if _is_unfinished(path, deletes):
                path.unlink(missing_ok=True)


def _is_unfinished(path: Path, deletes: str) -> bool:
    return path.suffix == ".del" and path.name.split(".")[1] != deletes


def verify_index(folder: Path) -> Iterator[PackFinding]:
    """Yield the damage of the index of the packs in *folder*. Raises `OSError`."""
    place = IndexPlace(folder)
    while place.exists():
        before = index_state(place.current())
        try:
            verify_files(place.current())
            return
        except (SearchDamagedError, FileNotFoundError) as error:
            if index_state(place.current()) == before:  # it was not written meanwhile
                what = f"{error}: `scrapy packs index` makes another one"
                yield PackFinding(place.folder, "index", what)
                return


def index_state(index: Path) -> tuple[Path, tuple[int, int, int]] | None:
    """Return values that differ after each commit; None without an index."""
    with suppress(FileNotFoundError):
        return index, file_identity((index / "meta.json").stat())
    return None


@contextmanager
def tantivy_errors(index: Path) -> Iterator[None]:
    """Turn tantivy's errors into `SearchBusyError`, `OSError` and `SearchDamagedError`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":
            raise
        what = f"{index}: {error}"
        number = _SYSTEM.search(what)
        if number and int(number[1]) != errno.ENOENT:
            raise OSError(int(number[1]), what) from error
        if "in a thread" in what:  # what it was is not told: most likely a full disk
            raise OSError(errno.EIO, what) from error
        if "LockBusy" in what:
            raise SearchBusyError(f"{index}: another process writes it: try again") from error
        raise SearchDamagedError(what) from error


def _segments(index: Path) -> Iterator[tuple[str, str]]:
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
