"""The URLs that a crawl has seen, compressed: KSpider's and Tarantula's store, grown up.

A `TrieStore` is a set of URLs that is exact, takes a third of their text, leads from URLs to ids
and back, may be added to at any time, and survives a kill at any instant. It is log-structured:
what is new goes to a log and an index in memory; a process of its own merges that into tries that
never change. Ids are cut into ranges of a million URLs, each with two tries at most, so that a
look-up costs the same however many URLs there are. docs/seen.md tells more.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Final

import numpy as np

from scrapy_spider_suite.errors import JobError, StoreWriteError, UnknownUrlError
from scrapy_spider_suite.seen import catalogue as catalogues
from scrapy_spider_suite.seen import opening
from scrapy_spider_suite.seen.building import MADE, Building
from scrapy_spider_suite.seen.catalogue import SegmentRow
from scrapy_spider_suite.seen.identity import (
    END,
    MAX_KEY,
    TWIN_BITS,
    Identity,
    decode,
    encode,
)  # fmt: skip
from scrapy_spider_suite.seen.log import FileLog, FreshLog
from scrapy_spider_suite.seen.ranges import Range, Ranges
from scrapy_spider_suite.seen.segments import HELD, MAYBE, Segment
from scrapy_spider_suite.seen.statistics import TrieStatistics, statistics_of
from scrapy_spider_suite.seen.table import BYTES_A_ROW, Handles

MEMORY: Final = 64 << 20
_AT_ONCE: Final = 16
"""Ranges of one build of `flush` and `compact`."""
_LOOK_AFTER: Final = 4_096
"""Rows after which it is looked whether there is something to do."""


class TrieStore:
    """A set of URLs in the folder *path*, which is made if need be; one process may have it open.

    URLs are any str of at most 65,535 bytes in UTF-8; normal ones compress best, and those of one
    host lie together. None of `add`, `offer`, `accept`, `poll`, ``in``, `id` and `url` takes
    longer than some milliseconds, whatever is being built; `flush`, `compact`, `remove`, `check`
    and opening may.

    *log* keeps what is fresh; without one it is kept in files of the folder. *ids* says, for the
    life of the store, whether `url` works: some 3 bytes a URL. *memory* is what the index of fresh
    URLs may take, in bytes; more of it means less work for the builder. *split* is how many URLs a
    range may have. With *readonly* the store may be looked at while another process has it open,
    as it was at that moment. *verify* reads every segment once, at 1 GB/s or more, for whether it
    is as it was written: who looks into a damaged one risks a crash of the process.

    Raises `JobInUseError`, `JobFormatError`, `JobDamagedError` if no catalogue can be read,
    `JobError` if it is to be read only and is not there, `StoreWriteError`.

    Attributes:
        path: the folder.
        trouble: why the last build failed, until one succeeds.
        damaged: what cannot be read, and why, by the names of files; all else is served. URLs of a
            damaged segment count as not seen until `check` has repaired what can be.
    """

    def __init__(
        self, path: str | os.PathLike[str], log: FreshLog | None = None, *, ids: bool = True,
        memory: int = MEMORY, split: int = opening.SPLIT, readonly: bool = False,
        verify: bool = True,
    ) -> None:  # fmt: skip
        self.path = Path(path)
        self.trouble = ""
        self._readonly = readonly
        self._split = split
        self._limit = max(1, memory // BYTES_A_ROW)
        self._lock = None if readonly else opening.lock(self.path)
        try:
            self._catalogue, self.damaged = opening.catalogue_of(self.path, ids, readonly)
            if not readonly:
                opening.sweep(self.path, self._catalogue)
            self._identity = Identity(self._catalogue.seed, self._catalogue.mask)
            self._twins = {bytes.fromhex(k): ident for k, ident in self._catalogue.twins.items()}
            self._ranges = Ranges(self.path, self._identity, self._twins)
            self._ranges.adopt(self._catalogue, verify=verify)
            self._open_log(log)
        except BaseException:
            self._unlock()
            raise
        self._build: Building | None = None
        self._retry_at = 0
        self._look_at = self._fresh + _LOOK_AFTER
        self._spent: list[tuple[list[str], Handles]] = []

    def _open_log(self, log: FreshLog | None) -> None:
        floor = max(row.mark for row in self._catalogue.ranges)
        self._log = log or FileLog(self.path, floor, readonly=self._readonly)
        if isinstance(self._log, FileLog):
            self.damaged |= {line.partition(":")[0]: line for line in self._log.damage}
        self.damaged |= self._ranges.damage
        kept, stale = opening.replay(self._log, self._ranges, self._catalogue)
        self._fresh = kept
        if not self._readonly and len(stale):
            catalogues.sync_folder(self.path)
            self._log.forget(stale)

    # Looking

    def __contains__(self, url: object) -> bool:
        """Whether *url* was added."""
        if not isinstance(url, str):
            return False
        key = encode(url)
        return self._look(key, self._ident(key)) == HELD

    def __len__(self) -> int:
        """How many URLs there are."""
        return self._fresh + sum(len(s) for part in self._ranges for s in part.segments)

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
        if 0 < ident < END:
            key = self._key_of(ident)
            if key is not None:
                return decode(key)
        if not self._catalogue.ids:
            raise JobError(f"{self.path} was made without ids")
        raise UnknownUrlError(f"{self.path} has no URL with the id {ident}")

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
            segments = part.segments
            fresh = [key for key, _ in self._fresh_keys(part, start)]
            for keys in (fresh, *(segment.keys(start) for segment in segments)):
                yield from map(decode, keys)

    def __iter__(self) -> Iterator[str]:
        """All URLs, in no order."""
        return self.iter()

    def _ident(self, key: bytes) -> int:
        if self._twins and (ident := self._twins.get(key)):
            return ident
        return self._identity.of(key)

    def _look(self, key: bytes, ident: int) -> int:
        """`HELD`, or `MAYBE` if another URL may have the id, or `ABSENT`."""
        part = self._ranges.at(ident)
        handle = part.find(ident)
        if handle >= 0:
            return HELD if self._log.read(handle) == key else MAYBE
        said = 0
        if part.recent is not None and (said := part.recent.look(key, ident)) == HELD:
            return HELD
        if part.base is not None:
            return part.base.look(key, ident) or said
        return said

    def _key_of(self, ident: int) -> bytes | None:
        part = self._ranges.at(ident)
        handle = part.find(ident)
        if handle >= 0:
            return self._log.read(handle)
        for segment in part.segments:
            if (key := segment.key_of(ident)) is not None:
                return key
        return None

    def _fresh_keys(self, part: Range, prefix: bytes) -> Iterator[tuple[bytes, int]]:
        """The fresh URLs of a range that begin with *prefix*, and their handles."""
        for handle in np.sort(part.rows()[1]).tolist():
            key = self._log.read(handle)
            if key.startswith(prefix):
                yield key, handle

    # Adding

    def add(self, urls: Iterable[str]) -> list[str]:
        """Add *urls*; those that were not there yet, in order, each once.

        They are kept when it returns, all or none: a kill of the process loses none of them, a
        failure of power may lose those of the last seconds unless there was a `flush`. Raises
        ValueError if one is longer than 65,535 bytes, `StoreWriteError` if the log cannot be
        written; nothing is added then.
        """
        new = self._unknown(urls)
        if new:
            self._keep(new)
        return [decode(key) for _, key in new]

    def offer(self, urls: Iterable[str]) -> list[str]:
        """What `add` would return; nothing is changed. For before the commit of a page."""
        return [decode(key) for _, key in self._unknown(urls)]

    def accept(self, urls: Iterable[str]) -> list[str]:
        """`add`, after the commit of the page that offered *urls*; others may have been there."""
        return self.add(urls)

    def _unknown(self, urls: Iterable[str]) -> list[tuple[int, bytes]]:
        """The ids and bytes of those of *urls* that are not there, each once."""
        new: dict[int, bytes] = {}
        for url in urls:
            key = encode(url)
            if len(key) > MAX_KEY:
                raise ValueError(f"a URL of {len(key)} bytes; at most {MAX_KEY} can be stored")
            ident = self._ident(key)
            if ident in new:
                if new[ident] != key:
                    new[self._twin(key, ident, new)] = key
                continue
            said = self._look(key, ident)
            if said == MAYBE and self._key_of(ident) is not None:
                new[self._twin(key, ident, new)] = key
            elif said != HELD:
                new[ident] = key
        return list(new.items())

    def _twin(self, key: bytes, ident: int, taken: dict[int, bytes]) -> int:
        """Give *key* an id of its own, that of another URL being *ident*."""
        for number in range(1, 1 << TWIN_BITS):
            free = ident ^ number
            if free and free not in taken and self._key_of(free) is None:
                break
        else:
            raise ValueError(f"{1 << TWIN_BITS} URLs have all but the same id as {decode(key)!r}")
        if self._readonly:
            return free
        self._settle()
        twins = self._catalogue.twins | {key.hex(): free}
        self._write(replace(self._catalogue, twins=twins))
        self._twins[key] = free
        return free

    def _keep(self, rows: Sequence[tuple[int, bytes]]) -> None:
        self._check_writable()
        handles = self._log.append(rows)
        at = self._ranges.at
        for (ident, _), handle in zip(rows, handles, strict=True):
            at(ident).put(ident, handle)
        self._fresh += len(rows)
        if self._build is not None or self._fresh >= self._look_at:
            self.poll()

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
        return self._fresh >= self._limit

    def poll(self) -> bool:
        """Do a step of upkeep, if one is due; whether a build is under way.

        `add` calls it; who waits for `behind` to end, or wants things done while nothing is added,
        does so a few times a second. Raises nothing: what goes wrong is in *trouble*, and is tried
        again when a tenth more URLs are fresh.
        """
        self._look_at = self._fresh + _LOOK_AFTER
        if self._build is not None:
            if not self._build.poll():
                return True
            try:
                self._install()
            except StoreWriteError as error:
                self._failed(error)
        if not self._readonly and self._fresh >= self._retry_at and (part := self._due()):
            self._begin([(part, _wants_base(part))])
        return self._build is not None

    def wait(self) -> None:
        """Do what is due, and wait for it as long as the store is `behind`."""
        while self.poll() and self.behind and self._build is not None:
            self._build.wait()

    def flush(self) -> None:
        """Write everything fresh to segments, and make it survive a failure of power. Waits.

        Raises `StoreWriteError`; what was fresh stays so.
        """
        self._rebuild([(part, _wants_base(part)) for part in self._ranges if part.count])

    def compact(self) -> None:
        """Merge everything into one segment for each range. Waits. Raises `StoreWriteError`."""
        self._rebuild([
            (part, True)
            for part in self._ranges
            if part.count or part.recent is not None or _has_removed(part)
        ])  # fmt: skip

    def _rebuild(self, wanted: list[tuple[Range, bool]]) -> None:
        self._check_writable()
        self._settle()
        # A range that is split meanwhile is none of the others.
        sound = [(part, base) for part, base in wanted if not part.damaged]
        for start in range(0, len(sound), _AT_ONCE):
            self._begin(sound[start : start + _AT_ONCE])
            self._settle(raising=True)
        self._log.sync()
        try:
            catalogues.sync_folder(self.path)
        except OSError as error:
            raise StoreWriteError(f"{self.path}: {error.strerror}") from error
        self._forget(self._spent)
        self._spent = []

    def _due(self) -> Range | None:
        """The range whose fresh rows are to be written next."""
        sound = [part for part in self._ranges if part.count and not part.damaged]
        if not sound:
            return None
        oldest = min(sound, key=lambda part: part.oldest)
        if self._log.overdue(oldest.oldest):
            return oldest
        return max(sound, key=lambda part: part.count) if self._fresh * 2 >= self._limit else None

    def _begin(self, ranges: Sequence[tuple[Range, bool]]) -> None:
        self._build = Building(self.path, ranges, self._log, self._split)
        self._known_spent, self._spent = self._spent, []

    def _install(self) -> None:
        """Take over what was built. Raises `StoreWriteError`."""
        assert self._build is not None
        build, self._build = self._build, None
        try:
            after = build.install()
        except StoreWriteError:
            self._spent = self._known_spent
            raise
        # The builder made the names of the catalogue before this one durable.
        self._forget(self._known_spent)
        before = _names(self._catalogue)
        self._catalogue = after
        self._ranges.adopt(after, build.built, verify=False)
        self._fresh -= len(build.handles)
        self._spent.append((sorted(before - _names(after)), build.handles))
        self.trouble, self._retry_at = "", 0

    def _failed(self, error: StoreWriteError) -> None:
        self.trouble = str(error)
        self._retry_at = self._fresh + max(self._fresh // 10, _LOOK_AFTER)

    def _settle(self, raising: bool = False) -> None:
        """Wait for the build that is under way. Raises `StoreWriteError` if asked to."""
        if self._build is None:
            return
        self._build.wait()
        try:
            self._install()
        except StoreWriteError as error:
            self._failed(error)
            if raising:
                raise

    def _forget(self, spent: list[tuple[list[str], Handles]]) -> None:
        """Delete what nothing leads to any more."""
        for names, handles in spent:
            for name in names:
                (self.path / name).unlink(missing_ok=True)
            if len(handles):
                self._log.forget(handles)

    def _write(self, catalogue: catalogues.Catalogue) -> None:
        """Make *catalogue*, one serial on, the one of the store. Raises `StoreWriteError`."""
        after = replace(catalogue, serial=self._catalogue.serial + 1)
        made = self.path / MADE / "catalogue"
        try:
            made.mkdir(parents=True, exist_ok=True)
            catalogues.write(made, after)
            catalogues.install(made, self.path)
            catalogues.sync_folder(self.path)
        except OSError as error:
            raise StoreWriteError(f"{self.path}: {error.strerror}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)
        self._catalogue = after

    # Removing, checking, closing

    def remove(self, prefix: str) -> int:
        """Remove all URLs that begin with *prefix*; how many.

        At once and for good, in time that grows with their number; room comes back when their
        ranges are built anew. Raises `StoreWriteError`; nothing is removed then.
        """
        self._check_writable()
        self._settle()
        start = encode(prefix)
        low, high = self._identity.span(start)
        count, rows = 0, {row.low: row for row in self._catalogue.ranges}
        for part in self._ranges.between(low, high):
            base, less = _without(part.row.base, part.base, start)
            recent, least = _without(part.row.recent, part.recent, start)
            rows[part.row.low] = replace(part.row, base=base, recent=recent)
            count += less + least
        twins = {k: i for k, i in self._catalogue.twins.items() if not k.startswith(start.hex())}
        self._write(replace(
            self._catalogue, ranges=tuple(rows.values()), twins=twins,
            removed=(*self._catalogue.removed, (start.hex(), self._log.end)),
        ))  # fmt: skip
        self._ranges.adopt(self._catalogue, verify=False)
        for key in [key for key in self._twins if key.startswith(start)]:
            del self._twins[key]
        return count + self._remove_fresh(start, low, high)

    def _remove_fresh(self, start: bytes, low: int, high: int) -> int:
        count = 0
        for part in self._ranges.between(low, high):
            handles = np.array([handle for _, handle in self._fresh_keys(part, start)], np.int64)
            if len(handles):
                part.drop(handles)
                count += len(handles)
                self._log.forget(handles)
        self._fresh -= count
        return count

    def stats(self) -> TrieStatistics:
        """How large it is, and how it does."""
        return statistics_of(self._ranges, self._log, self._fresh, self.path)

    def close(self) -> None:
        """Stop a build, and let go of everything. What is fresh is in the log."""
        if self._build is not None:
            self._build.cancel()
            self._build = None
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
        return f"<TrieStore {self.path}: {len(self)} URLs, {self._fresh} fresh>"


def _wants_base(part: Range) -> bool:
    """Whether it is time to merge everything of a range into its base.

    With *f* rows a time, a base of *b* and recent segments of up to *r*, a row is written
    r / 2f + b / r + 1 times, which is least for r = sqrt(2fb).
    """
    if part.base is None or part.damaged:
        return True
    recent = part.count + (0 if part.recent is None else part.recent.row.keys)
    return recent >= min(part.base.row.keys, sqrt(2 * part.count * part.base.row.keys))


def _without(
    row: SegmentRow | None, segment: Segment | None, prefix: bytes
) -> tuple[SegmentRow | None, int]:
    """The row of a segment whose URLs with *prefix* count no more, and how many those are."""
    found = 0 if segment is None else sum(1 for _ in segment.keys(prefix))
    if row is None or not found:
        return row, 0
    removed = (*row.removed, prefix.hex())
    return replace(row, removed=removed, gone=row.gone + found), found


def _has_removed(part: Range) -> bool:
    return any(segment.row.removed for segment in part.segments)


def _names(catalogue: catalogues.Catalogue) -> set[str]:
    return {
        segment.name
        for row in catalogue.ranges
        for segment in (row.base, row.recent)
        if segment is not None
    }
