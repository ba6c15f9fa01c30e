"""Archive and sieve: files beside the database for URLs that need no row.

The archive holds URLs that ended 200. The sieve holds every URL that a link led to; a URL in it
without a row, and without a waiting link, ended 200. A dropped host gets other keys in the sieve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from scrapy_spider_suite.frontier.entries import host_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen.fingerprints import fingerprint, fingerprints
from scrapy_spider_suite.seen.segments import MAX_KEY, decode, encode, host_bytes
from scrapy_spider_suite.seen.sieve import CAPACITY, Sieve
from scrapy_spider_suite.seen.sorted_set import SetManifest
from scrapy_spider_suite.seen.trie_store import TrieStore
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.rows import UrlState, is_plain_success

ARCHIVE_FOLDER: Final = "seen"  # beside the database, in the job's ``suite`` folder
DONE_200: Final = UrlState(State.DONE, Event.SUCCESS, 1, 200).to_bytes()
"""The state of every URL in the archive."""
_MEMORY: Final = 32 << 20


class Archive:
    """The archive in *folder*, made if need be, or *readonly*. Keys are state keys."""

    def __init__(self, folder: Path, *, readonly: bool = False) -> None:
        self.urls = TrieStore(
            folder, ids=False, memory=_MEMORY, readonly=readonly, verify=not readonly
        )
        self._locked = False

    def get(self, key: bytes) -> bytes | None:
        """The packed state under a state key, or None: it is not here."""
        name = _name_of(key)
        return DONE_200 if name is not None and self.urls.has(name) else None

    def takes(self, key: bytes, state: bytes) -> bool:
        """Whether the URL with this key and packed *state* belongs here."""
        return len(key) <= MAX_KEY and needs_no_row(key, state)

    def add(self, keys: Iterable[bytes]) -> None:
        """Add the URLs of *keys*, all or none. Raises `StoreWriteError`."""
        self.urls.add(decode(name) for name in map(_name_of, keys) if name is not None)

    def for_host(self, host: str) -> Iterator[bytes]:
        for prefix in _prefixes(host):
            yield from map(encode, self.urls.iter(prefix))

    def remove(self, host: str) -> int:
        """Forget the URLs of *host*; return how many. Raises `StoreWriteError`."""
        return sum(self.urls.remove(prefix) for prefix in _prefixes(host))

    def poll(self) -> bool:
        """Do a step of upkeep, if one is due; whether more is under way."""
        return not self._locked and self.urls.poll()

    @property
    def behind(self) -> bool:
        return self._locked or self.urls.behind

    def lock(self) -> bool:
        """Leave the files unchanged until `unlock`; False: they are locked already."""
        was_locked, self._locked = self._locked, True
        return not was_locked

    def unlock(self) -> None:
        self._locked = False


def needs_no_row(key: bytes, state: bytes) -> bool:
    """Whether a URL with this state key and packed *state* needs no row: it ended 200."""
    return is_plain_success(state) and _name_of(key) is not None


def _name_of(key: bytes) -> bytes | None:
    """The URL of a state key; None if the key has a fingerprint, or names another pacing host."""
    end = key.index(b"\0", 2)  # the slot may hold a NUL
    name = key[end + 1 :]
    # A fingerprint, which begins with 0xFF, has no host, as data: URLs of a spider have none.
    return name if name[:1] != b"\xff" and host_bytes(name) == key[2:end] else None


def _prefixes(host: str) -> Iterator[str]:
    for scheme in ("http", "https"):
        for end in ("/", ":"):
            yield f"{scheme}://{host}{end}"


SIEVE_FOLDER: Final = "sieve"  # beside the database, in the job's ``suite`` folder
DROPPED: Final = "sieve"  # where the store keeps how often hosts were dropped


class SieveIndex:
    """The fingerprints in *folder*, made if need be, or *readonly*. Keys are state keys.

    *dropped* has how often hosts were dropped; *bits* are by default those of the files.
    `SieveQueue` stores the waiting links. Raises the errors of `Sieve`.
    """

    def __init__(
        self, folder: Path, dropped: KV, *, bits: int | None = None, capacity: int = CAPACITY,
        readonly: bool = False,
    ) -> None:  # fmt: skip
        found = SetManifest.read(folder)
        bits = bits or (128 if found is None else found.words * 64)
        # A sieve without a flush may get another width.
        if found is None or (not found.generation and found.words * 64 != bits):
            with files.store_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                SetManifest(bits // 64).write(folder)
        self.sieve = Sieve(folder, bits=bits, capacity=capacity, readonly=readonly)
        self.width = bits // 8  # bytes of a fingerprint
        self.locked = False
        self._dropped = dropped
        self._times = dict(dropped.items())

    def has(self, key: bytes) -> bool:
        """Whether a flush has met the URL with this state key; reads the disk."""
        return self.sieve.parts.has(fingerprint(self._key(key), self.width))

    def prints(self, keys: Iterable[bytes]) -> bytes:
        if self._times:
            keys = map(self._key, keys)
        return fingerprints(keys, self.width)

    def forget_host(self, host: str) -> None:
        self.note_drops(host, int.from_bytes(self._times.get(host_key(host), b""), "big") + 1)

    @property
    def dropped(self) -> dict[str, int]:
        times = self._times.items()
        return {name[2:-1].decode(): int.from_bytes(often, "big") for name, often in times}

    def note_drops(self, host: str, times: int) -> None:
        """Note that *host* was dropped at least *times* times, here or by an earlier owner."""
        name, often = host_key(host), times.to_bytes(4, "big")
        if often > self._times.get(name, b""):
            self._times[name] = often
            self._dropped.put(name, often)

    def _key(self, key: bytes) -> bytes:
        times = self._times.get(key[: key.find(b"\0", 2) + 1]) if self._times else None
        return key if times is None else b"%b\0%b" % (key, times)

    def lock(self) -> bool:
        """Decide nothing until `unlock`; False: it is locked already, or a flush runs."""
        flush = self.sieve.under_way
        if self.locked or (flush is not None and not flush.decided):
            return False
        self.locked = True
        return True

    def unlock(self) -> None:
        self.locked = False
