"""Reading a fetch log, while it is being written too: what was fetched of a host, and when.

A host's lines are found by searching blocks of text for its name, and only lines that hold it are
looked at any closer; files whose time is over are not opened.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scrapy_spider_suite.fetch import fetch_log
from scrapy_spider_suite.fetch.fetch_log import read, stamp, url_field
from scrapy_spider_suite.urls.normalize import normalize

_URL, _ADDRESS = 4, 9


@dataclass(frozen=True, slots=True)
class Target:
    """Which fetches are asked for: *needle* is in each of their lines, in lower case, and *fits*
    says of the fields of a line that has it whether it is one of them."""

    needle: bytes
    fits: Callable[[list[bytes]], bool]

    @classmethod
    def of(cls, text: str) -> Target:
        """The target that *text* names: a URL, a host, ``.domain`` with all below, or an address.

        A URL counts in the spelling that is given and in normal form. Raises ValueError if *text*
        names no host.
        """
        if "://" in text:
            host = host_of(url_field(text).encode())
        else:
            host = _host_name(text.strip(".")).encode()
        if not host.strip():
            raise ValueError(f"{text[:80]!r} names no host, .domain, address or URL")
        return cls._of_url(text, host) if "://" in text else cls._of_host(text, host)

    @classmethod
    def _of_url(cls, text: str, host: bytes) -> Target:
        spellings = {url_field(each).encode() for each in (text, normalize(text)) if each}
        return cls(host, lambda fields: fields[_URL] in spellings)

    @classmethod
    def _of_host(cls, text: str, name: bytes) -> Target:
        below = text.startswith(".")
        if below:
            return cls(name, lambda fields: _is_below(host_of(fields[_URL]), name))
        try:
            address = str(ipaddress.ip_address(text.strip("[]"))).encode()
        except ValueError:
            return cls(name, lambda fields: host_of(fields[_URL]) == name)
        return cls(
            address, lambda f: address in (f[_ADDRESS].lower(), host_of(f[_URL]).strip(b"[]"))
        )


class FetchLogReader:
    """The fetch log in *folder* as it is now. *damaged* names files that could not be read whole.

    Nothing in the folder is changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[Path] = []

    def lines(self, target: Target | None = None, since: float = 0.0) -> Iterator[bytes]:
        """Yield the lines of *target* (None: all) that ended at or after *since*, oldest first.

        *since* is in seconds since the epoch. Comments are left out.
        """
        earliest = stamp(since).encode() if since > 0 else b""
        for block in self._blocks(since):
            for line in _all(block) if target is None else _holding(block, target.needle):
                fields = line.split(b" ")
                if fields[0] < earliest or len(fields) < 11:
                    continue
                if target is None or target.fits([*fields[:-1], fields[-1].rstrip(b"\n")]):
                    yield line

    def _blocks(self, since: float) -> Iterator[bytes]:
        active = self.folder / fetch_log.ACTIVE
        try:
            # Opened before the others are listed: it may get its final name in between.
            last = active.open("rb")
        except FileNotFoundError:
            last = None
        try:
            inode = None if last is None else os.fstat(last.fileno()).st_ino
            for path in fetch_log.closed_files(self.folder):
                reach = fetch_log.times(path)
                if reach is not None and reach[1] + 0.001 >= since and _inode(path) != inode:
                    yield from self._blocks_of(path)
            if last is not None:
                yield from fetch_log.blocks(last)
        finally:
            if last is not None:
                last.close()

    def _blocks_of(self, path: Path) -> Iterator[bytes]:
        try:
            with fetch_log.opened(path) as file:
                yield from fetch_log.blocks(file)
        except fetch_log.ReadError:
            self.damaged.append(path)


def host_of(url: bytes) -> bytes:
    """Return the host in *url*, a field of a line: lower case, no dot at its end."""
    rest = url.partition(b"://")[2]
    for end in (b"/", b"?", b"#"):
        rest = rest.partition(end)[0]
    rest = rest.rpartition(b"@")[2]
    name = rest.partition(b"]")[0] + b"]" if rest.startswith(b"[") else rest.partition(b":")[0]
    return name.lower().rstrip(b".")


def _host_name(text: str) -> str:
    """The host *text* as URLs have it; as it stands if it is none."""
    normal = normalize(f"http://{text}/")
    return text.lower() if normal is None else normal.split("/")[2]


def _is_below(host: bytes, domain: bytes) -> bool:
    return host == domain or host.endswith(b"." + domain)


def _all(block: bytes) -> Iterator[bytes]:
    yield from (line for line in block.splitlines(keepends=True) if not line.startswith(b"#"))


def _holding(block: bytes, needle: bytes) -> Iterator[bytes]:
    """Yield the lines of *block* that hold *needle*, whatever their case."""
    lower = block.lower()
    at = lower.find(needle)
    while at >= 0:
        begin = lower.rfind(b"\n", 0, at) + 1
        end = lower.find(b"\n", at) + 1 or len(block)
        if block[begin : begin + 1] != b"#":
            yield block[begin:end]
        at = lower.find(needle, end)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def fetches(lines: Iterator[bytes]) -> Iterator[dict[str, object]]:
    """Yield *lines* as values for JSON, those that cannot be read left out."""
    for line in lines:
        try:
            fetch = read(line)
        except ValueError:
            continue
        yield fetch._asdict() | {"time": stamp(fetch.time), "remarks": list(fetch.remarks)}
