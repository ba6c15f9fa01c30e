"""Who may change packs and indexes, among processes: by `flock`, which no kill leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scrapy_spider_suite.runtime.files import locked


@contextmanager
def indexes_held(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Keep others from merging, redacting and removing in *folder*; False: another one does.

    With *wait*, wait for it. Raises `OSError`.
    """
    with (folder / "merging.lock").open("wb") as lock:
        yield locked(lock, wait=wait)


