"""Connections, kept open between fetches where that pays.

Invariant: a connection is in the pool if and only if it is open, has no conversation, and its
server is believed to keep it. Idle connections are bounded in number (the least recently used goes
first) and in time (a sweep a second, no timer per connection). All connections together are bounded
too, since the rest of the process needs files as well: a database, name look-ups, even imports.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    import ssl

SWEEP_SECONDS: Final = 1.0
FILES_FREED: Final = 16
"""Idle connections closed at once when the process is out of files."""
WAITS_FOR_FILES: Final = (0.001, 0.002, 0.004, 0.008, 0.016)
"""Seconds between attempts to connect once no idle connection is left to close: those that others
are closing give their files back a turn or two of the loop later."""


class Key(NamedTuple):
    """What two fetches must have in common to share a connection.

    The address is part of it: a name whose address changed must not go on talking to the old one.
    """

    address: str
    scheme: str
    host: str
    port: int
    bind: tuple[str, int] | None


class Conversation(Protocol):
    """What a connection reports to while a request is out on it."""

    def received(self, data: bytes) -> None:
        """Take the bytes that came."""

    def disconnected(self, error: Exception | None) -> None:
        """Learn that the connection ended, orderly when *error* is None."""


class Connection(asyncio.Protocol):
    """One TCP or TLS connection and what is going on on it.

    Attributes:
        key: what it may be used for.
        peer: the address that it really is connected to.
        fetches: requests sent on it so far.
        certificate: the server's, set by the handler once it was asked for.
        idle_until: loop time, in seconds, after which it is closed if nobody took it.
    """

    __slots__ = (
        "_conversation", "_holds_slot", "_pool", "_transport", "certificate", "fetches",
        "idle_until", "key", "peer",
    )  # fmt: skip

    def __init__(self, pool: Pool, key: Key) -> None:
        self._pool = pool
        self._conversation: Conversation | None = None
        self._holds_slot = False
        self._transport: asyncio.Transport | None = None
        self.key = key
        self.peer: ipaddress.IPv4Address | ipaddress.IPv6Address | None = None
        self.fetches = 0
        self.certificate: Any = None
        self.idle_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """The TLS state, None over plain TCP."""
        return self._transport.get_extra_info("ssl_object") if self._transport else None

    def admit(self) -> None:
        """Give the slot back that was taken for this connection, but not before it is closed."""
        if self._transport is None:
            self._pool.slots.release()
        else:
            self._holds_slot = True

    def send(self, request: bytes, conversation: Conversation) -> None:
        """Send *request*; *conversation* gets all that follows, until :meth:`hang_up`."""
        self.fetches += 1
        if self._transport is None:
            conversation.disconnected(None)
        else:
            self._conversation = conversation
            self._transport.write(request)

    def hang_up(self) -> None:
        """End the conversation; the connection stays open."""
        self._conversation = None

    def close(self) -> None:
        """Close at once. A polite TLS farewell would hold the file until the server answers it."""
        self._conversation = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport and note who is at the other end."""
        self._transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        if name:
            self.peer = ipaddress.ip_address(name[0].partition("%")[0])

    def data_received(self, data: bytes) -> None:
        """Hand on what came; bytes that nobody asked for end an idle connection."""
        if self._conversation is not None:
            self._conversation.received(data)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits, and the pool."""
        self._transport = None
        if self._holds_slot:
            self._holds_slot = False
            self._pool.slots.release()
        self._pool.forget(self)
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            conversation.disconnected(exc)


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """What a pool has done and holds.

    Attributes:
        idle: connections that wait for a fetch.
        limit: how many may.
        opened: connections made.
        reused: fetches on a connection that was already there.
        evicted: idle connections closed to make room.
        expired: idle connections closed because their time was over.
        retried: fetches sent again because the server closed the connection just then.
        out_of_files: attempts to connect that failed for want of a file descriptor.
    """

    idle: int
    limit: int
    opened: int
    reused: int
    evicted: int
    expired: int
    retried: int
    out_of_files: int


class Pool:
    """Idle connections by key, at most *limit* of them.

    Everything here belongs to the thread of one event loop.

    Attributes:
        slots: one for each connection that may be open, idle or not; taken before connecting.
    """

    def __init__(self, limit: int, capacity: int) -> None:
        self.limit = max(1, limit)
        self.slots = asyncio.Semaphore(max(1, capacity))
        self.opened = self.reused = self.retried = self.out_of_files = 0
        self._evicted = self._expired = 0
        self._by_key: dict[Key, list[Connection]] = {}
        self._by_age: OrderedDict[Connection, None] = OrderedDict()  # least recently used first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    def take(self, key: Key) -> Connection | None:
        """Return an open connection for *key*, the one used last, or None."""
        while connections := self._by_key.get(key):
            connection = connections[-1]
            self.forget(connection)
            if connection.is_open:
                self.reused += 1
                return connection
        return None

    def put(self, connection: Connection, seconds: float) -> None:
        """Keep *connection*, whose conversation is over, for at most *seconds*.

        It is closed instead where no slot is left: somebody may be waiting for one.
        """
        if not connection.is_open:
            return
        if self.slots.locked():
            connection.close()
            return
        while len(self._by_age) >= self.limit:
            self._evict()
        loop = self._running_loop()
        connection.idle_until = loop.time() + seconds
        self._by_key.setdefault(connection.key, []).append(connection)
        self._by_age[connection] = None
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)

    def forget(self, connection: Connection) -> None:
        """Take *connection* out of the pool, if it is there."""
        if connection not in self._by_age:
            return
        del self._by_age[connection]
        connections = self._by_key[connection.key]
        connections.remove(connection)
        if not connections:
            del self._by_key[connection.key]

    def free_files(self, most: int = FILES_FREED) -> int:
        """Close *most* of the idle connections, oldest first; return how many there were."""
        count = min(most, len(self._by_age))
        for _ in range(count):
            self._evict()
        return count

    def close(self) -> None:
        """Close all idle connections; the pool can be used again."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self._by_age):
            self.forget(connection)
            connection.close()

    def statistics(self) -> PoolStatistics:
        """Return what the pool holds and has done."""
        return PoolStatistics(
            len(self._by_age), self.limit, self.opened, self.reused, self._evicted, self._expired,
            self.retried, self.out_of_files,
        )  # fmt: skip

    def _evict(self) -> None:
        oldest = next(iter(self._by_age))
        self.forget(oldest)
        oldest.close()
        self._evicted += 1

    def _sweep(self) -> None:
        """Close what has been idle for too long; look again in a second if any is left."""
        loop = self._running_loop()
        now = loop.time()
        for connection in [c for c in self._by_age if c.idle_until <= now]:
            self.forget(connection)
            connection.close()
            self._expired += 1
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep) if self._by_age else None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop
