"""Moving what is done out of the database into the archive, a portion at a time.

A pass walks over the states of all URLs. It begins when enough has been done since the last one
for the walk to pay: a quarter of what that one left behind. A URL is in the archive before its row
goes; killed in between it is in both, and moves with the next pass.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.frontier.keys import host_key
from scrapy_spider_suite.storage.archive import ARCHIVED, Archive
from scrapy_spider_suite.storage.counters import Counters
from scrapy_spider_suite.storage.rocks import RocksStore
from scrapy_spider_suite.storage.store import Store

logger = logging.getLogger(__name__)

_LEAST: Final = 50_000
"""Pages that are done before a first pass."""
_PORTION: Final = 1_000
"""Rows that are looked at before anyone else has a turn again: some ten milliseconds."""


class Archiver:
    """Moves what `Archive.takes`, of the *store*, to *archive*, in passes.

    With *power_safe* what has moved survives a power failure before its row goes.
    """

    def __init__(
        self, store: RocksStore, archive: Archive, counters: Counters, *, power_safe: bool
    ) -> None:
        self._store = store
        self._archive = archive
        self._counters = counters
        self._power_safe = power_safe
        self._after: bytes | None = None  # where the pass under way has come to
        self._kept = 0  # rows that it has left, or the last one did
        self._done = 0  # pages that were done when the last one began
        self._said: set[str] = set()

    def __len__(self) -> int:
        """How many URLs are in the archive."""
        return len(self._archive.urls)

    def step(self) -> bool:
        """Do a portion of a pass, if it is time for one; whether there is more to do."""
        self._archive.poll()
        self._say(self._archive.urls.trouble)
        if self._archive.behind or not (self._after is not None or self._due()):
            return False
        try:
            return self._portion()
        except StoreWriteError as error:
            self._say(str(error))
            self._after = None
            return False

    def _due(self) -> bool:
        if self._counters.done - self._done < max(_LEAST, self._kept // 4):
            return False
        self._after, self._kept, self._done = b"", 0, self._counters.done
        return True

    def _portion(self) -> bool:
        store, archive = self._store, self._archive
        rows = list(islice(store.every_state(self._after or b""), _PORTION))
        moving = [key for key, state in rows if archive.takes(key, state)]
        self._kept += len(rows) - len(moving)
        if moving:
            archive.add(moving)
            if self._power_safe:
                archive.sync()
            for key in moving:
                store.delete_state(key)
        self._after = rows[-1][0] if len(rows) == _PORTION else None
        return self._after is not None

    def _say(self, trouble: str) -> None:
        """Log what is wrong once, not with each attempt."""
        if trouble and trouble not in self._said:
            self._said.add(trouble)
            logger.error("%s: the archive of seen URLs goes on when that is over", trouble)


def archiver_of(store: Store, counters: Counters, sync: str) -> Archiver | None:
    """What moves rows of *store* to its archive; None if it has none. *sync* as ``SUITE_SYNC``."""
    if not isinstance(store, RocksStore) or store.archive is None:
        return None
    return Archiver(store, store.archive, counters, power_safe=sync == "power")


def archived(store: RocksStore, host: str) -> Iterator[bytes]:
    """What follows the host's key in the state keys of URLs of *host* that have no row any more."""
    if store.archive is not None:
        prefix = host_key(host)
        for name in store.archive.of_host(host):
            if not store.has_row(prefix + name):
                yield name


def bring_back(store: RocksStore, host: str) -> Iterator[None]:
    """Give the URLs of *host* in the archive their rows again, a portion with every step.

    Whoever calls makes a portion durable before the next. Killed meanwhile they are in both.
    Raises `StoreWriteError`.
    """
    if store.archive is None:
        return
    prefix = host_key(host)
    names = archived(store, host)
    while portion := list(islice(names, _PORTION)):
        for name in portion:
            store.put_state(prefix + name, ARCHIVED)
        yield
    store.archive.remove(host)
