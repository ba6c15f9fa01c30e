"""Where the index of a folder of packs lies, and who may write it.

Beside the packs is the folder ``search``; in it a numbered one, the index. One that is made anew
lies in ``new`` until it is complete, and takes the next number then: the highest is the index, what
is lower goes. Whoever writes holds the lock, for a batch of pages or until a new one is complete.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from scrapy_spider_suite.errors import SearchBusyError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.files import locked

FOLDER: Final = "search"
_NEW: Final = "new"
_OLD: Final = "old"
_LOCK: Final = "lock"
_TURN: Final = "turn"


class IndexPlace:
    """The place of the index of the packs in the folder *packs*."""

    def __init__(self, packs: Path) -> None:
        self.packs = packs
        self.folder = packs / FOLDER

    def exists(self) -> bool:
        """Whether there is an index. Raises `OSError`."""
        return bool(self._numbers())

    def current(self) -> Path:
        """Where the index is, or the first one will be. Raises `OSError`."""
        return self._numbered(max(self._numbers(), default=1))

    @contextmanager
    def held(
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
                while not locked(file):
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
        files.sync(self.folder / _NEW)
        (self.folder / _NEW).rename(self._numbered(max(self._numbers(), default=0) + 1))
        files.sync(self.folder)
        self._tidy()

    def clear(self) -> None:
        """Remove the index. Raises `OSError`."""
        for number in self._numbers():
            self._numbered(number).rename(self.folder / _OLD)
            _remove(self.folder / _OLD)
        files.sync(self.folder)

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
