"""The contract of transports of hand-over files, and the smallest receiver."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from scrapy_spider_suite.cluster.handover.handover_file import (
    FileTransport,
    HandoverLabel,
    HandoverReader,
    HandoverWriter,
    pack_units,
)
from scrapy_spider_suite.errors import HandoverFileError, TransportError

PATIENCE = 60.0
"""Seconds for what takes one on an idle machine."""


def label(file_id: str = "p1", sender: str = "a", receiver: str = "b") -> HandoverLabel:
    """Of a few units."""
    return HandoverLabel(file_id, "crawl", sender, receiver, pack_units([1, 2, 60_000]))


def write(path: Path, of: HandoverLabel, chunks: int = 12) -> Path:
    """A hand-over file of so many chunks of 64 KiB which no compression makes smaller."""
    draw = random.Random(of.file_id)
    with HandoverWriter(path, of) as writer:
        for number in range(2 * chunks):
            writer.put([number, draw.randbytes(1 << 15)])
    return path


class Box:
    """An inbox in memory: what it has taken is kept, whatever becomes of the file."""

    def __init__(self) -> None:
        self.taken: dict[str, bytes] = {}
        self.calls = 0
        self.trouble: list[Exception] = []
        self.open = asyncio.Event()
        self.open.set()

    def is_stored(self, label: HandoverLabel) -> bool:
        """See `file_transport.Inbox`."""
        return label.file_id in self.taken

    async def merge(self, label: HandoverLabel, path: Path) -> None:
        """See `file_transport.Inbox`."""
        self.calls += 1
        if self.trouble:
            raise self.trouble.pop()
        await self.open.wait()
        with HandoverReader(path) as reader:
            assert reader.label == label
            assert sum(1 for _ in reader.chunks())
        self.taken[label.file_id] = path.read_bytes()


async def until(condition: Callable[[], object]) -> None:
    """Wait until *condition* holds."""
    end = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < end, "it takes too long"
        await asyncio.sleep(0.005)


async def insist(
    file_transport: FileTransport, path: Path, of: HandoverLabel, address: str
) -> None:
    """Deliver as an agent does: again and again."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await file_transport.deliver(path, of, address)
            except TransportError:
                await asyncio.sleep(0.01)


class FileTransportContract(ABC):
    """Agents ``a`` and ``b`` for each test; *folder* is theirs."""

    @abstractmethod
    def make(self, name: str, folder: Path) -> FileTransport:
        """A file_transport of the agent *name*, which has not started."""

    @abstractmethod
    def part(self, folder: Path, of: HandoverLabel) -> Path:
        """Where what has come of a hand-over file lies at its receiver, while it is not whole."""

    @abstractmethod
    def whole(self, folder: Path, of: HandoverLabel) -> Path:
        """Where it lies once it is."""

    def run(
        self, test: Callable[[FileTransport, FileTransport, Box], Awaitable[None]], folder: Path
    ) -> None:
        """Do *test* with a, b and what b takes."""

        async def both() -> None:
            a, b, box = self.make("a", folder), self.make("b", folder), Box()
            try:
                await a.start(Box())
                await b.start(box)
                await test(a, b, box)
            finally:
                await a.close()
                await b.close()

        asyncio.run(both())

    def test_what_is_delivered_is_kept(self, tmp_path: Path) -> None:
        """Whole, once; offered again, nothing is sent, and nothing is left lying about."""
        of = label()
        path = write(tmp_path / "out", of)

        async def test(a: FileTransport, b: FileTransport, box: Box) -> None:
            await a.deliver(path, of, b.address)
            sent = a.counters.bytes_out
            await a.deliver(path, of, b.address)
            assert box.taken == {"p1": path.read_bytes()}
            assert (a.counters.delivered, a.counters.bytes_out) == (2, sent)
            assert sent == path.stat().st_size == b.counters.bytes_in
            a.withdraw(of)
            async with asyncio.timeout(60):  # b removes its copy after it has answered
                while any(each.is_file() for each in (tmp_path / "agents").rglob("*")):
                    await asyncio.sleep(0.01)

        self.run(test, tmp_path / "agents")

    @pytest.mark.parametrize("size", [0, 11, 9_000, 300_000, -1])
    def test_what_came_is_not_sent_again(self, tmp_path: Path, size: int) -> None:
        """Whatever a kill has left: what is behind its intact part comes anew."""
        of = label()
        path = write(tmp_path / "out", of)
        part = self.part(tmp_path / "agents", of)
        part.parent.mkdir(parents=True)
        part.write_bytes(path.read_bytes()[:size] + bytes(5_000 if size > 0 else 0))

        async def test(a: FileTransport, b: FileTransport, box: Box) -> None:
            await insist(a, path, of, b.address)
            assert box.taken == {"p1": path.read_bytes()}
            expected = path.stat().st_size if size in (0, 11) else a.counters.bytes_out
            assert a.counters.bytes_out == expected
            assert path.stat().st_size - a.counters.bytes_out > size - 150_000

        self.run(test, tmp_path / "agents")

    def test_another_one_of_that_id_is_no_begin(self, tmp_path: Path) -> None:
        """What lies there goes."""
        of = label()
        path = write(tmp_path / "out", of)
        part = self.part(tmp_path / "agents", of)
        part.parent.mkdir(parents=True)
        write(part, label("p2"))

        async def test(a: FileTransport, b: FileTransport, box: Box) -> None:
            await insist(a, path, of, b.address)
            assert box.taken == {"p1": path.read_bytes()}

        self.run(test, tmp_path / "agents")

    def test_many_come_at_once(self, tmp_path: Path) -> None:
        """From both sides."""
        there = [label(f"p{n}") for n in range(5)]
        back = [label(f"q{n}", "b", "a") for n in range(5)]
        paths = {of.file_id: write(tmp_path / of.file_id, of, 2) for of in there + back}

        async def test(a: FileTransport, b: FileTransport, box: Box) -> None:
            sends = [insist(a, paths[of.file_id], of, b.address) for of in there]
            sends += [insist(b, paths[of.file_id], of, a.address) for of in back]
            await asyncio.gather(*sends)
            assert sorted(box.taken) == [of.file_id for of in there]
            assert all(data == paths[name].read_bytes() for name, data in box.taken.items())
            assert (a.counters.received, b.counters.received) == (5, 5)

        self.run(test, tmp_path / "agents")

    def test_what_cannot_be_taken_now_is_taken_later(self, tmp_path: Path) -> None:
        """And nothing is sent twice for that."""
        of = label()
        path = write(tmp_path / "out", of, 3)

        async def test(a: FileTransport, b: FileTransport, box: Box) -> None:
            box.trouble = [TransportError("no room"), TransportError("no room")]
            await insist(a, path, of, b.address)
            assert box.calls == 3
            assert a.counters.bytes_out == path.stat().st_size

        self.run(test, tmp_path / "agents")

    def test_what_cannot_be_taken_at_all_is_refused(self, tmp_path: Path) -> None:
        """The sender hears why, in one line, and the file is gone."""
        of = label()
        path = write(tmp_path / "out", of, 3)

        async def test(a: FileTransport, b: FileTransport, box: Box) -> None:
            box.trouble = [HandoverFileError("it is\nrotten\x1b[31m")]
            with pytest.raises(HandoverFileError, match=r"b: it is rotten"):
                await a.deliver(path, of, b.address)
            a.withdraw(of)
            assert (a.counters.bad, b.counters.bad) == (1, 1)
            async with asyncio.timeout(60):  # the receiver answers first
                while any(each.is_file() for each in (tmp_path / "agents").rglob("*")):
                    await asyncio.sleep(0.01)

        self.run(test, tmp_path / "agents")

    def test_what_was_whole_when_a_receiver_was_killed_is_taken(self, tmp_path: Path) -> None:
        """Also if its sender is not there any more."""
        of = label()
        whole = self.whole(tmp_path / "agents", of)
        whole.parent.mkdir(parents=True)
        write(whole, of, 2)

        async def test(a: FileTransport, b: FileTransport, box: Box) -> None:
            await until(lambda: box.taken and not whole.exists())

        self.run(test, tmp_path / "agents")

    def test_a_sender_that_ends_meanwhile_does_not_matter(self, tmp_path: Path) -> None:
        """What is whole is taken; the next time it only hears so."""
        of = label()
        path = write(tmp_path / "out", of, 2)

        async def test(a: FileTransport, b: FileTransport, box: Box) -> None:
            box.open.clear()
            giving = asyncio.ensure_future(a.deliver(path, of, b.address))
            await until(lambda: box.calls)
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)
            box.open.set()
            await until(lambda: box.taken)
            sent = a.counters.bytes_out
            await insist(a, path, of, b.address)
            assert (a.counters.bytes_out, box.calls) == (sent, 1)

        self.run(test, tmp_path / "agents")

    @pytest.mark.parametrize("name", ["../../x", ".", "a/b", "ü.example", "x" * 64])
    def test_names_lead_nowhere(self, tmp_path: Path, name: str) -> None:
        """Whatever an agent is called."""
        of = label(sender=name)
        path = write(tmp_path / "out", of, 1)

        async def test() -> None:
            sender, receiver = (self.make(each, tmp_path / "i") for each in (name, "b"))
            box = Box()
            try:
                await sender.start(Box())
                await receiver.start(box)
                await insist(sender, path, of, receiver.address)
                assert box.taken
            finally:
                await sender.close()
                await receiver.close()

        asyncio.run(test())
        assert {each.name for each in tmp_path.iterdir()} == {"out", "i"}
