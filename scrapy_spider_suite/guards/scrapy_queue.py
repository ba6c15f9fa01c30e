"""The requests that Scrapy's own scheduler left in a job directory: counted, never unpickled.

``requests.queue`` holds a queue of queuelib for each priority, or host and priority. A LIFO queue
is a file that begins with its number of requests, a FIFO queue a folder whose ``info.json`` has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = "requests.queue"
_STATE, _INFO = "active.json", "info.json"
_NUMBER = 4
"""Bytes of a number in a LIFO queue, big-endian."""


def count_pending(jobdir: Path) -> int:
    """Return how many requests wait in Scrapy's queue of *jobdir*; 0 if there is no queue.

    As Scrapy wrote it when it ended: after a kill the files give a smaller number, as to Scrapy.
    """
    return sum(_counts(jobdir / FOLDER))


def _counts(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        try:
            if path.name == _INFO:
                size = json.loads(path.read_bytes())["size"]
                yield size if isinstance(size, int) else 0
            elif path.is_file() and path.name != _STATE and not (path.parent / _INFO).exists():
                with path.open("rb") as file:
                    yield int.from_bytes(file.read(_NUMBER))
        except (OSError, ValueError, KeyError, TypeError):  # no queue of Scrapy's
            continue
