"""Idle connections, with a transport and a clock that are not real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.fetch.connections import (
    FILES_FREED,
    SWEEP_SECONDS,
    Connection,
    ConnectionKey,
    ConnectionPool,
)


class Transport(asyncio.Transport):
    """A transport that only knows whether it is open."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 80)})
        self.closed = False
        self.written = b""

    def is_closing(self) -> bool:
        """Whether somebody closed it."""
        return self.closed

    def abort(self) -> None:
        """Close it."""
        self.closed = True

    def write(self, data: Any) -> None:
        """Take bytes."""
        self.written += bytes(data)


class Clock:
    """The part of an event loop that a pool uses, in virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Note a callback."""
        self.timers.append((self.now + delay, callback))

    def advance(self, seconds: float) -> None:
        """Let time pass, running what comes due."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            timer = min(due, key=lambda each: each[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1]()
        self.now = end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock at zero, in the place of the event loop."""
    found = Clock()
    monkeypatch.setattr("asyncio.get_running_loop", lambda: found)
    return found


def pool_of(limit: int, clock: Clock) -> ConnectionPool:
    """Return a pool that lives by *clock*."""
    assert asyncio.get_running_loop() is clock
    return ConnectionPool(limit, 100)


def key_of(host: str, address: str = "127.0.0.1") -> ConnectionKey:
    """Return a key that differs by *host* and *address* only."""
    return ConnectionKey(address, "http", host, 80, None)


def connected(pool: ConnectionPool, host: str) -> tuple[Connection, Transport]:
    """Return a new connection and its transport."""
    connection, transport = Connection(pool, key_of(host)), Transport()
    connection.connection_made(transport)
    return connection, transport


def test_the_last_one_in_is_the_first_one_out(clock: Clock) -> None:
    """The one used last is the least likely to have been closed."""
    pool = pool_of(10, clock)
    first, second = connected(pool, "a")[0], connected(pool, "a")[0]
    pool.keep_idle(first, 5)
    pool.keep_idle(second, 5)
    assert pool.checkout(key_of("b")) is None
    assert pool.checkout(key_of("a", "127.0.0.2")) is None
    assert pool.checkout(key_of("a")) is second
    assert pool.checkout(key_of("a")) is first
    assert pool.checkout(key_of("a")) is None


def test_closed_connections_are_not_handed_out(clock: Clock) -> None:
    """Neither those that the server closed nor those that are being closed."""
    pool = pool_of(10, clock)
    lost, closing = connected(pool, "a")[0], connected(pool, "a")
    pool.keep_idle(lost, 5)
    lost.connection_lost(None)
    assert pool.statistics()["idle"] == 0
    pool.keep_idle(closing[0], 5)
    closing[1].closed = True
    assert pool.checkout(key_of("a")) is None
    pool.keep_idle(lost, 5)
    assert pool.statistics()["idle"] == 0


def test_the_least_recently_used_makes_room(clock: Clock) -> None:
    """The bound on idle connections holds over all hosts."""
    pool = pool_of(2, clock)
    made = [connected(pool, host) for host in "abc"]
    for connection, _ in made:
        pool.keep_idle(connection, 5)
    assert [transport.closed for _, transport in made] == [True, False, False]
    assert pool.statistics()["evicted"] == 1


def test_idle_connections_expire(clock: Clock) -> None:
    """Each at its own time, within a sweep."""
    pool = pool_of(10, clock)
    short, long = connected(pool, "a"), connected(pool, "b")
    pool.keep_idle(short[0], 3)
    pool.keep_idle(long[0], 30)
    clock.advance(2.9)
    assert not short[1].closed
    clock.advance(SWEEP_SECONDS + 0.2)
    assert (short[1].closed, long[1].closed) == (True, False)
    clock.advance(30)
    assert long[1].closed
    assert pool.statistics()["expired"] == 2
    assert clock.timers == [], "an empty pool needs no sweeper"


def test_files_are_freed(clock: Clock) -> None:
    """Some idle connections, the oldest, are closed when the process is out of files."""
    pool = pool_of(100, clock)
    made = [connected(pool, "a") for _ in range(FILES_FREED + 3)]
    for connection, _ in made:
        pool.keep_idle(connection, 5)
    assert pool.free_files() == FILES_FREED
    assert [t.closed for _, t in made] == [True] * FILES_FREED + [False] * 3
    assert pool.free_files() == 3
    assert pool.free_files() == 0


def test_unasked_bytes_close_an_idle_connection(clock: Clock) -> None:
    """Whatever they are, the next response would begin with them."""
    pool = pool_of(10, clock)
    connection, transport = connected(pool, "a")
    pool.keep_idle(connection, 5)
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert transport.closed
    assert pool.checkout(key_of("a")) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from("pxt"), st.sampled_from("abc")), max_size=60))
def test_the_pool_holds_what_it_says(clock: Clock, steps: list[tuple[str, str]]) -> None:
    """Whatever happens, the bound holds and only open, idle connections are handed out."""
    pool = pool_of(3, clock)
    out: list[tuple[Connection, Transport]] = []
    transports: dict[Connection, Transport] = {}
    for action, host in steps:
        if action == "p":
            connection = pool.checkout(key_of(host))
            if connection is None:
                connection, transports[connection] = connected(pool, host)
            assert not transports[connection].closed
            assert connection.key.host == host
            assert connection not in [each for each, _ in out]
            out.append((connection, transports[connection]))
        elif out:
            connection, _ = out.pop(0)
            if action == "x":
                connection.close()
                connection.connection_lost(None)
            else:
                pool.keep_idle(connection, 2)
        still_open = [c for c, t in transports.items() if not t.closed]
        assert pool.statistics()["idle"] == len(still_open) - len(out) <= 3
    pool.close()
    assert pool.statistics()["idle"] == 0
