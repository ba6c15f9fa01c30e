"""What is known of the hosts of a slot, on its way from one fetcher to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.handover_sides import Side

from scrapy_spider_suite.cluster.handover import handover_context
from scrapy_spider_suite.cluster.run_blobs import pack_hosts, unpack_hosts
from scrapy_spider_suite.cluster.run_hosts import SlotHosts
from scrapy_spider_suite.errors import BlobError, StoreWriteError
from scrapy_spider_suite.frontier.entries import slot_of
from scrapy_spider_suite.store.rows import HostRecord

HOST = "h1.t"
SLOT = slot_of(HOST)


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    """A fetcher that has fetched from a host, and one that has not."""
    both = Side(tmp_path / "a"), Side(tmp_path / "b")
    both[0].put(HOST, 1, "done")
    both[0].put(HOST, 2, "failed")
    record = both[0].frontier.residents.records.touch(HOST)
    record.crawl_delay, record.failures = 7.0, 3
    both[0].frontier.flush()
    yield both
    for side in both:
        side.close()


def record_of(side: Side) -> HostRecord:
    """What is on disk."""
    record = side.store.record(HOST)
    assert record is not None
    return record


def saved(side: Side) -> bytes:
    """What goes to another fetcher."""
    [data] = asyncio.run(SlotHosts(side.context()).save([SLOT]))
    return data


def test_it_moves(sides: tuple[Side, Side]) -> None:
    """Counts, delay and failures; the URLs do not, and nothing is left where it was."""
    sender, receiver = sides
    asyncio.run(SlotHosts(receiver.context()).load({SLOT: unpack_hosts(SLOT, saved(sender))}))
    record = record_of(receiver)
    assert (record.done, record.failed, record.crawl_delay, record.failures) == (1, 1, 7.0, 3)
    assert receiver.known() == {}
    asyncio.run(SlotHosts(sender.context()).forget([SLOT]))
    assert (sender.known(), sender.store.record(HOST)) == ({}, None)


@pytest.mark.parametrize("number", [1, 2])
def test_a_write_may_fail(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Whichever it is: it is tried again, and nothing is counted twice."""
    sender, receiver = sides
    data, write, writes = saved(sender), receiver.store.flush, 0
    receiver.put(HOST, 3, "done")
    receiver.put(HOST, 4, "pending")  # and has yet to be written

    def flush() -> None:
        nonlocal writes
        writes += 1
        if writes == number:
            raise StoreWriteError("no room")
        write()

    monkeypatch.setattr(handover_context, "RETRY", 0.0)
    monkeypatch.setattr(receiver.store, "flush", flush)
    asyncio.run(SlotHosts(receiver.context()).load({SLOT: unpack_hosts(SLOT, data)}))
    assert writes == 3
    record = record_of(receiver)
    assert (record.done, record.failed, record.pending) == (2, 1, 1)
    assert receiver.frontier.counters.done == 2


def test_what_cannot_be_read_is_refused(sides: tuple[Side, Side]) -> None:
    """Damaged, or of another slot: nothing is changed."""
    sender, receiver = sides
    data, hosts = saved(sender), SlotHosts(receiver.context())
    deep = pack_hosts(SLOT, [[msgspec.Raw(b"\x91" * 10_000 + b"\xc0")]])
    for slot, damaged in ((SLOT, data[:-3]), (SLOT, b""), (SLOT, deep), (SLOT + 1, data)):
        with pytest.raises(BlobError):
            unpack_hosts(slot, damaged)
    [error] = asyncio.run(hosts.load({SLOT + 1: unpack_hosts(SLOT, data)})).values()
    assert error.damaged
    assert receiver.store.record(HOST) is None


def test_one_slot_may_be_wrong(sides: tuple[Side, Side]) -> None:
    """The hosts of others that are loaded with it are taken."""
    sender, receiver = sides
    items = unpack_hosts(SLOT, saved(sender))
    wrong = asyncio.run(SlotHosts(receiver.context()).load({SLOT + 1: items, SLOT: items}))
    assert list(wrong) == [SLOT + 1]
    assert record_of(receiver).done == 1
