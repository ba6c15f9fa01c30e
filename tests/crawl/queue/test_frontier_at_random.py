"""Whatever happens, in whatever order: every URL is pending, leased or over, and over once."""

from __future__ import annotations

import shutil
import tempfile
from itertools import islice
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.virtual_crawl import WALL, copy_of, entry

from scrapy_spider_suite.crawl.queue import admission
from scrapy_spider_suite.crawl.queue.frontier import Frontier, QueueOptions, UrlEdits
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.frontier.entries import BREADTH_FIRST, BestFirst, BottomUp, Flag, Order
from scrapy_spider_suite.frontier.outcomes import BackOff, Event, Pace, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.windows import Window
from scrapy_spider_suite.seen.sieve import Flush
from scrapy_spider_suite.store import host_queues, residency, seen_transfer
from scrapy_spider_suite.store import host_queues as hostrecords
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.host_queues import RESIDENT, DiskWaits, due_time
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_index import ARCHIVE_FOLDER, DROPPED, Archive, SieveIndex
from scrapy_spider_suite.store.seen_index import SIEVE_FOLDER as SIEVE
from scrapy_spider_suite.store.seen_transfer import Archiver, SieveQueue, bring_back, make_archiver

HOSTS = [f"h{n}.t" for n in range(6)]
POLICY = Policy(
    host=Pace(2.0, 1, 3), address=Pace(0.5), retry_times=1,
    back_off=BackOff(base=1.0, longest=60.0, dead_after=3),
)  # fmt: skip
TINY = (
    (host_queues, "_FRONT", 2), (hostrecords, "_CACHE", 2), (residency, "_TURN", 2),
    (residency, "_GOING", 3), (residency, "_COMING", 3),
    (admission, "_BACKLOG", 9), (admission, "_SPILL", 2),
    (seen_transfer, "_LEAST", 2), (seen_transfer, "_PORTION", 3),
)  # fmt: skip
LEAVES = BottomUp(alternating=True)
ARRANGEMENTS: list[tuple[Order, tuple[str, int]]] = [
    (BREADTH_FIRST, ("none", 1)), (BREADTH_FIRST, ("top", 1)), (LEAVES, ("leaf", 2)),
    (BottomUp(), ("top", 3)), (BestFirst(lambda each: hash(each.url[-1:])), ("none", 1)),
]  # fmt: skip
EVENTS = [
    Event.SUCCESS, Event.SUCCESS, Event.CLIENT_ERROR, Event.SERVER_ERROR, Event.UNAVAILABLE,
    Event.TIMEOUT, Event.INTERRUPTED, Event.IGNORED,
]  # fmt: skip


class AtRandom(RuleBasedStateMachine):
    """A frontier with room for two hosts, whose life is in the hands of hypothesis."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = [mock.patch.object(*change) for change in TINY]
        for patch in self.patches:
            patch.start()
        self.folder = Path(tempfile.mkdtemp(prefix="frontier-at-random-"))
        self.now = 0.0
        self.lives = 0
        self.order, self.window = ARRANGEMENTS[0]
        self.store = self.store_in(self.folder / "0")
        self.frontier = self.open(unclean=False)
        self.scheduled: set[str] = set()
        self.over: set[str] = set()
        self.visits: list[list[Fetch]] = []
        self.working: list[Fetch] = []
        self.number = 0

    def store_in(self, folder: Path) -> RocksStore:
        """The store there, with an archive beside it."""
        store = RocksStore(folder / "store", memory=1 << 20)
        store.archive = Archive(folder / ARCHIVE_FOLDER)
        return store

    def open(self, *, unclean: bool) -> Frontier:
        """A frontier on the store as it is."""
        frontier = Frontier(
            self.store, POLICY, now=self.now, wall=WALL + self.now, capacity=2,
            counters=Counters.load(self.store), unclean=unclean,
            options=QueueOptions(self.order, Window.from_settings(*self.window)),
        )  # fmt: skip
        frontier.open(self.now)
        self.archiver = make_archiver(self.store, frontier.counters, frontier.flush)
        return frontier

    @initialize(arrangement=st.sampled_from(ARRANGEMENTS))
    def arrange(self, arrangement: tuple[Order, tuple[str, int]]) -> None:
        """An order and a window, for all the lives of the job."""
        self.order, self.window = arrangement
        self.frontier = self.open(unclean=False)

    def teardown(self) -> None:
        """In the end everything that was scheduled is over."""
        try:
            self.finish_everything()
        finally:
            self.store.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            for patch in self.patches:
                patch.stop()

    def finish_everything(self) -> None:
        """Let every page that is left succeed."""
        self.visits, unfinished = [], self.visits
        for visit in unfinished:
            self.end_of(visit, Event.SUCCESS, None)
        for _ in range(5_000):
            self.sift_all()
            if not self.frontier.pending:
                break
            self.resolve()
            while fetches := self.frontier.leases.acquire(self.now):
                for fetch in fetches:
                    self.take(fetch)
                self.end_of(fetches, Event.SUCCESS, None)
            for fetch in list(self.working):
                self.settle(fetch)
            self.now += 1.0
            self.frontier.tick(self.now)
        assert self.frontier.pending == 0
        assert self.over == self.scheduled
        self.frontier.flush()
        self.check()

    def sift_all(self) -> None:
        """There is no sieve here."""

    def check(self) -> None:
        """The rows, the states and the counters on disk agree."""
        with StoreReader(self.store._path.parent) as reader:
            assert list(reader.check()) == []

    @property
    def leased(self) -> list[Fetch]:
        """Everything that is out."""
        return [fetch for visit in self.visits for fetch in visit] + self.working

    @invariant()
    def the_counters_are_right(self) -> None:
        """Nothing is counted twice, or not at all."""
        frontier = self.frontier
        assert frontier.pending == len(self.scheduled - self.over)
        assert frontier.statistics().leased == len(self.leased)
        assert frontier.counters.done + frontier.counters.failed == len(self.over)

    @invariant()
    def the_hosts_on_disk_are_counted(self) -> None:
        """By reason, and the minute of the first, as if they were counted anew."""
        residents = self.frontier.residents
        due = [(due_time(when), host) for when, host in self.store.due(None) if when < RESIDENT]
        anew = DiskWaits(MemoryStore())
        for when, host in due:
            anew.change(when, residents.records.get(host), 1)
        wall = WALL + self.now
        assert set(residents.waiting.counts.counts(wall)) == set(anew.counts(wall))

    # What happens

    @rule(host=st.sampled_from(HOSTS), count=st.integers(1, 6), priority=st.integers(-1, 1))
    def schedule(self, host: str, count: int, priority: int) -> None:
        """New URLs, some of them for a second time."""
        urls = [f"http://{host}/{self.number + n}" for n in range(count)]
        self.number += count
        known = sorted(self.scheduled)[:1]
        entries = [entry(url, priority=priority) for url in urls + known]
        self.frontier.admission.schedule(entries, self.now)
        self.expect(urls)

    def expect(self, urls: list[str]) -> None:
        """New URLs are pending, or have failed already because their host was given up."""
        self.scheduled.update(urls)
        self.over.update(url for url in urls if self.state_of(url) is State.FAILED)

    def state_of(self, url: str) -> State:
        """What the store says."""
        data = self.store.state(entry(url).identity)
        assert data is not None, f"{url} was lost"
        return UrlState.from_bytes(data).state

    def note_what_failed(self) -> None:
        """Giving up a host is the only way in which URLs end without having been out."""
        out = {fetch.entry.url for fetch in self.leased}
        for url in self.scheduled - self.over - out:
            if self.state_of(url) is State.FAILED:
                self.over.add(url)

    @rule()
    def resolve(self) -> None:
        """Names are looked up; two hosts share each address."""
        for host in self.frontier.residents.unresolved.due(self.now, 10):
            address = f"10.0.0.{int(host.key[1:-2]) // 2}"
            self.frontier.set_address(host, address, address, self.now + 20.0, self.now)

    @rule()
    def acquire(self) -> None:
        """A visit begins; nobody is out twice, and nobody comes back from the dead."""
        fetches = self.frontier.leases.acquire(self.now)
        for fetch in fetches:
            self.take(fetch)
        if fetches:
            self.visits.append(fetches)
        self.note_what_failed()

    def take(self, fetch: Fetch) -> None:
        """Look at a fetch that was handed out."""
        url = fetch.entry.url
        assert url in self.scheduled
        assert url not in self.over
        assert url not in {other.entry.url for other in self.leased if other is not fetch}

    @precondition(lambda self: self.visits)
    @rule(data=st.data(), event=st.sampled_from(EVENTS))
    def fetch(self, data: st.DataObject, event: Event) -> None:
        """A visit ends: its URLs were fetched, one of them with trouble."""
        visit = data.draw(st.sampled_from(self.visits))
        self.visits.remove(visit)
        wish = data.draw(st.sampled_from([None, None, 5.0, 100.0]))
        self.end_of(visit, event, wish)

    def end_of(self, visit: list[Fetch], event: Event, retry_after: float | None) -> None:
        """Transfers of a whole visit, the last with *event*."""
        for fetch in visit:
            fetch.event = event if fetch is visit[-1] else Event.SUCCESS
        last = visit[-1]
        for fetch in visit[:-1]:
            fetch.visit = None
        if last.visit is not None:
            bench = self.frontier.workbench
            bench.begin(last.visit.host, last.visit.address, self.now, visit=True)
            bench.end(last.visit.host, last.visit.address, self.now, visit=True)
        self.working += visit
        self.frontier.leases.release(last, self.now, retry_after)
        self.note_what_failed()

    @precondition(lambda self: self.visits)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        """A visit comes back unused."""
        visit = data.draw(st.sampled_from(self.visits))
        self.visits.remove(visit)
        for fetch in visit[:-1]:
            fetch.visit = None
        for fetch in visit:
            self.frontier.commit.put_back(fetch, self.now)
        self.note_what_failed()

    @precondition(lambda self: self.working)
    @rule(data=st.data(), links=st.integers(0, 5))
    def work(self, data: st.DataObject, links: int) -> None:
        """A page has been worked on, and brought links."""
        fetch = data.draw(st.sampled_from(self.working))
        host = data.draw(st.sampled_from(HOSTS))
        brought = [f"http://{host}/{self.number + n}" for n in range(links)]
        self.number += links
        if fetch.event.outcome.state is State.DONE:
            if data.draw(st.booleans()):
                fetch.links = brought
            else:
                children = [entry(url, flags=Flag.USER) for url in brought]
                self.frontier.admission.adopt(fetch, children, self.now)
        self.settle(fetch)
        if fetch.event.outcome.state is State.DONE:
            self.expect(brought)
        self.note_what_failed()

    def settle(self, fetch: Fetch) -> None:
        """Commit a page."""
        self.working.remove(fetch)
        fetch.status = 200
        self.frontier.commit.settle([fetch], self.now)
        if self.state_of(fetch.entry.url) is not State.PENDING:
            self.over.add(fetch.entry.url)

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0, 100.0]))
    def tick(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.frontier.tick(self.now)
        self.note_what_failed()

    @rule()
    def archive(self) -> None:
        """What is done moves out of the database."""
        assert isinstance(self.archiver, Archiver)
        self.archiver.step()

    @rule(host=st.sampled_from(HOSTS))
    def drop(self, host: str) -> None:
        """A person wants nothing to be known of the host's pages."""
        done = [url for url in self.over if url.startswith(f"http://{host}/")]
        rework = UrlEdits(self.frontier, self.store)
        assert self.store.archive is not None
        assert self.store.archive.lock()
        for _ in bring_back(self.store, host):
            self.archive()
            self.frontier.flush()
        after = b""
        while rows := rework.urls(host, after, 3):
            after = rows[-1][0]
            for name, state in rows:
                if state.state is not State.PENDING:
                    rework.forget_state(host, name, state)
        self.store.archive.unlock()
        gone = {url for url in done if self.store.state(entry(url).identity) is None}
        self.over -= gone
        self.scheduled -= gone

    @rule(host=st.sampled_from(HOSTS))
    def give_up(self, host: str) -> None:
        """A person, or the name server, says that a host is no more."""
        if self.number % 5 == 0:
            state = self.frontier.workbench.hosts.get(host)
            if state is not None:
                self.frontier.health.no_address(state, Event.NO_SUCH_HOST, self.now)
            self.note_what_failed()

    @rule(kill=st.booleans())
    def restart(self, kill: bool) -> None:
        """The process ends, cleanly or not, after everything was written; what was out is not."""
        self.lives += 1
        folder = self.folder / str(self.lives)
        if kill:
            self.frontier.flush()
        else:
            self.frontier.close()
        self.check()
        self.copy_to(folder)
        self.store.close()
        self.store = self.store_in(folder)
        self.visits, self.working = [], []
        self.frontier = self.open(unclean=kill)


    def copy_to(self, folder: Path) -> None:
        """What a kill would leave."""
        copy_of(self.store._path, folder / "store")
        copy_of(self.store._path.parent / ARCHIVE_FOLDER, folder / ARCHIVE_FOLDER)


TestAtRandom = AtRandom.TestCase
TestAtRandom.settings = settings(max_examples=10, stateful_step_count=30, deadline=None)


class SiftedAtRandom(AtRandom):
    """The same with a sieve: what links lead to waits, until a flush has decided about it."""

    def store_in(self, folder: Path) -> RocksStore:
        """A sieve beside it, too."""
        store = super().store_in(folder)
        store.sieve = SieveIndex(folder / SIEVE, store.kv(DROPPED), capacity=8)
        return store

    def open(self, *, unclean: bool) -> Frontier:
        """A frontier whose links go through the sieve."""
        frontier = Frontier(
            self.store, POLICY, now=self.now, wall=WALL + self.now, capacity=2,
            counters=Counters.load(self.store), unclean=unclean,
            options=QueueOptions(self.order, Window.from_settings(*self.window), sift=True),
        )  # fmt: skip
        frontier.open(self.now)
        self.archiver = make_archiver(self.store, frontier.counters, frontier.flush)
        self.flush: Flush | None = None
        return frontier

    @property
    def sifter(self) -> SieveQueue:
        """What asks the sieve."""
        assert self.frontier.states.sieve_queue is not None
        return self.frontier.states.sieve_queue

    def expect(self, urls: list[str]) -> None:
        """New URLs wait, or are pending."""
        self.scheduled.update(urls)
        self.note_what_failed()

    def state_of(self, url: str) -> State:
        """What waits is pending; what the sieve alone knows is done, if it was fetched."""
        data = self.store.state(entry(url).identity, sieved=False)
        if data is not None:
            return UrlState.from_bytes(data).state
        return State.DONE if url in self.over else State.PENDING

    def settle(self, fetch: Fetch) -> None:
        """Commit a page; it may need no row then."""
        identity = fetch.entry.identity
        super().settle(fetch)
        if self.store.state(identity, sieved=False) is None:
            assert self.store.state(identity) is not None, f"{fetch.entry.url} was lost"
            self.over.add(fetch.entry.url)

    @invariant()
    def the_counters_are_right(self) -> None:
        """What is neither pending nor over waits for the sieve."""
        self.note_what_failed()
        frontier = self.frontier
        left = self.scheduled - self.over
        state = self.store.state
        waiting = {url for url in left if state(entry(url).identity, sieved=False) is None}
        assert frontier.pending == len(left - waiting)
        assert frontier.states.in_sieve >= len(waiting)
        assert frontier.counters.done + frontier.counters.failed == len(self.over)

    @rule(host=st.sampled_from(HOSTS), count=st.integers(1, 6), priority=st.integers(-1, 1))
    def schedule(self, host: str, count: int, priority: int) -> None:
        """Links of a page, some of them for a second time; seeds as before."""
        urls = [f"http://{host}/{self.number + n}" for n in range(count)]
        self.number += count
        again = sorted(self.scheduled)[:2]
        links = [
            entry(url, priority=priority, referrer="http://h0.t/" * bool(n % 3))
            for n, url in enumerate(urls + again)
        ]
        self.frontier.admission.schedule(links, self.now)
        self.expect(urls)

    @rule(steps=st.integers(0, 9))
    def flush_the_sieve(self, steps: int) -> None:
        """A flush begins, or goes on, and perhaps decides."""
        self.frontier.flush()
        self.flush = self.sifter.begin() or self.flush
        for _ in range(steps):
            if self.flush is None or not self.flush.step():
                break

    @rule(rows=st.integers(1, 9))
    def sift(self, rows: int) -> None:
        """Some of what it has decided about is handed out."""
        for _ in islice(self.frontier.admission.sift(self.now), rows):
            pass
        self.note_what_failed()

    @rule(host=st.sampled_from(HOSTS))
    def drop(self, host: str) -> None:
        """Nothing is known of the host's pages, nor of links to those that were over."""
        assert self.store.sieve is not None
        over = {url for url in self.over if url.startswith(f"http://{host}/")}
        for _ in self.sifter.forget(host, over.__contains__, 2):
            self.frontier.flush()
        self.store.sieve.forget_host(host)
        super().drop(host)

    def sift_all(self) -> None:
        """Flush until nothing waits any more."""
        while self.frontier.states.in_sieve:
            self.flush_the_sieve(1_000)
            self.sift(1_000)

    def copy_to(self, folder: Path) -> None:
        """The files of the sieve, too."""
        super().copy_to(folder)
        copy_of(self.store._path.parent / SIEVE, folder / SIEVE)


TestSiftedAtRandom = SiftedAtRandom.TestCase
TestSiftedAtRandom.settings = settings(max_examples=10, stateful_step_count=30, deadline=None)
