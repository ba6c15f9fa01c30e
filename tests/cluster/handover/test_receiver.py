"""A hand-over file that cannot be merged: logged, its units held back, and merged later."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.handover_sides import Side, drain, label, units_of

from scrapy_spider_suite.cluster.assignment import Member, load_assignment
from scrapy_spider_suite.cluster.handover.handover import MAX_POSTPONED, MAX_TRIES, Receiver
from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext
from scrapy_spider_suite.cluster.handover.handover_file import HandoverLabel
from scrapy_spider_suite.cluster.handover.load import HostLoad
from scrapy_spider_suite.cluster.membership import Ownership
from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError, TransportError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.store.rocks_store import RocksStore

LIMIT = 30.0
"""Seconds for what takes none."""


@dataclass
class At:
    """Agent b with a hand-over file of agent a at *path*."""

    folder: Path
    path: Path = field(init=False)
    side: Side = field(init=False)
    ownership: Ownership = field(init=False)
    receiver: Receiver = field(init=False)
    known: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        sender = Side(self.folder / "a")
        for page in range(30):
            sender.put(f"h{page % 3}.t", page, ("pending", "done", "failed")[page % 3])
        self.path, self.known = self.folder / "file", sender.known()
        drain(sender.dump(units_of("ring")).pack(self.path, label()))
        sender.close()
        self.side = Side(self.folder / "b")
        self.ownership = Ownership(load_assignment("ring"), "b")
        self.ownership.set_members(1, [Member("b")])
        self.ownership.hold_own()
        work = HandoverContext(
            self.side.frontier, self.side.store, self.ownership, self.side.clock
        )
        work.crawl_id = "crawl"
        self.receiver = Receiver(work)

    @property
    def held(self) -> int:
        """How many units nobody may fetch."""
        return int(self.ownership.in_transfer.sum())

    async def take(self) -> None:
        """Take the hand-over file."""
        async with asyncio.timeout(LIMIT):
            await self.receiver.merge(label(), self.path)

    async def check(self) -> None:
        """It can be taken by now, all of it, and is kept then."""
        assert self.held == UNITS
        assert not self.receiver.is_stored(label())
        await self.take()
        assert self.held == 0
        assert self.receiver.is_stored(label())
        assert self.side.known() == self.known
        self.side.check()


def run(folder: Path, test: Callable[[At], Awaitable[None]]) -> None:
    """Do *test* with an agent that has joined."""

    async def work() -> None:
        at = At(folder)
        at.receiver.ready.set()
        await test(at)
        at.side.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    "error", [struct.error("too large"), JobDamagedError("unreadable"), OSError(5, "no input")]
)
def test_what_nobody_foresaw_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:  # fmt: skip
    """Half of a hand-over file may be merged: nothing of it is fetched, and it waits for nobody."""

    def fail(*args: object) -> None:
        raise error

    async def test(at: At) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(HostLoad, "apply", fail)
            for _ in range(2):
                with pytest.raises(type(error)):
                    await at.take()
        said = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert len(said) == 2
        assert all(
            "p1 from a was not merged" in text and str(error.args[-1]) in text for text in said
        )
        await at.check()

    run(tmp_path, test)


@pytest.mark.parametrize(("method", "room"), [("flush", 0), ("flush", 10), ("sync_log", 0)])
def test_a_disk_that_is_full_puts_a_file_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, room: int
) -> None:
    """Its sender is told so after some tries; what was full before is not added to."""
    monkeypatch.setattr("scrapy_spider_suite.cluster.handover.handover_context.RETRY", 0.0)
    tries = []

    def full(store: RocksStore) -> None:
        if store.backlog > room or method == "sync_log":
            tries.append(store.backlog)
            raise StoreWriteError("no space is left")

    async def test(at: At) -> None:
        at.side.store.kv("agent").put(b"number", b"1")
        assert at.side.store.backlog
        with monkeypatch.context() as patch:
            patch.setattr(RocksStore, method, full)
            for number in (1, 2):
                with pytest.raises(TransportError, match="no space"):
                    await at.take()
                assert len(tries) == number * MAX_TRIES
                merged = room or method == "sync_log"
                assert at.side.known() == (at.known if merged else {})
        await at.check()

    run(tmp_path, test)


def test_what_is_not_over_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though all of it is merged: a power failure could still take it away."""

    async def test(at: At) -> None:
        synced = list[bool]()

        def sync(store: RocksStore) -> None:
            synced.append(at.receiver.is_stored(label()))

        monkeypatch.setattr(RocksStore, "sync_log", sync)
        await at.take()
        assert synced == [False]
        assert at.receiver.is_stored(label())
        other = HandoverLabel("p2", "crawl", "a", "b", label().units)
        assert not at.receiver.is_stored(other)

    run(tmp_path, test)


def test_what_is_put_off_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender calls it off, and sends it under another name: no more than a few lie here."""
    names = [f"p{number}" for number in range(MAX_POSTPONED + 2)]
    last, *others = [HandoverLabel(name, "crawl", "a", "b", label().units) for name in names]

    async def late(receiver: Receiver, *args: object) -> None:
        raise TransportError("the disk is full")

    async def taken(receiver: Receiver, *args: object) -> None:
        """It can be taken by now."""

    async def test(at: At) -> None:
        monkeypatch.setattr(Receiver, "_merge", late)
        for each in others[:MAX_POSTPONED]:
            assert not at.receiver.is_stored(each)
            with pytest.raises(TransportError):
                await at.receiver.merge(each, at.path)
        with pytest.raises(
            TransportError, match=f"{MAX_POSTPONED} hand-over files that came before"
        ):
            at.receiver.is_stored(last)
        assert not at.receiver.is_stored(others[0])
        monkeypatch.setattr(Receiver, "_merge", taken)
        await at.receiver.merge(others[0], at.path)
        assert not at.receiver.is_stored(last)

    run(tmp_path, test)
