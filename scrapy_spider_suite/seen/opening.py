"""How a trie store is opened: its lock, its catalogue, what a kill left, its fresh rows."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from scrapy_spider_suite.errors import JobError, JobInUseError, StoreWriteError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen import catalogue as catalogues
from scrapy_spider_suite.seen.building import MADE
from scrapy_spider_suite.seen.catalogue import Catalogue
from scrapy_spider_suite.seen.identity import Identity
from scrapy_spider_suite.seen.log import FileLog, FreshLog
from scrapy_spider_suite.seen.ranges import Ranges
from scrapy_spider_suite.seen.table import Table

_ATTEMPTS: Final = 50
"""Times that a reader begins anew."""




def catalogue_of(folder: Path, ids: bool, readonly: bool) -> tuple[Catalogue, dict[str, str]]:
    """The catalogue of the store in *folder*, or of a new one; and what of it is damaged.

    Raises `JobError`, `JobDamagedError`, `JobFormatError`, `StoreWriteError`.
    """
    found, damaged = catalogues.read(folder)
    if found is not None:
        return found, {name: f"{folder / name} is not as it was written" for name in damaged}
    if readonly:
        raise JobError(f"{folder} holds no store of URLs")
    made = folder / MADE
    new = Catalogue(1, secrets.randbits(63), ids)
    try:
        made.mkdir(exist_ok=True)
        catalogues.write(made, new)
    except OSError as error:
        raise StoreWriteError(f"{folder}: {error.strerror}") from error
    catalogues.install(made, folder)
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
        now, _ = catalogues.read(folder) if readonly else (found.catalogue, [])
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
        files.sync(folder)
        log.forget(handles[~fresh])
    return sum(part.count for part in ranges)
