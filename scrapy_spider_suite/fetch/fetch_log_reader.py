"""Reads a fetch log, also while it is written: by host, URL, address and time.

Only lines with the host's name are parsed, in files that did not end before the time asked for.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scrapy_spider_suite.fetch import fetch_log
from scrapy_spider_suite.fetch.fetch_log import format_time, parse_line, url_field
from scrapy_spider_suite.urls.normalize import normalize

_URL, _ADDRESS = 4, 9


@dataclass(frozen=True, slots=True)
class FetchFilter:
    """Accepts lines with *needle* (lower case) whose fields *matches* accepts."""

    needle: bytes
    matches: Callable[[list[bytes]], bool]

    @classmethod
    def parse(cls, text: str) -> FetchFilter:
        """Return the filter for a URL, a host, ``.domain`` with all below, or an address.

        A URL matches as given and in normal form. Raises `ValueError`.
        """
        if "://" in text:
            host = host_in_field(url_field(text).encode())
        else:
            host = _host_name(text.strip(".")).encode()
        if not host.strip():
            raise ValueError(f"{text[:80]!r} names no host, .domain, address or URL")
        return cls._of_url(text, host) if "://" in text else cls._of_host(text, host)

    @classmethod
    def _of_url(cls, text: str, host: bytes) -> FetchFilter:
        spellings = {url_field(each).encode() for each in (text, normalize(text)) if each}
        return cls(host, lambda fields: fields[_URL] in spellings)

    @classmethod
    def _of_host(cls, text: str, name: bytes) -> FetchFilter:
        below = text.startswith(".")
        if below:
            return cls(name, lambda fields: _is_below(host_in_field(fields[_URL]), name))
        try:
            address = str(ipaddress.ip_address(text.strip("[]"))).encode()
        except ValueError:
            return cls(name, lambda fields: host_in_field(fields[_URL]) == name)
        return cls(
            address, lambda f: address in (f[_ADDRESS].lower(), host_in_field(f[_URL]).strip(b"[]"))
        )


class FetchLogReader:
    """Reads the fetch log in *folder*; *damaged* lists files not read whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[Path] = []

    def lines(self, target: FetchFilter | None = None, since: float = 0.0) -> Iterator[bytes]:
        """Yield the lines of *target* (None: all), oldest first, from *since* on."""
        earliest = format_time(since).encode() if since > 0 else b""
        for block in self._blocks(since):
            for line in _lines_in(block) if target is None else _lines_with(block, target.needle):
                fields = line.split(b" ")
                if fields[0] < earliest or len(fields) < 11:
                    continue
                if target is None or target.matches([*fields[:-1], fields[-1].rstrip(b"\n")]):
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
                reach = fetch_log.times_in_name(path)
                if reach is not None and reach[1] + 0.001 >= since and _inode_of(path) != inode:
                    yield from self._blocks_of(path)
            if last is not None:
                yield from fetch_log.line_blocks(last)
        finally:
            if last is not None:
                last.close()

    def _blocks_of(self, path: Path) -> Iterator[bytes]:
        try:
            with fetch_log.open_log_file(path) as file:
                yield from fetch_log.line_blocks(file)
        except fetch_log.ReadError:
            self.damaged.append(path)


def host_in_field(url: bytes) -> bytes:
    """Return the host in the URL field *url*: lower case, no trailing dot."""
    rest = url.partition(b"://")[2]
    for end in (b"/", b"?", b"#"):
        rest = rest.partition(end)[0]
    rest = rest.rpartition(b"@")[2]
    name = rest.partition(b"]")[0] + b"]" if rest.startswith(b"[") else rest.partition(b":")[0]
    return name.lower().rstrip(b".")


def _host_name(text: str) -> str:
    normal = normalize(f"http://{text}/")
    return text.lower() if normal is None else normal.split("/")[2]


def _is_below(host: bytes, domain: bytes) -> bool:
    return host == domain or host.endswith(b"." + domain)


def _lines_in(block: bytes) -> Iterator[bytes]:
    yield from (line for line in block.splitlines(keepends=True) if not line.startswith(b"#"))


def _lines_with(block: bytes, needle: bytes) -> Iterator[bytes]:
    lower = block.lower()
    at = lower.find(needle)
    while at >= 0:
        begin = lower.rfind(b"\n", 0, at) + 1
        end = lower.find(b"\n", at) + 1 or len(block)
        if block[begin : begin + 1] != b"#":
            yield block[begin:end]
        at = lower.find(needle, end)


def _inode_of(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def parsed_lines(lines: Iterator[bytes]) -> Iterator[dict[str, object]]:
    """Yield *lines* as values for JSON, without unreadable ones."""
    for line in lines:
        try:
            fetch = parse_line(line)
        except ValueError:
            continue
        yield fetch._asdict() | {"time": format_time(fetch.time), "remarks": list(fetch.remarks)}
