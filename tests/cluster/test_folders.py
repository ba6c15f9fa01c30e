"""Parcels over a folder that all agents share."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from contracts_courier import Box, Couriers, insist, label, until, write

from scrapy_spider_suite.cluster.courier import Courier, as_file
from scrapy_spider_suite.cluster.folders import FolderCourier
from scrapy_spider_suite.errors import CourierError, ParcelError
from scrapy_spider_suite.storage.parcels import Label


class TestFolders(Couriers):
    """The contract."""

    def make(self, name: str, folder: Path) -> Courier:
        """One that looks often."""
        return FolderCourier(folder, "crawl", name, look=0.01)

    def part(self, folder: Path, of: Label) -> Path:
        """In the folder of the receiver."""
        return folder / "crawl" / as_file(of.receiver) / f"{of.parcel}.part"

    def whole(self, folder: Path, of: Label) -> Path:
        """Beside it."""
        return self.part(folder, of).with_suffix(".parcel")


def test_crawls_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    """Agents of both have the same names."""
    of = label()
    path = write(tmp_path / "out", of, 1)

    async def test() -> None:
        boxes = [Box(), Box()]
        couriers = [
            FolderCourier(tmp_path / "shared", crawl, name, look=0.01)
            for crawl in ("one", "two") for name in ("a", "b")
        ]  # fmt: skip
        try:
            for courier, box in zip(couriers[1::2], boxes, strict=True):
                await courier.start(box)
            await insist(couriers[0], path, of, "")
            assert [len(box.taken) for box in boxes] == [1, 0]
        finally:
            for courier in couriers:
                await courier.close()

    asyncio.run(test())


def test_an_agent_that_does_not_look_counts_as_away(tmp_path: Path) -> None:
    """What was for it is withdrawn."""
    of = label()
    path = write(tmp_path / "out", of, 1)

    async def test() -> None:
        giver = FolderCourier(tmp_path / "shared", "crawl", "a", look=0.01, silence=0.1)
        with pytest.raises(CourierError, match="b has not looked into its folder"):
            await giver.deliver(path, of, "")
        giver.withdraw(of)
        await giver.close()

    asyncio.run(test())
    assert not [each for each in (tmp_path / "shared").rglob("*") if each.is_file()]


def test_what_others_put_there_is_refused(tmp_path: Path) -> None:
    """No parcel, one under another's name, a link, a pipe: one goes after the other."""
    folder = tmp_path / "shared" / "crawl" / "b"
    folder.mkdir(parents=True)
    secret = write(tmp_path / "secret", label("p5"), 1)
    (folder / "p1.parcel").write_bytes(b"nothing")
    write(folder / "p2.parcel", label("p3"), 1)
    write(folder / "p4.parcel", Label("p4", "crawl", "\n", "b", label().units), 1)
    (folder / "p5.parcel").symlink_to(secret)
    os.mkfifo(folder / "p6.parcel")
    old = folder / "p7.kept"
    old.write_text("x")
    os.utime(old, (0, 0))

    async def test() -> None:
        taker, box = FolderCourier(tmp_path / "shared", "crawl", "b", look=0.01), Box()
        await taker.start(box)
        await until(lambda: not list(folder.iterdir()))
        await taker.close()
        assert (box.calls, taker.counters.bad) == (0, 5)

    asyncio.run(test())
    assert secret.is_file()


def test_a_damaged_parcel_is_not_brought(tmp_path: Path) -> None:
    """The taker's check is the business of who merges it; a forged receipt is no more than one."""
    of = label()
    path = write(tmp_path / "out", of, 2)
    refused = tmp_path / "shared" / "crawl" / "a" / "p1.refused"
    refused.parent.mkdir(parents=True)
    refused.write_bytes(b"no\x1b[2J\n" * 1_000)

    async def test() -> None:
        giver = FolderCourier(tmp_path / "shared", "crawl", "a")
        with pytest.raises(ParcelError) as caught:
            await giver.deliver(path, of, "")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1_100

    asyncio.run(test())


def test_a_folder_that_is_gone_is_an_error_of_the_moment(tmp_path: Path) -> None:
    """Said, and tried again."""
    (tmp_path / "shared").write_text("no folder")

    async def test() -> None:
        giver = FolderCourier(tmp_path / "shared", "crawl", "a")
        with pytest.raises(CourierError):
            await giver.deliver(write(tmp_path / "out", label(), 1), label(), "")
        with pytest.raises(NotADirectoryError):
            await giver.start(Box())

    asyncio.run(test())
