"""A merge that a kill has broken off, and with which nobody goes on: each URL waits once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from support.handover_sides import Side, drain, label, units_of

from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.cluster.handover.dump import HostDump
from scrapy_spider_suite.cluster.handover.handover import Handover
from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext
from scrapy_spider_suite.cluster.handover.load import Conflicts, HostLoad
from scrapy_spider_suite.cluster.membership import Ownership
from scrapy_spider_suite.cluster.transports.shared_folder import FolderTransport

HOSTS = [f"h{n}.t" for n in range(3)]
UNITS_OF = units_of("ring")


def sides(folder: Path) -> tuple[Side, Side]:
    """Of all hosts both have some page that is pending, and one that only the sender has done."""
    sender, receiver = Side(folder / "a"), Side(folder / "b")
    for host in HOSTS:
        for side in (sender, receiver):
            side.put(host, 1, "pending")
            side.put(host, 2, "pending" if side is receiver else "done")
            side.frontier.flush()
    return sender, receiver


def broken_off(folder: Path) -> Side:
    """The receiver's next run, after a kill within the merge."""
    sender, receiver = sides(folder)
    drain(HostDump(sender.context(), UNITS_OF).pack(
        folder / "file", label()))  # fmt: skip
    load = merge(receiver, folder / "file")
    for _ in load.merge():
        receiver.frontier.flush()
        if Conflicts(receiver.context()).left:
            break
    again = receiver.reopened(folder / "killed")
    receiver.close()
    sender.close()
    return again


def merge(side: Side, path: Path) -> HostLoad:
    """Of the hand-over file at *path*."""
    return HostLoad(side.context(), UNITS_OF, path, label())


def test_each_url_waits_once(tmp_path: Path) -> None:
    """What was put off until all is merged is done when nobody merges the rest; then it goes on."""
    side = broken_off(tmp_path)
    with pytest.raises(AssertionError):
        side.check()
    drain(Conflicts(side.context()).settle())
    side.check()
    drain(merge(side, tmp_path / "file").merge())
    side.check()
    assert set(side.known().values()) == {"pending", "done"}
    assert all(known == "done" for url, known in side.known().items() if url.endswith("/2"))
    side.close()


def test_nothing_is_fetched_before(tmp_path: Path) -> None:
    """An agent that begins holds everything back until that is done."""
    side = broken_off(tmp_path)
    shares = Ownership(load_assignment("ring"), "b")

    async def nothing() -> None:
        """Nobody holds anything."""

    async def test() -> None:
        handover = Handover(
            HandoverContext(side.frontier, side.store, shares, side.clock),
            FolderTransport(tmp_path / "shared", "crawl", "b"), tmp_path / "out",
            give=lambda units, to, epoch: None,  # type: ignore[arg-type, return-value]
            update_holders=nothing,
        )  # fmt: skip
        assert np.all(shares.in_transfer)
        running = asyncio.ensure_future(handover.run("crawl"))
        while np.any(shares.in_transfer):
            await asyncio.sleep(0.01)
        side.check()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(test())
    side.close()
