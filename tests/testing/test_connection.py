"""One connection: keep-alive, pipelining, bodies, what is no request, what the log says of it."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from scrapy_spider_suite.testing import FakeWeb, FakeWebConfig
from scrapy_spider_suite.testing.arrivals import ArrivalLog
from scrapy_spider_suite.testing.http import (
    AnswerWriter,
    OpenConnections,
    Request,
    ServerConnection,
    ServerReply,
    make_reply,
)

Ask = Callable[..., Any]
Exchange = Callable[..., bytes]

HOST = "h000000.fake.test"
GET = b"GET / HTTP/1.1\r\nHost: h000000.fake.test\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: h000000.fake.test\r\nConnection: close\r\n\r\n"


def test_pipelined_requests_are_answered_in_order(small: FakeWeb, exchange: Exchange) -> None:
    """Three requests in one packet: three answers, then the end that the last one asked for."""
    count = len(small.arrivals)
    got = exchange(small, HOST, GET + GET.replace(b"/ H", b"/none H", 1) + LAST)
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"200", b"404", b"200"]
    seen = small.arrivals[count:]
    assert [each.path for each in seen] == ["/", "/none", "/"]
    assert len({each.connection for each in seen}) == 1
    assert all(each.start <= each.end for each in seen)


def test_a_request_may_come_byte_by_byte(small: FakeWeb) -> None:
    """It starts with its first byte."""
    place = small.directory.endpoint(HOST)
    with socket.create_connection(place, timeout=10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(LAST[:1])
        time.sleep(0.05)
        for at in range(1, len(LAST)):
            client.sendall(LAST[at : at + 1])
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        while client.recv(65536):
            pass
    last = small.arrivals[-1]
    assert last.end - last.start >= 0.045


def test_a_body_is_skipped(small: FakeWeb, exchange: Exchange) -> None:
    """What follows a body of the announced length is the next request."""
    post = b"POST / HTTP/1.1\r\nHost: h000000.fake.test\r\nContent-Length: 9\r\n\r\nGET / HTT"
    assert exchange(small, HOST, post + LAST).count(b"HTTP/1.1 200 OK") == 2


def test_head_has_no_body(small: FakeWeb, exchange: Exchange) -> None:
    """But the length that GET would have."""
    got = exchange(small, HOST, LAST.replace(b"GET", b"HEAD"))
    assert got.endswith(b"\r\n\r\n")
    assert b"Connection: close" in got
    assert b"Content-Length: 2000\r\n" in got


@pytest.mark.parametrize(
    "sent", [b"hello\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n", b"GET / HTTP/3\r\n\r\n"]
)
def test_what_is_no_request_gets_400(small: FakeWeb, exchange: Exchange, sent: bytes) -> None:
    """And the end of the connection."""
    assert exchange(small, HOST, sent).startswith(b"HTTP/1.1 400 ")


def test_a_head_without_end_gets_431(small: FakeWeb, exchange: Exchange) -> None:
    """A megabyte is enough."""
    got = exchange(small, HOST, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200_000)
    assert b"431" in got or b"ConnectionResetError" in got


def test_unknown_hosts_are_misdirected(small: FakeWeb, exchange: Exchange) -> None:
    """421, so that a client that connected to the wrong address is found out."""
    got = exchange(small, HOST, LAST.replace(b"fake", b"real"))
    assert got.startswith(b"HTTP/1.1 421 ")
    assert small.arrivals[-1].host == "h000000.real.test"


def test_latency_is_in_the_log(ask: Ask) -> None:
    """An answer begins after the latency of its host."""
    with FakeWeb(FakeWebConfig(hosts=1, pages=3, latency=0.05)) as web:
        ask(web, web.url(HOST))
        ask(web, web.url(HOST, "/robots.txt"))
        assert all(0.045 < each.end - each.start < 1 for each in web.arrivals)
        assert len(web.arrivals) == 2


def test_a_client_that_gives_up_is_logged() -> None:
    """Its request has ended when it went away; no status was sent."""
    with FakeWeb(FakeWebConfig(hosts=1, latency=30.0)) as web:
        with socket.create_connection(web.directory.endpoint(HOST)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.sendall(GET)
            time.sleep(0.05)
        for _ in range(100):
            if web.arrivals:
                break
            time.sleep(0.01)
        assert [each.status for each in web.arrivals] == [0]


def test_what_is_in_hand_at_the_end_is_logged() -> None:
    """Stopping the web ends every answer."""
    with FakeWeb(FakeWebConfig(hosts=1, latency=30.0)) as web:
        client = socket.create_connection(web.directory.endpoint(HOST))
        client.sendall(GET)
        while not web.open_connections:
            time.sleep(0.01)
        time.sleep(0.05)
    client.close()
    assert [each.path for each in web.arrivals] == ["/"]


def test_a_client_that_has_sent_all_is_answered() -> None:
    """Half-closed connections are those of simple clients."""
    with (
        FakeWeb(FakeWebConfig(hosts=1, latency=0.05)) as web,
        socket.create_connection(web.directory.endpoint(HOST), timeout=10) as client,
    ):
        client.sendall(GET)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_a_script_that_fails_lets_the_client_go() -> None:
    """A fault of a script is reported, and does not keep anybody waiting."""

    async def fail(wire: AnswerWriter) -> None:
        raise KeyError("fault")

    async def scenario() -> list[str]:
        faults: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: faults.append(str(context["exception"])))
        log = ArrivalLog(in_memory=True)
        reception = OpenConnections(lambda request: ServerReply(0, b"", script=fail), log)
        server = await loop.create_server(lambda: ServerConnection(reception, "a"), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(GET)
        assert await reader.read() == b""
        assert [each.status for each in log.records] == [0]
        writer.close()
        server.close()
        await asyncio.sleep(0.01)
        gc.collect()
        await asyncio.sleep(0)
        return faults

    assert asyncio.run(scenario()) == ["'fault'"]


def test_the_end_is_when_the_kernel_has_the_last_byte() -> None:
    """A client that reads late keeps its answer from ending."""

    def route(request: Request) -> ServerReply:
        return make_reply(200, bytes(30 << 20))

    async def scenario() -> float:
        log = ArrivalLog(in_memory=True)
        reception = OpenConnections(route, log)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: ServerConnection(reception, "a"), "127.0.0.1", 0)
        place = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*place, limit=1 << 16)
        writer.write(LAST)
        await asyncio.sleep(0.08)
        assert not log.records
        while await reader.read(1 << 20):
            pass
        writer.close()
        server.close()
        return log.records[0].end - log.records[0].start

    assert asyncio.run(scenario()) >= 0.07


def test_idle_connections_are_closed() -> None:
    """After ``keep_alive`` seconds without a request, and with 0 after each answer."""

    async def scenario() -> None:
        log = ArrivalLog()
        reception = OpenConnections(lambda request: make_reply(200, "~"), log, keep_alive=0.05)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: ServerConnection(reception, "a"), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(GET)
        await reader.readuntil(b"~")
        reception.sweep()
        assert len(reception.open) == len(reception.idle) == 1
        await asyncio.sleep(0.06)
        reception.sweep()
        assert await reader.read() == b""
        assert not reception.idle
        reception.keep_alive = 0
        reader, writer2 = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer2.write(GET)
        assert b"Connection: close" in await reader.read()
        writer.close()
        writer2.close()
        server.close()

    asyncio.run(scenario())


def test_beyond_the_limit_the_idle_go_first() -> None:
    """A web with few files left makes room, and tells a client at once if it cannot."""

    async def hold(wire: AnswerWriter) -> None:
        await wire.rest(10)

    def route(request: Request) -> ServerReply:
        return ServerReply(0, b"", script=hold) if request.path == "/hold" else make_reply(200, "~")

    async def scenario() -> None:
        reception = OpenConnections(route, ArrivalLog(), limit=1)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: ServerConnection(reception, "a"), "127.0.0.1", 0)
        place = server.sockets[0].getsockname()
        idle, writer = await asyncio.open_connection(*place)
        writer.write(GET)
        await idle.readuntil(b"~")
        _, writer2 = await asyncio.open_connection(*place)
        assert await idle.read() == b""
        writer2.write(GET.replace(b"/ ", b"/hold ", 1))
        await asyncio.sleep(0.02)
        late, writer3 = await asyncio.open_connection(*place)
        assert await late.read() == b""
        assert len(reception.open) == 1
        for connection in list(reception.open):
            connection.abort()
        for each in (writer, writer2, writer3):
            each.close()
        server.close()
        await asyncio.sleep(0.01)

    asyncio.run(scenario())
