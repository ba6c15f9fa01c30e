"""Moving what is done out of the database into the archive, a portion at a time.

A pass walks over the states of all URLs. It begins when enough has been done since the last one
for the walk to pay: half of what that one left behind. A URL is in the archive before its row
goes; killed in between it is in both, and moves with the next pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from scrapy_spider_suite.errors import SuiteError
from scrapy_spider_suite.frontier.entries import host_key
from scrapy_spider_suite.storage.archive import ARCHIVED, Archive
from scrapy_spider_suite.storage.counters import Counters
from scrapy_spider_suite.storage.rocks import RocksStore
from scrapy_spider_suite.storage.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LEAST: Final = 4_096
"""Pages that are done before a first pass."""
_PORTION: Final = 1_000
"""Rows that are looked at before anyone else has a turn again: some ten milliseconds."""
_SAID: Final = 20
"""Different troubles that are told."""


class Archiver:
    """Moves what `Archive.takes`, of the *store*, to *archive*, in passes.

    Only what is durable may move: *flush* is called before each portion.
    """

    def __init__(
        self, store: RocksStore, archive: Archive, counters: Counters, flush: Callable[[], None]
    ) -> None:
        self._store = store
        self._archive = archive
        self._counters = counters
        self._flush = flush
        self._after: bytes | None = None  # where the pass under way has come to
        self._kept = 0  # rows that it has left, or the last one did
        self._done = 0  # pages that were done when the last one began
        self._said: set[str] = set()

    def __len__(self) -> int:
        """How many URLs are in the archive."""
        return len(self._archive.urls)

    def step(self, *, moving: bool = True) -> bool:
        """Do a portion of upkeep, and with *moving* of a pass; whether there is more to do."""
        try:
            busy = self._archive.poll()
            self._say(self._archive.urls.trouble)
            if not moving or self._archive.behind or not (self._after is not None or self._due()):
                return busy
            return self._portion() or busy
        except (SuiteError, OSError) as error:
            self._say(str(error))
            return False

    def begin(self) -> bool:
        """Begin a last pass, over all rows; False where too few pages are done for one."""
        if self._counters.done < _LEAST:
            return False
        self._after = b""
        return True

    def finish(self) -> None:
        """Write everything fresh to segments, unless somebody holds the archive; for a thread."""
        if not self._archive.hold():
            return
        try:
            self._archive.urls.flush()
        except (SuiteError, OSError) as error:
            self._say(str(error))
        finally:
            self._archive.give_back()

    def _due(self) -> bool:
        if self._counters.done - self._done < max(_LEAST, self._kept // 2):
            return False
        self._after, self._kept, self._done = b"", 0, self._counters.done
        return True

    def _portion(self) -> bool:
        store, archive = self._store, self._archive
        self._flush()
        if store.dirty:
            return True  # a page that is done, and has to wait for the disk
        rows = list(islice(store.every_state(self._after or b""), _PORTION))
        moving = [key for key, state in rows if archive.takes(key, state)]
        if moving:
            archive.add(moving)
            if store.power_safe:
                archive.sync()
            for key in moving:
                store.delete_state(key)
        self._kept += len(rows) - len(moving)
        self._after = rows[-1][0] if len(rows) == _PORTION else None
        return self._after is not None

    def _say(self, trouble: str) -> None:
        """Log what is wrong once, not with each attempt."""
        if trouble and trouble not in self._said and len(self._said) < _SAID:
            self._said.add(trouble)
            logger.error("%s: the archive of seen URLs goes on when that is over", trouble)


def archiver_of(
    store: Store, counters: Counters, flush: Callable[[], None]
) -> Archiver | None:
    """What moves rows of *store* to its archive; None if it has none."""
    if not isinstance(store, RocksStore) or store.archive is None:
        return None
    return Archiver(store, store.archive, counters, flush)


def archived(store: RocksStore, host: str) -> Iterator[bytes]:
    """What follows the host's key in the state keys of URLs of *host* that have no row any more."""
    if store.archive is not None:
        prefix = host_key(host)
        for name in store.archive.of_host(host):
            if not store.has_row(prefix + name):
                yield name


def bring_back(store: RocksStore, host: str) -> Iterator[bool]:
    """Give the URLs of *host* in the archive their rows again, a portion with every step.

    True: it waits for something else. The archive must be held, and whoever calls makes a portion
    durable before the next. Killed meanwhile they are in both. Raises `StoreWriteError`.
    """
    if store.archive is None:
        return
    prefix = host_key(host)
    names = archived(store, host)
    while portion := list(islice(names, _PORTION)):
        for name in portion:
            store.put_state(prefix + name, ARCHIVED)
        yield False
    while store.archive.urls.poll():  # the removal would stop everything until the builder ends
        yield True
    store.archive.remove(host)


class Holdable(Protocol):
    """What lies beside the database, and is to lie still while something is done with both."""

    def hold(self) -> bool:
        """Change nothing until `give_back`; False: it cannot be held now."""

    def give_back(self) -> None:
        """See `hold`."""


def holding(what: Holdable | None, work: Generator[Any, None, T]) -> Generator[Any, None, T]:
    """Do *work* while *what*, if there is it, is held; True: it waits for something else."""
    if what is None:
        return (yield from work)
    while not what.hold():
        yield True
    try:
        return (yield from work)
    finally:
        what.give_back()
