"""Hand-over files over TCP that cannot be merged at once, and crowds of connections."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.file_transport_contract import Box, insist, label, until, write

from scrapy_spider_suite.cluster.handover.handover_file import HandoverLabel
from scrapy_spider_suite.cluster.transports import tcp
from scrapy_spider_suite.cluster.transports.tcp import TcpTransport
from scrapy_spider_suite.errors import TransportError

KEY = b"what all agents share"
Test = Callable[[TcpTransport, TcpTransport, Box], Awaitable[None]]


def two(folder: Path, test: Test) -> None:
    """Do *test* with a, b, and what b takes."""

    async def both() -> None:
        a, b = (TcpTransport("127.0.0.1", 0, KEY, folder / name) for name in "ab")
        box = Box()
        await b.start(box)
        try:
            await test(a, b, box)
        finally:
            await b.close()

    asyncio.run(both())


def test_what_nobody_foresaw_is_an_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the sender hears of it; what can be foreseen is none."""
    of = label()
    path = write(tmp_path / "out", of, 2)

    def errors() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]

    async def test(a: TcpTransport, b: TcpTransport, box: Box) -> None:
        box.trouble = [OSError(5, "no input"), TransportError("no room")]
        for _ in range(2):
            with pytest.raises(TransportError):
                await a.deliver(path, of, b.address)
        assert errors() == []
        box.trouble = [struct.error("too large")]
        with pytest.raises(TransportError, match="b: an error in taking it: too large"):
            await a.deliver(path, of, b.address)
        (said,) = errors()
        assert "hand-over file p1 cannot be merged" in said
        await insist(a, path, of, b.address)
        assert box.taken == {"p1": path.read_bytes()}
        assert a.counters.bytes_out == path.stat().st_size

    two(tmp_path, test)


def test_it_is_taken_though_nobody_offers_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender has gone, or has called it off: half of it may be merged."""
    monkeypatch.setattr(tcp, "AGAIN", 0.01)
    of = label()
    path = write(tmp_path / "out", of, 2)

    async def test(a: TcpTransport, b: TcpTransport, box: Box) -> None:
        box.trouble = [TransportError("no room"), ValueError("?"), OSError(5, "no input")]
        with pytest.raises(TransportError):
            await a.deliver(path, of, b.address)
        await until(lambda: box.taken and b.counters.received)
        assert box.calls == 4
        assert list((tmp_path / "b").iterdir()) == []

    two(tmp_path, test)


def test_nothing_is_taken_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what was put off, nor what is at that moment: the next process takes it."""
    monkeypatch.setattr(tcp, "AGAIN", 0.1)
    of = [label(f"p{number}") for number in range(2)]
    paths = [write(tmp_path / each.file_id, each, 2) for each in of]
    merge = Box.merge

    async def ends(box: Box, of: HandoverLabel, path: Path) -> None:
        try:
            await merge(box, of, path)
        except asyncio.CancelledError:
            raise TransportError("it ends") from None

    async def test(a: TcpTransport, b: TcpTransport, box: Box) -> None:
        monkeypatch.setattr(Box, "merge", ends)
        box.open.clear()
        giving = asyncio.ensure_future(a.deliver(paths[0], of[0], b.address))
        await until(lambda: box.calls)
        box.trouble = [TransportError("no room")]
        with pytest.raises(TransportError):
            await a.deliver(paths[1], of[1], b.address)
        await b.close()
        await asyncio.gather(giving, return_exceptions=True)
        calls = box.calls
        await asyncio.sleep(0.3)
        assert box.calls == calls
        again, rest = TcpTransport("127.0.0.1", 0, KEY, tmp_path / "b"), Box()
        await again.start(rest)
        await until(lambda: len(rest.taken) == 2)
        await again.close()

    two(tmp_path, test)


def test_who_has_not_the_key_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many connect and say nothing: the oldest of them go, and no agent."""
    monkeypatch.setattr("scrapy_spider_suite.cluster.transports.tcp.MOST", 2)
    of = [label(f"p{number}") for number in range(3)]
    paths = [write(tmp_path / each.file_id, each, 1) for each in of]

    async def test(a: TcpTransport, b: TcpTransport, box: Box) -> None:
        async def silent() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection("127.0.0.1", int(b.address[10:]))

        box.open.clear()
        lines = [await silent() for _ in range(2)]
        giving = []
        for number in range(2):
            send = a.deliver(paths[number], of[number], b.address)
            giving.append(asyncio.ensure_future(send))
            await until(lambda: box.calls == len(giving))
        lines += [await silent() for _ in range(5)]
        for reader, _ in lines[:-2]:
            assert await asyncio.wait_for(reader.read(), 5.0) == b""
        assert b.counters.crowded == len(lines) - 2
        with pytest.raises(TransportError, match="closed"):
            await a.deliver(paths[2], of[2], b.address)
        box.open.set()
        await asyncio.gather(*giving)
        await a.deliver(paths[2], of[2], b.address)
        for _, writer in lines:
            writer.close()

    two(tmp_path, test)
