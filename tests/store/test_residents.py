"""Which hosts are in memory: few of many, and none for ever (U13)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rocksdict import Options
from support.virtual_crawl import POLICY, WALL, Crawl, Web, entry, trees

from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.frontier.entries import order_key
from scrapy_spider_suite.frontier.outcomes import Event, Pace
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store import host_queues
from scrapy_spider_suite.store import host_queues as hostrecords
from scrapy_spider_suite.store.host_queues import RESIDENT
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksOptions, RocksStore
from scrapy_spider_suite.store.rows import PENDING

MEMORY = 4 << 20


@pytest.fixture
def store(tmp_path: Path) -> RocksStore:
    """An empty store."""
    return RocksStore(tmp_path / "store", memory=MEMORY)


def hosts_of(count: int) -> Web:
    """Hosts with an address each, whose pages lead to one more page, for ever."""

    def links(url: str) -> list[str]:
        base, _, page = url.rpartition("/")
        return [f"{base}/{int(page) + 1}"]

    return Web({f"h{n}.t": f"10.0.{n // 250}.{n % 250}" for n in range(count)}, links)


def visits_of(crawl: Crawl) -> dict[str, int]:
    """How often each host was visited."""
    counted = dict.fromkeys(crawl.web.addresses, 0)
    for fetch in crawl.fetches:
        counted[fetch.host] += 1
    return counted


# Nobody starves


def test_endless_hosts_leave_room_for_others(store: RocksStore) -> None:
    """A host that always has one more page gives its place away in turn."""
    web = hosts_of(40)
    crawl = Crawl(store, web, Policy(host=Pace(1.0), address=Pace(0.1)), capacity=5)
    crawl.seed(*(f"http://{host}/0" for host in web.addresses))
    crawl.run(until=750.0)
    counted = visits_of(crawl)
    # Five at a time, a visit a second or so: 3,750 visits at best, 95 for each host.
    assert sum(counted.values()) > 2_500
    assert min(counted.values()) > 0.6 * max(counted.values())


def test_hosts_that_wait_long_leave_room_for_others(store: RocksStore) -> None:
    """Those that asked for half an hour fill the memory; the others do not wait for it."""
    web = hosts_of(12)
    slow = [f"h{n}.t" for n in range(6)]
    crawl = Crawl(store, web, capacity=6)
    crawl.seed(*(f"http://{host}/{page}" for host in slow for page in (0, 100)))
    crawl._resolve()
    while leases := crawl.frontier.leases.acquire(0.0):
        leases[0].event = Event.TOO_MANY_REQUESTS
        crawl.frontier.leases.release(leases[0], 0.0, retry_after=1_800.0)
        crawl.frontier.commit.settle([leases[0]], 0.0)
    assert len(crawl.frontier.workbench.hosts) == 6
    crawl.seed(*(f"http://h{n}.t/0" for n in range(6, 12)))
    crawl.run(until=60.0)
    counted = visits_of(crawl)
    assert min(counted[f"h{n}.t"] for n in range(6, 12)) > 10
    assert all(counted[host] == 0 for host in slow)
    crawl.run(until=2_000.0)
    assert min(visits_of(crawl).values()) > 2


def test_hosts_with_nothing_left_leave_room_for_others(store: RocksStore) -> None:
    """Their clocks go on on disk: a place is not lost for the length of a delay."""
    web = Web({f"h{n}.t": f"10.0.0.{n}" for n in range(200)})
    crawl = Crawl(store, web, Policy(host=Pace(100.0), address=Pace(0.1)), capacity=10)
    crawl.seed(*(f"http://{host}/0" for host in web.addresses))
    crawl.run(until=100.0)
    assert len(crawl.fetches) == 200


def test_the_least_recently_visited_come_first(store: RocksStore) -> None:
    """From disk as in memory (E2): between two turns of a host, all the others have theirs."""
    web = hosts_of(12)
    crawl = Crawl(store, web, Policy(host=Pace(1.0), address=Pace(0.1)), capacity=3)
    crawl.seed(*(f"http://{host}/0" for host in web.addresses))
    crawl.run(until=600.0)
    order = [fetch.host for fetch in crawl.fetches]
    turns = [host for n, host in enumerate(order) if host not in order[max(0, n - 9) : n]]
    for n in range(0, len(turns) - 24, 12):
        assert len(set(turns[n : n + 12])) >= 10


# Memory is bounded


def test_memory_holds_no_more_than_it_may(store: RocksStore) -> None:
    """Hosts up to the capacity, fronts up to twice their length, records up to the cache."""
    web = trees(150, 50, 60)
    policy = Policy(host=Pace(0.5), address=Pace(0.0))
    crawl = Crawl(store, web, policy, capacity=20)
    crawl.seed("http://h0.t/0")
    most_hosts = most_entries = 0
    for until in range(2, 120, 2):
        crawl.run(until=float(until))
        hosts = crawl.frontier.workbench.hosts
        most_hosts = max(most_hosts, len(hosts))
        most_entries = max(most_entries, *(len(host.front) for host in hosts.values()), 0)
    assert most_hosts == 20
    assert most_entries <= 32
    assert len(crawl.frontier.workbench._heap) <= 2 * len(crawl.frontier.workbench.addresses) + 17


def test_the_records_that_are_kept_at_hand_are_bounded(
    tmp_path: Path, store: RocksStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is dropped in the middle of an operation is not read back stale."""
    monkeypatch.setattr(hostrecords, "_CACHE", 3)
    frontier = Frontier(store, POLICY, now=0.0, wall=WALL, capacity=2)
    frontier.admission.schedule((entry(f"http://h{n % 12}.t/{n}") for n in range(600)), 0.0)
    frontier.flush()
    with StoreReader(tmp_path) as reader:
        assert list(reader.check()) == []
        assert {record.pending for _, record in reader.store.records()} == {50}
    assert len(frontier.residents.records._cache) <= 4


def test_addresses_that_nobody_uses_are_forgotten(store: RocksStore) -> None:
    """Once their clocks have run out."""
    web = Web({f"h{n}.t": f"10.0.0.{n}" for n in range(50)})
    crawl = Crawl(store, web)
    crawl.seed(*(f"http://{host}/0" for host in web.addresses))
    crawl.run()
    for _ in range(10):
        crawl.now += 1.0
        crawl.frontier.tick(crawl.now)
    statistics = crawl.frontier.statistics()
    assert (statistics.hosts, statistics.addresses) == (0, 0)
    assert statistics.fetched == crawl.frontier.counters.done == 50
    assert store.due(10) == []


# Traffic without a visit


def test_a_visitor_goes_by_the_clock_of_its_host(store: RocksStore) -> None:
    """In memory or not: the host is brought in, and leaves again."""
    web = Web({"a.t": "10.0.0.1"})
    crawl = Crawl(store, web)
    crawl.seed("http://a.t/0")
    crawl.run()
    for _ in range(10):
        crawl.now += 1.0
        crawl.frontier.tick(crawl.now)
    assert not crawl.frontier.workbench.hosts
    frontier, now = crawl.frontier, crawl.now
    host = frontier.residents.visitor("a.t", now)
    address = frontier.residents.clocks.state("10.0.0.1", "10.0.0.1", now)
    frontier.workbench.begin(host, address, now, visit=False)
    frontier.workbench.end(host, address, now + 1.0, visit=False)
    assert frontier.workbench.pause_needed(host, address, now + 1.0) == 4.0
    frontier.tick(now + 2.0)
    again = frontier.residents.visitor("a.t", now + 2.0)
    assert frontier.workbench.pause_needed(again, address, now + 2.0) == pytest.approx(3.0)
    frontier.tick(now + 9.0)
    assert not frontier.workbench.hosts


def test_a_host_on_disk_is_brought_in_whole_for_a_visitor(store: RocksStore) -> None:
    """Its queue comes along, beyond the capacity: it must not be in two places."""
    frontier = Frontier(store, POLICY, now=0.0, wall=WALL, capacity=1)
    entries = [entry(f"http://{host}.t/{n}") for host in "ab" for n in range(5)]
    frontier.admission.schedule(entries, 0.0)
    assert store.due(9) == [(WALL, "b.t"), (RESIDENT, "a.t")]
    host = frontier.residents.visitor("b.t", 0.0)
    assert len(host.front) == 5
    assert store.due(9) == [(RESIDENT, "a.t"), (RESIDENT, "b.t")]


# Who is asked for next


def test_hosts_that_must_wait_are_looked_up_when_it_is_time(store: RocksStore) -> None:
    """A name that is asked for an hour ahead is out of date by then."""
    frontier = Frontier(store, POLICY, now=0.0, wall=WALL, capacity=10)
    frontier.admission.schedule([entry("http://a.t/1")], 0.0)
    host = frontier.workbench.hosts["a.t"]
    frontier.workbench.postpone(host, 10.0, "told to")
    assert list(frontier.residents.unresolved.due(0.0, 10)) == []
    assert frontier.leases.next_visit_in(0.0) == 10.0
    frontier.tick(5.0)
    assert list(frontier.residents.unresolved.due(5.0, 10)) == []
    frontier.tick(9.5)
    assert list(frontier.residents.unresolved.due(9.5, 10)) == [host]


def test_no_more_names_than_asked_for(store: RocksStore) -> None:
    """First come, first served."""
    frontier = Frontier(store, POLICY, now=0.0, wall=WALL, capacity=10)
    frontier.admission.schedule((entry(f"http://h{n}.t/") for n in range(5)), 0.0)
    due = frontier.residents.unresolved.due
    assert [host.key for host in due(0.0, 2)] == ["h0.t", "h1.t"]
    assert [host.key for host in due(0.0, 9)] == ["h2.t", "h3.t", "h4.t"]


def test_the_next_visit_may_be_on_disk(store: RocksStore) -> None:
    """The crawl is told how long there is nothing to do, in memory or not."""
    assert Frontier(store, POLICY, now=0.0, wall=WALL, capacity=1).leases.next_visit_in(0.0) is None
    crawl = Crawl(store, hosts_of(2), capacity=1)
    crawl.seed("http://h0.t/0", "http://h0.t/100")
    crawl._resolve()
    (lease,) = crawl.frontier.leases.acquire(0.0)
    crawl.seed("http://h1.t/0")
    assert crawl.frontier.leases.next_visit_in(0.0) == 0.0
    lease.event = Event.UNAVAILABLE
    crawl.frontier.leases.release(lease, 0.0, retry_after=600.0)
    crawl.frontier.commit.settle([lease], 0.0)
    crawl.run(until=0.9, fetches=1)
    crawl.frontier.tick(50.0)
    assert "h0.t" not in crawl.frontier.workbench.hosts
    crawl.frontier.tick(50.1)
    gone = crawl.frontier.workbench.hosts["h1.t"]
    crawl.frontier.health.no_address(gone, Event.NO_SUCH_HOST, 50.5)
    crawl.frontier.tick(51.0)
    assert crawl.frontier.leases.next_visit_in(51.0) == pytest.approx(549.0, abs=0.01)


# Cost


class Counted(RocksOptions):
    """The set-up of a store that counts the deleted and hidden keys that it walks over."""

    def options(self, *, root: bool = False) -> Options:
        """With statistics."""
        options = super().options(root=root)
        if root:
            options.enable_statistics()
            Counted.of_the_last = options
        return options

    of_the_last: Options

    @classmethod
    def skipped(cls) -> int:
        """Internal keys skipped so far."""
        said = cls.of_the_last.get_statistics()
        found = re.search(r"rocksdb\.number\.iter\.skip COUNT : (\d+)", said or "")
        return int(found[1]) if found else -1


@pytest.mark.slow
def test_refills_stay_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 60,000 pops a refill walks over no more remains than the first one."""
    monkeypatch.setattr("scrapy_spider_suite.store.rocks_store.RocksOptions", Counted)
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    frontier = Frontier(store, POLICY, now=0.0, wall=WALL, capacity=10)
    pops = 60_000
    frontier.admission.schedule((entry(f"http://a.t/{n}") for n in range(50)), 0.0)
    row = entry("http://a.t/")
    for sequence in range(51, pops + 5_000):
        row.key = order_key(0, sequence)
        store.put_row(row)
        if sequence % 20_000 == 0:
            frontier.flush()
    host = frontier.workbench.hosts["a.t"]
    assert host.more
    refills = pops // host_queues._FRONT
    steps: dict[int, int] = {}
    for number in range(refills):
        for _, gone in host.front:
            store.delete_row("a.t", gone.key)
        host.front.clear()
        looked_at = number < 100 or number >= refills - 100  # looking is slow
        before = Counted.skipped() if looked_at else 0
        frontier.residents.fronts.refill(host)
        if looked_at:
            steps[number] = Counted.skipped() - before
        if number % 100 == 0:
            frontier.flush()
    first, last = (max(steps[n] for n in range(at, at + 100)) for at in (0, refills - 100))
    assert 0 <= last <= first + 2
    # From the stored head as well: the host leaves, and comes back.
    frontier.flush()
    frontier.residents.leave(host, 10.0)
    before = Counted.skipped()
    frontier.rotation.admit(10.0)
    assert len(frontier.workbench.hosts["a.t"].front) == host_queues._FRONT
    assert Counted.skipped() - before <= 40
    # What it would be without cursor and head.
    before = Counted.skipped()
    store.rows("a.t", b"", 1)
    assert Counted.skipped() - before > 1_000


def test_fronts_are_short_whatever_comes(store: RocksStore) -> None:
    """More important URLs push the others back to the disk, and none is lost or doubled."""
    frontier = Frontier(store, POLICY, now=0.0, wall=WALL, capacity=10)
    for n in range(500):
        frontier.admission.schedule([entry(f"http://a.t/{n}", priority=n % 7)], 0.0)
        assert len(frontier.workbench.hosts["a.t"].front) <= 2 * host_queues._FRONT
    found = []
    fronts, host = frontier.residents.fronts, frontier.workbench.hosts["a.t"]
    while entries := fronts.drain(host, 50):
        found += entries
    assert len(found) == len({e.url for e in found}) == 500
    assert [e.key for e in found] == sorted(e.key for e in found)
    assert store.state(found[0].identity) == PENDING
