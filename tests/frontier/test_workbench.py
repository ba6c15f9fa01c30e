"""The workbench beside a model that looks at everything: slow, and plain enough to be believed."""

from __future__ import annotations

import math
from heapq import heappush

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scrapy_spider_suite.frontier.entries import Entry, order_key
from scrapy_spider_suite.frontier.workbench import (
    FOREVER,
    AddressState,
    HostState,
    Visit,
    Workbench,
)

HOSTS = [f"h{n}" for n in range(6)]
ADDRESSES = [f"10.0.0.{n}" for n in range(3)]
HOST_LIMITS = {"h0": 1, "h1": 1, "h2": 1, "h3": 1, "h4": 2, "h5": 3}
ADDRESS_LIMITS = {"10.0.0.0": 1, "10.0.0.1": 2, "10.0.0.2": 0}
DELAYS = {"h0": 4.0, "h1": 1.0, "h2": 0.0, "h3": 2.5, "h4": 1.0, "h5": 0.0}
IP_DELAYS = {"10.0.0.0": 0.5, "10.0.0.1": 0.25, "10.0.0.2": 0.0}

hosts, addresses = st.sampled_from(HOSTS), st.sampled_from(ADDRESSES)


class ModelHost:
    """What must hold of a host, kept by other code than the workbench's."""

    def __init__(self, name: str) -> None:
        self.limit = HOST_LIMITS[name]
        self.delay = DELAYS[name]
        self.address: ModelAddress | None = None
        self.queue: list[bytes] = []
        self.next = 0.0
        self.out = self.wire = self.waiting = 0


class ModelAddress:
    """What must hold of an address."""

    def __init__(self, name: str) -> None:
        self.limit = ADDRESS_LIMITS[name]
        self.delay = IP_DELAYS[name]
        self.next = 0.0
        self.out = self.wire = self.waiting = 0


class Beside(RuleBasedStateMachine):
    """Does the same to a workbench and to the model, in every order that may occur."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.sequence = 0
        self.bench = Workbench()
        self.model = {name: ModelHost(name) for name in HOSTS}
        self.model_addresses = {name: ModelAddress(name) for name in ADDRESSES}
        self.visits: list[tuple[Visit, bool]] = []  # with whether bytes are flowing
        # When host and address might be visited again, before and after a visit left.
        self.starts: dict[int, tuple[tuple[float, float], tuple[float, float]]] = {}
        self.intrusions: list[tuple[HostState, AddressState]] = []
        self.bench.hosts = {n: HostState(n, DELAYS[n], HOST_LIMITS[n], 3) for n in HOSTS}
        self.bench.addresses = {
            n: AddressState(n, IP_DELAYS[n], ADDRESS_LIMITS[n], 0.0) for n in ADDRESSES
        }

    # The model

    def earliest(self) -> float:
        """When anything may be visited, by looking at every host."""
        return min((self.time_of(name) for name in HOSTS), default=math.inf)

    def time_of(self, name: str) -> float:
        """When this host may be visited; infinity if something else must happen before."""
        host = self.model[name]
        address = host.address
        if address is None or not host.queue or host.waiting or host.out >= host.limit:
            return math.inf
        if address.waiting or (address.limit and address.out >= address.limit):
            return math.inf
        return max(host.next, address.next)

    def start(self, host: ModelHost, address: ModelAddress) -> None:
        """The clocks of what allows several at once run from their starts."""
        host.out += 1
        address.out += 1
        if host.limit > 1:
            host.next = max(host.next, self.now + host.delay)
        if address.limit != 1:
            address.next = max(address.next, self.now + address.delay)

    def finish(self, host: ModelHost, address: ModelAddress) -> None:
        """The others run from the end of the transfer."""
        host.wire -= 1
        address.wire -= 1
        if host.limit == 1:
            host.next = max(host.next, self.now + host.delay)
        if address.limit == 1:
            address.next = max(address.next, self.now + address.delay)

    def of(self, host: HostState, address: AddressState) -> tuple[ModelHost, ModelAddress]:
        """The model's halves of a pair."""
        return self.model[host.key], self.model_addresses[address.key]

    @invariant()
    def the_top_is_fetchable_if_and_only_if_anything_is(self) -> None:
        """The workbench knows, without looking at everything, when the first visit may leave."""
        earliest = self.earliest()
        expected = None if earliest == math.inf else max(0.0, earliest - self.now)
        assert self.bench.wait(self.now) == expected

    # What happens

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 3.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        """Time goes on."""
        self.now += seconds

    @rule(name=hosts, priority=st.integers(-2, 2))
    def push(self, name: str, priority: int) -> None:
        """A URL comes to the front of a host."""
        self.sequence += 1
        key = order_key(priority, self.sequence)
        host = self.bench.hosts[name]
        heappush(host.front, (key, Entry(name, f"http://{name}/{self.sequence}", b"", key=key)))
        self.model[name].queue = sorted([*self.model[name].queue, key])
        self.bench.offer(host)

    @rule(name=hosts, at=addresses)
    def place(self, name: str, at: str) -> None:
        """A host that is not out gets an address, or another one."""
        if not self.model[name].out:
            self.bench.place(self.bench.hosts[name], self.bench.addresses[at])
            self.model[name].address = self.model_addresses[at]

    @rule(name=hosts)
    def displace(self, name: str) -> None:
        """A host loses its address, in the middle of a visit too."""
        self.bench.displace(self.bench.hosts[name])
        self.model[name].address = None

    @rule(name=hosts, seconds=st.sampled_from([0.5, 5.0, 60.0]))
    def postpone(self, name: str, seconds: float) -> None:
        """A host is told to wait."""
        self.bench.postpone(self.bench.hosts[name], self.now + seconds, "told to")
        host = self.model[name]
        host.next = max(host.next, self.now + seconds)

    @rule()
    def acquire(self) -> None:
        """What is handed out is what has waited longest, and nothing before its time."""
        earliest = self.earliest()
        visit = self.bench.acquire(self.now)
        if earliest > self.now:
            assert visit is None
            return
        assert visit is not None
        host, address = self.of(visit.host, visit.address)
        assert self.time_of(visit.host.key) == earliest
        peers = [h for n, h in self.model.items() if h.address is address and self.can_go(n)]
        assert host.next == min(peer.next for peer in peers)
        keys = [entry.key for entry in visit.entries]
        assert keys == host.queue[: len(keys)]
        assert 1 <= len(keys) <= 3
        del host.queue[: len(keys)]
        before = (host.next, address.next)
        self.start(host, address)
        self.starts[id(visit)] = before, (host.next, address.next)
        self.visits.append((visit, False))

    def can_go(self, name: str) -> bool:
        """Whether only a clock keeps a host."""
        return self.time_of(name) < math.inf

    @precondition(lambda self: self.visits)
    @rule(data=st.data())
    def a_visit_goes_on(self, data: st.DataObject) -> None:
        """Its transfer begins, or ends, or it comes back (without any transfer too)."""
        visit, flowing = data.draw(st.sampled_from(self.visits))
        self.visits.remove((visit, flowing))
        host, address = self.of(visit.host, visit.address)
        if flowing:
            self.bench.end(visit.host, visit.address, self.now, visit=True)
            self.finish(host, address)
            self.visits.append((visit, False))
        elif data.draw(st.booleans()) and not self.pause(visit.host, visit.address):
            self.bench.begin(visit.host, visit.address, self.now, visit=True)
            host.wire += 1
            address.wire += 1
            visit.wired = True
            self.visits.append((visit, True))
        else:
            if not visit.wired:
                self.refund(visit)
            self.bench.release(visit)
            host.out -= 1
            address.out -= 1

    def refund(self, visit: Visit) -> None:
        """A visit comes back that has touched no wire: as if its clocks had not been started."""
        self.bench.refund(visit)
        before, after = self.starts.pop(id(visit))
        states = self.of(visit.host, visit.address)
        for state, was, became in zip(states, before, after, strict=True):
            if state.next == became:
                state.next = was

    def pause(self, host: HostState, address: AddressState) -> bool:
        """Whether the wire is in use, which the workbench must know as well."""
        model, model_address = self.of(host, address)
        used = model.wire >= model.limit
        used |= bool(model_address.limit) and model_address.wire >= model_address.limit
        assert (self.bench.pause_needed(host, address, self.now) == FOREVER) == used
        return used

    @rule(name=hosts, at=addresses)
    def intrude(self, name: str, at: str) -> None:
        """Traffic without a visit uses the wire, when that is free."""
        host, address = self.bench.hosts[name], self.bench.addresses[at]
        model, model_address = self.of(host, address)
        if self.pause(host, address) or max(model.next, model_address.next) > self.now:
            return
        self.bench.begin(host, address, self.now, visit=False)
        model.wire += 1
        model_address.wire += 1
        self.start(model, model_address)
        self.intrusions.append((host, address))

    @precondition(lambda self: self.intrusions)
    @rule(data=st.data())
    def an_intrusion_ends(self, data: st.DataObject) -> None:
        """Its host and its address are free again."""
        host, address = pair = data.draw(st.sampled_from(self.intrusions))
        self.intrusions.remove(pair)
        self.bench.end(host, address, self.now, visit=False)
        model, model_address = self.of(host, address)
        self.finish(model, model_address)
        model.out -= 1
        model_address.out -= 1

    @rule(name=hosts)
    def somebody_waits_for_a_host(self, name: str) -> None:
        """Traffic without a visit goes before visits; then it has gone, or given up."""
        host, model = self.bench.hosts[name], self.model[name]
        if model.waiting:
            host.waiting, model.waiting = 0, 0
            self.bench.offer(host)
        else:
            host.waiting, model.waiting = 1, 1

    @rule(at=addresses)
    def somebody_waits_for_an_address(self, at: str) -> None:
        """The same for an address alone."""
        address, model = self.bench.addresses[at], self.model_addresses[at]
        if model.waiting:
            address.waiting, model.waiting = 0, 0
            self.bench.offer_address(address)
        else:
            address.waiting, model.waiting = 1, 1


TestWorkbenchBesideItsModel = Beside.TestCase
TestWorkbenchBesideItsModel.settings = settings(
    max_examples=120, stateful_step_count=60, deadline=None
)


# What the model does not say


class Bench:
    """A workbench with short ways to fill it."""

    def __init__(self) -> None:
        self.bench = Workbench()
        self.sequence = 0

    def host(
        self, name: str, at: str, *, delay: float = 4.0, concurrency: int = 1, burst: int = 1
    ) -> HostState:
        """A host at an address, each made when first named."""
        host = self.bench.hosts[name] = HostState(name, delay, concurrency, burst)
        address = self.bench.addresses.get(at)
        if address is None:
            address = self.bench.addresses[at] = AddressState(at, 0.5, 1, 0.0)
        self.bench.place(host, address)
        return host

    def push(self, host: HostState, count: int = 1) -> None:
        """URLs for a host."""
        for _ in range(count):
            self.sequence += 1
            key = order_key(0, self.sequence)
            heappush(host.front, (key, Entry(host.key, "http://x/", b"", key=key)))
        self.bench.offer(host)

    def visit(self, now: float, seconds: float = 0.1) -> Visit:
        """A whole visit that begins at *now*."""
        visit = self.bench.acquire(now)
        assert visit is not None
        self.bench.begin(visit.host, visit.address, now, visit=True)
        self.bench.end(visit.host, visit.address, now + seconds, visit=True)
        self.bench.release(visit)
        return visit


@pytest.fixture
def bench() -> Bench:
    """An empty workbench."""
    return Bench()


def test_an_empty_workbench_waits_for_nothing(bench: Bench) -> None:
    """None means that no time will change anything."""
    assert bench.bench.wait(5.0) is None
    assert bench.bench.acquire(5.0) is None


def test_delays_run_from_the_end_of_a_transfer(bench: Bench) -> None:
    """A slow answer does not use up the delay (promise 1)."""
    host = bench.host("a", "10.0.0.1")
    bench.push(host, 2)
    bench.visit(0.0, seconds=7.0)
    assert bench.bench.wait(7.0) == 4.0
    assert bench.bench.acquire(10.9) is None
    assert bench.bench.acquire(11.0) is not None


def test_what_touches_no_wire_costs_no_delay(bench: Bench) -> None:
    """A cache hit, or an ignored request, lets the next one go at once."""
    bench.push(bench.host("a", "10.0.0.1"), 2)
    visit = bench.bench.acquire(0.0)
    assert visit is not None
    bench.bench.release(visit)
    assert bench.bench.wait(0.0) == 0.0


def test_one_address_has_one_visit_out(bench: Bench) -> None:
    """Two hosts on one address take turns, half a second apart."""
    bench.push(bench.host("a", "10.0.0.1"), 1)
    bench.push(bench.host("b", "10.0.0.1"), 1)
    first = bench.bench.acquire(0.0)
    assert first is not None
    assert bench.bench.wait(0.0) is None
    bench.bench.begin(first.host, first.address, 0.0, visit=True)
    bench.bench.end(first.host, first.address, 1.0, visit=True)
    bench.bench.release(first)
    assert bench.bench.wait(1.0) == 0.5


def test_the_least_recently_visited_host_goes_first(bench: Bench) -> None:
    """Hosts of one address take turns in the order of their last visits (E2)."""
    names = ["a", "b", "c"]
    for name in names:
        bench.push(bench.host(name, "10.0.0.1", delay=1.0), 4)
    seen, now = [], 0.0
    for _ in range(12):
        seen.append(bench.visit(now, 0.0).host.key)
        now += bench.bench.wait(now) or 0.0
    assert seen == names * 4


def test_a_burst_is_one_visit(bench: Bench) -> None:
    """Up to `burst` URLs go out together, and the delay comes after the last (K16)."""
    bench.push(bench.host("a", "10.0.0.1", burst=20), 25)
    assert [len(bench.visit(now).entries) for now in (0.0, 10.0)] == [20, 5]


def test_back_off_ends_bursts_until_it_is_over(bench: Bench) -> None:
    """A host that asked for patience gets one URL; after that visit it is as before."""
    host = bench.host("a", "10.0.0.1", burst=5)
    bench.push(host, 20)
    bench.visit(0.0)
    bench.bench.postpone(host, 60.0, "Retry-After")
    assert bench.bench.wait(0.1) == 59.9
    assert len(bench.visit(60.0).entries) == 1
    assert host.why == ""
    assert len(bench.visit(70.0).entries) == 5


def test_other_traffic_does_not_make_a_wish_forgotten(bench: Bench) -> None:
    """Robots.txt, under way when a host asks to wait, ends without touching that wish."""
    host = bench.host("a", "10.0.0.1", concurrency=2)
    bench.push(host, 2)
    address = bench.bench.addresses["10.0.0.1"]
    bench.bench.begin(host, address, 0.0, visit=False)
    bench.bench.postpone(host, 60.0, "Retry-After")
    bench.bench.end(host, address, 1.0, visit=False)
    assert (host.next_fetch, host.why) == (60.0, "Retry-After")


def test_a_crawl_delay_ends_bursts(bench: Bench) -> None:
    """Whoever asks for a pace gets it URL by URL."""
    host = bench.host("a", "10.0.0.1", burst=5)
    bench.push(host, 5)
    host.crawl_delay = 9.0
    assert len(bench.visit(0.0).entries) == 1
    assert bench.bench.wait(0.1) == 9.0


def test_what_waits_for_a_host_goes_before_its_visits(bench: Bench) -> None:
    """A host is not handed out while its robots.txt waits for the wire."""
    host = bench.host("a", "10.0.0.1")
    bench.push(host)
    host.waiting = 1
    assert bench.bench.wait(0.0) is None
    host.waiting = 0
    bench.bench.offer(host)
    assert bench.bench.wait(0.0) == 0.0


def test_a_visit_knows_whether_it_was_disturbed(bench: Bench) -> None:
    """Traffic that used the wire between acquire and transfer shows, and only that."""
    host = bench.host("a", "10.0.0.1")
    bench.push(host)
    visit = bench.bench.acquire(0.0)
    assert visit is not None
    assert visit.undisturbed()
    bench.bench.begin(host, visit.address, 0.0, visit=False)
    assert bench.bench.pause_needed(host, visit.address, 0.0) == FOREVER
    bench.bench.end(host, visit.address, 1.0, visit=False)
    assert not visit.undisturbed()
    assert bench.bench.pause_needed(host, visit.address, 1.0) == 4.0


def test_addresses_are_forgotten_when_nobody_needs_them(bench: Bench) -> None:
    """Not while a host lives there, or its clock runs, or traffic is bound for it."""
    host = bench.host("a", "10.0.0.1")
    address = bench.bench.addresses["10.0.0.1"]
    assert not list(bench.bench.forget_addresses(0.0))
    bench.bench.forget(host)
    for name in ("booked", "waiting", "out", "wire"):
        setattr(address, name, 1)
        assert not list(bench.bench.forget_addresses(0.0)), name
        setattr(address, name, 0)
    address.next_fetch = 3.0
    assert not list(bench.bench.forget_addresses(2.0))
    assert list(bench.bench.forget_addresses(3.0)) == [address]
    assert not bench.bench.addresses


def test_records_of_the_past_do_not_pile_up(bench: Bench) -> None:
    """A host in long back-off beside a busy one leaves one record a visit, which is swept."""
    slow, busy = bench.host("slow", "10.0.0.1"), bench.host("busy", "10.0.0.1", delay=0.0)
    bench.push(slow)
    bench.bench.postpone(slow, 1e6, "Retry-After")
    for n in range(1_000):
        bench.push(busy)
        assert bench.visit(float(n)).host is busy
    assert len(bench.bench._heap) < 50


def test_hosts_that_come_and_go_do_not_pile_up(bench: Bench) -> None:
    """A host that is dropped while it waits leaves nothing in its address's heap for long."""
    bench.push(bench.host("stays", "10.0.0.1"))
    for n in range(1_000):
        host = bench.host(f"goes{n}", "10.0.0.1")
        bench.bench.postpone(host, 1e6, "back-off")
        bench.push(host)
        bench.bench.forget(host)
        assert not host.front
    assert len(bench.bench.addresses["10.0.0.1"].heap) < 50


def test_a_start_that_led_nowhere_delays_nobody(bench: Bench) -> None:
    """With several at once the delay runs from a visit's start: only if that touched the wire."""
    host = bench.host("a", "10.0.0.1", delay=60.0)
    host.concurrency = bench.bench.addresses["10.0.0.1"].concurrency = 2
    bench.push(host, 3)
    for now in (0.0, 1.0):
        visit = bench.bench.acquire(now)
        assert visit is not None
        assert bench.bench.wait(now) == 60.0
        bench.bench.refund(visit)
        bench.bench.release(visit)
        assert bench.bench.wait(now) == 0.0
