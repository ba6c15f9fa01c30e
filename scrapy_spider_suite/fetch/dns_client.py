"""Name servers and hosts file, asked through c-ares (pycares) on the running event loop.

aiodns runs c-ares in a thread: each answer would wait for the interpreter lock twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pycares
from pycares.errno import (
    ARES_EBADRESP,
    ARES_ECANCELLED,
    ARES_ECONNREFUSED,
    ARES_ENODATA,
    ARES_ENOTINITIALIZED,
    ARES_ETIMEOUT,
)

logger = logging.getLogger(__name__)

TICK = 0.1  # seconds between two checks of timeouts while questions are open
FIRST_WAIT = 1.0  # most seconds to the second try, with a server whose speed is not known yet
LEAST_WAIT = 0.25  # least seconds to the second try, which c-ares takes with a fast server
MAX_ADDRESSES = 16  # addresses kept of one answer, which may hold thousands

# ARES_AI_NOSORT of ares.h, for which pycares has no name: without it c-ares opens a socket to each
# address found.
_NO_SORT = 1 << 7

_RECORD_TYPE = {
    socket.AF_INET: pycares.QUERY_TYPE_A,
    socket.AF_INET6: pycares.QUERY_TYPE_AAAA,
}

_ADDRESS_RECORDS = (pycares.ARecordData, pycares.AAAARecordData)

_Result = pycares.AddrInfoResult | pycares.DNSResult


class DnsAnswer(NamedTuple):
    """Addresses, or the ``ARES_...`` code of a failure."""

    addresses: tuple[str, ...]  # numeric, in the order of the answer
    ttl: int  # seconds, the least of the records; 0 for the hosts file
    code: int | None = None  # why there are no addresses


class AresChannel:
    """A set of name servers and the open questions to them; belongs to one event loop.

    c-ares caches answers for their TTL without bounds: `DnsClient` replaces channels.

    Args:
        servers: ``address:port`` each; none: the system's servers, search domains and hosts file.
        timeout: least seconds for which a question is repeated; the caller keeps the time.

    Raises:
        pycares.AresError: no memory or files.
    """

    def __init__(self, servers: Sequence[str], timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: set[int] = set()
        self._open: set[asyncio.Future[DnsAnswer]] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False
        self._dns_alone = bool(servers)
        # c-ares waits for the first try as long as five answers took of late, twice as long for
        # each further one, shortened by up to a half at random, and ignores late answers.
        self._ares = pycares.Channel(
            servers=servers,
            tries=max(2, math.ceil(math.log2(2 * timeout / LEAST_WAIT))),
            timeout=min(FIRST_WAIT, timeout / 4),
            sock_state_cb=self._watch,
        )

    @property
    def idle(self) -> bool:
        return not self._open

    def ask(self, host: str, family: socket.AddressFamily) -> asyncio.Future[DnsAnswer]:
        """Ask for the addresses of *host* (ASCII) of one *family*; the future never raises."""
        future: asyncio.Future[DnsAnswer] = self._loop.create_future()

        def settle(result: _Result | None, code: int | None) -> None:
            self._open.discard(future)
            if not future.done():
                future.set_result(_answer(result, code))

        self._open.add(future)
        try:
            if self._dns_alone:
                # Not getaddrinfo with lookups="b": pycares frees that text before c-ares reads it.
                self._ares.query(host, _RECORD_TYPE[family], callback=settle)
            else:
                self._ares.getaddrinfo(
                    host, None, family=family, type=socket.SOCK_STREAM, flags=_NO_SORT,
                    callback=settle,
                )  # fmt: skip
        except pycares.AresError as error:
            # For some failures pycares raises, for some it calls back, for some it does both.
            settle(None, error.args[0])
        self._keep_ticking()
        return future

    def close(self) -> None:
        """Answer all open questions with ``ARES_ECANCELLED`` and close the sockets."""
        if self._closed:
            return
        self._ares.cancel()
        # From here on c-ares may call back from the thread in which pycares takes it apart.
        self._closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        for fd in tuple(self._watched):
            self._forget(fd)
        self._ares.close()

    def _keep_ticking(self) -> None:
        if self._open and self._ticker is None and not self._closed:
            self._ticker = self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        self._ares.process_fd(pycares.ARES_SOCKET_BAD, pycares.ARES_SOCKET_BAD)
        self._keep_ticking()

    def _watch(self, fd: int, readable: bool, writable: bool) -> None:
        # Neither readable nor writable: c-ares is about to close it.
        if self._closed:
            return
        self._forget(fd)
        if readable:
            self._loop.add_reader(fd, self._ares.process_fd, fd, pycares.ARES_SOCKET_BAD)
        if writable:
            self._loop.add_writer(fd, self._ares.process_fd, pycares.ARES_SOCKET_BAD, fd)
        if readable or writable:
            self._watched.add(fd)

    def _forget(self, fd: int) -> None:
        if fd not in self._watched:
            return
        self._watched.discard(fd)
        if not self._loop.is_closed():
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)


def _answer(result: _Result | None, code: int | None) -> DnsAnswer:
    if result is None:
        return DnsAnswer((), 0, ARES_ENODATA if code is None else code)
    if isinstance(result, pycares.AddrInfoResult):
        # pycares has the text of an address as bytes.
        found = [node.addr[0].decode("ascii") for node in result.nodes]
        ttls = [node.ttl for node in result.nodes] + [cname.ttl for cname in result.cnames]
    else:
        data = (record.data for record in result.answer)
        found = [each.addr for each in data if isinstance(each, _ADDRESS_RECORDS)]
        ttls = [record.ttl for record in result.answer]
    if not found:
        return DnsAnswer((), 0, ARES_ENODATA)
    return DnsAnswer(tuple(dict.fromkeys(found))[:MAX_ADDRESSES], min(ttls))


MAX_AGE = 60.0
"""Seconds after which the next question opens a new channel, which reads ``resolv.conf`` again."""
MIN_AGE = 1.0  # seconds that a channel is used at least, even after `DnsClient.skip_cache`
MAX_ASKED = 4096
"""Questions after which the next one opens a new channel; c-ares keeps some 650 bytes of each."""
ALONE = 32  # most questions at a time that are asked on a channel of their own


class DnsClient:
    """The channel in use and its predecessors, each until its last answer.

    Invariant: an answer is repeated only within `MAX_AGE` seconds, and within `MIN_AGE` after
    `skip_cache`.
    """

    def __init__(self, servers: Sequence[str], timeout: float, now: Callable[[], float]) -> None:
        self._servers = tuple(servers)
        self._timeout = timeout
        self._now = now
        self._current: AresChannel | None = None
        self._opened = 0.0
        self._asked = 0
        self._skips_cache = False
        self._retired: set[AresChannel] = set()
        self._alone = asyncio.Semaphore(ALONE)
        self._closed = False

    async def ask(self, host: str, family: socket.AddressFamily, seconds: float) -> DnsAnswer:
        """Return the addresses of *host*, or the code of a failure, within *seconds*."""
        deadline = asyncio.get_running_loop().time() + seconds
        answer = await self._ask_in(self._channel, host, family, seconds)
        if answer.code == ARES_EBADRESP and not self._closed:
            # c-ares lets one datagram that makes no sense fail every question that is open with
            # the server, so that one hostile name took all others with it.
            return await self._ask_alone(host, family, deadline)
        if answer.code == ARES_ECONNREFUSED:
            # Out of files, c-ares cannot read resolv.conf and takes this machine for the server.
            self.skip_cache()
        return answer

    async def _ask_in(
        self, channel: Callable[[], AresChannel], host: str, family: socket.AddressFamily,
        seconds: float,
    ) -> DnsAnswer:  # fmt: skip
        if self._closed:
            return DnsAnswer((), 0, ARES_ECANCELLED)
        try:
            question = channel().ask(host, family)
        except pycares.AresError:
            return DnsAnswer((), 0, ARES_ENOTINITIALIZED)
        try:
            return await asyncio.wait_for(question, max(0.0, seconds))
        except TimeoutError:
            return DnsAnswer((), 0, ARES_ETIMEOUT)

    async def _ask_alone(
        self, host: str, family: socket.AddressFamily, deadline: float
    ) -> DnsAnswer:
        async with self._alone:
            try:
                channel = AresChannel(self._servers, self._timeout)
            except pycares.AresError:
                return DnsAnswer((), 0, ARES_ENOTINITIALIZED)
            self._retired.add(channel)  # so that `close` finds it
            try:
                left = deadline - asyncio.get_running_loop().time()
                return await self._ask_in(lambda: channel, host, family, left)
            finally:
                self._close_channel(channel)

    def skip_cache(self) -> None:
        """Have the servers answer the next question, not a cache."""
        self._skips_cache = True

    def close(self) -> None:
        self._closed = True
        for channel in (self._current, *self._retired):
            if channel is not None:
                channel.close()
        self._current = None
        self._retired.clear()

    def _channel(self) -> AresChannel:
        age = self._now() - self._opened
        worn = age >= MAX_AGE or self._asked >= MAX_ASKED or (self._skips_cache and age >= MIN_AGE)
        if self._current is None or worn:
            successor = AresChannel(self._servers, self._timeout)
            if self._current is not None:
                self._retired.add(self._current)
                loop = asyncio.get_running_loop()
                loop.call_later(self._timeout, self._close_channel, self._current)
            for idle in [each for each in self._retired if each.idle]:
                self._close_channel(idle)
            self._current = successor
            self._opened = self._now()
            self._asked = 0
            self._skips_cache = False
        self._asked += 1
        return self._current

    def _close_channel(self, channel: AresChannel) -> None:
        self._retired.discard(channel)
        channel.close()


_UNANSWERED = frozenset({ARES_ECONNREFUSED, ARES_ETIMEOUT})
_UNANSWERED_MIN = 3  # questions in a row: one may be the fault of the servers of its name


class OutageWarning:
    """Warns once when no name server answers, and once when they answer again.

    *since*: the time of that warning while it lasts, else None.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = servers
        self._unanswered = _UNANSWERED_MIN - 1  # before any answer, the first one counts
        self.since: float | None = None

    def note(self, code: int | None, now: float) -> None:
        """Note the end of a question at *now* with *code* (None: addresses)."""
        if code not in _UNANSWERED:
            self._unanswered = 0
            if self.since is not None:
                logger.warning("Name servers answer again, after %.0f s", now - self.since)
                self.since = None
            return
        self._unanswered += 1
        if self.since is None and self._unanswered >= _UNANSWERED_MIN:
            self.since = now
            logger.warning(
                "No name server answers (%s; SUITE_DNS_SERVERS chooses them): new hosts wait",
                server_names(self._servers),
            )


def server_names(servers: Sequence[str]) -> str:
    """*servers* as text; "those of the system" for none."""
    return ", ".join(servers) or "those of the system"
