"""Whether anything has happened to a job: what its fixed settings say matters only from then on.

A start that is refused before its crawl begins, by the other agents for one, leaves a store with
some rows in it; the next start writes them anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.storage import inventory
from scrapy_spider_suite.storage.counters import Counters
from scrapy_spider_suite.storage.reader import StoreReader
from scrapy_spider_suite.storage.rocks import RocksStore

_OF_A_START: Final = frozenset({
    ("kv", b"agent\0names"), ("kv", b"counters\0counters"), ("kv", b"domains\0\0whole"),
    ("kv", b"near\0m"), ("kv", b"terms\0terms"),
})  # fmt: skip
"""The rows that any start writes, beside facts about the job itself."""


def lies_untouched(folder: Path) -> bool:
    """Whether nothing has happened to the job of the ``suite`` folder *folder*, which nobody uses.

    It is only looked at; one that cannot be read may hold anything.
    """
    if inventory.damage(folder / "store"):
        return False
    try:
        with StoreReader(folder) as reader:
            return untouched(reader.store)
    except (JobError, OSError):
        return False


def untouched(store: RocksStore) -> bool:
    """Whether nothing has happened to the job of *store*, by what was flushed: no URL was met, no
    host, and no other agent. Raises `JobDamagedError`."""
    if Counters.load(store) != Counters():
        return False
    if store.archive is not None and len(store.archive.urls):
        return False
    if store.sieve is not None and store.sieve.statistics().known:
        return False
    rows = store.every_row()
    return all(family == "meta" or (family, key) in _OF_A_START for family, key, _ in rows)
