"""Links on their way through the sieve, and done rows on their way into the archive.

The links of a page wait in rows of its commit, numbered as the sieve counts them. The rows are on
the medium before a flush decides which links are new. New links become pending in the batch that
deletes the row. URLs that were looked up one by one are offered as marks when they end 200.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import JobDamagedError, SuiteError
from scrapy_spider_suite.frontier.entries import Entry, host_key
from scrapy_spider_suite.seen.fingerprint_cache import FingerprintCache
from scrapy_spider_suite.seen.sieve import Flush
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.rocks_store import RocksStore, Store
from scrapy_spider_suite.store.seen_index import DONE_200, Archive, SieveIndex, needs_no_row
from scrapy_spider_suite.urls.normalize import host_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LEAST: Final = 1 << 16  # pages that are done before a first pass
_PORTION: Final = 250  # rows of a step: some milliseconds
_SAID: Final = 20  # different errors that are logged


class Archiver:
    """Moves rows that `Archive.takes` to *archive*, in passes; calls *flush* before a portion."""

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
        return len(self._archive.urls)

    def step(self, *, moving: bool = True) -> bool:
        """Do a portion of upkeep, and with *moving* of a pass; whether there is more."""
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
        """Begin a last pass over all rows; False where too few pages are done."""
        if self._counters.done < _LEAST:
            return False
        self._after = b""
        return True

    def finish(self) -> None:
        """Write fresh URLs to segments, unless the archive is locked; for a thread."""
        if not self._archive.lock():
            return
        try:
            self._archive.urls.flush()
        except (SuiteError, OSError) as error:
            self._say(str(error))
        finally:
            self._archive.unlock()

    def _due(self) -> bool:
        rows = max(self._kept, self._counters.pending)  # that a pass would leave, at least
        if self._counters.done - self._done < max(_LEAST, rows // 2):
            return False
        self._after, self._kept, self._done = b"", 0, self._counters.done
        return True

    def _portion(self) -> bool:
        store, archive = self._store, self._archive
        self._flush()
        if store.backlog:
            return True  # a page that is done, and has to wait for the disk
        rows = list(islice(store.states(b"", self._after or b""), _PORTION))
        moving = [key for key, state in rows if archive.takes(key, state)]
        if moving:
            archive.add(moving)
            if store.power_safe:
                archive.urls.sync()
            for key in moving:
                store.put_state(key, None)
        self._kept += len(rows) - len(moving)
        self._after = rows[-1][0] if len(rows) == _PORTION else None
        return self._after is not None

    def _say(self, trouble: str) -> None:
        if trouble and trouble not in self._said and len(self._said) < _SAID:
            self._said.add(trouble)
            logger.error("%s: the archive of seen URLs goes on when that is over", trouble)


def make_archiver(store: Store, counters: Counters, flush: Callable[[], None]) -> Archiver | None:
    if not isinstance(store, RocksStore) or store.archive is None:
        return None
    return Archiver(store, store.archive, counters, flush)


def archived(store: RocksStore, host: str) -> Iterator[bytes]:
    """The rest of the state keys of *host*'s archived URLs without rows."""
    if store.archive is not None:
        prefix = host_key(host)
        for name in store.archive.for_host(host):
            if store.get("states", prefix + name) is None:
                yield name


def bring_back(store: RocksStore, host: str) -> Generator[bool, None, None]:
    """Give the archived URLs of *host* rows again, a portion with every step; True: it waits.

    The archive must be locked; the caller flushes after each step. Raises `StoreWriteError`.
    """
    if store.archive is None:
        return
    prefix = host_key(host)
    names = archived(store, host)
    while portion := list(islice(names, _PORTION)):
        for name in portion:
            store.put_state(prefix + name, DONE_200)
        yield False
    while store.archive.urls.poll():  # the removal would stop everything until the builder ends
        yield True
    store.archive.remove(host)


def while_locked(
    beside: Archive | SieveIndex | None, work: Generator[Any, None, T]
) -> Generator[Any, None, T]:
    """Do *work* while *beside*, if given, is locked; True: it waits."""
    if beside is None:
        return (yield from work)
    while not beside.lock():
        yield True
    try:
        return (yield from work)
    finally:
        beside.unlock()


_A_ROW: Final = 200  # links of a row


class LinkOrigin(NamedTuple):
    """What links of one page have in common, as entries do."""

    depth: int
    referrer: str
    priority: int = 0
    hops_outside: int = 0
    referrer_policy: int = 0


_NUMBER = struct.Struct(">Q")


class SieveRows:
    """The rows of links that wait for the sieve, by the number of their first link."""

    def __init__(self, store: Store) -> None:
        self._kv = store.kv("fresh")

    def items(self, since: int) -> Iterator[tuple[int, bytes]]:
        for key, row in self._kv.items(since=_NUMBER.pack(since)):
            yield _NUMBER.unpack(key)[0], row

    def put(self, number: int, row: bytes) -> None:
        self._kv.put(_NUMBER.pack(number), row)

    def delete(self, number: int) -> None:
        self._kv.delete(_NUMBER.pack(number))


class SieveQueue:
    """Offers links to the sieve of *store*, and hands out the new ones.

    Not *active*: it only ends what was begun. *counters* count known links. Raises
    `JobDamagedError` if rows are missing.
    """

    def __init__(
        self, store: RocksStore, index: SieveIndex, cache: FingerprintCache, counters: Counters,
        *, active: bool,
    ) -> None:  # fmt: skip
        self.active = active
        self.index = index
        self.sieve = sieve = index.sieve
        self._store = store
        self._rows = SieveRows(store)
        self._cache = cache
        self._counters = counters
        flush, first = sieve.under_way, None
        for number, row in self._rows.items(sieve.next if flush is None else flush.first):
            first = number if first is None else first
            keys = unpack(number, row)[1]
            if number >= sieve.decided:
                if number != sieve.next:
                    raise JobDamagedError(f"links that wait for the sieve are missing at {number}")
                prints = msgpack.unpackb(row)[0]
                sieve.offer_prints(prints if isinstance(prints, bytes) else index.prints(keys))
        self.first_number = sieve.next if first is None else first
        """The number of the first link that still waits."""
        if flush is not None and self.first_number >= flush.end:
            flush.accept()  # all of it was handed out

    def offer(self, way: LinkOrigin, keys: list[bytes], *, anyway: bool = False) -> None:
        """Let the links with these state keys wait; *anyway*, also what the cache knows."""
        new = self._cache.new(keys)
        if anyway:
            new = list(dict.fromkeys(keys))
        self._counters.filtered += len(keys) - len(new)
        for start in range(0, len(new), _A_ROW):
            self._write_row(new[start : start + _A_ROW], *way)

    def concluded(self, key: bytes, state: bytes) -> bool:
        """Whether a URL with this last *state* needs no row."""
        if not self.active or not needs_no_row(key, state):
            return False
        # Before a verdict is handed out the URL may be new in it: then its row must be there.
        if self.sieve.under_way is None and self.index.has(key):
            return True
        self._write_row([key])
        return False

    def _write_row(self, keys: list[bytes], *way: Any) -> None:
        self._rows.put(self.sieve.next, msgpack.packb([keys, *way]))
        self.sieve.offer_prints(self.index.prints(keys))

    def offer_prints(self, prints: bytes) -> None:
        """Offer the fingerprints of another agent: they are known after the next flush."""
        self._rows.put(self.sieve.next, msgpack.packb([prints, self.index.width]))
        self.sieve.offer_prints(prints)

    @property
    def waiting(self) -> int:
        return self.sieve.next - self.first_number

    @property
    def decided(self) -> bool:
        flush = self.sieve.under_way
        return flush is not None and flush.decided

    @property
    def statistics(self) -> dict[str, int | float]:
        sieve, parts = self.sieve, self.sieve.parts
        return {
            "waiting": self.waiting, "known": len(parts), "flushes": sieve.flushes,
            "size": parts.size, "damaged": len(parts.damaged),
            "false_positive_bound": parts.false_positive_bound,
        }

    def begin(self) -> Flush | None:
        """The flush of all waiting links, for any thread after `sync_log`; None: not now."""
        if self.decided or not self.waiting or self.index.locked:
            return None
        return self.sieve.begin()

    def hand_out(
        self, take: Callable[[LinkOrigin, list[bytes], list[bytes]], None]
    ) -> Iterator[None]:
        """Call *take* with the decided links of a page, and the new ones of them, a row each step.

        A row goes with the batch in which *take* writes. Do not keep this over a batch that fails.
        """
        flush = self.sieve.under_way
        if flush is None or not flush.decided:
            return
        for number, row in self._rows.items(self.first_number):
            if number >= flush.end:
                break
            way, keys = unpack(number, row)
            links = [(key, at) for at, key in enumerate(keys, number) if key]
            if way is not None:
                new = [key for key, at in links if flush.is_new(at)]
                take(way, [key for key, _ in links], new)
            else:
                for mark, _ in links:
                    state = self._store.state(mark, sieved=False)
                    if state is not None and needs_no_row(mark, state):
                        self._store.put_state(mark, None)
            self._rows.delete(number)
            self.first_number = number + len(keys)
            yield
        flush.accept()
        self.first_number = flush.end

    def forget(self, host: str, belongs: Callable[[str], bool], limit: int) -> Iterator[int]:
        """Drop links to URLs of *host* that *belong*; how many, of *limit* rows each step."""
        prefix, at = host_key(host), 0
        while rows := list(islice(self._rows.items(max(at, self.first_number)), limit)):
            gone = 0
            for number, row in rows:
                way, keys = unpack(number, row)
                at = number + len(keys)
                drop = [key.startswith(prefix) and belongs(url_of(key)) for key in keys]
                if any(drop):
                    left = [b"" if out else key for key, out in zip(keys, drop, strict=True)]
                    self._rows.put(number, msgpack.packb([left, *(way or ())]))
                    gone += sum(drop)
            yield gone


@lru_cache(16_384)  # every link asks, and most links lead to few hosts
def _prefix_of(origin: str) -> bytes:
    return host_key(host_of(origin))


def keys_of(urls: Iterable[str]) -> list[bytes]:
    """The state keys of links with these normal URLs."""
    keys, prefix, origin = [], b"", " "
    for url in urls:
        if not url.startswith(origin):  # most links of a page lead to its own host
            origin = url[: url.index("/", 8) + 1]
            prefix = _prefix_of(origin)
        keys.append(prefix + url.encode())
    return keys


def url_of(key: bytes) -> str:
    return key[key.index(b"\0", 2) + 1 :].decode()  # the slot may hold a NUL


def host_of_state_key(key: bytes) -> str:
    return key[2 : key.index(b"\0", 2)].decode()


def rows_in(store: RocksStore) -> Iterator[tuple[int, LinkOrigin | None, list[bytes]]]:
    """The rows of links that wait for the sieve of *store*: number, origin, state keys."""
    verdict = None if store.sieve is None else store.sieve.sieve.under_way
    for number, row in SieveRows(store).items(0 if verdict is None else verdict.first):
        yield number, *unpack(number, row)


def entry_of(key: bytes, way: LinkOrigin) -> Entry:
    end = key.index(b"\0", 2)  # the slot may hold a NUL
    return Entry(
        key[2:end].decode(), key[end + 1 :].decode(), depth=way.depth, referrer=way.referrer,
        priority=way.priority, hops_outside=way.hops_outside, referrer_policy=way.referrer_policy,
    )  # fmt: skip


def unpack(number: int, row: bytes) -> tuple[LinkOrigin | None, list[bytes]]:
    """The origin of a row's links (None for marks), and their state keys (empty: dropped)."""
    try:
        keys, *way = msgpack.unpackb(row)
        if isinstance(keys, bytes):
            return None, [b""] * (len(keys) // way[0])
        return (LinkOrigin(*way) if way else None), keys
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
        raise JobDamagedError(f"links that wait for the sieve cannot be read ({error})") from error
