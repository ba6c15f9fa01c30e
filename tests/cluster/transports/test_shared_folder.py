"""Hand-over files over a folder that all agents share."""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.file_transport_contract import Box, FileTransportContract, insist, label, until, write

from scrapy_spider_suite.cluster.handover.handover_file import (
    FileTransport,
    HandoverLabel,
    quoted_name,
)
from scrapy_spider_suite.cluster.transports.shared_folder import FolderTransport
from scrapy_spider_suite.errors import HandoverFileError, TransportError


class TestFolders(FileTransportContract):
    """The contract."""

    def make(self, name: str, folder: Path) -> FileTransport:
        """One that looks often."""
        return FolderTransport(folder, "crawl", name, poll=0.01)

    def part(self, folder: Path, of: HandoverLabel) -> Path:
        """In the folder of the receiver."""
        return folder / "crawl" / quoted_name(of.receiver) / f"{of.file_id}.part"

    def whole(self, folder: Path, of: HandoverLabel) -> Path:
        """Beside it."""
        return self.part(folder, of).with_suffix(".handover")


def test_crawls_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    """Agents of both have the same names."""
    of = label()
    path = write(tmp_path / "out", of, 1)

    async def test() -> None:
        boxes = [Box(), Box()]
        file_transports = [
            FolderTransport(tmp_path / "shared", crawl, name, poll=0.01)
            for crawl in ("one", "two") for name in ("a", "b")
        ]  # fmt: skip
        try:
            for file_transport, box in zip(file_transports[1::2], boxes, strict=True):
                await file_transport.start(box)
            await insist(file_transports[0], path, of, "")
            assert [len(box.taken) for box in boxes] == [1, 0]
        finally:
            for file_transport in file_transports:
                await file_transport.close()

    asyncio.run(test())


def test_an_agent_that_does_not_look_counts_as_away(tmp_path: Path) -> None:
    """What was for it is withdrawn."""
    of = label()
    path = write(tmp_path / "out", of, 1)

    async def test() -> None:
        sender = FolderTransport(tmp_path / "shared", "crawl", "a", poll=0.01, silence=0.1)
        with pytest.raises(TransportError, match="b has not looked into its folder"):
            await sender.deliver(path, of, "")
        sender.withdraw(of)
        await sender.close()

    asyncio.run(test())
    assert not [each for each in (tmp_path / "shared").rglob("*") if each.is_file()]


def test_what_others_put_there_is_refused(tmp_path: Path) -> None:
    """No hand-over file, one under another's name, a link, a pipe: one goes after the other."""
    folder = tmp_path / "shared" / "crawl" / "b"
    folder.mkdir(parents=True)
    secret = write(tmp_path / "secret", label("p5"), 1)
    (folder / "p1.handover").write_bytes(b"nothing")
    write(folder / "p2.handover", label("p3"), 1)
    write(folder / "p4.handover", HandoverLabel("p4", "crawl", "\n", "b", label().units), 1)
    (folder / "p5.handover").symlink_to(secret)
    os.mkfifo(folder / "p6.handover")

    async def test() -> None:
        receiver, box = FolderTransport(tmp_path / "shared", "crawl", "b", poll=0.01), Box()
        await receiver.start(box)
        await until(lambda: not list(folder.iterdir()))
        await receiver.close()
        assert (box.calls, receiver.counters.bad) == (0, 5)

    asyncio.run(test())
    assert secret.is_file()


def test_a_damaged_file_is_not_brought(tmp_path: Path) -> None:
    """A file that its receiver refuses, and a forged receipt."""
    of = label()
    path = write(tmp_path / "out", of, 2)
    refused = tmp_path / "shared" / "crawl" / "a" / "p1.refused"
    refused.parent.mkdir(parents=True)
    refused.write_bytes(b"no\x1b[2J\n" * 1_000)

    async def test() -> None:
        sender = FolderTransport(tmp_path / "shared", "crawl", "a")
        with pytest.raises(HandoverFileError) as caught:
            await sender.deliver(path, of, "")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1_100

    asyncio.run(test())


def test_a_folder_that_is_gone_is_an_error_of_the_moment(tmp_path: Path) -> None:
    """Said, and tried again."""
    (tmp_path / "shared").write_text("no folder")

    async def test() -> None:
        sender = FolderTransport(tmp_path / "shared", "crawl", "a")
        with pytest.raises(TransportError):
            await sender.deliver(write(tmp_path / "out", label(), 1), label(), "")
        with pytest.raises(NotADirectoryError):
            await sender.start(Box())

    asyncio.run(test())


def two(
    folder: Path, test: Callable[[FolderTransport, FolderTransport, Box], Awaitable[None]]
) -> None:  # fmt: skip
    """Do *test* with a, b, and what b takes."""

    async def both() -> None:
        a, b = (
            FolderTransport(folder / "shared", "crawl", name, poll=0.01, silence=0.6)
            for name in "ab"
        )  # fmt: skip
        box = Box()
        await b.start(box)
        try:
            await test(a, b, box)
        finally:
            await a.close()
            await b.close()

    asyncio.run(both())


async def away(sender: FolderTransport, path: Path, of: HandoverLabel) -> None:
    """The hand-over file is not taken, and its sender does not wait for it for ever."""
    with pytest.raises(TransportError, match="b has not looked into its folder"):
        await asyncio.wait_for(sender.deliver(path, of, ""), 10.0)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said that somebody must see to."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def test_an_error_that_nobody_foresaw_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the log; what comes after it is taken, and what it was about, too, if it can be."""
    paths = {name: write(tmp_path / name, label(name), 1) for name in ("p1", "p2")}

    async def test(a: FolderTransport, b: FolderTransport, box: Box) -> None:
        box.trouble = [struct.error("too large") for _ in range(1_000)]
        await away(a, paths["p1"], label("p1"))
        assert "p1.taking cannot be taken" in errors(caplog)[-1]
        assert len(errors(caplog)) < 15  # its turn comes less and less often
        box.trouble = box.trouble[:1]
        await asyncio.gather(*(insist(a, path, label(name), "") for name, path in paths.items()))
        assert len(box.taken) == 2

    two(tmp_path, test)


def test_a_file_that_cannot_be_taken_is_in_nobodys_way(tmp_path: Path) -> None:
    """Nor one that cannot be touched: a folder lies where it is to be."""
    folder = tmp_path / "shared" / "crawl" / "b"
    (folder / "p0.taking").mkdir(parents=True)
    write(folder / "p0.handover", label("p0"), 1)
    path = write(tmp_path / "out", label("p1"), 1)

    async def test(a: FolderTransport, b: FolderTransport, box: Box) -> None:
        await asyncio.wait_for(a.deliver(path, label("p1"), ""), 10.0)
        assert list(box.taken) == ["p1"]
        (folder / "p0.taking").rmdir()
        await until(lambda: len(box.taken) == 2)

    two(tmp_path, test)


def test_a_file_that_cannot_be_touched_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender counts the agent as away; that of the next one does not."""
    paths = {name: write(tmp_path / name, label(name), 1) for name in ("p1", "p2")}
    real = os.utime

    def utime(path: Path, **options: bool) -> None:
        if path.stem == "p1":
            raise OSError(1, "not permitted")
        real(path, **options)

    monkeypatch.setattr(os, "utime", utime)

    async def test(a: FolderTransport, b: FolderTransport, box: Box) -> None:
        box.open.clear()
        first = asyncio.ensure_future(away(a, paths["p1"], label("p1")))
        await until(lambda: box.calls)
        second = asyncio.ensure_future(a.deliver(paths["p2"], label("p2"), ""))
        await first
        await asyncio.sleep(1.0)
        assert not second.done()
        box.open.set()
        await second

    two(tmp_path, test)


def test_what_is_put_off_is_not_waited_for(tmp_path: Path) -> None:
    """Until its receiver has been at work on it for a while; it is heard of whether it is."""
    of = label()
    path = write(tmp_path / "out", of, 1)

    async def test(a: FolderTransport, b: FolderTransport, box: Box) -> None:
        box.trouble = [TransportError("the disk is full") for _ in range(1_000)]
        await away(a, path, of)
        begin, heard = asyncio.get_running_loop().time(), a.signs
        await away(a, path, of)
        assert asyncio.get_running_loop().time() - begin < 0.4
        assert a.signs == heard
        box.trouble.clear()
        box.open.clear()
        (lies,) = (tmp_path / "shared" / "crawl" / "b").iterdir()
        touched = lies.stat().st_mtime_ns
        await until(lambda: lies.stat().st_mtime_ns > touched)
        giving = asyncio.ensure_future(a.deliver(path, of, ""))
        await asyncio.sleep(1.2)
        assert not giving.done()
        assert a.signs > heard + 3
        box.open.set()
        await giving

    two(tmp_path, test)


def test_what_is_not_begun_can_be_called_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it stays in the folder, however often it is given anew."""
    of = label()
    path = write(tmp_path / "out", of, 1)

    def is_stored(box: Box, of: HandoverLabel) -> bool:
        box.calls += 1
        raise TransportError("others wait")

    monkeypatch.setattr(Box, "is_stored", is_stored)

    async def test(a: FolderTransport, b: FolderTransport, box: Box) -> None:
        await away(a, path, of)
        assert box.calls > 1
        a.withdraw(of)
        assert not list((tmp_path / "shared" / "crawl" / "b").iterdir())

    two(tmp_path, test)


def test_a_folder_that_nobody_looks_into_any_more_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever ended that."""

    def fail(transport: FolderTransport) -> list[Path]:
        raise ValueError("nobody foresaw it")

    async def test(a: FolderTransport, b: FolderTransport, box: Box) -> None:
        monkeypatch.setattr(FolderTransport, "_whole_files", fail)
        await until(lambda: len(errors(caplog)) == 2)
        assert all("hand-overs of this agent do not go on" in text for text in errors(caplog))

    two(tmp_path, test)
