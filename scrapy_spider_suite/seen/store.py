"""The URLs that a crawl has seen, compressed: KSpider's and Tarantula's store, grown up.

A `TrieStore` is a set of URLs that is exact, takes some third of their text, leads from URLs to ids
and back, may be added to at any time, and survives a kill at any instant. It is log-structured:
what is new goes to a log and an index in memory; a process of its own merges that into tries that
never change. Ids are cut into ranges of a million URLs, each with two tries at most, so that a
look-up costs the same however many URLs there are. docs/seen.md tells more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from scrapy_spider_suite.errors import JobDamagedError, JobError, UnknownUrlError
from scrapy_spider_suite.runtime.files import lock
from scrapy_spider_suite.seen import opening
from scrapy_spider_suite.seen.build import SPLIT
from scrapy_spider_suite.seen.checking import Finding, check
from scrapy_spider_suite.seen.identity import LOW, MAX_KEY, TWIN_BITS, decode, digest, encode
from scrapy_spider_suite.seen.log import FileLog, FreshLog
from scrapy_spider_suite.seen.ranges import Range
from scrapy_spider_suite.seen.removing import fresh_keys, remove
from scrapy_spider_suite.seen.segments import ABSENT, HELD, MAYBE
from scrapy_spider_suite.seen.statistics import TrieStatistics, statistics_of
from scrapy_spider_suite.seen.table import BYTES_A_ROW
from scrapy_spider_suite.seen.upkeep import Upkeep, has_removed, wants_base

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
        self._lock = None if readonly else lock(self.path)
        try:
            opened = opening.open_store(self.path, log, ids, readonly, verify)
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
