"""Fingerprints of URLs that need no row: a sieve beside the database.

In it is every URL that a link led to, and of those that have a row whoever ended 200. So what is in
the sieve was seen; what has no row there, and waits for no flush, was fetched and answered 200.

A sieve knows no URLs, and the slot of a host is shared with others: nothing can be taken out of it
for one host. So a host that is dropped is known by other keys from then on.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.frontier.entries import host_key
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen.fingerprints import fingerprint, fingerprints
from scrapy_spider_suite.seen.sieve import CAPACITY, Sieve, SieveStatistics
from scrapy_spider_suite.seen.sorted_set import NAME, Manifest
from scrapy_spider_suite.storage.archive import link
from scrapy_spider_suite.storage.kv import KV

FOLDER: Final = "sieve"
"""Beside the database, in the job's ``suite`` folder."""
DROPPED: Final = "sieve"
"""Where the store keeps how often hosts were dropped."""


class Sieved:
    """The fingerprints in *folder*, which is made if need be; with *readonly* as they are now.

    *dropped* keeps how often hosts were. Keys are state keys (`frontier.keys.state_key`). What
    waits for a flush lies with the caller (`Sifter`). Raises what `Sieve` does.

    Attributes:
        sieve: the sieve; it has no log of its own.
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
        self._held = False

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether *folder* holds any."""
        return (folder / NAME).exists()

    @classmethod
    def if_any(cls, folder: Path, dropped: KV, *, readonly: bool = False) -> Sieved | None:
        """The fingerprints in *folder*, if there are any."""
        manifest = Manifest.read(folder)
        if manifest is None:
            return None
        return cls(folder, dropped, bits=manifest.words * 64, readonly=readonly)

    def has(self, key: bytes) -> bool:
        """Whether a flush has met the URL with this state key; a read or two of the disk."""
        return self.sieve.has(fingerprint(self._key(key), self._width))

    def keep(self, keys: Iterable[bytes]) -> None:
        """Let the URLs with these state keys wait, whose rows are written with the next batch."""
        self.sieve.keep((), self.prints(keys))

    def prints(self, keys: Iterable[bytes]) -> bytes:
        """The fingerprints of the URLs with these state keys, one after the other."""
        if self._times:
            keys = map(self._key, keys)
        return fingerprints(keys, self._width)

    @property
    def width(self) -> int:
        """Bytes of a fingerprint."""
        return self._width

    def forget_host(self, host: str) -> None:
        """Know nothing of *host* any more, from the next batch on."""
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
        """What the sieve knows a state key by; no URL has a NUL in it."""
        times = self._times.get(key[: key.find(b"\0", 2) + 1]) if self._times else None
        return key if times is None else b"%b\0%b" % (key, times)

    def hold(self) -> bool:
        """Decide nothing until `give_back`; False: somebody else wants it so, or a flush runs."""
        flush = self.sieve.under_way
        if self._held or (flush is not None and not flush.decided):
            return False
        self._held = True
        return True

    def give_back(self) -> None:
        """See `hold`."""
        self._held = False

    @property
    def held(self) -> bool:
        """Whether no flush may begin."""
        return self._held

    def copy(self, target: Path) -> None:
        """Copy all files to the new folder *target*, to the medium; for a thread, while it is held.

        Raises `StoreWriteError`.
        """
        try:
            target.mkdir(parents=True)
            for path in self.sieve.path.iterdir():
                if path.name == NAME or path.suffix == ".rows":
                    link(path, target / path.name)
            files.sync(target)
        except OSError as error:
            raise StoreWriteError(f"{target}: {error.strerror}") from error

    def statistics(self) -> SieveStatistics:
        """How much there is."""
        return self.sieve.stats()

    def close(self) -> None:
        """Let go of the files."""
        self.sieve.close()


def _make(folder: Path, words: int) -> None:
    """Have a manifest in *folder*; of one by which nothing was ever met the width may change."""
    found = Manifest.read(folder)
    if found is not None and (found.generation or found.words == words):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        Manifest(words).write(folder)
    except OSError as error:
        raise StoreWriteError(f"{folder}: {error.strerror}") from error
