"""Plans in the frontier: over any kill each page is pending, or planned, as a plain dict says."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.virtual_crawl import WALL, entry

from scrapy_spider_suite.crawl.queue.frontier import BEFORE_NEW, Frontier, QueueOptions
from scrapy_spider_suite.crawl.queue.leases import Fetch, PageVersion
from scrapy_spider_suite.frontier.entries import Flag
from scrapy_spider_suite.frontier.outcomes import BackOff, Event, Pace, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.revisit_rules import Mode, RevisitPolicy, Validators
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.revisit_plans import MISSES_MAX
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_index import DROPPED, Archive, SieveIndex

POLICY = Policy(host=Pace(1.0), address=Pace(0.0, 0), back_off=BackOff(1.0, 2.0, 1_000))
EVERY = 100.0
FIXED = RevisitPolicy(Mode.FIXED, seconds=EVERY)
HOSTS = ("a.test", "b.test")
NONE = Validators()


class Job:
    """A frontier of few pages, on a store that may be killed, and the model beside it.

    *model*: by URL, when its page is due, None while it is pending; and its misses in a row.
    """

    def __init__(self, folder: Path, seen: str = "plain") -> None:
        self.folder, self.seen = folder, seen
        self.now = 0.0
        self.out: list[Fetch] = []
        self.model: dict[str, tuple[float | None, int]] = {}
        self.open()
        self.durable = deepcopy(self.model)

    def open(self) -> None:
        """Open the store, as the next run does."""
        self.store = RocksStore(self.folder / "store", memory=16 << 20)
        if self.seen == "trie":
            self.store.archive = Archive(self.folder / "seen")
        elif self.seen == "sieve":
            dropped = self.store.kv(DROPPED)
            self.store.sieve = SieveIndex(self.folder / "sieve", dropped, capacity=1024)
        self.frontier = Frontier(
            self.store, POLICY, now=self.now, wall=WALL + self.now, capacity=1_000,
            counters=Counters.load(self.store), options=QueueOptions(sift=self.seen == "sieve"),
        )  # fmt: skip
        self.frontier.commit.planner.revisits.use(FIXED)
        self.out = []

    def flush(self) -> None:
        """Make everything durable."""
        self.frontier.flush()
        self.durable = deepcopy(self.model)

    def kill(self) -> None:
        """End at once."""
        self.store._release()
        if self.store.archive is not None:
            self.store.archive.urls.close()
        if self.store.sieve is not None:
            self.store.sieve.sieve.close()
        self.model = deepcopy(self.durable)
        self.open()

    def add(self, number: int) -> None:
        """A link to a page, new or not."""
        url = f"http://{HOSTS[number % 2]}/{number}"
        if self.state(url) is None:
            self.model[url] = (None, 0)
        self.frontier.admission.schedule([entry(url, flags=Flag.START)], self.now)

    def take(self, limit: int, *, idle: bool) -> None:
        """What is due becomes pending."""
        wall, planner = WALL + self.now, self.frontier.commit.planner
        due = sorted((when, url) for url, (when, _) in self.model.items()
                     if when is not None and when <= wall)  # fmt: skip
        before = {url for url, (when, _) in self.model.items() if when is None}
        taken = (planner.renew_idle if idle else planner.renew_due)(limit, self.now)
        pending = {url for url in self.model if self.state(url) is State.PENDING}
        new = pending - before
        assert len(new) == taken
        if idle:
            assert taken <= limit
            busy = {url.split("/")[2] for url in before}
            assert all(url.split("/")[2] not in busy for url in new)
        else:
            assert taken == min(limit, len(due))
            # Of equal times any may come first.
            times = sorted(self.model[url][0] or 0.0 for url in new)
            assert times == [when for when, _ in due[:limit]]
        for url in new:
            self.model[url] = (None, self.model[url][1])

    def state(self, url: str) -> State | None:
        """Of a URL, by its row."""
        data = self.store.state(entry(url).identity)
        return None if data is None else UrlState.from_bytes(data).state

    def fetch(self) -> None:
        """Fetch what may be leased."""
        self.now += 1.0
        for host in list(self.frontier.unresolved_hosts(self.now, 10)):
            self.frontier.set_address(host, "192.0.2.1", "192.0.2.1", 1e9, self.now)
        while fetches := self.frontier.leases.acquire(self.now):
            for fetch in fetches:
                self.frontier.commit.planner.begin(fetch)
                planned = self.frontier.commit.planner.revisits.get(fetch.entry.identity)
                assert fetch.plan == planned
                self.out.append(fetch)

    def end(self, event: Event, digest: int) -> None:
        """One of those that are out has ended so."""
        if not self.out:
            return
        fetch, wall = self.out.pop(0), WALL + self.now
        url, fetch.event = fetch.entry.url, event
        if event is Event.SUCCESS:
            unchanged = fetch.plan is not None and digest == 0
            fetch.found = PageVersion(wall, b"%d" % digest, NONE, unchanged=unchanged)
            fetch.status = 200
        self.frontier.leases.release(fetch, self.now)
        self.frontier.commit.settle([fetch], self.now)
        misses = self.model[url][1]
        if event is Event.SUCCESS:
            self.model[url] = (wall + EVERY, 0)
        elif fetch.plan is None or misses + 1 == MISSES_MAX:
            del self.model[url]
        else:
            self.model[url] = (wall + EVERY, misses + 1)

    def check(self) -> None:
        """The plans are those of the model, and everything in the store agrees."""
        revisits = self.frontier.commit.planner.revisits
        waiting = {self.url(key): when for when, key in revisits.indexed()}
        assert waiting == {url: when for url, (when, _) in self.model.items() if when is not None}
        planned = {self.url(key): plan.misses for key, plan in revisits.planned()}
        assert len(revisits) == len(planned)
        assert {url: self.model[url][1] for url in planned} == planned
        for url, (when, _) in self.model.items():
            assert (self.state(url) is State.PENDING) is (when is None), url
        assert self.frontier.counters.pending == sum(w is None for w, _ in self.model.values())
        first = min((when for when in waiting.values()), default=None)
        assert revisits.next_due() == first

    @staticmethod
    def url(key: bytes) -> str:
        """Of a state key."""
        return key[key.index(b"\0", 2) + 1 :].decode()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9)),
        st.tuples(st.sampled_from(["take", "idle"]), st.integers(1, 5)),
        st.tuples(st.just("wait"), st.sampled_from([1, 60, 120])),
        st.tuples(st.just("fetch"), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.sampled_from(["flush", "kill"]), st.just(0)),
    ),
    min_size=20, max_size=60,
)  # fmt: skip


@settings(max_examples=10)
@given(steps, st.sampled_from(["plain", "trie", "sieve"]))
def test_equal_to_a_dict_over_kills(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], seen: str
) -> None:
    """Whatever happens, and whenever the process is killed."""
    job = Job(tmp_path_factory.mktemp("job"), seen)
    for what, number in steps:
        if what == "add":
            job.add(number)
        elif what in ("take", "idle"):
            job.take(number, idle=what == "idle")
        elif what == "wait":
            job.now += number
        elif what == "fetch":
            job.fetch()
        elif what == "end":
            event = Event.CLIENT_ERROR if number == 5 else Event.SUCCESS
            job.end(event, number)
        else:
            getattr(job, what)()
        job.check()
    job.flush()
    job.store.close()
    with StoreReader(job.folder) as reader:
        assert list(reader.check()) == []


def test_no_page_of_a_busy_host_is_taken_between_its_new_ones(tmp_path: Path) -> None:
    """`take_idle` looks on, at what else is due; with `take` one comes before them."""
    job = Job(tmp_path)
    for number in range(8):
        job.add(number)
    for _ in range(8):
        job.fetch()
        job.end(Event.SUCCESS, 1)
    job.now += 2 * EVERY
    entries = [entry(f"http://{HOSTS[0]}/new/{n}") for n in range(5)]
    job.frontier.admission.schedule(entries, job.now)
    planner = job.frontier.commit.planner
    assert planner.renew_idle(100, job.now) == 4
    assert planner.renew_idle(100, job.now) == 0
    assert planner.renew_due(1, job.now) == 1
    job.fetch()
    out = {fetch.entry.host: fetch.entry for fetch in job.out}
    assert out[HOSTS[0]].priority == BEFORE_NEW
    job.store.close()


def test_a_host_that_was_given_up_is_asked_again(tmp_path: Path) -> None:
    """When a page of it is due: it may be back."""
    job = Job(tmp_path)
    job.add(0)
    job.fetch()
    job.end(Event.SUCCESS, 1)
    record = job.frontier.residents.records.touch(HOSTS[0])
    record.dead = Event.HOST_DEAD.value
    job.frontier.counters.dead_hosts += 1
    job.now += EVERY
    job.take(1, idle=False)
    assert job.frontier.counters.dead_hosts == 0
    job.fetch()
    assert len(job.out) == 1
    job.store.close()
