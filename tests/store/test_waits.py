"""Hosts that wait are counted by reason: those in memory in portions, and those on disk."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.workbench import (
    AddressState,
    HostState,
    WaitCount,
    WaitReason,
    Workbench,
    add_up,
    reason_of_words,
)
from scrapy_spider_suite.operate.judge import wait_summary
from scrapy_spider_suite.store import host_queues
from scrapy_spider_suite.store.host_queues import DiskWaits, WaitCounts
from scrapy_spider_suite.store.interface import MemoryKV, MemoryStore
from scrapy_spider_suite.store.rows import HostRecord

NOW, WALL = 100.0, 1e9


def bench() -> Workbench:
    """Five hosts: two in back-off, one with a long Crawl-delay, one that is ready, one idle."""
    bench = Workbench()
    for number, name in enumerate("abcde"):
        host = bench.hosts[name] = HostState(name, 4.0, 1, 1)
        host.record = HostRecord()
        if name != "e":
            host.front = [(b"1", Entry(name, f"http://{name}/"))]
        bench.place(host, AddressState(str(number), 0.5, 1, 0.0))
    bench.postpone(bench.hosts["a"], NOW + 20, "back-off after timeout")
    bench.postpone(bench.hosts["b"], NOW + 10, "back-off after refused")
    bench.hosts["c"].crawl_delay, bench.hosts["c"].next_fetch = 60.0, NOW + 60
    return bench


def test_hosts_in_memory_and_on_disk_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the portions; whoever's time has come on disk waits for room."""
    monkeypatch.setattr(host_queues, "_PORTION", 2)
    on_disk = DiskWaits(MemoryStore())
    on_disk.change(WALL + 600, HostRecord(why="back-off after timeout"), 1)
    on_disk.change(WALL - 600, HostRecord(), 1)
    counted = WaitCounts(bench(), on_disk, lambda host: False)
    for _ in range(3):
        assert not counted.counts
        counted.step(NOW, WALL)
    assert counted.counts == [
        WaitCount(WaitReason.BACK_OFF, 3, WALL + 10),
        WaitCount(WaitReason.CRAWL_DELAY, 1, WALL + 60),
        WaitCount(WaitReason.READY, 1, WALL),
        WaitCount(WaitReason.MEMORY, 1, WALL),
    ]
    assert wait_summary(counted.counts, WALL) == (
        "5 hosts wait: 3 back-off (next in 10 s), 1 Crawl-delay (next in 60 s), "
        "1 room in memory; 1 host is ready"
    )


def test_the_counts_of_hosts_on_disk_are_stored() -> None:
    """Another run goes on with them, and does not count anew."""
    store, record = MemoryStore(), HostRecord(why="Retry-After")
    counts = DiskWaits(store)
    for when, hosts in ((WALL, 1), (WALL + 60, 1), (WALL, -1)):
        counts.change(when, record, hosts)
    counts.save()
    again = DiskWaits(store)
    assert list(again.counts(0.0)) == list(counts.counts(0.0)) != []
    [*_, row] = store.kv("counters").items(b"waits/")
    for key, value in ((row[0], b"many"), (b"waits/now/back-off", b"1"), (b"waits/1", b"1")):
        store.kv("counters").put(key, value)
        with pytest.raises(JobDamagedError, match="counts of waiting hosts"):
            DiskWaits(store)
        store.kv("counters").delete(key)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_hosts_leave_in_whatever_order(order: tuple[int, ...]) -> None:
    """Their time may have come, and the clock may be set back."""
    store, record, later = MemoryStore(), HostRecord(why="Retry-After"), WALL // 60 * 60 + 600
    counts = DiskWaits(store)
    assert list(counts.counts(WALL)) == []
    hosts = [later, later + 20, later + 90]
    for when in hosts:
        counts.change(when, record, 1)
    assert list(counts.counts(WALL)) == [WaitCount(WaitReason.RETRY_AFTER, 3, later)]
    assert len(list(store.kv("counters").items())) == 0  # they wait for the next batch
    list(counts.counts(later + 60))
    hosts += [later - 600]
    counts.change(hosts[3], record, 1)
    found = [(each.reason, each.hosts) for each in add_up(counts.counts(later + 60))]
    assert found == [(WaitReason.MEMORY, 3), (WaitReason.RETRY_AFTER, 1)]
    for left, place in zip((3, 2, 1, 0), order, strict=True):
        counts.change(hosts[place], record, -1)
        assert sum(each.hosts for each in counts.counts(WALL)) == left
    counts.save()
    assert [value for _, value in store.kv("counters").items()] == [b"0"]


class CountedKV(MemoryKV):
    """A `KV` that counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []

    def put(self, key: bytes, value: bytes) -> None:
        """See `KV`."""
        self.written.append(len(key) + len(value))
        super().put(key, value)


def test_a_crawl_of_ten_days_writes_and_counts_as_little_as_a_new_one() -> None:
    """Hosts that wait for room keep the minute in which they came, and there are ever more."""
    store = MemoryStore()
    kv = store._kvs["counters"] = CountedKV()
    counts, slow = DiskWaits(store), HostRecord(why="Retry-After")
    days = 10 * 24 * 60
    for minute in range(days):
        wall = WALL + 60.0 * minute
        kv.written.clear()
        counts.change(wall, HostRecord(), 1)
        counts.change(wall + 3_600, slow, 1)
        if minute >= 60:
            counts.change(wall, slow, -1)
        found = list(counts.counts(wall))
        counts.save()
        assert len(kv.written) <= 6
        assert sum(kv.written) < 400
        assert len(found) <= 4
    assert len(kv) < 70
    wall += 60.0
    assert add_up(counts.counts(wall)) == [
        WaitCount(WaitReason.MEMORY, days, wall),
        WaitCount(WaitReason.RETRY_AFTER, 60, wall),
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", WaitReason.HOST_DELAY),
        ("status 503", WaitReason.BACK_OFF),
        ("blocked (a.test, by anna)", WaitReason.BLOCKED),
        ("page budget", WaitReason.OTHER),
    ],
)  # fmt: skip
def test_stored_words_stand_for_a_reason(words: str, reason: WaitReason) -> None:
    """Whatever follows them."""
    assert reason_of_words(words) is reason
