"""Who may change packs and indexes, among processes: by `flock`, which no kill leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import BinaryIO


@contextmanager
def indexes_held(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Keep others from merging, redacting and removing in *folder*; False: another one does.

    With *wait*, wait for it. Raises `OSError`.
    """
    with (folder / "merging.lock").open("wb") as lock:
        yield locked(lock, wait=wait)


def locked(file: BinaryIO, *, wait: bool = False) -> bool:
    """Lock *file* (flock); False if another process has it locked, and it is not to *wait*."""
    try:
        flock(file, LOCK_EX | (0 if wait else LOCK_NB))
    except BlockingIOError:
        return False
    return True
