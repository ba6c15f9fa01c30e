"""How a trie store is opened: its lock, its catalogue, what a kill left, its fresh rows.

What a trie store says of itself.

The URLs that a crawl has seen, compressed: KSpider's and Tarantula's store, grown up.

A `TrieStore` is a set of URLs that is exact, takes some third of their text, leads from URLs to ids
and back, may be added to at any time, and survives a kill at any instant. It is log-structured:
what is new goes to a log and an index in memory; a process of its own merges that into tries that
never change. Ids are cut into ranges of a million URLs, each with two tries at most, so that a
look-up costs the same however many URLs there are. docs/seen.md tells more.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from scrapy_spider_suite.errors import (
    JobDamagedError,
    JobError,
    JobInUseError,
    StoreWriteError,
    UnknownUrlError,
)
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.files import lock_folder
from scrapy_spider_suite.seen import segments as catalogues
from scrapy_spider_suite.seen.fresh_log import FileLog, FreshLog
from scrapy_spider_suite.seen.ranges import Range, Ranges
from scrapy_spider_suite.seen.segment_builder import MADE, SPLIT
from scrapy_spider_suite.seen.segments import ABSENT, HELD, MAYBE, Catalogue
from scrapy_spider_suite.seen.trie_upkeep import (
    Finding,
    Upkeep,
    check,
    fresh_keys,
    has_removed,
    remove,
    wants_base,
)
from scrapy_spider_suite.seen.url_keys import (
    BYTES_A_ROW,
    LOW,
    MAX_KEY,
    TWIN_BITS,
    Identity,
    Table,
    decode,
    digest,
    encode,
)

_ATTEMPTS: Final = 50
"""Times that a reader begins anew."""


def catalogue_of(folder: Path, ids: bool, readonly: bool) -> tuple[Catalogue, dict[str, str]]:
    """The catalogue of the store in *folder*, or of a new one; and what of it is damaged.

    Raises `JobError`, `JobDamagedError`, `JobFormatError`, `StoreWriteError`.
    """
    found, damaged = catalogues.read_catalogue(folder)
    if found is not None:
        return found, {name: f"{folder / name} is not as it was written" for name in damaged}
    if readonly:
        raise JobError(f"{folder} holds no store of URLs")
    made = folder / MADE
    new = Catalogue(1, secrets.randbits(63), ids)
    try:
        made.mkdir(exist_ok=True)
        catalogues.write_catalogue(made, new)
    except OSError as error:
        raise StoreWriteError(f"{folder}: {error.strerror}") from error
    catalogues.install_catalogue(made, folder)
    return new, {}


@dataclass(frozen=True, slots=True)
class Opened:
    """A store as it was found: see `TrieStore`. *fresh* is how many rows are in no segment."""

    catalogue: Catalogue
    damaged: dict[str, str]
    identity: Identity
    twins: dict[bytes, int]
    ranges: Ranges
    log: FreshLog
    fresh: int


def open_store(
    folder: Path, log: FreshLog | None, ids: bool, readonly: bool, verify: bool | None
) -> Opened:
    """Open the store in *folder*.

    A reader, beside whom files are replaced and deleted, begins anew until what it has read is of
    one moment. Raises what `catalogue_of` does, and `JobInUseError` if that moment never comes.
    """
    for _ in range(_ATTEMPTS if readonly else 1):
        try:
            found = _open_once(folder, log, ids, readonly, verify)
        except FileNotFoundError:
            continue
        now, _ = catalogues.read_catalogue(folder) if readonly else (found.catalogue, [])
        if now is None or now.serial == found.catalogue.serial:
            return found
        found.log.close()
    raise JobInUseError(f"{folder} changes faster than it can be read: try again")


def _open_once(
    folder: Path, log: FreshLog | None, ids: bool, readonly: bool, verify: bool | None
) -> Opened:
    catalogue, damaged = catalogue_of(folder, ids, readonly)
    identity = Identity(catalogue.seed, catalogue.mask)
    twins = {bytes.fromhex(key): ident for key, ident in catalogue.twins.items()}
    if not readonly:
        sweep(folder, catalogue)
    ranges = Ranges(folder, identity, twins)
    ranges.adopt(catalogue, verify=verify)
    log = log or FileLog(folder, catalogue.mark, readonly=readonly)
    fresh = replay(log, ranges, catalogue, folder, readonly)
    return Opened(catalogue, damaged, identity, twins, ranges, log, fresh)


def sweep(folder: Path, catalogue: Catalogue) -> None:
    """Delete what a kill left: half-made segments, and those that were replaced."""
    shutil.rmtree(folder / MADE, ignore_errors=True)
    for path in folder.glob("segment-*"):
        if path.name not in catalogue.files:
            path.unlink()


def replay(
    log: FreshLog, ranges: Ranges, catalogue: Catalogue, folder: Path, readonly: bool
) -> int:
    """Put what is fresh in *log* into the tables of *ranges*; how many rows those are."""
    frames = list(log.rows())
    if not frames:
        return 0
    ids = np.concatenate([ids for ids, _ in frames])
    handles = np.concatenate([handles for _, handles in frames])
    number = ranges.index(ids)
    fresh = handles >= np.array([row.mark for row in catalogue.ranges], np.int64)[number]
    for prefix, mark in catalogue.removed:
        start = bytes.fromhex(prefix)
        low, high = Identity.span(start)
        own = (ids >= np.uint64(low)) & (ids <= np.uint64(high - 1)) & (handles < mark)
        for at in np.flatnonzero(fresh & own).tolist():
            fresh[at] = not log.read(int(handles[at])).startswith(start)
    order = np.flatnonzero(fresh)
    order = order[np.argsort(number[order], kind="stable")]
    ends = np.searchsorted(number[order], np.arange(len(ranges)), "right").tolist()
    for part, start, end in zip(ranges, [0, *ends], ends, strict=False):
        mine = order[start:end]
        part.live = Table.of(ids[mine], handles[mine])
        part.count = part.live.count
    if not readonly and not fresh.all():
        files.sync_path(folder)
        log.forget(handles[~fresh])
    return sum(part.count for part in ranges)


@dataclass(frozen=True, slots=True)
class TrieStatistics:
    """A trie store at one moment. Sizes are in bytes.

    Attributes:
        urls: how many there are.
        fresh: those in no segment yet.
        removed: those in segments that count no more.
        ranges: of ids.
        segments: files with tries.
        tries: bytes of the tries.
        filters: bytes of the filters before them.
        ids: bytes of the ways from ids to URLs; 0 in a store without ids.
        log: bytes of the log of what is fresh; 0 if that is not the store's own.
        memory: bytes of the index of what is fresh.
        size: bytes of the whole store on disk.
    """

    urls: int
    fresh: int
    removed: int
    ranges: int
    segments: int
    tries: int
    filters: int
    ids: int
    log: int
    memory: int
    size: int

    @property
    def bytes_a_url(self) -> float:
        """Of the whole store."""
        return self.size / max(1, self.urls)


def statistics_of(ranges: Ranges, log: FreshLog, fresh: int, path: Path) -> TrieStatistics:
    """Of the store in *path*."""
    rows = [segment.row for part in ranges for segment in part.segments]
    ids = sum(row.way_back for row in rows)
    tries = sum(row.trie for row in rows)
    other = sum(file.stat().st_size for file in path.glob("catalogue-?"))
    kept = log.size if isinstance(log, FileLog) else 0
    return TrieStatistics(
        urls=fresh + sum(row.keys - row.gone for row in rows),
        fresh=fresh, removed=sum(row.gone for row in rows),
        ranges=len(ranges), segments=len(rows), tries=tries,
        filters=sum(row.size for row in rows) - tries - ids, ids=ids, log=kept,
        memory=fresh * BYTES_A_ROW, size=sum(row.size for row in rows) + kept + other,
    )  # fmt: skip


MEMORY: Final = 64 << 20


class TrieStore:
    """A set of URLs in the folder *path*, which is made if need be; one process may have it open.

    URLs are any str of at most 65,535 bytes in UTF-8; normal ones compress best, and those of one
    host lie together. None of `add`, `offer`, `accept`, `poll`, ``in``, `id` and `url` takes
    longer than some milliseconds, whatever is being built; `flush`, `compact`, `remove`, `check`
    and opening may.

    *log* keeps what is fresh; without one it is kept in files of the folder. *ids* says, for the
    life of the store, whether `url` works: some 5 bytes a URL. *memory* is what the index of fresh
    URLs may take, in bytes; more of it means less work for the builder. *split* is how many URLs a
    range may have. With *readonly* the store may be looked at while another process has it open,
    as it was at that moment. *verify* reads every segment once, at some GB/s, for whether it is as
    it was written, None when it is first looked into (which then raises `JobDamagedError`): who
    looks into a damaged one without that risks a crash of the process.

    Raises `JobInUseError`, `JobFormatError`, `JobDamagedError` if no catalogue can be read,
    `JobError` if it is to be read only and is not there, `StoreWriteError`.

    Attributes:
        path: the folder.
        damaged: what cannot be read, and why, by the names of files; all else is served. URLs of a
            damaged segment count as not seen until `check` has repaired what can be.
    """

    def __init__(
        self, path: str | os.PathLike[str], log: FreshLog | None = None, *, ids: bool = True,
        memory: int = MEMORY, split: int = SPLIT, readonly: bool = False,
        verify: bool | None = True,
    ) -> None:  # fmt: skip
        self.path = Path(path)
        self._readonly = readonly
        self._lock = None if readonly else lock_folder(self.path)
        try:
            opened = open_store(self.path, log, ids, readonly, verify)
        except BaseException:
            self._unlock()
            raise
        catalogue, self.damaged = opened.catalogue, opened.damaged
        self._ids = catalogue.ids
        self._identity, self._twins = opened.identity, opened.twins
        # Where there are no twins, which is nearly everywhere, nothing is asked about them.
        self._ident = self._twin_or_own if self._twins else self._identity.of
        self._seed = self._identity.seed
        self._ranges, self._log = opened.ranges, opened.log
        self._upkeep = Upkeep(
            self.path, catalogue, self._ranges, self._log, fresh=opened.fresh,
            limit=max(1, memory // BYTES_A_ROW), split=split,
        )  # fmt: skip
        self.damaged |= self._ranges.damage
        self.damaged |= self._log.damage if isinstance(self._log, FileLog) else {}

    # Looking

    def __contains__(self, url: object) -> bool:
        """Whether *url* was added."""
        if not isinstance(url, str):
            return False
        key = url.encode("utf-8", "surrogatepass")
        ranges = self._ranges
        part = ranges.only or ranges.by_host.get(key[: key.find(b"/", 8) + 1])
        if part is None:
            ranges.remember(key, ident := self._ident(key))
            return self._look(key, ident) == HELD
        hash_ = digest(key, self._seed)
        # What is there is most likely in the base.
        if part.base is not None and part.base.look(key, hash_) == HELD:
            return True
        if part.recent is not None and part.recent.look(key, hash_) == HELD:
            return True
        if (part.count and part.may_find(hash_)) or not hash_ & LOW:  # no id is 0
            return self._look(key, self._ident(key)) == HELD
        return False

    def __len__(self) -> int:
        """How many URLs there are."""
        return self._upkeep.fresh + sum(len(s) for part in self._ranges for s in part.segments)

    def id(self, url: str) -> int:
        """The id of *url*, from 1 to 2**64 - 1, for the life of the store.

        A URL that is removed and added again has the same id again, unless it is a twin of another
        (see `identity`). Raises `UnknownUrlError` if it is not there.
        """
        key = encode(url)
        ident = self._ident(key)
        if self._look(key, ident) != HELD:
            raise UnknownUrlError(f"{self.path} does not hold {url!r}")
        return ident

    def url(self, ident: int) -> str:
        """The URL whose id is *ident*.

        Raises `UnknownUrlError` if there is none, JobError if the store was made without ids.
        """
        part = self._ranges.only or self._ranges.at(ident)
        key = None if part.base is None else part.base.key_of(ident)
        if key is None:
            if not self._ids:
                raise JobError(f"{self.path} was made without ids")
            if (key := self._key_beside(part, ident)) is None:
                raise UnknownUrlError(f"{self.path} has no URL with the id {ident}")
        return key.decode("utf-8", "surrogatepass")

    def iter(self, prefix: str = "") -> Iterator[str]:
        """The URLs that begin with *prefix*, in no order.

        With a whole host in it (``http://host/``) only that host's range is read. What is added or
        removed meanwhile may come or not, all else comes exactly once.
        """
        start = encode(prefix)
        low, high = self._identity.span(start)
        while low < high:
            part = self._ranges.at(low)
            low = part.high
            fresh = [key for key, _ in fresh_keys(part, start, self._log)]
            for keys in (fresh, *(segment.keys(start) for segment in part.segments)):
                yield from map(decode, keys)

    def __iter__(self) -> Iterator[str]:
        """All URLs, in no order."""
        return self.iter()

    def _twin_or_own(self, key: bytes) -> int:
        return self._twins.get(key) or self._identity.of(key)

    def _look(self, key: bytes, ident: int) -> int:
        """`HELD`, or `MAYBE` if another URL may have the id, or `ABSENT`."""
        part = self._ranges.only or self._ranges.at(ident)
        said = ABSENT if part.base is None else part.base.look(key, ident)
        if said != HELD and part.recent is not None:
            said = part.recent.look(key, ident) or said
        if said != HELD and part.count and (handle := part.find(ident)) >= 0:
            return HELD if self._log.read(handle) == key else MAYBE
        return said

    def _key_of(self, ident: int) -> bytes | None:
        part = self._ranges.at(ident)
        key = None if part.base is None else part.base.key_of(ident)
        return self._key_beside(part, ident) if key is None else key

    def _key_beside(self, part: Range, ident: int) -> bytes | None:
        """Like `_key_of`, in all of a range but its base."""
        if part.recent is not None and (key := part.recent.key_of(ident)) is not None:
            return key
        handle = part.find(ident)
        return None if handle < 0 else self._log.read(handle)

    # Adding

    def add(self, urls: Iterable[str]) -> list[str]:
        """Add *urls*; those that were not there yet, in order, each once.

        They are kept when it returns, all or none: a kill of the process loses none of them, a
        failure of power may lose those of the last seconds unless there was a `flush`. Raises
        ValueError if one is longer than 65,535 bytes, `StoreWriteError` if the log cannot be
        written, JobError if the store is read only; nothing is added then.
        """
        self._check_writable()
        new = self._unknown(urls)
        if new:
            self._upkeep.keep([(ident, key) for ident, (key, _) in new.items()])
        return [url for _, url in new.values()]

    def offer(self, urls: Iterable[str]) -> list[str]:
        """What `add` would return; nothing is changed. For before the commit of a page."""
        return [url for _, url in self._unknown(urls).values()]

    def accept(self, urls: Iterable[str]) -> list[str]:
        """`add`, after the commit of the page that offered *urls*: others may have come first."""
        return self.add(urls)

    def _unknown(self, urls: Iterable[str]) -> dict[int, tuple[bytes, str]]:
        """The bytes and text of those of *urls* that are not there, each once, by their ids."""
        new: dict[int, tuple[bytes, str]] = {}
        for url in urls:
            key = url.encode("utf-8", "surrogatepass")
            if len(key) > MAX_KEY:
                raise ValueError(f"a URL of {len(key)} bytes; at most {MAX_KEY} can be stored")
            ident = self._ident(key)
            said = self._look(key, ident)
            if said == HELD:
                continue
            if ident in new:
                if new[ident][0] == key:
                    continue
                ident = self._twin(key, ident, new)
            elif said == MAYBE and self._key_of(ident) is not None:
                ident = self._twin(key, ident, new)
            new[ident] = key, url
        return new

    def _twin(self, key: bytes, ident: int, taken: dict[int, tuple[bytes, str]]) -> int:
        """An id of its own for *key*, that of another URL being *ident*."""
        for number in range(1, 1 << TWIN_BITS):
            free = ident ^ number
            if free in taken and taken[free][0] == key:
                return free
            if free and free not in taken and self._key_of(free) is None:
                break
        else:
            raise ValueError(f"{1 << TWIN_BITS} URLs have all but the same id as {key!r}")
        if not self._readonly:
            self._upkeep.settle()
            catalogue = self._upkeep.catalogue
            self._upkeep.write(replace(catalogue, twins=catalogue.twins | {key.hex(): free}))
            self._twins[key] = free
            self._ident = self._twin_or_own
            self._ranges.place()
        return free

    def _check_writable(self) -> None:
        if self._readonly:
            raise JobError(f"{self.path} is open for reading only")

    # Upkeep

    @property
    def behind(self) -> bool:
        """Whether the index of fresh URLs has outgrown its memory: the builder does not keep up.

        Who adds should hold off, calling `poll`, until it is false. Nothing is lost otherwise, but
        memory grows.
        """
        return self._upkeep.behind

    @property
    def trouble(self) -> str:
        """Why the last build failed; empty once one succeeded."""
        return self._upkeep.trouble

    def poll(self) -> bool:
        """Do a step of upkeep, if one is due; whether a build is under way.

        `add` calls it; who waits for `behind` to end, or wants things done while nothing is added,
        does so a few times a second. Raises nothing: what goes wrong is in `trouble`, and is tried
        again when a tenth more URLs are fresh.
        """
        return not self._readonly and self._upkeep.poll()

    def wait(self) -> None:
        """Wait until the store is not `behind`, or something goes wrong."""
        self._check_writable()
        self._upkeep.wait()

    def sync(self) -> None:
        """Make what was added survive a failure of power. Raises `StoreWriteError`."""
        self._log.sync()

    def flush(self) -> None:
        """Write everything fresh to segments, and make it survive a failure of power. Waits.

        What is fresh in a range with damage stays in the log. Raises `StoreWriteError`; what was
        fresh stays so.
        """
        self._check_writable()
        self._upkeep.settle()
        lows = [part.row.low for part in self._ranges if part.count]
        self._upkeep.rebuild(lows, wants_base)

    def compact(self) -> None:
        """Merge everything into one segment for each range. Waits. Raises `StoreWriteError`."""
        self._check_writable()
        self._upkeep.settle()
        untidy = (p for p in self._ranges if p.count or p.recent is not None or has_removed(p))
        lows = [part.row.low for part in untidy]
        self._upkeep.rebuild(lows, lambda part: True)

    def remove(self, prefix: str) -> int:
        """Remove all URLs that begin with *prefix*; how many.

        At once and for good, in time that grows with their number; room comes back when their
        ranges are built anew. Raises `StoreWriteError`, `JobDamagedError` if one of them is to be
        repaired first; nothing is removed then.
        """
        self._check_writable()
        self._upkeep.settle()
        start = encode(prefix)
        parts = self._ranges.between(*self._identity.span(start))
        if any(part.damaged for part in parts):
            raise JobDamagedError(f"{self.path} is damaged where {prefix!r} would be; repair it")
        return remove(start, parts, self._ranges, self._upkeep, self._log, self._twins)

    # The whole

    def stats(self) -> TrieStatistics:
        """How large it is."""
        return statistics_of(self._ranges, self._log, self._upkeep.fresh, self.path)

    def check(self, repair: bool = False) -> list[Finding]:
        """Read everything, and say what is damaged; with *repair*, after mending what can be.

        Raises `StoreWriteError`.
        """
        if repair:
            self._check_writable()
        return check(self.path, self._upkeep, self._ranges, self.damaged, repair)

    def close(self) -> None:
        """Stop a build, and let go of everything. What is fresh is in the log."""
        self._upkeep.cancel()
        self._log.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> TrieStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TrieStore {self.path}: {len(self)} URLs, {self._upkeep.fresh} fresh>"
