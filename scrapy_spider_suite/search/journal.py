"""Which page is being read: one that ends the process again and again is passed over.

What reads pages is C++, and pages are written by anybody. A page that took the process with it, or
a minute, is tried twice more: a kill from outside costs no page.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NAME: Final = "reading"
TRIES: Final = 3
_SUSPECTS: Final = 16


class Journal:
    """The journal in *folder*, for whoever holds the lock there; it survives a kill.

    *seconds* that a page may take until the process is ended (by SIGALRM, so only in the main
    thread of a process that is there for nothing else); 0 for any. Raises `OSError`.
    """

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        self._file = (folder / NAME).open("a+b", buffering=0)
        self._seconds = seconds
        now, suspects = self._read()
        if now:
            suspects[now] = suspects.pop(now, 0) + 1
        self._suspects = dict(list(suspects.items())[-_SUSPECTS:])

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def barred(self, page: str) -> bool:
        """Whether *page* has ended the process as often as it may."""
        return self._suspects.get(page, 0) >= TRIES

    @contextmanager
    def reading(self, page: str) -> Iterator[None]:
        """Note that *page* is read meanwhile."""
        self._write(page)
        if self._seconds:
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            yield
        finally:
            if self._seconds:
                signal.setitimer(signal.ITIMER_REAL, 0)
        self._suspects.pop(page, None)
        self._write("")

    def _write(self, page: str) -> None:
        row = json.dumps({"now": page, "suspects": self._suspects})
        os.ftruncate(self._file.fileno(), 0)
        self._file.write(row.encode())

    def _read(self) -> tuple[str, dict[str, int]]:
        self._file.seek(0)
        try:
            row = json.loads(self._file.read())
            return str(row["now"]), {str(page): int(n) for page, n in row["suspects"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return "", {}  # it is new, or was torn
