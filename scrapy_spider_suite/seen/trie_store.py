"""`TrieStore`: the exact set of the URLs that a crawl has seen, compressed. See docs/seen.md."""

from __future__ import annotations

import os
import secrets
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from scrapy_spider_suite.errors import JobDamagedError, JobError, JobInUseError, UnknownUrlError
from scrapy_spider_suite.runtime.files import lock_folder, store_errors, sync_path
from scrapy_spider_suite.seen import segments, trie_upkeep
from scrapy_spider_suite.seen.fresh_log import FreshLog
from scrapy_spider_suite.seen.segments import ABSENT, MAX_KEY, MAYBE, PRESENT

DEFAULT_MEMORY: Final = 64 << 20
_ATTEMPTS: Final = 50  # times that a reader begins anew


def open_store(folder: Path, ids: bool, readonly: bool, verify: bool) -> trie_upkeep.StoreState:
    """Open the store in *folder*; a reader begins anew until nothing has changed meanwhile.

    Raises `JobInUseError` if that never happens, `JobError`, `StoreWriteError`.
    """
    for _ in range(_ATTEMPTS if readonly else 1):
        try:
            state = _open_once(folder, ids, readonly, verify)
        except FileNotFoundError:
            continue
        now = segments.read_catalogue(folder) if readonly else state.catalogue
        if now is None or now.serial == state.catalogue.serial:
            return state
        state.log.close()
    raise JobInUseError(f"{folder} changes faster than it can be read: try again")


def _open_once(
    folder: Path, with_ids: bool, readonly: bool, verify: bool
) -> trie_upkeep.StoreState:
    catalogue = segments.read_catalogue(folder)
    if catalogue is None and readonly:
        raise JobError(f"{folder} holds no store of URLs")
    catalogue = catalogue or _create(folder, with_ids)
    ids = segments.UrlIds(catalogue.seed, catalogue.twins)
    if not readonly:
        shutil.rmtree(folder / trie_upkeep.MADE, ignore_errors=True)
        for path in folder.glob("segment-*"):
            if path.name not in catalogue.files:
                path.unlink()
    ranges = segments.Ranges(folder, ids)
    ranges.adopt(catalogue, verify=verify)
    floor = max(row.mark for row in catalogue.ranges)
    log = FreshLog(folder, floor, readonly=readonly)
    damaged = ranges.damage | log.damage
    state = trie_upkeep.StoreState(folder, catalogue, ids, ranges, log, 0, damaged)
    state.fresh = _replay(state, readonly)
    return state


def _create(folder: Path, ids: bool) -> segments.Catalogue:
    made = folder / trie_upkeep.MADE
    new = segments.Catalogue(1, secrets.randbits(63), ids)
    with store_errors(folder):
        made.mkdir(exist_ok=True)
        segments.write_catalogue(made, new)
    segments.install_catalogue(made, folder)
    return new


def _replay(state: trie_upkeep.StoreState, readonly: bool) -> int:
    log, gone = state.log, list[int]()
    prefixes = [(bytes.fromhex(prefix), mark) for prefix, mark in state.catalogue.removed]
    removed = [(start, mark, *segments.UrlIds.span(start)) for start, mark in prefixes]
    for ids, handles in log.frames:
        for ident, handle in zip(ids.tolist(), handles.tolist(), strict=True):
            part = state.ranges.at(ident)
            if handle < part.row.mark or any(
                low <= ident < high and handle < mark and log.read(handle).startswith(start)
                for start, mark, low, high in removed
            ):
                gone.append(handle)
            else:
                part.open_table[ident] = handle
    log.frames.clear()
    if gone and not readonly:
        sync_path(state.folder)
        log.forget(np.array(gone, np.int64))
    return sum(part.count for part in state.ranges)


@dataclass(frozen=True, slots=True)
class TrieStatistics:
    urls: int
    fresh: int  # URLs in no segment yet
    removed: int  # URLs in segments that count no more
    ranges: int  # of ids
    segments: int
    ids: int  # bytes of the tables from ids to URLs
    log: int  # bytes of the log of fresh URLs
    size: int  # bytes on disk


class TrieStore:
    """A set of URLs in the folder *path*, which is made if need be; one process may have it open.

    *memory*: bytes for the index of fresh URLs. *split*: URLs that a range may have. `flush`,
    `remove`, `check` and opening may take long, all else some milliseconds at most.

    Raises `JobInUseError`, `JobFormatError`, `JobDamagedError` (no catalogue), `JobError` (nothing
    to be read), `StoreWriteError`. Other damage is in *damaged*: those URLs count as not seen.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, ids: bool = True, memory: int = DEFAULT_MEMORY,
        split: int = trie_upkeep.SPLIT, readonly: bool = False, verify: bool = True,
    ) -> None:  # fmt: skip
        self.path = Path(path)
        self._readonly = readonly
        with ExitStack() as opened:
            if not readonly:
                opened.callback(os.close, lock_folder(self.path))
            self._state = state = open_store(self.path, ids, readonly, verify)
            opened.callback(state.log.close)
            self._opened = opened.pop_all()
        self.damaged, self._ranges, self._log = state.damaged, state.ranges, state.log
        self._url_ids = state.ids
        # Most stores have no twins: nothing is asked about them.
        self._ident = state.ids.id_of if state.ids.twins else state.ids.hash_id
        limit = max(1, memory // segments.BYTES_A_ROW)
        self._upkeep = trie_upkeep.TrieUpkeep(state, limit=limit, split=split)

    def __contains__(self, url: object) -> bool:
        if not isinstance(url, str):
            return False
        return self.has(url.encode("utf-8", "surrogatepass"))

    def has(self, key: bytes) -> bool:
        """`in` for the bytes of a URL."""
        return self._lookup(key, self._ident(key)) == PRESENT

    def __len__(self) -> int:
        held = sum(len(segment) for part in self._ranges for segment in part.segments)
        return self._state.fresh + held

    def id(self, url: str) -> int:
        """The id of *url* for the life of the store, from 1 on. Raises `UnknownUrlError`."""
        key = segments.encode(url)
        ident = self._ident(key)
        if self._lookup(key, ident) != PRESENT:
            raise UnknownUrlError(f"{self.path} does not hold {url!r}")
        return ident

    def url(self, ident: int) -> str:
        """The URL with the id *ident*. Raises `UnknownUrlError`, `JobError` without ids."""
        if not self._state.catalogue.ids:
            raise JobError(f"{self.path} was made without ids")
        if (key := self._key_of(ident)) is None:
            raise UnknownUrlError(f"{self.path} has no URL with the id {ident}")
        return segments.decode(key)

    def iter(self, prefix: str = "") -> Iterator[str]:
        """The URLs that begin with *prefix*, in no order; quick with a whole host in it.

        A URL that is added or removed meanwhile may be missing; every other one comes once.
        """
        start = segments.encode(prefix)
        low, high = segments.UrlIds.span(start)
        while low < high:
            part = self._ranges.at(low)
            low = part.high
            fresh = [key for key, _ in trie_upkeep.fresh_keys(part, start, self._log)]
            for keys in (fresh, *(segment.keys(start) for segment in part.segments)):
                yield from map(segments.decode, keys)

    def __iter__(self) -> Iterator[str]:
        return self.iter()

    def _lookup(self, key: bytes, ident: int) -> int:
        """`PRESENT`, `MAYBE` if another URL may have the id, or `ABSENT`."""
        ranges = self._ranges  # `Ranges.at`, for each link that is looked up
        part = ranges.all[bisect_right(ranges.lows, ident) - 1]
        # What is there is most likely in the base.
        said = ABSENT if part.base is None else part.base.lookup(key, ident)
        if said == PRESENT:
            return said
        if part.recent is not None:
            said = part.recent.lookup(key, ident) or said
        if said != PRESENT and (handle := part.find(ident)) >= 0:
            return PRESENT if self._log.read(handle) == key else MAYBE
        return said

    def _key_of(self, ident: int) -> bytes | None:
        part = self._ranges.at(ident)
        for segment in (part.base, part.recent):
            if segment is not None and (key := segment.key_of(ident)) is not None:
                return key
        handle = part.find(ident)
        return None if handle < 0 else self._log.read(handle)

    def add(self, urls: Iterable[str]) -> list[str]:
        """Add *urls*, all or none; return the new ones, in order, each once.

        A power failure may lose them before `flush` or `sync`. Raises ValueError for more than
        65,535 bytes, `StoreWriteError`, `JobError` if the store is read only.
        """
        self._check_writable()
        new: dict[int, tuple[bytes, str]] = {}
        for url in urls:
            key = url.encode("utf-8", "surrogatepass")
            if len(key) > MAX_KEY:
                raise ValueError(f"a URL of {len(key)} bytes; at most {MAX_KEY} can be stored")
            ident = self._ident(key)
            said = self._lookup(key, ident)
            if said == PRESENT:
                continue
            if ident in new:
                if new[ident][0] == key:
                    continue
                ident = self._twin(key, ident, new)
            elif said == MAYBE and self._key_of(ident) is not None:
                ident = self._twin(key, ident, new)
            new[ident] = key, url
        if new:
            self._upkeep.add([(ident, key) for ident, (key, _) in new.items()])
        return [url for _, url in new.values()]

    def _twin(self, key: bytes, ident: int, new: dict[int, tuple[bytes, str]]) -> int:
        for number in range(1, 1 << segments.TWIN_BITS):
            free = ident ^ number
            if free in new and new[free][0] == key:
                return free
            if free and free not in new and self._key_of(free) is None:
                break
        else:
            raise ValueError(f"{1 << segments.TWIN_BITS} URLs have all but the same id as {key!r}")
        self._upkeep.settle()
        catalogue = self._state.catalogue
        self._upkeep.write(replace(catalogue, twins=catalogue.twins | {key.hex(): free}))
        self._url_ids.twins[key] = free
        self._ident = self._url_ids.id_of
        return free

    def _check_writable(self) -> None:
        if self._readonly:
            raise JobError(f"{self.path} is open for reading only")

    @property
    def behind(self) -> bool:
        """Whether fresh URLs exceed *memory*: call `wait` before the next `add`."""
        return self._upkeep.behind

    @property
    def trouble(self) -> str:
        return self._upkeep.trouble

    def poll(self) -> bool:
        """Do a step of upkeep, if one is due; whether a build runs. Never raises: see `trouble`."""
        return not self._readonly and self._upkeep.poll()

    def wait(self) -> None:
        self._check_writable()
        self._upkeep.wait()

    def sync(self) -> None:
        """Make added URLs survive a power failure. Raises `StoreWriteError`."""
        self._log.sync()

    def flush(self) -> None:
        """Write all fresh URLs to segments, except in damaged ranges. Raises `StoreWriteError`."""
        self._check_writable()
        self._upkeep.flush()

    def remove(self, prefix: str) -> int:
        """Remove all URLs that begin with *prefix*; return their number.

        Removes nothing if it raises `StoreWriteError`, or `JobDamagedError`: repair first.
        """
        self._check_writable()
        self._upkeep.settle()
        start = segments.encode(prefix)
        parts = self._ranges.between(*segments.UrlIds.span(start))
        if any(part.damaged for part in parts):
            raise JobDamagedError(f"{self.path} is damaged where {prefix!r} would be; repair it")
        return trie_upkeep.remove_urls(self._upkeep, start, parts)

    def stats(self) -> TrieStatistics:
        fresh, log = self._state.fresh, self._log.size
        rows = [segment.row for part in self._ranges for segment in part.segments]
        other = (self.path / segments.CATALOGUE).stat().st_size
        return TrieStatistics(
            urls=fresh + sum(row.keys - row.gone for row in rows),
            fresh=fresh, removed=sum(row.gone for row in rows),
            ranges=len(self._ranges), segments=len(rows), ids=sum(row.id_table for row in rows),
            log=log, size=sum(row.size for row in rows) + log + other,
        )  # fmt: skip

    def check(self, repair: bool = False) -> list[trie_upkeep.TrieDamage]:
        """Read everything; return the damage. Raises `StoreWriteError`.

        *repair* puts damaged segments aside, and writes what the log still has anew.
        """
        if repair:
            self._check_writable()
        return trie_upkeep.check_store(self._upkeep, repair)

    def close(self) -> None:
        self._upkeep.cancel()
        self._opened.close()

    def __enter__(self) -> TrieStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
