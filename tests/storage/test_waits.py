"""Hosts that wait are counted by reason: those in memory in portions, and those on disk."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.explaining.waits import summary
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.waits import WaitCount, WaitReason, reason_of_words
from scrapy_spider_suite.frontier.workbench import AddressState, HostState, Workbench
from scrapy_spider_suite.storage import waits
from scrapy_spider_suite.storage.records import HostRecord
from scrapy_spider_suite.storage.store import MemoryStore
from scrapy_spider_suite.storage.waits import DiskWaits, Waits

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
    monkeypatch.setattr(waits, "_PORTION", 2)
    on_disk = DiskWaits(MemoryStore(), [(WALL + 600, HostRecord(why="back-off after timeout"))])
    on_disk.change(WALL - 600, HostRecord(), 1)
    counted = Waits(bench(), on_disk, lambda host: False)
    for _ in range(3):
        assert not counted.counts
        counted.look(NOW, WALL)
    assert counted.counts == [
        WaitCount(WaitReason.BACK_OFF, 3, WALL + 10),
        WaitCount(WaitReason.CRAWL_DELAY, 1, WALL + 60),
        WaitCount(WaitReason.READY, 1, WALL),
        WaitCount(WaitReason.MEMORY, 1, WALL),
    ]
    assert summary(counted.counts, WALL) == (
        "5 hosts wait: 3 back-off (next in 10 s), 1 Crawl-delay (next in 60 s), "
        "1 room in memory; 1 host is ready"
    )


def test_the_counts_of_hosts_on_disk_are_stored() -> None:
    """Another run goes on with them, and does not count anew."""
    store, record = MemoryStore(), HostRecord(why="Retry-After")
    counts = DiskWaits(store, [(WALL, record), (WALL + 60, record)])
    counts.change(WALL, record, -1)
    counts.save()
    again = DiskWaits(store, [(WALL, HostRecord())])
    assert list(again.counts(0.0)) == list(counts.counts(0.0)) != []
    store.kv("counters").put(b"waits", b"\xa3abc")
    with pytest.raises(JobDamagedError, match="counts of waiting hosts"):
        DiskWaits(store, ())


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
