"""Rows of the store that nobody can read: a crawl that meets one ends (see `Keeper`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.storage.rocks import RocksStore
from scrapy_spider_suite.storage.store import Store


@contextmanager
def reading(store: Store) -> Iterator[None]:
    """Within it a damaged row of *store* condemns that: nothing more is written.

    What was going on is given up there, and nobody is told but by the end of the crawl.
    """
    try:
        yield
    except JobDamagedError as error:
        if not isinstance(store, RocksStore):
            raise
        store.damage = store.damage or str(error)
