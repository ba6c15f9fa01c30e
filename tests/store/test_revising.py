"""A policy that changes while a crawl runs: paces, blocks and hours, in memory and on disk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.virtual_crawl import WALL, Crawl, Visited, Watch, Web, entry

from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.crawl.queue.leases import _REFUSALS
from scrapy_spider_suite.frontier import workbench
from scrapy_spider_suite.frontier.outcomes import Event, Pace
from scrapy_spider_suite.frontier.policy import Block, Exclusion, Overrides, Policy, Rule
from scrapy_spider_suite.store import residency
from scrapy_spider_suite.store.host_queues import EXCLUDED_BAND, WaitingList
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.job_reader import wait_reason
from scrapy_spider_suite.store.rocks_store import RocksStore, Store
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.urls.host_patterns import HostPattern

MEMORY = 4 << 20


def rules(*lines: str) -> Overrides:
    """The rules of some lines."""
    return Overrides.parse(lines, "rules")


def web_of(hosts: int, addresses: int = 1) -> Web:
    """Hosts on a few addresses."""
    return Web({f"h{n}.t": f"10.0.{n % addresses}.1" for n in range(hosts)})


def pages(hosts: int, each: int) -> list[str]:
    """The URLs of so many pages of each of so many hosts."""
    return [f"http://h{n}.t/{page}" for page in range(each) for n in range(hosts)]


def polite(**fields: Any) -> Policy:
    """A policy whose addresses do not slow anything down."""
    return Policy(**{"host": Pace(4.0), "address": Pace(0.0)} | fields)


def of(crawl: Crawl, host: str) -> list[Visited]:
    """The transfers to a host."""
    return [fetch for fetch in crawl.fetches if fetch.host == host]


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store of either kind."""
    if request.param == "memory":
        yield MemoryStore()
        return
    on_disk = RocksStore(tmp_path / "store", memory=MEMORY)
    yield on_disk
    on_disk.close()


# Paces


def test_a_longer_delay_holds_at_once(store: Store) -> None:
    """For a host that would have been visited now: it counts from the end of the last visit."""
    policy = polite()
    crawl = Crawl(store, web_of(1), policy)
    crawl.seed(*pages(1, 3))
    crawl.run(fetches=1)
    policy.update(overrides=rules(".t delay=60"))
    crawl.run(fetches=2)
    assert crawl.fetches[1].start == pytest.approx(crawl.fetches[0].end + 60)


def test_a_shorter_delay_ends_a_wait(store: Store) -> None:
    """Also one that would go on for hours, but not one for which there is another reason."""
    policy = polite(overrides=rules(".t delay=7200"))
    crawl = Crawl(store, web_of(2, 2), policy)
    crawl.seed(*pages(2, 2))
    crawl.run(fetches=2)
    host = crawl.frontier.workbench.hosts["h1.t"]
    crawl.frontier.workbench.postpone(host, crawl.now + 9_000, "Retry-After")
    policy.update(overrides=rules(".t delay=5"))
    crawl.run(fetches=3)
    first, again = of(crawl, "h0.t")
    assert first.end + 5 <= again.start < first.end + 7
    crawl.run(fetches=4)
    assert of(crawl, "h1.t")[1].start >= 9_000


def test_an_address_goes_by_its_new_delay(store: Store) -> None:
    """Longer at once, shorter within seconds, for all hosts that live there."""
    policy = polite()
    crawl = Crawl(store, web_of(50), policy)
    crawl.seed(*pages(50, 1))
    crawl.run(fetches=10)
    policy.update(overrides=rules("10.0.0.0/16 delay=100"))
    crawl.run(fetches=12)
    one, two, three = crawl.fetches[9:12]
    assert two.start >= one.end + 100
    assert three.start >= two.end + 100
    policy.update(overrides=rules("10.0.0.0/16 delay=0.5"))
    crawl.run()
    assert crawl.fetches[12].start < three.end + 3
    assert len(crawl.fetches) == 50


def test_more_at_a_time_begins_with_a_pause(store: Store) -> None:
    """When what is out began is not known any more: the delay between starts runs from now."""
    policy = polite(address=Pace(0.0, 0))
    crawl = Crawl(store, web_of(1), policy)
    crawl.seed(*pages(1, 3))
    crawl._resolve()
    assert len(crawl.frontier.leases.acquire(0.0)) == 1
    policy.update(overrides=rules(".t concurrency=2"))
    crawl.frontier.policy_update.step(10.0)
    assert crawl.frontier.leases.wait(10.0) == 4.0
    assert len(crawl.frontier.leases.acquire(14.0)) == 1
    assert crawl.frontier.leases.acquire(18.0) == []


def test_a_visit_that_does_not_go_costs_no_delay(store: Store) -> None:
    """On an address that allows several, many blocked hosts do not slow down the others."""
    policy = polite(overrides=rules("10.0.0.0/16 delay=1 concurrency=4"))
    crawl = Crawl(store, web_of(100), policy)
    crawl.seed(*pages(100, 1))
    crawl._resolve()
    policy.update(overrides=rules(
        "10.0.0.0/16 delay=1 concurrency=4", ".t blocked=yes", "h99.t blocked=no"
    ))  # fmt: skip
    assert [lease.entry.host for lease in crawl.frontier.leases.acquire(0.0)] == ["h99.t"]


# Bars


def test_a_blocked_host_waits_until_the_block_is_lifted(store: Store) -> None:
    """By name or by address; nothing is lost, the others go on, and the reason is known."""
    policy = polite()
    crawl = Crawl(store, web_of(4, 2), policy)
    crawl.seed(*pages(4, 3))
    crawl.run(fetches=4)
    policy.update(overrides=rules("h0.t blocked=yes", "10.0.1.0/24 blocked=yes reason=asked"))
    crawl.run(until=crawl.now + 1_000)
    assert {host: len(of(crawl, host)) for host in crawl.web.addresses} == {
        "h0.t": 1, "h1.t": 1, "h2.t": 3, "h3.t": 1
    }  # fmt: skip
    hosts = crawl.frontier.workbench.hosts
    assert str(hosts["h3.t"].exclusion) == "blocked (10.0.1.0/24, rules, line 2): asked"
    record = store.record("h3.t")
    assert record is not None
    assert wait_reason(record, WALL + crawl.now) == str(hosts["h3.t"].exclusion)
    assert crawl.frontier.leases.next_visit_in(crawl.now) == math.inf
    began = crawl.now
    policy.update(overrides=Overrides())
    crawl.run(until=began + 1)
    record = store.record("h3.t")
    assert record is not None
    assert not record.why
    crawl.run()
    assert len(crawl.fetches) == 12
    assert min(f.start for f in crawl.fetches if f.start > began) < began + 3


def test_a_block_that_ends(store: Store) -> None:
    """An operator's: its end is known, and needs nobody to say so."""
    policy = polite()
    crawl = Crawl(store, web_of(1), policy)
    policy.blocks.put(HostPattern.parse("10.0.0.1"), Block(Rule("10.0.0.1", "ops"), "", WALL + 500))
    policy.revision += 1
    crawl.seed(*pages(1, 1))
    crawl.run(until=100.0)
    assert crawl.frontier.leases.next_visit_in(crawl.now) == pytest.approx(400, abs=1)
    crawl.run()
    assert crawl.fetches[0].start == pytest.approx(500, abs=1)


def test_outside_its_hours_a_host_waits(store: Store) -> None:
    """Without an address even, so that its name is not asked for either."""
    midnight = WALL // 86_400 * 86_400
    policy = polite(overrides=rules("h0.t hours=22-6"))
    crawl = Crawl(store, web_of(2), policy, wall=midnight + 12 * 3_600)
    crawl.seed(*pages(2, 2))
    crawl.run(until=100.0)
    assert len(crawl.fetches) == 2
    assert "h0.t" not in crawl._asked
    crawl._resolve()
    wait = crawl.frontier.leases.next_visit_in(crawl.now)
    assert wait == pytest.approx(10 * 3_600 - crawl.now)
    crawl.run()
    assert of(crawl, "h0.t")[0].start == pytest.approx(10 * 3_600, abs=1)


def test_hosts_on_disk_wait_for_a_rule_and_come_back(tmp_path: Path) -> None:
    """More than fit into memory; after a restart under other rules too."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    policy = polite(overrides=rules("10.0.0.0/16 blocked=yes", ".t delay=1"))
    crawl = Crawl(store, web_of(300, 200), policy, capacity=20)
    crawl.seed(*pages(300, 2))
    crawl.run(until=2_000.0)
    assert crawl.fetches == []
    # All but a few have their turn, and are found to be barred; then they wait apart.
    barred = [due for due, _ in store.due(None) if EXCLUDED_BAND <= due < 1e13]
    assert len(barred) > 250
    wait = crawl.frontier.leases.next_visit_in(crawl.now)
    assert wait in (math.inf, pytest.approx(4e12, rel=1e-2))
    # Some are let go while it runs, the others by the next run.
    policy.update(overrides=rules("10.0.128.0/17 blocked=yes", ".t delay=1"))
    crawl.run(until=crawl.now + 500)
    assert {fetch.host for fetch in crawl.fetches} == {
        f"h{n}.t" for n in range(300) if n % 200 < 128
    }
    crawl.frontier.close()
    assert list(_check(store)) == []
    again = Crawl(
        store, web_of(300, 200), polite(overrides=rules(".t delay=1")), capacity=20, resume=True,
        wall=WALL + crawl.now,
    )  # fmt: skip
    again.run()
    assert sorted({*crawl.urls, *again.urls}) == sorted(pages(300, 2))
    store.close()


def _check(store: RocksStore) -> Iterator[str]:
    """Rows of waiting hosts that do not agree with the hosts' records."""
    for due, key in store.due(None):
        record = store.record(key)
        if record is None or record.due != due:
            yield key


def test_a_host_that_was_blocked_while_it_had_nothing(tmp_path: Path) -> None:
    """What it is given later does not wait for a rule that is gone."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    policy = polite(overrides=rules(".t blocked=yes", "h1.t delay=9"))
    waiting = WaitingList(store, policy)
    records = {key: HostRecord() for key in ("h0.t", "h1.t")}
    for record in records.values():
        record.next_fetch, record.why = 4e12, "blocked (.t, rules, line 1)"
    waiting.add("h0.t", records["h0.t"], WALL)
    policy.update(overrides=rules("h1.t delay=9"))
    waiting.add("h1.t", records["h1.t"], WALL)
    assert store.due(9) == [(WALL + 9, "h1.t"), (EXCLUDED_BAND + 4e12, "h0.t")]
    assert records["h1.t"].why == ""
    assert waiting.next_in(WALL) == 9.0
    assert waiting.due(5, WALL) == ["h1.t"]
    store.close()


# Many hosts


@pytest.mark.parametrize(
    "line", ["10.0.0.0/16 blocked=yes", ".t blocked=yes", ".t delay=9", "10.0.0.0/16 delay=9"]
)
def test_no_change_walks_many_hosts_at_once(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of thousands of hosts: each call looks at a bounded number of them."""
    monkeypatch.setattr(residency, "_UPDATED", 300)
    policy = Counting(host=Pace(4.0), address=Pace(0.0, 0))
    frontier = Frontier(MemoryStore(), policy, now=0.0, wall=WALL, capacity=10_000)
    frontier.admission.schedule((entry(f"http://h{n}.t/0") for n in range(3_000)), 0.0)
    for host in list(frontier.unresolved_hosts(0.0, 10_000)):
        frontier.set_address(host, "10.0.0.1", "10.0.0.1", 1e18, 0.0)
    policy.update(overrides=rules(line))
    now, looks = 1.0, []
    for _ in range(30):
        policy.asked = 0
        frontier.leases.acquire(now)
        looks.append(policy.asked)
        policy.asked = 0
        frontier.policy_update.step(now)
        looks.append(policy.asked)
        now += 0.001
    assert max(looks) <= 2 * max(_REFUSALS, 300) + 2
    assert not frontier.policy_update.busy
    hosts = frontier.workbench.hosts.values()
    if "blocked" in line:
        assert all(host.exclusion is not None for host in hosts)
    elif line.startswith("."):
        assert all(host.delay == 9.0 for host in hosts)
    else:
        assert frontier.workbench.addresses["10.0.0.1"].delay == 9.0


def test_the_top_is_brought_up_to_date_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 500 hosts at one address all but the last are barred: nothing is missed, nor at once."""
    monkeypatch.setattr(workbench, "_REPAIRS", 100)
    policy = polite()
    crawl = Crawl(MemoryStore(), web_of(500), policy)
    crawl.seed(*pages(500, 1))
    crawl._resolve()
    bench = crawl.frontier.workbench
    for host in bench.hosts.values():
        if host.key != "h499.t":
            bench.set_exclusion(host, Exclusion("blocked", math.inf, Rule(".t", "ops")), math.inf)
    turns = 1
    while (visit := bench.acquire(0.0)) is None:
        assert bench.wait(0.0) == 0.0
        turns += 2
    assert visit.host.key == "h499.t"
    assert turns >= 5
    bench.release(visit)
    assert bench.wait(0.0) is None


class Counting(Policy):
    """Counts what it is asked for."""

    asked = 0

    def exclusion(self, *arguments: Any) -> Any:
        """See `Policy`."""
        self.asked += 1
        return super().exclusion(*arguments)

    def for_host(self, host: str) -> Pace:
        """See `Policy`."""
        self.asked += 1
        return super().for_host(host)


# At random

VALUES = {
    ".t": ["blocked=yes", "delay=9", "requests_per_visit=3"],
    "h1.t": ["blocked=no"],
    "h2.t": ["delay=0"],
    "h3.t": ["hours=2-3", "blocked=yes"],
    "h4.t": ["delay=3600"],
    "10.0.0.0/16": ["delay=2", "delay=20"],
    "10.0.0.0/24": ["blocked=yes"],
    "10.0.1.0/24": ["delay=0"],
    "10.0.2.0/24": ["hours=12-13,14-15"],
}


class Lenient(Watch):
    """Knows that what is not in memory goes by a longer delay from its next visit on."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.delays: dict[str, float] = {}  # the least since the last transfer ended

    def changed(self) -> None:
        """The policy has changed."""
        for key, delay in self.delays.items():
            of = self.policy.for_address if key[0].isdigit() else self.policy.for_host
            self.delays[key] = min(delay, of(key).delay)

    def begins(self, host: str, address: str, now: float, *, first: bool) -> None:
        """See `Watch`."""
        policy = self.policy
        self.policy = Policy(
            host=Pace(self.delays.get(host, 0.0)), address=Pace(self.delays.get(address, 0.0))
        )
        super().begins(host, address, now, first=first)
        self.policy = policy

    def ends(self, host: str, address: str, now: float) -> None:
        """See `Watch`."""
        super().ends(host, address, now)
        self.delays[host] = self.policy.for_host(host).delay
        self.delays[address] = self.policy.for_address(address).delay


@pytest.mark.parametrize("seed", range(6))
def test_rules_that_come_and_go(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No visit against the rules of its moment (the web watches), and in the end all is fetched.

    A host on disk does not wait longer than it would have by its longest delay. Half of the runs
    have a workbench that hardly ever brings its top up to date in one go.
    """
    monkeypatch.setattr(workbench, "_REPAIRS", 2 if seed % 2 else 1_000)
    random = Random(seed)
    policy = polite()
    crawl = Crawl(store, web_of(40, 4), policy, capacity=10, seats=6, seed=seed)
    watch = crawl.watch = Lenient(policy)
    crawl.seed(*pages(40, 6))
    for _ in range(25):
        subjects = random.sample(list(VALUES), random.randrange(len(VALUES)))
        policy.update(overrides=rules(*(f"{s} {random.choice(VALUES[s])}" for s in subjects)))
        watch.changed()
        crawl.run(until=crawl.now + random.choice([1, 5, 30]))
    policy.update(overrides=Overrides())
    lifted = crawl.now
    crawl.run(until=lifted + 3_700)
    assert sorted(crawl.urls) == sorted(pages(40, 6))


def test_a_page_budget_of_a_range(store: Store) -> None:
    """It is for each host that lives there, unless a rule for the host says something else."""
    policy = polite(overrides=rules("10.0.0.0/24 max_pages=2", "h0.t max_pages=3"))
    crawl = Crawl(store, web_of(4, 2), policy)
    crawl.seed(*pages(4, 5))
    crawl.run()
    assert [len(of(crawl, f"h{n}.t")) for n in range(4)] == [3, 5, 2, 5]
    assert crawl.frontier.counters.events[Event.BUDGET] == 5


def test_robots_that_are_ignored_set_no_crawl_delay(store: Store) -> None:
    """And do again once they are obeyed."""
    policy = polite(overrides=rules("h0.t robots=ignore"))
    crawl = Crawl(store, web_of(1), policy)
    crawl.seed(*pages(1, 2))
    host = crawl.frontier.workbench.hosts["h0.t"]
    crawl.frontier.residents.set_crawl_delay(host, 50.0)
    assert host.gap() == 4.0
    policy.update(overrides=Overrides())
    crawl.run(until=2.0)
    assert host.gap() == 50.0


def test_the_portion_on_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that wait without an end all have the same time: the walk goes on by their names."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    policy = polite(overrides=rules(".t blocked=yes"))
    frontier = Frontier(store, policy, now=0.0, wall=WALL, capacity=1)
    for n in range(25):
        record = frontier.residents.records.touch(f"h{n:02}.t")
        record.next_fetch, record.why = 4e12, "blocked (.t, rules, line 1)"
        frontier.residents.wait_on_disk(f"h{n:02}.t", record, WALL)
    policy.update(overrides=rules("h07.t blocked=yes"))
    cursor: tuple[float, str] | None = (EXCLUDED_BAND, "")
    steps = 0
    while cursor is not None:
        cursor = frontier.policy_update.examine_excluded(*cursor, 4, 0.0)
        steps += 1
    assert steps == 7
    waiting = [key for due, key in store.due(None) if due >= EXCLUDED_BAND]
    assert waiting == ["h07.t"]
    assert store.record("h07.t").why == "blocked (h07.t, rules, line 1)"  # type: ignore[union-attr]
    store.close()
