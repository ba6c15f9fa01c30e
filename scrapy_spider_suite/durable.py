"""Files that are never seen half written, after a power failure neither."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Have the file *path*, or the names in the folder *path*, on the medium. Raises `OSError`."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write(path: Path, *data: bytes) -> None:
    """Write *data* to *path*, on the medium; its name is there once it is renamed or synced.

    Raises `OSError`.
    """
    with path.open("wb") as file:
        file.writelines(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    """Let *path* hold *data*: on the medium, before it takes the place of what was there.

    Raises `OSError`; what was there is there, then.
    """
    with replacing(path) as new:
        new.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to be written beside *path*, which takes its place once it is on the medium.

    Raises `OSError`. If anything is raised, it is removed, and what was there is there.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        yield new
        sync(new)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync(path.parent)
