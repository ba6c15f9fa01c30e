"""Files of lines of JSON that are only ever appended to, and on the medium when that returns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


def append(path: Path, *rows: dict[str, Any]) -> None:
    """Append *rows*, all of them or none. Raises `OSError`."""
    data = b"".join(
        json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n" for row in rows
    )
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(file).st_size
        # What a full disk cut off must not spoil these lines too.
        if _torn(path, size):
            data = b"\n" + data
        if os.write(file, data) < len(data):
            with suppress(OSError):  # a file that may only be appended to: a line is torn
                os.ftruncate(file, size)
            raise OSError(f"{path.name} could not be written to its end")
        os.fsync(file)
    finally:
        os.close(file)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """All that was written, the oldest first; lines that were torn are left out."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield row
    except FileNotFoundError:
        return


def _torn(path: Path, size: int) -> bool:
    if not size:
        return False
    with path.open("rb") as reader:
        reader.seek(-1, os.SEEK_END)
        return reader.read(1) != b"\n"
