"""Archive and sieve: files beside the database for URLs that need no row.

The archive holds URLs that ended 200. The sieve holds every URL that a link led to; a URL in it
without a row, and without a waiting link, ended 200. A dropped host gets other keys in the sieve.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.frontier.entries import host_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen import TrieStore
from scrapy_spider_suite.seen.fingerprints import fingerprint, fingerprints
from scrapy_spider_suite.seen.sieve import CAPACITY, Sieve, SieveStatistics
from scrapy_spider_suite.seen.sorted_set import MANIFEST_NAME, SetManifest
from scrapy_spider_suite.seen.url_keys import MAX_KEY, encode, host_bytes
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.rows import UrlState

ARCHIVE_FOLDER: Final = "seen"
"""Beside the database, in the job's ``suite`` folder."""
DONE_200: Final = UrlState(State.DONE, Event.SUCCESS, 1, 200).to_bytes()
"""The state of every URL in the archive."""
_MEMORY: Final = 16 << 20
_COPIED: Final = "fresh-*"
"""Files that grow; all others never change, and may be linked."""
_LEFT_OUT: Final = {"lock", "made"}


class Archive:
    """The archive in *folder*, made if need be; *readonly*: as it is now. Keys are state keys.

    Raises what `TrieStore` does.
    """

    def __init__(self, folder: Path, *, readonly: bool = False) -> None:
        # Who only looks does not read all of it first, but what he looks into: the others do.
        verify = None if readonly else True
        self.urls = TrieStore(folder, ids=False, memory=_MEMORY, readonly=readonly, verify=verify)
        self._locked = False

    @classmethod
    def if_any(cls, folder: Path, *, readonly: bool = False) -> Archive | None:
        return cls(folder, readonly=readonly) if any(folder.glob("catalogue*")) else None

    def get(self, key: bytes) -> bytes | None:
        """The packed state under a state key, or None: it is not here."""
        url = _url_of(key)
        return DONE_200 if url is not None and url in self.urls else None

    def takes(self, key: bytes, state: bytes) -> bool:
        """Whether the URL with this key and packed *state* belongs here."""
        return len(key) <= MAX_KEY and needs_no_row(key, state)

    def add(self, keys: Iterable[bytes]) -> None:
        """Take in the URLs of *keys*. Raises `StoreWriteError`; none is here, then."""
        self.urls.add(url for url in map(_url_of, keys) if url is not None)

    def for_host(self, host: str) -> Iterator[bytes]:
        for prefix in _prefixes(host):
            yield from map(encode, self.urls.iter(prefix))

    def remove(self, host: str) -> int:
        """Forget the URLs of *host*; return how many. Raises `StoreWriteError`."""
        return sum(self.urls.remove(prefix) for prefix in _prefixes(host))

    def sync(self) -> None:
        self.urls.sync()

    def poll(self) -> bool:
        """Do a step of upkeep, if one is due; whether more is under way."""
        return not self._locked and self.urls.poll()

    @property
    def behind(self) -> bool:
        return self._locked or self.urls.behind

    def lock(self) -> bool:
        """Take in nothing, and let files be as they are, until `unlock`; False: somebody does.
        """
        held, self._locked = self._locked, True
        return not held

    def unlock(self) -> None:
        self._locked = False

    def copy(self, target: Path) -> None:
        """Copy all files to the new folder *target*; for a thread, while locked. Raises
        `StoreWriteError`.
        """
        try:
            target.mkdir(parents=True)
            for path in self.urls.path.iterdir():
                if path.is_file() and path.name not in _LEFT_OUT:
                    if path.match(_COPIED):
                        shutil.copyfile(path, target / path.name)
                        files.sync_path(target / path.name)
                    else:
                        link(path, target / path.name)
            files.sync_path(target)
        except OSError as error:
            raise StoreWriteError(f"{target}: {error.strerror}") from error

    def close(self) -> None:
        self.urls.close()


def needs_no_row(key: bytes, state: bytes) -> bool:
    """Whether a URL with this state key and packed *state* needs no row: it ended 200."""
    if _url_of(key) is None:
        return False
    known = UrlState.from_bytes(state)
    return (known.state, known.event, known.status, known.url) == (
        State.DONE, Event.SUCCESS, 200, "",
    )  # fmt: skip


def _url_of(key: bytes) -> str | None:
    """The URL of a state key; None if that does not say it, or paces it as another host's."""
    end = key.index(b"\0", 2)  # the slot may hold a NUL
    name = key[end + 1 :]
    # A fingerprint, which begins with 0xFF, has no host, as data: URLs of a spider have none.
    if name[:1] == b"\xff" or host_bytes(name) != key[2:end]:
        return None
    return name.decode("utf-8", "surrogatepass")


def _prefixes(host: str) -> Iterator[str]:
    for scheme in ("http", "https"):
        for end in ("/", ":"):
            yield f"{scheme}://{host}{end}"


def link(path: Path, target: Path) -> None:
    """Link *path*, which never changes, to *target*, or copy it. Raises `OSError`."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)
        files.sync_path(target)


SIEVE_FOLDER: Final = "sieve"
"""Beside the database, in the job's ``suite`` folder."""
DROPPED: Final = "sieve"
"""Where the store keeps how often hosts were dropped."""


class SieveIndex:
    """The fingerprints in *folder*, made if need be; *readonly*: as they are now. Keys are state
    keys.

    *dropped* keeps how often hosts were dropped. Waiting links lie with the caller (`SieveQueue`).
    Raises what `Sieve` does.
    """

    def __init__(
        self, folder: Path, dropped: KV, *, bits: int = 128, capacity: int = CAPACITY,
        readonly: bool = False,
    ) -> None:  # fmt: skip
        if not readonly:
            _make(folder, bits // 64)
        self.sieve = Sieve(
            folder, bits=bits, capacity=capacity, own_log=False, readonly=readonly
        )
        self._width = bits // 8
        self._dropped = dropped
        self._times = dict(dropped.items())
        self._locked = False

    @staticmethod
    def exists(folder: Path) -> bool:
        return (folder / MANIFEST_NAME).exists()

    @classmethod
    def if_any(cls, folder: Path, dropped: KV, *, readonly: bool = False) -> SieveIndex | None:
        manifest = SetManifest.read(folder)
        if manifest is None:
            return None
        return cls(folder, dropped, bits=manifest.words * 64, readonly=readonly)

    def has(self, key: bytes) -> bool:
        """Whether a flush has met the URL with this state key; reads the disk."""
        return self.sieve.has(fingerprint(self._key(key), self._width))

    def keep(self, keys: Iterable[bytes]) -> None:
        """Offer the URLs with these state keys; their rows come with the next batch."""
        self.sieve.offer_prints((), self.prints(keys))

    def prints(self, keys: Iterable[bytes]) -> bytes:
        if self._times:
            keys = map(self._key, keys)
        return fingerprints(keys, self._width)

    @property
    def width(self) -> int:
        return self._width

    def forget_host(self, host: str) -> None:
        self.was_dropped(host, int.from_bytes(self._times.get(host_key(host), b""), "big") + 1)

    @property
    def dropped(self) -> dict[str, int]:
        """How often hosts were dropped, those that were."""
        times = self._times.items()
        return {name[2:-1].decode(): int.from_bytes(often, "big") for name, often in times}

    def was_dropped(self, host: str, times: int) -> None:
        """*host* was dropped so often, or oftener, here or by an agent that had it."""
        name, often = host_key(host), times.to_bytes(4, "big")
        if often > self._times.get(name, b""):
            self._times[name] = often
            self._dropped.put(name, often)

    def _key(self, key: bytes) -> bytes:
        times = self._times.get(key[: key.find(b"\0", 2) + 1]) if self._times else None
        return key if times is None else b"%b\0%b" % (key, times)

    def lock(self) -> bool:
        """Decide nothing until `unlock`; False: somebody else wants it so, or a flush runs."""
        flush = self.sieve.under_way
        if self._locked or (flush is not None and not flush.decided):
            return False
        self._locked = True
        return True

    def unlock(self) -> None:
        self._locked = False

    @property
    def locked(self) -> bool:
        return self._locked

    def copy(self, target: Path) -> None:
        """Copy all files to the new folder *target*; for a thread, while locked. Raises
        `StoreWriteError`.
        """
        try:
            target.mkdir(parents=True)
            for path in self.sieve.path.iterdir():
                if path.name == MANIFEST_NAME or path.suffix == ".rows":
                    link(path, target / path.name)
            files.sync_path(target)
        except OSError as error:
            raise StoreWriteError(f"{target}: {error.strerror}") from error

    def statistics(self) -> SieveStatistics:
        return self.sieve.stats()

    def close(self) -> None:
        self.sieve.close()


def _make(folder: Path, words: int) -> None:
    """Have a manifest in *folder*; of one by which nothing was ever met the width may change."""
    found = SetManifest.read(folder)
    if found is not None and (found.generation or found.words == words):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        SetManifest(words).write(folder)
    except OSError as error:
        raise StoreWriteError(f"{folder}: {error.strerror}") from error
