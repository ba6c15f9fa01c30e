"""What the files of a store were when it was closed, to be compared before it is opened again.

RocksDB takes a list of tables that has lost its end for the truth, which a crash may leave
behind: it opens without the tables that the list does not name, and removes them. A directory
without CURRENT it takes for a new one. So damage is looked for before it opens anything.

Logs are not compared: a torn end is what a crash or a power failure leaves, and RocksDB leaves it
out, as promised.
"""

from __future__ import annotations

import json
from pathlib import Path

from scrapy_spider_suite.runtime import files as durable

_NAME = "files.json"
_COMPARED = ("*.sst", "MANIFEST-*", "CURRENT")


def holds_data(store: Path) -> bool:
    """Whether anything was ever written to the database in the folder *store*."""
    return any(store.glob("*.sst")) or any(log.stat().st_size for log in store.glob("*.log"))


def take(store: Path) -> None:
    """Note the files of *store*, which has just been closed, beside it."""
    files = {path.name: path.stat().st_size for glob in _COMPARED for path in store.glob(glob)}
    durable.replace(store.parent / _NAME, f"{json.dumps(files)}\n".encode())


def forget(store: Path) -> None:
    """From now on the files change."""
    (store.parent / _NAME).unlink(missing_ok=True)


def damage(store: Path) -> str | None:
    """Return what is wrong with the files of *store*, None if nothing can be seen.

    After an unclean end there is nothing to compare with.
    """
    if not (store / "CURRENT").is_file():
        return "CURRENT is missing" if holds_data(store) else None
    try:
        files = json.loads((store.parent / _NAME).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return f"{_NAME} cannot be read"
    if not isinstance(files, dict):
        return f"{_NAME} is no list of files"
    for name, size in files.items():
        path = store / Path(name).name
        if not path.is_file():
            return f"{path.name} is missing"
        if path.stat().st_size != size:
            return f"{path.name} has {path.stat().st_size} bytes, and had {size}"
    return None
