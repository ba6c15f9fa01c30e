"""Hand-over files over TCP: cut anywhere, and tried by those who have not the key."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest
from support.byte_servers import begin_connections
from support.file_transport_contract import Box, FileTransportContract, insist, label, until, write

from scrapy_spider_suite.cluster.handover.handover_file import (
    FileTransport,
    HandoverLabel,
    quoted_name,
)
from scrapy_spider_suite.cluster.messages import WireError, derive_secret
from scrapy_spider_suite.cluster.transports import tcp
from scrapy_spider_suite.cluster.transports.tcp import (
    FrameKind,
    SealedChannel,
    TcpTransport,
)
from scrapy_spider_suite.errors import HandoverFileError, TransportError

KEY = b"what all agents share"
SECRET = derive_secret(KEY, tcp.PURPOSE)


class TestTcp(FileTransportContract):
    """The contract."""

    def make(self, name: str, folder: Path) -> FileTransport:
        """At a free port."""
        return TcpTransport("127.0.0.1", 0, KEY, folder / quoted_name(name))

    def part(self, folder: Path, of: HandoverLabel) -> Path:
        """In the folder of the receiver."""
        return folder / quoted_name(of.receiver) / f"{quoted_name(of.sender)}.{of.file_id}.part"

    def whole(self, folder: Path, of: HandoverLabel) -> Path:
        """Beside it."""
        return self.part(folder, of).with_suffix(".handover")


Test = Callable[[TcpTransport, TcpTransport, Box], Awaitable[None]]


def two(folder: Path, test: Test) -> None:
    """Do *test* with a, b, and what b takes."""

    async def both() -> None:
        a = TcpTransport("127.0.0.1", 0, KEY, folder / "a")
        b, box = TcpTransport("127.0.0.1", 0, KEY, folder / "b"), Box()
        await b.start(box)
        try:
            await test(a, b, box)
        finally:
            await a.close()
            await b.close()

    asyncio.run(both())


def refused(file_transport: TcpTransport) -> int:
    """What came to it and was not what an agent says."""
    counters = file_transport.counters
    return counters.forged + counters.malformed + counters.oversized


class Line:
    """Stands between two agents: passes on what they say, notes it, changes it, and cuts it."""

    def __init__(self, to: str, cut: int = 1 << 40, flip: int = -1) -> None:
        self.said = bytearray()
        self._to, self._cut, self._flip = to, cut, flip

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection."""
        host, _, port = self._to.rpartition(":")
        theirs, other = await asyncio.open_connection(host, int(port))
        back = asyncio.ensure_future(self._pass(theirs, writer))
        self.said.clear()
        try:
            while data := await reader.read(4_096):
                data = bytearray(data[: self._cut - len(self.said)])
                at = self._flip - len(self.said)
                if 0 <= at < len(data):
                    data[at] ^= 1
                self.said += data
                other.write(data)
                await other.drain()
                if len(self.said) >= self._cut:
                    break
        finally:  # the test may be over
            for each in (other, writer):
                each.transport.abort()
            back.cancel()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(4_096):
                writer.write(data)
        writer.close()


@asynccontextmanager
async def between(to: str, cut: int = 1 << 40, flip: int = -1) -> AsyncIterator[tuple[Line, str]]:
    """A line to the agent at *to*, and its address."""
    line = Line(to, cut, flip)
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield line, f"127.0.0.1:{port}"
    finally:
        await begin_connections()
        server.close()


@pytest.mark.parametrize("cut", [0, 5, 40, 71, 80, 9_000, 40_000, 300_000, 700_000])
def test_a_line_that_is_cut_is_no_loss(tmp_path: Path, cut: int) -> None:
    """Anywhere: in the handshake, the offer, the file. The intact part is not sent again."""
    of = label()
    path = write(tmp_path / "out", of)

    async def test(a: TcpTransport, b: TcpTransport, box: Box) -> None:
        async with between(b.address, cut) as (_, address):
            with pytest.raises(TransportError, match="b at 127"):
                await a.deliver(path, of, address)
        before = b.counters.bytes_in
        await insist(a, path, of, b.address)
        assert box.taken == {"p1": path.read_bytes()}
        sent_twice = b.counters.bytes_in - path.stat().st_size
        assert 0 <= sent_twice <= 3 << 16
        assert before or not sent_twice

    two(tmp_path, test)


@pytest.mark.parametrize("flip", [3, 20, 50, 72, 110, 8_400, 100_000])
def test_a_flipped_bit_is_noticed(tmp_path: Path, flip: int) -> None:
    """Wherever it is, nothing of its frame counts."""
    of = label()
    path = write(tmp_path / "out", of)

    async def test(a: TcpTransport, b: TcpTransport, box: Box) -> None:
        async with between(b.address, flip=flip) as (_, address):
            with pytest.raises(TransportError):
                await a.deliver(path, of, address)
        await until(lambda: refused(a) + refused(b))
        assert not box.calls
        await insist(a, path, of, b.address)
        assert box.taken == {"p1": path.read_bytes()}

    two(tmp_path, test)


def test_what_was_said_once_counts_once(tmp_path: Path) -> None:
    """A connection that is played back is none of an agent's."""
    of = label()
    path = write(tmp_path / "out", of, 1)

    async def test(a: TcpTransport, b: TcpTransport, box: Box) -> None:
        async with between(b.address) as (line, address):
            await a.deliver(path, of, address)
            said = bytes(line.said)
        box.taken.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(b.address[10:]))
        writer.write(said)
        assert len(await reader.read()) == 8 + 32 + 32  # the greeting, and no more
        writer.close()
        assert (box.calls, b.counters.forged) == (1, 1)

    two(tmp_path, test)


def test_who_has_another_key_gets_nothing(tmp_path: Path) -> None:
    """Neither who brings nor who takes; a short one is refused."""
    of = label()
    path = write(tmp_path / "out", of, 1)
    stranger = TcpTransport("127.0.0.1", 0, b"another key altogether", tmp_path / "x")
    with pytest.raises(ValueError, match="has 5 bytes, not 16"):
        TcpTransport("127.0.0.1", 0, b"short", tmp_path / "x")

    async def test(a: TcpTransport, b: TcpTransport, box: Box) -> None:
        with pytest.raises(TransportError, match="it has another key"):
            await stranger.deliver(path, of, b.address)
        await stranger.start(Box())
        with pytest.raises(TransportError, match="it has another key"):
            await a.deliver(path, of, stranger.address)
        await stranger.close()
        assert not box.calls
        assert stranger.counters.bytes_out == a.counters.bytes_out == 0

    two(tmp_path, test)


BAD_OFFERS = [
    b"", b"\xc1", b"\x90", msgpack.packb([5]), msgpack.packb([-1, [*["x"] * 4, b""]]),
    msgpack.packb([9, ["../x", "crawl", "a", "b", label().units]]),
    msgpack.packb([9, ["p1", "crawl", "a\n", "b", label().units]]),
    msgpack.packb([9, ["p1", "crawl", "a", "b", b"few"]]),
    msgpack.packb([9, ["p1", "", "a", "b", label().units]]),
    msgpack.packb(["9", ["p1", "crawl", "a", "b", label().units]]),
    b"\x92\x09" + b"\x91" * 10_000 + b"\xc0",  # lists in lists
]  # fmt: skip


def test_nothing_of_an_agent_that_lies_is_believed(tmp_path: Path) -> None:
    """It has the key, and sends what no agent does."""
    good = msgpack.packb([1_000_000, label()])
    frames: list[list[tuple[int, bytes]]] = [[(FrameKind.OFFER, offer)] for offer in BAD_OFFERS]
    frames += [
        [(FrameKind.DATA, b"x")], [(FrameKind.OFFER, good), (FrameKind.OFFER, good)], [(99, b"")],
        [(FrameKind.OFFER, good), (FrameKind.DATA, b"")], [(FrameKind.OFFER,
        bytes(tcp.FRAME_MAX + 1))],
    ]  # fmt: skip

    async def say(address: str, said: list[tuple[int, bytes]]) -> list[FrameKind]:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        line: SealedChannel = await tcp.open_channel((reader, writer), SECRET)
        heard = []
        try:
            for kind, body in said:
                await line.send(kind, body)  # type: ignore[arg-type]
            while True:
                heard.append((await line.receive()).kind)
        except WireError:
            return heard
        finally:
            writer.close()

    async def test(a: TcpTransport, b: TcpTransport, box: Box) -> None:
        for said in frames:
            assert set(await say(b.address, said)) <= {FrameKind.REFUSED, FrameKind.AT}
        counters = b.counters
        assert counters.malformed + counters.bad + counters.oversized == len(frames)
        assert (counters.oversized, counters.bad) == (1, 4)
        assert not box.calls

    two(tmp_path, test)
    assert [each.name for each in (tmp_path / "b").iterdir()] == ["a.p1.part"]


def test_a_file_that_is_damaged_at_its_sender_is_refused(tmp_path: Path) -> None:
    """It is whole by its length, and its sums say that it is not."""
    of = label()
    path = write(tmp_path / "out", of, 3)
    data = bytearray(path.read_bytes())
    data[150_000] ^= 1
    path.write_bytes(data)

    async def test(a: TcpTransport, b: TcpTransport, box: Box) -> None:
        with pytest.raises(HandoverFileError, match="b: it is damaged"):
            await a.deliver(path, of, b.address)
        assert not box.calls
        assert list((tmp_path / "b").iterdir()) == []

    two(tmp_path, test)


def test_a_full_disk_is_said_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known before, or met in the middle: the sender tries again."""
    of = label()
    path = write(tmp_path / "out", of, 3)

    async def test(a: TcpTransport, b: TcpTransport, box: Box) -> None:
        real, full = os.statvfs, os.statvfs_result((4096, 4096, 9, 9, 9, 9, 9, 9, 0, 255))
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda path: full)
            with pytest.raises(TransportError, match="b: the disk has no room"):
                await a.deliver(path, of, b.address)
        assert os.statvfs is real
        (tmp_path / "b" / "a.p1.part").mkdir()
        with pytest.raises(TransportError, match=r"b: .*directory"):
            await a.deliver(path, of, b.address)
        (tmp_path / "b" / "a.p1.part").rmdir()
        with pytest.raises(TransportError, match=r"none: No such file"):
            await a.deliver(tmp_path / "none", of, b.address)
        await insist(a, path, of, b.address)
        assert box.taken

    two(tmp_path, test)


def test_who_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    """Neither is one that is not there, nor an address that is none."""
    path = write(tmp_path / "out", label(), 1)

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await tcp.open_channel((reader, writer), SECRET, called=True)
            await line.receive()
            await reader.read()
        finally:  # the test may be over
            writer.transport.abort()

    async def test() -> None:
        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        a = TcpTransport("127.0.0.1", 0, KEY, tmp_path / "a", silence=0.05)
        with pytest.raises(TransportError, match=r"nothing came for 0.05 s"):
            await a.deliver(path, label(), f"127.0.0.1:{port}")
        server.close()
        none = ("127.0.0.1:1", "", "b", "b:0", "127.0.0.1:99999", "a..b:80", f"{'x' * 70}.t:80")
        for address in none:
            with pytest.raises(TransportError):
                await a.deliver(path, label(), address)

    asyncio.run(test())


def test_a_receiver_at_work_says_so(tmp_path: Path) -> None:
    """However long it takes, its sender waits."""
    of = label()
    path = write(tmp_path / "out", of, 1)

    async def test() -> None:
        a = TcpTransport("127.0.0.1", 0, KEY, tmp_path / "a", silence=0.3)
        b, box = TcpTransport("127.0.0.1", 0, KEY, tmp_path / "b", silence=0.3), Box()
        await b.start(box)
        box.open.clear()
        giving = asyncio.ensure_future(a.deliver(path, of, b.address))
        await asyncio.sleep(0.8)
        assert not giving.done()
        box.open.set()
        await giving
        await b.close()

    asyncio.run(test())


def test_a_rate_is_kept(tmp_path: Path) -> None:
    """Whatever goes out together."""
    transport = TcpTransport("127.0.0.1", 0, KEY, tmp_path, 1_000.0)
    assert transport.seconds_to_wait(500, 10.0) == 0.0
    assert transport.seconds_to_wait(500, 10.0) == pytest.approx(0.5)
    assert transport.seconds_to_wait(500, 10.2) == pytest.approx(0.8)
    assert transport.seconds_to_wait(500, 99.0) == 0.0
    transport.rate = 0.0
    assert transport.seconds_to_wait(1 << 40, 0.0) == 0.0
