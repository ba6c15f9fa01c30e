"""Loopback addresses, and a listening socket on each.

A socket on 0.0.0.0 would let the network in, so each address has its own, all on one port. On macOS
each "address" is a port of 127.0.0.1.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import NamedTuple

from scrapy_spider_suite.errors import SettingsError

MOST_ADDRESSES = 254 * 256 * 240
ONLY = "127.0.0.1"
BACKLOG = 1024

_FILES_FOR_OURSELVES = 64
_TRIES = 20


class LoopbackEndpoint(NamedTuple):
    address: str
    port: int


def address_text(number: int) -> str:
    """Return address *number*: 127.8.0.1, …; last parts 0 and 255 are left out."""
    block, last = divmod(number, 254)
    return f"127.{8 + block // 256}.{block % 256}.{last + 1}"


def has_many_addresses() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address_text(0), 0))
        except OSError:
            return False
    return True


def files_allowed(wanted: int) -> int:
    """Raise the limit of open files towards *wanted*; return the limit."""
    try:
        import resource
    except ImportError:  # not a Unix: the C library's limit does not bind sockets
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        except (OSError, ValueError):  # macOS refuses more than its kernel's own limit
            return soft
        soft = max(soft, most)
    return wanted if soft == resource.RLIM_INFINITY else soft


def addresses_within(files: int, addresses: int, extra: int) -> int:
    """Return how many of *addresses* can listen with *files* open files, beside *extra* ones; half
    of the files stay free. Raises `SettingsError`: not even one.
    """
    most = (files - _FILES_FOR_OURSELVES) // 2 - extra
    if most < 1:
        raise SettingsError(
            f"open files are limited to {files}, too few to listen on {extra + 1} addresses; "
            "raise the limit with ulimit -n"
        )
    return min(most, addresses)


class LoopbackListeners:
    """Bound sockets: ``sockets[k]`` is at ``endpoints[k]``.

    The first *listening* ones listen; the rest refuse connections.
    """

    def __init__(self, count: int, port: int, *, listening: int, one_address: bool) -> None:
        self.sockets: list[socket.socket] = []
        for attempt in range(_TRIES):
            try:
                self._bind(count, port, listening, one_address=one_address)
                break
            except OSError as error:
                self.close()
                taken = error.errno == errno.EADDRINUSE
                if taken and port == 0 and attempt < _TRIES - 1:
                    continue
                where = f"port {port} of loopback addresses"
                if one_address:
                    where = f"ports from {port} on"
                why = f"cannot listen on all {count} ({error.strerror})"
                if taken:
                    why = f"one of {count} is taken; choose another port, or 0 for any"
                raise SettingsError(f"{where}: {why}") from None
        self.endpoints = [LoopbackEndpoint(*each.getsockname()[:2]) for each in self.sockets]

    @property
    def ports(self) -> Sequence[int]:
        """The one port, or the port of each endpoint."""
        ports = [each.port for each in self.endpoints]
        return ports[:1] if len(set(ports)) == 1 else ports

    def close(self) -> None:
        for each in self.sockets:
            each.close()
        self.sockets.clear()

    def _bind(self, count: int, port: int, listening: int, *, one_address: bool) -> None:
        for number in range(count):
            if one_address:
                address, at = ONLY, port + number if port else 0
            else:  # all on the port that the first one has
                address = address_text(number)
                at = self.sockets[0].getsockname()[1] if self.sockets else port
            self.sockets.append(_bound(address, at, number < listening))


def _bound(address: str, port: int, listening: bool) -> socket.socket:
    each = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        each.setblocking(False)
        if listening:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind((address, port))
        if listening:
            each.listen(BACKLOG)
    except OSError:
        each.close()
        raise
    return each
