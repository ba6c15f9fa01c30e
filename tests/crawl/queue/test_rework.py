"""What an operator changes leaves the store true, whatever the crawl does meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.virtual_crawl import WALL, entry

from scrapy_spider_suite.crawl.queue.frontier import FIRST, Frontier, UrlEdits
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.frontier.entries import Flag
from scrapy_spider_suite.frontier.outcomes import BackOff, Event, Pace, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore

HOSTS = [f"h{n}.test" for n in range(5)]
POLICY = Policy(host=Pace(1.0), address=Pace(0.0, 0), back_off=BackOff(1.0, 2.0, 1_000))


class Bench:
    """A frontier with room for few hosts, and what an operator does to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = RocksStore(folder / "store", memory=16 << 20)
        self.now = 0.0
        self.frontier = Frontier(self.store, POLICY, now=0.0, wall=WALL, capacity=2)
        self.rework = UrlEdits(self.frontier, self.store)
        self.out: list[Fetch] = []

    def urls(self, host: str) -> dict[str, State]:
        """The URLs of a host, and their states."""
        return {
            name.decode(): state.state for name, state in self.rework.urls(host, b"", 1_000)
        }

    def add(self, host: str, number: int) -> None:
        """New URLs."""
        self.frontier.admission.schedule(
            [entry(f"http://{host}/{n}") for n in range(number)], self.now
        )

    def fetch(self, event: Event) -> None:
        """Fetch what may be leased; bring home what was out before."""
        self.now += 1.0
        for fetch in self.out:
            fetch.event = event
            self.frontier.leases.release(fetch, self.now)
            self.frontier.commit.settle([fetch], self.now)
        self.out = []
        for host in list(self.frontier.unresolved_hosts(self.now, 10)):
            self.frontier.set_address(host, "192.0.2.1", "192.0.2.1", 1e9, self.now)
        while fetches := self.frontier.leases.acquire(self.now):
            for fetch in fetches:
                assert fetch.visit is not None
                visit = fetch.visit
                self.frontier.workbench.begin(visit.host, visit.address, self.now, visit=True)
                self.frontier.workbench.end(visit.host, visit.address, self.now, visit=True)
            self.out += fetches
        self.frontier.tick(self.now)

    def again(self, host: str, *, first: bool) -> None:
        """Everything of a host that is over."""
        for name, state in self.rework.urls(host, b"", 1_000):
            if state.state is not State.PENDING:
                url = entry(name.decode(), priority=FIRST if first else 0)
                self.rework.requeue(url, state, self.now)

    def fail(self, host: str, *, forget: bool) -> None:
        """Everything of a host that is queued and not out."""
        out = {fetch.entry.key for fetch in self.out}
        for each in self.rework.pending(host, b"", 1_000):
            if forget:
                gone = self.rework.forget(each)
            else:
                gone = self.rework.fail(each, Event.BARRED, self.now)
            assert gone is (each.key not in out)

    def drop(self, host: str) -> None:
        """All of a host, if nothing of it is out."""
        self.fail(host, forget=True)
        for name, state in self.rework.urls(host, b"", 1_000):
            if state.state is not State.PENDING:
                self.rework.forget_state(host, name, state)
        gone = self.rework.forget_host(host, self.now)
        assert gone is not any(fetch.entry.host == host for fetch in self.out)
        if gone:
            assert self.store.record(host) is None
            assert self.urls(host) == {}

    def check(self) -> list[str]:
        """What does not agree."""
        self.frontier.close()
        self.store.close()
        with StoreReader(self.folder) as reader:
            return list(reader.check())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """One bench."""
    return Bench(tmp_path)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "fetch", "break", "again", "first", "fail", "forget", "drop"]),
        st.sampled_from(HOSTS),
        st.integers(1, 40),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=20)
@given(steps=STEPS)
def test_at_random(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    """Queues, states, hosts and counters agree, and what is left can be fetched to its end."""
    bench = Bench(tmp_path_factory.mktemp("bench"))
    for what, host, number in steps:
        if what == "add":
            bench.add(host, number)
        elif what in ("fetch", "break"):
            for _ in range(number % 5 + 1):
                bench.fetch(Event.SUCCESS if what == "fetch" else Event.CLIENT_ERROR)
        elif what in ("again", "first"):
            bench.again(host, first=what == "first")
        elif what in ("fail", "forget"):
            bench.fail(host, forget=what == "forget")
        else:
            bench.drop(host)
    turns = 0
    while bench.frontier.pending:
        bench.fetch(Event.SUCCESS)
        turns += 1
        assert turns < 5_000
    assert bench.check() == []


def test_first_comes_first_of_a_host_on_disk_too(bench: Bench) -> None:
    """Its queue is read from what comes first, not from where it was left."""
    bench.add(HOSTS[0], 60)
    while sum(state is State.DONE for state in bench.urls(HOSTS[0]).values()) < 30:
        bench.fetch(Event.SUCCESS)
    bench.add(HOSTS[1], 5)
    bench.again(HOSTS[0], first=True)
    fetched: list[str] = []
    while len(fetched) < 10:
        bench.fetch(Event.SUCCESS)
        fetched += [x.entry.url for x in bench.out if x.entry.priority == FIRST]
    assert bench.check() == []


def test_a_host_that_was_given_up_is_asked_again(bench: Bench) -> None:
    """In memory and on disk, with what was still to be failed."""
    bench.add(HOSTS[0], 10)
    for host in list(bench.frontier.unresolved_hosts(0.0, 10)):
        bench.frontier.health.no_address(host, Event.NO_SUCH_HOST, 0.0)
    assert set(bench.urls(HOSTS[0]).values()) == {State.FAILED}
    assert bench.rework.revive_host(HOSTS[0])
    assert not bench.rework.revive_host(HOSTS[0])
    bench.again(HOSTS[0], first=False)
    for _ in range(15):
        bench.fetch(Event.SUCCESS)
    assert set(bench.urls(HOSTS[0]).values()) == {State.DONE}
    assert bench.check() == []


def test_what_cannot_be_stored_is_let_go_with_its_host(bench: Bench) -> None:
    """The page that led there is done then: nothing more will come of it."""
    bench.add(HOSTS[0], 1)
    bench.fetch(Event.SUCCESS)
    [page] = bench.out
    volatile = entry(f"http://{HOSTS[1]}/", flags=Flag.VOLATILE)
    bench.frontier.admission.adopt(page, [volatile], bench.now)
    bench.out = []
    page.event = Event.SUCCESS
    bench.frontier.leases.release(page, bench.now)
    bench.frontier.commit.settle([page], bench.now)
    assert bench.frontier.pending == 2
    bench.drop(HOSTS[1])
    assert bench.frontier.pending == 0
    assert bench.urls(HOSTS[0]) == {f"http://{HOSTS[0]}/0": State.DONE}
    assert bench.check() == []
