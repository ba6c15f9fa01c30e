"""The inbox of a job: files of URLs that a person leaves for a crawl, running or not.

``JOBDIR/suite/inbox/`` takes one file per command, renamed into place whole; the crawl schedules
what is in it and removes the file after the commit. A crash in between schedules it again, which
deduplication makes harmless.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

_NAME = "inbox"


def leave(folder: Path, urls: Iterable[str]) -> int:
    """Leave *urls* for the crawl whose ``suite`` folder is *folder*; return how many.

    All of them or, if *urls* or the disk fails, none.
    """
    inbox = folder / _NAME
    inbox.mkdir(exist_ok=True)
    name = f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}"
    new = inbox / f"{name}.new"
    count = 0
    try:
        with new.open("w", encoding="utf-8") as file:
            for url in urls:
                file.write(url + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, inbox / f"{name}.urls")
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return count


class Inbox:
    """The crawl's side: takes what was left, in the order in which it was left."""

    def __init__(self, folder: Path) -> None:
        self._inbox = folder / _NAME
        self._path: Path | None = None
        self._file: IO[str] | None = None

    def __bool__(self) -> bool:
        """Whether a file has been begun and not finished."""
        return self._file is not None

    def waits(self) -> bool:
        """Whether there is anything that was not taken to its end."""
        return bool(self) or (self._inbox.is_dir() and any(self._inbox.glob("*.urls")))

    def take(self, limit: int) -> Iterator[str]:
        """Up to *limit* URLs; call `finish` once they are committed."""
        if self._file is None:
            waiting = sorted(self._inbox.glob("*.urls")) if self._inbox.is_dir() else []
            if not waiting:
                return
            self._path = waiting[0]
            self._file = self._path.open(encoding="utf-8", errors="replace")
        for line in islice(iter(self._file.readline, ""), limit):
            if text := line.strip():
                yield text

    def finish(self) -> None:
        """What was taken is committed: remove the file if it has been read to its end."""
        if self._file is None or self._path is None:
            return
        at = self._file.tell()
        if not self._file.read(1):
            self._file.close()
            self._path.unlink()
            self._file = self._path = None
        else:
            self._file.seek(at)

    def close(self) -> None:
        """Leave what has been begun, whole, to the next run."""
        if self._file is not None:
            self._file.close()
            self._file = self._path = None
