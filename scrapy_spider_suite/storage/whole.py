"""Small files that are never seen half written, after a power failure neither."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Let *path* hold *text*: on the medium, before it takes the place of what was there.

    Raises `OSError`; what was there is there, then.
    """
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
