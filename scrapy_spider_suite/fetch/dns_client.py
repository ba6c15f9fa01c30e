"""The name servers and the hosts file, asked through c-ares on the running event loop.

pycares is used directly. aiodns, the usual layer above it, runs c-ares in a thread of its own, and
every answer then waits for the interpreter lock twice: 8,300 look-ups a second against 18,600 with
the sockets watched by the event loop itself, and worse where the crawler keeps the lock. c-ares
does what is easy to get wrong: retries over several servers, TCP for truncated answers, EDNS,
matching of answers to questions, ``/etc/hosts``, search domains.

One channel after another, which bounds what c-ares keeps and follows the system's settings.

Whether the name servers answer: one warning when they do not, and one when they do again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
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

TICK = 0.1
"""Seconds between two looks at the clock while questions are open: how late a retry may be."""

FIRST_WAIT = 1.0
"""Seconds to the second try at most, with a server of which it is not known yet how fast it is."""

LEAST_WAIT = 0.25
"""Seconds to the second try at least, which c-ares takes with a server that is fast as a rule."""

MAX_ADDRESSES = 16
"""Addresses kept of one answer, which may hold thousands: one to use, some to fall back on."""

# ARES_AI_NOSORT of ares.h, for which pycares has no name: without it c-ares opens a socket to each
# address found.
_NO_SORT = 1 << 7

_RECORD_TYPE = {
    socket.AF_INET: pycares.QUERY_TYPE_A,
    socket.AF_INET6: pycares.QUERY_TYPE_AAAA,
}

_ADDRESS_RECORDS = (pycares.ARecordData, pycares.AAAARecordData)

_Result = pycares.AddrInfoResult | pycares.DNSResult
_Callback = Callable[[_Result | None, int | None], None]


class Answer(NamedTuple):
    """What c-ares found: either addresses, or the ``ARES_...`` code of a failure."""

    addresses: tuple[str, ...]
    """Numeric, in the order of the answer."""

    ttl: int
    """Seconds, the least over the records that the answer came from. 0 for the hosts file."""

    code: int | None = None
    """Why there are no addresses."""


def parse_server(text: str) -> str:
    """Return ``address:port`` as c-ares wants it; the port is 53 where *text* has none.

    Raises:
        ValueError: *text* is not a numeric address with an optional port.
    """
    server = text.strip()
    host, colon, port = server.rpartition(":")
    if not colon or "]" in port or (":" in host and not host.startswith("[")):
        host, port = server, "53"
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ip_address(bare)
    except ValueError:
        address = None
    if address is None or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} is not ADDRESS:PORT of a name server") from None
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


class Channel:
    """A set of name servers and the questions that are open with them.

    Belongs to one event loop and is used in its thread only. c-ares keeps each answer for its TTL
    in a cache that nothing bounds and nothing empties, which is why `succession.Succession`
    replaces a channel now and then.

    Args:
        servers: ``address:port`` of the name servers, which then are all that is asked; none for
            the system's view of names: its servers, its search domains, its hosts file.
        timeout: seconds for which a question is asked again and again at least. Whoever asks keeps
            the time: c-ares may go on for longer.

    Raises:
        pycares.AresError: c-ares lacks memory or files.
    """

    def __init__(self, servers: Sequence[str], timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: set[int] = set()
        self._open: set[asyncio.Future[Answer]] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False
        self._dns_alone = bool(servers)
        self._ares = pycares.Channel(
            servers=servers,
            tries=_tries_within(timeout),
            timeout=min(FIRST_WAIT, timeout / 4),
            sock_state_cb=self._watch,
        )

    def __repr__(self) -> str:
        return f"<Channel: {'closed' if self._closed else f'{len(self._open)} open'}>"

    @property
    def idle(self) -> bool:
        """Whether no question is open."""
        return not self._open

    def ask(self, host: str, family: socket.AddressFamily) -> asyncio.Future[Answer]:
        """Ask for the addresses of *host* (ASCII) of one *family*. The future never raises."""
        future: asyncio.Future[Answer] = self._loop.create_future()

        def settle(result: _Result | None, code: int | None) -> None:
            self._open.discard(future)
            if not future.done():
                future.set_result(_answer(result, code))

        self._open.add(future)
        try:
            self._put(host, family, settle)
        except pycares.AresError as error:
            # For some failures pycares raises, for some it calls back, for some it does both.
            settle(None, error.args[0])
        self._keep_ticking()
        return future

    def _put(self, host: str, family: socket.AddressFamily, callback: _Callback) -> None:
        if self._dns_alone:
            # Not getaddrinfo with lookups="b": pycares frees that string before c-ares reads it.
            self._ares.query(host, _RECORD_TYPE[family], callback=callback)
        else:
            kind = socket.SOCK_STREAM
            self._ares.getaddrinfo(
                host, None, family=family, type=kind, flags=_NO_SORT, callback=callback
            )

    def close(self) -> None:
        """Answer all open questions with ``ARES_ECANCELLED`` and let go of the sockets."""
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
        """Let c-ares see to its timeouts; the sockets wake it for everything else."""
        self._ticker = None
        self._ares.process_fd(pycares.ARES_SOCKET_BAD, pycares.ARES_SOCKET_BAD)
        self._keep_ticking()

    def _watch(self, fd: int, readable: bool, writable: bool) -> None:
        """Watch *fd* for what c-ares waits for; for nothing, just before c-ares closes it."""
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


def _tries_within(timeout: float) -> int:
    """Return how often a server must be asked so that c-ares does not give up before *timeout*.

    c-ares waits for the first try as long as five answers took of late, twice as long for each
    further one, and shortens these by up to a half, at random. It does not hear what comes late. So
    a name server that answers most names at once and takes seconds for one must be asked for that
    one often enough, and has it at hand by then.
    """
    return max(2, math.ceil(math.log2(2 * timeout / LEAST_WAIT)))


def _answer(result: _Result | None, code: int | None) -> Answer:
    """Turn what c-ares says into an `Answer`."""
    if result is None:
        return Answer((), 0, ARES_ENODATA if code is None else code)
    if isinstance(result, pycares.AddrInfoResult):
        # pycares has the text of an address as bytes.
        found = [node.addr[0].decode("ascii") for node in result.nodes]
        ttls = [node.ttl for node in result.nodes] + [cname.ttl for cname in result.cnames]
    else:
        data = (record.data for record in result.answer)
        found = [each.addr for each in data if isinstance(each, _ADDRESS_RECORDS)]
        ttls = [record.ttl for record in result.answer]
    if not found:
        return Answer((), 0, ARES_ENODATA)
    return Answer(tuple(dict.fromkeys(found))[:MAX_ADDRESSES], min(ttls))


MAX_AGE = 60.0
"""Seconds after which the next question opens a new channel, which reads ``resolv.conf`` again."""

MIN_AGE = 1.0
"""Seconds that a channel is used at least, even if outdated: it repeats nothing older than that."""

MAX_ASKED = 4096
"""Questions after which the next one opens a new channel; c-ares keeps some 650 bytes of each."""

ALONE = 32
"""Questions that are asked on a channel of their own at the same time."""


class Succession:
    """The channel in use and those before it, each until its last question is answered.

    Invariant: an answer is repeated from a channel's own cache only within `MAX_AGE` seconds, and
    within `MIN_AGE` after `outdate`. Opening a channel takes some 40 µs and no socket.

    Args:
        servers, timeout: as for `Channel`.
        now: the clock, in seconds, for the ages.
    """

    def __init__(self, servers: Sequence[str], timeout: float, now: Callable[[], float]) -> None:
        self._servers = tuple(servers)
        self._timeout = timeout
        self._now = now
        self._current: Channel | None = None
        self._opened = 0.0
        self._asked = 0
        self._outdated = False
        self._retired: set[Channel] = set()
        self._alone = asyncio.Semaphore(ALONE)
        self._closed = False

    def __repr__(self) -> str:
        return f"<Succession: {self._current}, {len(self._retired)} retired>"

    async def ask(self, host: str, family: socket.AddressFamily, seconds: float) -> Answer:
        """Return the addresses of *host*, or the code of a failure, after at most *seconds*."""
        deadline = asyncio.get_running_loop().time() + seconds
        answer = await self._ask_in(self._channel, host, family, seconds)
        if answer.code == ARES_EBADRESP and not self._closed:
            # c-ares lets one datagram that makes no sense fail every question that is open with
            # the server, so that one hostile name took all others with it.
            return await self._ask_alone(host, family, deadline)
        if answer.code == ARES_ECONNREFUSED:
            # Out of files, c-ares cannot read resolv.conf and takes this machine for the server.
            self.outdate()
        return answer

    async def _ask_in(
        self, channel: Callable[[], Channel], host: str, family: socket.AddressFamily,
        seconds: float,
    ) -> Answer:  # fmt: skip
        if self._closed:
            return Answer((), 0, ARES_ECANCELLED)
        try:
            question = channel().ask(host, family)
        except pycares.AresError:
            return Answer((), 0, ARES_ENOTINITIALIZED)
        try:
            return await asyncio.wait_for(question, max(0.0, seconds))
        except TimeoutError:
            return Answer((), 0, ARES_ETIMEOUT)

    async def _ask_alone(
        self, host: str, family: socket.AddressFamily, deadline: float
    ) -> Answer:
        """Ask on a channel with no other question: what comes is about *host*."""
        async with self._alone:
            try:
                channel = Channel(self._servers, self._timeout)
            except pycares.AresError:
                return Answer((), 0, ARES_ENOTINITIALIZED)
            self._retired.add(channel)  # so that `close` finds it
            try:
                left = deadline - asyncio.get_running_loop().time()
                return await self._ask_in(lambda: channel, host, family, left)
            finally:
                self._bury(channel)

    def reconfigure(self, servers: Sequence[str], timeout: float) -> None:
        """Ask other *servers* from the next question on; open ones are answered by the old."""
        self._servers, self._timeout = tuple(servers), timeout
        self._opened = -math.inf

    def outdate(self) -> None:
        """Let the next question have an answer from the servers, not one that c-ares keeps."""
        self._outdated = True

    def close(self) -> None:
        """Cancel every open question."""
        self._closed = True
        for channel in (self._current, *self._retired):
            if channel is not None:
                channel.close()
        self._current = None
        self._retired.clear()

    def _channel(self) -> Channel:
        age = self._now() - self._opened
        worn = age >= MAX_AGE or self._asked >= MAX_ASKED or (self._outdated and age >= MIN_AGE)
        if self._current is None or worn:
            successor = Channel(self._servers, self._timeout)
            self._retire()
            self._current = successor
            self._opened = self._now()
            self._asked = 0
            self._outdated = False
        self._asked += 1
        return self._current

    def _retire(self) -> None:
        """Close the channels that are idle, the current one at the latest when its time is up."""
        channel = self._current
        if channel is not None:
            self._retired.add(channel)
            asyncio.get_running_loop().call_later(self._timeout, self._bury, channel)
        for idle in [each for each in self._retired if each.idle]:
            self._bury(idle)

    def _bury(self, channel: Channel) -> None:
        self._retired.discard(channel)
        channel.close()


_UNANSWERED = frozenset({ARES_ECONNREFUSED, ARES_ETIMEOUT})
_PATIENCE = 3
"""Questions in a row without an answer: a single one may be the fault of its name's own servers."""


class Silence:
    """Counts questions without an answer from any name server. *now* is in seconds."""

    def __init__(self) -> None:
        self._unanswered = _PATIENCE - 1  # before any answer, the first one counts
        self._since: float | None = None

    @property
    def lasts(self) -> bool:
        """Whether no name server answers, as of the last questions."""
        return self._since is not None

    def note(self, code: int | None, servers: Sequence[str], now: float) -> None:
        """A question to *servers* ended with *code*, None for addresses."""
        if code not in _UNANSWERED:
            self._unanswered = 0
            if self._since is not None:
                logger.warning("Name servers answer again, after %.0f s", now - self._since)
                self._since = None
            return
        self._unanswered += 1
        if self._since is None and self._unanswered >= _PATIENCE:
            self._since = now
            logger.warning(
                "No name server answers (%s; SUITE_DNS_SERVERS chooses them): new hosts wait",
                named(servers),
            )


def named(servers: Sequence[str]) -> str:
    """*servers* in words; none are those of the system."""
    return ", ".join(servers) or "those of the system"
