"""Crawls that share hosts and addresses by one ledger, in virtual time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from support.ledgers import Memory
from support.virtual_crawl import IP_DELAY, WALL, Crawl, Watch, Web, all_urls, trees

from scrapy_spider_suite.cluster.ledger.grants import SLACK, Grants, Need, SentBatch
from scrapy_spider_suite.frontier.outcomes import Pace
from scrapy_spider_suite.frontier.permits import NEAR
from scrapy_spider_suite.frontier.policy import Overrides, Phases, Policy
from scrapy_spider_suite.frontier.workbench import AddressState, HostState
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.urls.hosts import phase_of

PAGES, DELAY, TIMEOUT, LATENCY = 5, 2.0, 20.0, 0.01
POLICY = Policy(host=Pace(DELAY, 3, 4), address=Pace(IP_DELAY, 5), shared=True)
_numbers = count(1)


class Borrower(Crawl):
    """One of them: what it fetches, it fetches with grants."""

    def __init__(
        self, web: Web, ledger: Memory, watch: Watch, policy: Policy = POLICY, **given: int
    ) -> None:
        super().__init__(MemoryStore(), web, policy, seed=next(_numbers), **given)
        self.watch = watch
        self.ledger = ledger
        self.away = False
        self.asks = 0
        self.grants = Grants(
            f"{next(_numbers):016x}", timeout=TIMEOUT, ahead=NEAR
        )
        self._flying = False
        self._taken: dict[str, tuple[Need, ...]] = {}
        bench = self.frontier.workbench
        begin, end = bench.begin, bench.end

        def begun(host: HostState, address: AddressState, now: float, *, visit: bool) -> None:
            self._taken[host.key] = self.grants.start(_needs(host, address), now)
            begin(host, address, now, visit=visit)

        def ended(host: HostState, address: AddressState, now: float, *, visit: bool) -> None:
            end(host, address, now, visit=visit)
            self.grants.end(self._taken.pop(host.key), now)
            self._send()

        bench.begin, bench.end = begun, ended  # type: ignore[method-assign]
        self.frontier.leases.permits.source = self

    def pause(self, host: HostState, address: AddressState) -> float:
        """See `Lender`."""
        self.asks += 1
        at = self.grants.ready(_needs(host, address), self.now)
        self._send()
        return max(0.0, at - self.now)

    def awaits(self, host: HostState, address: AddressState) -> bool:
        """See `Lender`."""
        return self.grants.awaits(_needs(host, address), self.now)

    def drop(self, host: HostState, address: AddressState) -> None:
        """See `Lender`."""
        self.grants.drop(_needs(host, address))
        self._send()

    def _send(self) -> None:
        if self._flying or self.away or (sent := self.grants.outgoing(self.now)) is None:
            return
        self._flying, asked = True, self.now
        self._later(LATENCY, lambda: self._arrive(sent, asked))

    def _arrive(self, sent: SentBatch, asked: float) -> None:
        reply = self.ledger.settle(sent.batch, self.now)
        self._later(LATENCY, lambda: self._hear(sent, reply, asked))

    def _hear(self, sent: SentBatch, reply: object, asked: float) -> None:
        self._flying = False
        keys = self.grants.answered(sent, reply, asked, self.now)  # type: ignore[arg-type]
        names = [key.split() for key in keys]
        hosts = [name for kind, name in names if kind == "host"]
        addresses = [name for kind, name in names if kind == "address"]
        self.frontier.leases.permits.announce(hosts, addresses, self.now)
        self._send()

    # In step with others

    def due(self) -> float:
        """When something happens here next."""
        wait = self.frontier.leases.wait(self.now) if self._busy < self._seats else None
        ledger = self.grants.due(self.now)
        times = [self._next_tick, *(event[0] for event in self._events[:1])]
        times += [] if wait is None else [self.now + wait]
        times += [] if ledger is None or self.away else [self.now + max(ledger, 0.005)]
        return min(times)

    def turn(self, now: float) -> None:
        """It is *now*."""
        self.now = now
        self._wait()
        self._resolve()
        while self._busy < self._seats and (fetches := self.frontier.leases.acquire(self.now)):
            self._begin_visit(fetches)
        self._send()


def _needs(host: HostState, address: AddressState) -> tuple[Need, ...]:
    return Need(f"host {host.key}", host.gap()), Need(f"address {address.key}", address.delay)


def _run(crawls: list[Borrower], until: float = 10_000.0) -> float:
    """Run them in step until nothing is pending in any; when that is."""
    now = 0.0
    while any(crawl.frontier.pending for crawl in crawls) and now < until:
        now = max(now, min(crawl.due() for crawl in crawls))
        for crawl in crawls:
            if crawl.due() <= now:
                crawl.turn(now)
    return now


def _town(hosts: int, addresses: int, crawls: int, **given: int) -> list[Borrower]:
    web, watch, ledger = trees(hosts, PAGES, addresses), Watch(POLICY), Memory()
    made = [Borrower(web, ledger, watch, **given) for _ in range(crawls)]
    for crawl in made:
        crawl.seed("http://h0.t/0", "http://h1.t/0")
    return made


@pytest.mark.parametrize("crawls", [1, 3])
def test_crawls_on_the_same_hosts_are_polite_together(crawls: int) -> None:
    """Every fetch of any keeps every delay of all (`Watch`), nothing is lost, no time wasted."""
    town = _town(16, 8, crawls)
    took = _run(town)
    for crawl in town:
        assert Counter(crawl.urls) == Counter(all_urls(crawl.web, PAGES))
        assert not len(crawl.frontier.leases.permits)
    # At the address with most hosts one fetch follows the other; besides, links are found late.
    (_, most), = Counter(town[0].web.addresses.values()).most_common(1)
    assert took < 1.5 * crawls * most * PAGES * (IP_DELAY + 0.155)


def test_what_is_not_granted_does_not_hold_up_what_is() -> None:
    """One host is held by somebody else for a while: the others of its address are fetched."""
    (crawl,) = _town(6, 1, 1)
    crawl.seed(*(f"http://h{number}.t/0" for number in range(6)))
    other = Grants("f" * 16, timeout=TIMEOUT, window=60.0)
    need = Need("host h1.t", DELAY)
    other.ready([need], 0.0)
    sent = other.outgoing(0.0)
    assert sent is not None
    assert crawl.ledger.settle(sent.batch, 0.0).answers[0].closes
    _run([crawl], until=60.0)
    assert {url.split("/")[2] for url in crawl.urls} == {"h0.t", "h2.t", "h3.t", "h4.t", "h5.t"}
    assert len(crawl.urls) == 5 * PAGES
    assert _run([crawl]) > 60.0 + TIMEOUT + SLACK
    assert len(crawl.urls) == 6 * PAGES


def test_nothing_spins_while_the_ledger_is_away() -> None:
    """It is asked for a bounded number of hosts, now and then, and all goes on when it is back."""
    (crawl,) = _town(300, 300, 1)
    crawl.seed(*(f"http://h{number}.t/0" for number in range(300)))
    crawl.away = True
    _run([crawl], until=100.0)
    assert not crawl.fetches
    assert crawl.asks == 0
    crawl.away = False
    _run([crawl], until=110.0)
    assert len({fetch.host for fetch in crawl.fetches}) == 300


def test_what_is_longer_than_a_guard_passes_on_by_the_ledger() -> None:
    """Agents that have the same hosts by turns (url-sum): a delay that outlasts
    its phase holds for whoever has the next one (`Watch`), and nobody fetches out of his own.
    """
    rules = Overrides.parse(["h1.t delay=47", "h4.t delay=31"], "rules")
    policies = [replace(POLICY, overrides=rules, phases=Phases(3, 20.0, 5.0)) for _ in range(3)]
    web, ledger, watch = trees(8, PAGES, 8), Memory(), Watch(policies[0])
    town = [Borrower(web, ledger, watch, policy) for policy in policies]
    for node, crawl in enumerate(town):
        policies[node].update(node=node)
        crawl.seed(*all_urls(web, PAGES))
    took = _run(town)
    assert took > 20 * 20.0
    for node, crawl in enumerate(town):
        assert Counter(crawl.urls) == Counter(all_urls(web, PAGES))
        for fetch in crawl.fetches:
            turn = int((fetch.start + WALL) // 20.0)
            assert phase_of(fetch.host, 3) == (node + turn) % 3
            assert (fetch.end + WALL) < (turn + 1) * 20.0


def test_what_cannot_be_fetched_yet_is_not_asked_for() -> None:
    """A crawl with few places asks for no more than it can hold, and holds few grants idle."""
    (crawl,) = _town(400, 400, 1, seats=2)
    crawl.seed(*(f"http://h{number}.t/0" for number in range(400)))
    _run([crawl], until=30.0)
    figures = crawl.grants.counters
    assert len(crawl.fetches) > 100
    assert len(crawl.frontier.leases.permits) <= 250
    assert figures.asked < 2 * 2 * 300 * 30 / 5


def test_a_killed_crawl_blocks_its_host_until_its_grant_runs_out() -> None:
    """And no longer: the other one fetches everything."""
    town = _town(6, 3, 2)
    slain, other = town
    _run(town, until=3.0)
    while not slain._taken:
        _run(town, until=other.now + 0.01)
    keys = {need.key for needs in slain._taken.values() for need in needs}
    at = other.now
    watch = other.watch
    for key in keys:  # its transfers ended with it, for whoever served them
        kind, name = key.split()
        (watch.on_hosts if kind == "host" else watch.on_addresses)[name] = 0
    before = len(other.fetches)
    _run([other])
    assert Counter(other.urls) == Counter(all_urls(other.web, PAGES))
    for fetch in other.fetches[before:]:
        if f"host {fetch.host}" in keys or f"address {fetch.address}" in keys:
            assert fetch.start >= at + TIMEOUT
