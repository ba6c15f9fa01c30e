"""A crawl in virtual time: a web that is a function, and a crawler that is a loop over events.

It uses the frontier as the Scrapy glue does, and watches it as a suspicious server would: every
transfer is checked against the delays, the wire and the other transfers.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random

from scrapy_spider_suite.cluster.mailbox import OwnerRouter
from scrapy_spider_suite.crawl.queue.frontier import Frontier, QueueOptions
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.frontier.entries import BREADTH_FIRST, Entry, Order, state_key
from scrapy_spider_suite.frontier.outcomes import Event, Pace
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.windows import Window
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.rocks_store import Store

WALL = 1_800_000_000.0
HOST_DELAY, IP_DELAY = 4.0, 0.5
POLICY = Policy(host=Pace(HOST_DELAY), address=Pace(IP_DELAY))


def entry(url: str, **fields: object) -> Entry:
    """The entry of a bulk link."""
    host = url.split("/")[2]
    return Entry(host, url, state_key(host, url), **fields)  # type: ignore[arg-type]


def copy_of(folder: Path, to: Path) -> Path:
    """Copy the files of an open store: what a kill at this moment would leave.

    RocksDB removes files in the background; a copy during which that happened is made again.
    """
    for _ in range(20):
        before = sorted(folder.iterdir())
        try:
            shutil.copytree(folder, to)
        except shutil.Error:
            pass
        else:
            if sorted(folder.iterdir()) == before:
                return to
        shutil.rmtree(to)
    raise RuntimeError(f"{folder} never stands still")


@dataclass
class Web:
    """Hosts with their addresses, and pages that are made when they are asked for.

    *links* gives what a page links to, *event* how the n-th attempt at it ends (from 1).
    """

    addresses: dict[str, str]
    links: Callable[[str], list[str]] = lambda url: []
    event: Callable[[str, int], Event] = lambda url, attempt: Event.SUCCESS
    names: Callable[[str, int], Event | None] = lambda host, attempt: None
    seconds: tuple[float, float] = (0.01, 0.3)


def trees(hosts: int, pages: int, addresses: int, seed: int = 1) -> Web:
    """A web in which page 0 of every host leads to all its pages and to two other hosts."""
    random = Random(seed)
    places = (divmod(random.randrange(addresses), 256) for _ in range(hosts))
    homes = {f"h{n}.t": f"10.0.{place[0]}.{place[1]}" for n, place in enumerate(places)}

    def links(url: str) -> list[str]:
        host, page = url[7:].split("/")
        number, at = int(host[1:-2]), int(page)
        own = [f"http://{host}/{child}" for child in range(3 * at + 1, 3 * at + 4) if child < pages]
        return own + [f"http://h{(2 * number + n) % hosts}.t/0" for n in (1, 2)]

    return Web(homes, links)


def all_urls(web: Web, pages: int) -> set[str]:
    """Every page of `trees`."""
    return {f"http://{host}/{page}" for host in web.addresses for page in range(pages)}


@dataclass(frozen=True)
class Visited:
    """One transfer: who, where, and from when to when."""

    url: str
    host: str
    address: str
    start: float
    end: float
    event: Event
    visit: int
    key: bytes


@dataclass
class Watch:
    """Checks transfers as they begin and end."""

    policy: Policy
    last_host: dict[str, float] = field(default_factory=dict)
    last_address: dict[str, float] = field(default_factory=dict)
    on_hosts: dict[str, int] = field(default_factory=dict)
    on_addresses: dict[str, int] = field(default_factory=dict)
    floor: float | None = None

    def begins(self, host: str, address: str, now: float, *, first: bool) -> None:
        """A transfer begins; only the *first* of a visit has to wait for the delays."""
        pace, address_pace = self.policy.for_host(host), self.policy.for_address(address)
        assert not self.on_hosts.get(host), f"two connections to {host}"
        assert not self.on_addresses.get(address), f"two connections to {address}"
        self.on_hosts[host] = self.on_addresses[address] = 1
        if first:
            floor = -1e9 if self.floor is None else self.floor
            gap = now - self.last_host.get(host, floor)
            assert gap >= pace.delay - 1e-9, f"{host} again after {gap} s"
            gap = now - self.last_address.get(address, floor)
            assert gap >= address_pace.delay - 1e-9, f"{address} again after {gap} s"

    def ends(self, host: str, address: str, now: float) -> None:
        """A transfer ends: the delays run from here."""
        self.on_hosts[host] = self.on_addresses[address] = 0
        self.last_host[host] = self.last_address[address] = now


class Crawl:
    """Runs a frontier against a web, from virtual time *start* on.

    *seats* is the number of transfers at once, *think* how long a page is worked on after its
    transfer. With *flush_always* everything is durable as soon as the scheduler would see to it.
    """

    def __init__(
        self, store: Store, web: Web, policy: Policy = POLICY, *, capacity: int = 1_000,
        seats: int = 64, think: float = 0.0, start: float = 0.0, wall: float = WALL,
        resume: bool = False, unclean: bool = False, flush_always: bool = False, seed: int = 1,
        order: Order = BREADTH_FIRST, window: Window | None = None, sift: bool = False,
        cache: int = 0, routing: OwnerRouter | None = None,
    ) -> None:  # fmt: skip
        self.frontier = Frontier(
            store, policy, now=start, wall=wall, capacity=capacity,
            counters=Counters.load(store) if resume else None, unclean=unclean,
            options=QueueOptions(order, window, cache, sift),
        )  # fmt: skip
        self.frontier.admission.router = routing
        self.frontier.open(start)
        self.web = web
        self.capacity = capacity
        self.now = start
        self.ticks = 0
        self.watch = Watch(policy, floor=start if unclean else None)
        self.fetches: list[Visited] = []
        self.out: dict[Fetch, None] = {}
        self.on_page: Callable[[Fetch], None] = self.follow
        self.status = 0
        """Of pages that were fetched."""
        self._seats, self._think, self._flush_always = seats, think, flush_always
        self._random = Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._visits = count()
        self._busy = 0
        self._next_tick = start + 1.0
        self._asked: dict[str, int] = {}

    @property
    def urls(self) -> list[str]:
        """What was fetched, in order."""
        return [fetch.url for fetch in self.fetches]

    def seed(self, *urls: str) -> None:
        """Schedule URLs, and make that durable."""
        self.frontier.admission.schedule([entry(url) for url in urls], self.now)
        self.frontier.flush()

    def run(self, *, until: float = 60_000.0, fetches: int = 100_000) -> None:
        """Go on until nothing is pending, or as far as is asked for.

        The sieve, if there is one, is flushed when nothing is pending.
        """
        while self._more() and self.now < until and len(self.fetches) < fetches:
            self._resolve()
            while self._busy < self._seats and (leases := self.frontier.leases.acquire(self.now)):
                self._begin_visit(leases)
            self._wait()

    def _more(self) -> bool:
        while not self.frontier.pending and self.frontier.states.in_sieve:
            if not self.flush_sieve():
                break
        return bool(self.frontier.pending)

    def flush_sieve(self) -> bool:
        """Have the sieve say what is new, and take it; False: somebody holds it."""
        sifter, before = self.frontier.states.sieve_queue, self.frontier.states.in_sieve
        assert sifter is not None
        self.frontier.flush()
        flush = sifter.begin()
        if flush is not None:
            flush.run()
        for _ in self.frontier.admission.sift(self.now):
            pass
        self.frontier.flush()
        return self.frontier.states.in_sieve < before

    def _resolve(self) -> None:
        for host in self.frontier.unresolved_hosts(self.now, 1_000):
            attempt = self._asked[host.key] = self._asked.get(host.key, 0) + 1
            event = self.web.names(host.key, attempt)
            if event is None:
                address = self.web.addresses[host.key]
                self.frontier.set_address(host, address, address, 1e18, self.now)
            else:
                self.frontier.health.no_address(host, event, self.now)

    def _wait(self) -> None:
        wait = self.frontier.leases.wait(self.now) if self._busy < self._seats else None
        times = [self._next_tick]
        if self._events:
            times.append(self._events[0][0])
        if wait is not None:
            times.append(self.now + wait)
        self.now = max(self.now, min(times))
        while self._events and self._events[0][0] <= self.now:
            heappop(self._events)[2]()
        if self.now >= self._next_tick:
            self._next_tick += 1.0
            self.ticks += 1
            if self.frontier.policy_update.busy:
                self.frontier.policy_update.step(self.now)
            self.frontier.tick(self.now)

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        heappush(self._events, (self.now + seconds, next(self._numbers), what))

    # A visit: its URLs one after the other, then its host is free again

    def _begin_visit(self, leases: list[Fetch]) -> None:
        self._busy += 1
        self.out.update(dict.fromkeys(leases))
        self._transfer(leases, next(self._visits), first=True)

    def _transfer(self, leases: list[Fetch], number: int, *, first: bool) -> None:
        lease = leases[0]
        visit = lease.visit
        assert visit is not None
        host, address = visit.host.key, visit.address.key
        start = self.now
        self.watch.begins(host, address, start, first=first)
        bar = self.watch.policy.exclusion(host, address, start + self.frontier.wall_offset)
        assert bar is None or not first, f"{host} is visited though {bar}"
        self.frontier.workbench.begin(visit.host, visit.address, start, visit=True)

        def end() -> None:
            self.frontier.workbench.end(visit.host, visit.address, self.now, visit=True)
            self.watch.ends(host, address, self.now)
            lease.event = self.web.event(lease.entry.url, lease.entry.attempts + 1)
            self.fetches.append(
                Visited(lease.entry.url, host, address, start, self.now, lease.event, number,
                      lease.entry.key)
            )  # fmt: skip
            if leases[1:]:
                lease.visit = None
                self._transfer(leases[1:], number, first=False)
            else:
                self._busy -= 1
                self.frontier.leases.release(lease, self.now)
            self._later(self._think, lambda: self.settle(lease))

        self._later(self._random.uniform(*self.web.seconds), end)

    def settle(self, lease: Fetch) -> None:
        """A page has been worked on."""
        if lease.event is Event.SUCCESS:
            lease.status = lease.status or self.status
            self.on_page(lease)
        self.frontier.commit.settle([lease], self.now)
        self.out.pop(lease, None)
        if self._flush_always:
            self.frontier.flush()

    def follow(self, lease: Fetch) -> None:
        """What a page leads to."""
        lease.links.extend(self.web.links(lease.entry.url))
