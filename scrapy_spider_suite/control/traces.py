"""Where a host is named in the files of a job at rest, and how its name goes from the logs."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, cast

from backports import zstd

from scrapy_spider_suite.fetch import fetch_log
from scrapy_spider_suite.fetch.fetch_log_reader import FetchFilter, FetchLogReader
from scrapy_spider_suite.fetch.fetch_log_reader import host_in_field as host_of_field
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.urls.hosts import host_mentions, reverse_host
from scrapy_spider_suite.urls.normalize import host_of

_URL, _VIA = 4, 5
_STEP: Final = 1 << 20
_OVERLAP: Final = 600
"""Bytes of which a name with what stands around it has fewer."""


class Names:
    """What is to go: *host*, or ``*.example.com`` with all below; how it is spelled where."""

    def __init__(self, host: str) -> None:
        self.name = host.removeprefix("*.")
        self._below = host != self.name
        self.pattern = host_mentions(host, reverse_host(self.name))
        digest = hashlib.sha256(f"host {host}".encode()).hexdigest()
        self.digest = f"sha256:{digest}".encode()

    def takes(self, host: str) -> bool:
        """Whether *host* is to go."""
        return host == self.name or (self._below and host.endswith(f".{self.name}"))

    def takes_url(self, url: str) -> bool:
        """Whether *url*, in normal form, is of such a host."""
        return "://" in url and self.takes(host_of(url))


def clean_fetches(folder: Path, names: Names) -> int:
    """Take the lines of such hosts out of the fetch log in *folder*, and as where others were
    found; return how many lines that were. Raises `OSError`: a file is as it was."""

    def cleaned(line: bytes) -> bytes:
        fields = line.split(b" ")
        if len(fields) < 11 or line.startswith(b"#"):
            return line
        if names.takes(host_of_field(fields[_URL]).decode()):
            return b""
        if names.takes(host_of_field(fields[_VIA]).decode()):
            fields[_VIA] = b"-"
        return b" ".join(fields)

    fetch_log.remove_leftovers(folder)
    for path in fetch_log.uncompressed(folder):
        fetch_log.compress_file(path)
    paths = [*fetch_log.closed_files(folder), folder / fetch_log.ACTIVE]
    return sum(_rewrite(path, names, cleaned) for path in paths if path.exists())


def count_fetches(folder: Path, names: Names) -> int:
    """Return how many lines `clean_fetches` would change. Raises `OSError`."""

    def fits(fields: list[bytes]) -> bool:
        return any(names.takes(host_of_field(fields[each]).decode()) for each in (_URL, _VIA))

    log = FetchLogReader(folder)
    return sum(1 for _ in log.lines(FetchFilter(names.name.encode(), fits)))


def clean_log(path: Path, names: Names) -> int:
    """Let a digest stand for the names of such hosts in a log; return in how many lines.

    Raises `OSError`: it is as it was.
    """
    if not path.exists():
        return 0
    return _rewrite(path, names, lambda line: names.pattern.sub(names.digest, line))


def named_in(folder: Path, names: Names, skipped: Callable[[Path], bool]) -> Iterator[str]:
    """Yield the files below *folder* in whose names or content they are, decompressed or not."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not skipped(path):
            found = names.pattern.search(os.fsencode(path.name))
            with _opened(path) as file:
                if found or _holds(file, names):
                    yield str(path.relative_to(folder.parent))


def _rewrite(path: Path, names: Names, change: Callable[[bytes], bytes]) -> int:
    """Put *path* through *change*, line by line; return how many lines are others now."""
    with _opened(path) as file:
        if not _holds(file, names):
            return 0
    count = 0
    with files.replacing_file(path) as new, _opened(path) as source, _made(new, path) as target:
        for line in source:
            kept = change(line)
            count += kept != line
            target.write(kept)
    return count


def _opened(path: Path) -> BinaryIO:
    """Open *path* for what is in it, decompressed."""
    if path.suffix == fetch_log.ZST:
        return cast(BinaryIO, zstd.ZstdFile(path, "rb"))
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _made(new: Path, path: Path) -> BinaryIO:
    """Open *new*, to be written as *path* is."""
    if path.suffix == fetch_log.ZST:
        return cast(BinaryIO, zstd.ZstdFile(new, "wb", level=fetch_log.ZSTD_LEVEL))
    return new.open("wb")


def _holds(file: BinaryIO, names: Names) -> bool:
    """Whether they are anywhere in *file*; what cannot be decompressed is not looked at."""
    rest = b""
    with suppress(zstd.ZstdError, EOFError, gzip.BadGzipFile):
        while data := file.read(_STEP):
            if names.pattern.search(rest + data):
                return True
            rest = data[-_OVERLAP:]
    return False
