"""Whose a URL is, and the outbox that brings it there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.virtual_agents import Agents
from support.virtual_crawl import POLICY, WALL, all_urls, entry, trees

from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.cluster.mailbox import FIRST_ROW_NUMBER, Outbox, OwnerRouter, unpack_rows
from scrapy_spider_suite.cluster.messages import MessagePacker
from scrapy_spider_suite.cluster.transports.udp import BOUNDS
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.seeds import seed_scheduler
from scrapy_spider_suite.errors import MessageError
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key, state_key
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.store.interface import KV, MemoryKV, MemoryStore
from scrapy_spider_suite.store.rocks_store import RocksStore, Store
from scrapy_spider_suite.store.rows import UrlState, pack_row
from scrapy_spider_suite.store.seen_transfer import LinkOrigin
from scrapy_spider_suite.store.url_states import note_seed, seeds
from scrapy_spider_suite.urls.url_lists import Seed

HOSTS, PAGES = 40, 13
LAST = (1 << 64) - 1


# The outbox


@pytest.fixture(params=["memory", "rocks"])
def kv(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KV]:
    """Where an outbox lies."""
    store: Store = MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "store")
    yield store.kv("outbox")
    store.close()


def test_rows_stay_until_they_are_dropped(kv: KV) -> None:
    """In the order in which they came, apart for each receiver."""
    outbox = Outbox(kv)
    for n in range(5):
        outbox.put("b", b"b%d" % n)
        outbox.put("ab", b"ab%d" % n)
    assert [row for _, row in outbox.rows("b")] == [b"b%d" % n for n in range(5)]
    first = next(outbox.rows("b"))[0]
    assert list(outbox.rows("b", first + 3)) == [(first + 3, b"b3"), (first + 4, b"b4")]
    assert outbox.receivers == {"b": 5, "ab": 5}
    assert outbox.drop("b", first, first + 2) == 3
    assert outbox.drop("b", first, first + 2) == 0  # whoever acknowledges twice
    assert [number - first for number, _ in outbox.rows("b")] == [3, 4]
    assert outbox.drop("ab", 1, LAST) == 5
    assert outbox.receivers == {"b": 2}
    assert len(outbox) == 2
    assert outbox.drop("nobody", 1, LAST) == 0
    assert (outbox.put_in, outbox.dropped) == (10, 8)
    assert Outbox(kv).put_in == 2  # those that are there


def test_numbers_are_never_given_twice(tmp_path: Path) -> None:
    """Not after a reopen, nor when the rows before are gone; a kill leaves a gap."""
    store = RocksStore(tmp_path / "store")
    outbox = Outbox(store.kv("outbox"))
    for n in range(1_500):
        outbox.put("b", b"%d" % n)
    given = [number for number, _ in outbox.rows("b")]
    outbox.drop("b", 1, LAST)
    store.flush()
    store.close()
    store = RocksStore(tmp_path / "store")
    outbox = Outbox(store.kv("outbox"))
    assert not len(outbox)
    outbox.put("b", b"later")
    ((number, row),) = outbox.rows("b")
    assert row == b"later"
    assert number > given[-1] == given[0] + 1_499
    store.close()


def test_the_rows_of_another_directory_have_other_numbers() -> None:
    """An agent that begins anew, or from an earlier state, is not taken for the one that it was."""
    firsts = []
    for _ in range(2):
        outbox = Outbox(MemoryKV())
        outbox.put("b", b"row")
        firsts.append(next(outbox.rows("b"))[0])
    assert abs(firsts[0] - firsts[1]) > 1 << 32
    assert FIRST_ROW_NUMBER <= min(firsts) <= max(firsts) < LAST
    kv = MemoryKV()
    Outbox(kv).put("b", b"row")
    later = []
    for state in (deepcopy(kv), kv):
        outbox = Outbox(state)
        for _ in range(5_000):
            outbox.put("b", b"another")
        later.append({number for number, _ in outbox.rows("b")})
    assert len(later[0] & later[1]) == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 30)), max_size=60))
def test_an_outbox_is_a_list_for_each(steps: list[tuple[str, bool, int]]) -> None:
    """Whatever is put and dropped, before and after a reopen."""
    kv = MemoryKV()
    outbox, model, body = Outbox(kv), {name: {} for name in "abc"}, 0
    for to, puts, at in steps:
        if puts:
            body += 1
            outbox.put(to, b"%d" % body)
            number = max((n for n, _ in outbox.rows(to)), default=0)
            assert number > max(model[to], default=0)
            model[to][number] = b"%d" % body
        else:
            first = min(model[to], default=0) + at % 4
            gone = [number for number in model[to] if first <= number <= first + 3]
            assert outbox.drop(to, first, first + 3) == len(gone)
            for number in gone:
                del model[to][number]
        if at == 30:
            outbox = Outbox(kv)
        for name, rows in model.items():
            assert dict(outbox.rows(name)) == rows
        assert outbox.receivers == {name: len(rows) for name, rows in model.items() if rows}


# Routing


def routing(**more: object) -> OwnerRouter:
    """Of agent a, which has the hosts that begin with a."""
    owner = lambda host, url: host[0]  # noqa: E731
    return OwnerRouter(Outbox(MemoryKV()), owner, "a", **more)  # type: ignore[arg-type]


def keys(*urls: str) -> list[bytes]:
    """Their state keys."""
    return [state_key(url.split("/")[2], url) for url in urls]


def sent(agent: OwnerRouter, to: str) -> list[str]:
    """The URLs on their way."""
    return [each.url for each in unpack_rows(row for _, row in agent.outbox.rows(to))]


def test_links_of_others_go_out() -> None:
    """With what is known of them, each to its owner."""
    agent = routing()
    links = keys("http://a.t/1", "http://b.t/1", "http://a.t/2", "http://c.t/1", "http://b.t/2")
    origin = LinkOrigin(3, "http://a.t/", 7, 1, 8)
    assert agent.own_links([(origin, links)]) == [(origin, [links[0], links[2]])]
    assert sent(agent, "c") == ["http://c.t/1"]
    first, second = unpack_rows(row for _, row in agent.outbox.rows("b"))
    assert (first.host, first.url, first.depth, first.referrer) == (
        "b.t", "http://b.t/1", 3, "http://a.t/",
    )  # fmt: skip
    assert (second.url, second.priority, second.hops_outside) == ("http://b.t/2", 7, 1)
    assert second.referrer_policy == 8
    assert second.identity == links[4]


def test_any_slot_will_do() -> None:
    """The two bytes before a host's name may be any, among them those of a space."""
    agent = routing()
    links = keys(*(f"http://{each}{n}.t/" for n in range(400) for each in "ab"))
    assert len({key[0] for key in links}) > 200
    assert agent.own_links([(LinkOrigin(1, ""), links)]) == [(LinkOrigin(1, ""), links[::2])]
    assert len(sent(agent, "b")) == 400


def test_what_was_sent_is_not_sent_again() -> None:
    """Until others may own it; unless somebody insists on it, or what failed has another chance."""
    agent = routing(cache=1 << 16)
    for _ in range(2):
        agent.own_links([(LinkOrigin(1, ""), keys("http://b.t/1", "http://b.t/2"))])
        assert not agent.keeps(entry("http://b.t/3"))
    assert sent(agent, "b") == [f"http://b.t/{n}" for n in (1, 2, 3)]
    assert agent.spared == 3
    agent.own_links([(LinkOrigin(1, ""), keys("http://b.t/1"))], anyway=True)
    agent.keeps(entry("http://b.t/2"), anyway=True)
    agent.keeps(entry("http://b.t/3", flags=int(Flag.DONT_FILTER)))
    assert sent(agent, "b")[3:] == [f"http://b.t/{n}" for n in (1, 2, 3)]
    agent.reroute(lambda host, url: "c")
    agent.own_links([(LinkOrigin(1, ""), keys("http://b.t/1"))])
    assert sent(agent, "c") == ["http://b.t/1"]


def test_requests_travel_as_they_are_stored() -> None:
    """Their payload and identity with them; a seed that everybody is given does not."""
    agent = routing()
    request = entry("http://b.t/form", flags=int(Flag.USER), payload=b"body", priority=3)
    request.stored_key = host_key("b.t") + b"\xffprint"
    assert not agent.keeps(request)
    (came,) = unpack_rows(row for _, row in agent.outbox.rows("b"))
    assert (came.url, came.payload, came.priority) == ("http://b.t/form", b"body", 3)
    assert came.identity == request.identity
    seed = entry("http://b.t/", flags=int(Flag.START))
    lambdas = entry("http://b.t/", flags=int(Flag.START | Flag.VOLATILE))
    assert not agent.keeps(seed, given=True)
    assert not agent.keeps(lambdas, given=True)
    assert agent.foreign_seeds == 2
    assert len(agent.outbox) == 1
    apart = routing(shared_seeds=False)
    assert not apart.keeps(seed, given=True)
    assert sent(apart, "b") == ["http://b.t/"]


def test_where_a_seed_leads_to_is_sent() -> None:
    """Its redirect has the meta of ``start()``, but no other agent was given it."""
    agent = routing()
    frontier = Frontier(MemoryStore(), POLICY, now=0.0, wall=WALL, capacity=9)
    frontier.admission.router = agent
    start = int(Flag.START)
    seeds = [entry(f"http://{each}.t/", flags=start) for each in "ab"]
    frontier.admission.adopt(None, seeds, 0.0, given=True)
    assert (frontier.pending, agent.foreign_seeds, len(agent.outbox)) == (1, 1, 0)
    fetch = Fetch(entry("http://a.t/"), None)
    frontier.admission.adopt(fetch, [entry("http://b.t/home", flags=start)], 0.0, given=True)
    frontier.admission.schedule([entry("http://c.t/", flags=start)], 0.0)
    assert sent(agent, "b") == ["http://b.t/home"]
    assert sent(agent, "c") == ["http://c.t/"]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[RocksStore]]:
    """Of two agents."""
    both = [RocksStore(tmp_path / name) for name in "ab"]
    yield both
    for store in both:
        store.close()


def seeded(store: RocksStore, agent: OwnerRouter | None = None) -> Frontier:
    """A frontier in it."""
    frontier = Frontier(store, POLICY, now=0.0, wall=WALL, capacity=9)
    frontier.admission.router = agent
    return frontier


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_known_of_a_seed_lies_where_the_seed_does(
    shared: bool, stores: list[RocksStore]
) -> None:
    """Its tag, and that its scheme was guessed; what every agent is given is each one's own."""
    agent = routing(shared_seeds=shared, cache=1 << 16)
    here, there = seeded(stores[0], agent), seeded(stores[1])
    agent.own_links([(LinkOrigin(1, ""), keys("https://b.t/"))])  # it was sent before, as a link
    agent.outbox.drop("b", 0, LAST)
    plant = seed_scheduler(here, lambda: 0.0)
    for host in "ab":
        plant([Seed(f"https://{host}.t/", "news", True)])
    assert [(row.url, row.tag) for row in seeds(here.store)] == [("https://a.t/", "news")]
    found = list(unpack_rows(row for _, row in agent.outbox.rows("b")))
    assert len(found) == (0 if shared else 1)
    for _ in range(2):  # a message may come twice
        there.admission.schedule(found, 0.0, came=True)
    known = [(row.url, row.tag) for row in seeds(there.store)]
    assert known == ([] if shared else [("https://b.t/", "news")])
    assert all(there.commit.guesses.is_wrong(each, Event.REFUSED) for each in found)


def test_a_seed_that_was_a_link_has_its_tag(stores: list[RocksStore]) -> None:
    """It is known, and not scheduled again; the first tag holds."""
    frontier = seeded(stores[0])
    frontier.admission.schedule([entry("https://a.t/")], 0.0)
    plant = seed_scheduler(frontier, lambda: 0.0)
    assert [plant([Seed("https://a.t/", tag)]) for tag in ("one", "two")] == [0, 0]
    note_seed(stores[0], entry("https://a.t/"))  # as one that is given once more, without a tag
    assert [(row.url, row.tag) for row in seeds(frontier.store)] == [("https://a.t/", "one")]


def test_the_tag_of_a_guess_goes_where_its_other_scheme_does(stores: list[RocksStore]) -> None:
    """By url-sum, with a URL of the same host, to another agent."""
    owner = lambda host, url: "b" if url.startswith("http:") else "a"  # noqa: E731
    agent = OwnerRouter(Outbox(MemoryKV()), owner, "a", by_host=False, cache=1 << 16)
    frontier = seeded(stores[0], agent)
    agent.own_links([(LinkOrigin(1, ""), keys("http://a.t/"))])
    agent.outbox.drop("b", 0, LAST)
    seed_scheduler(frontier, lambda: 0.0)([Seed("https://a.t/", "news", True)])
    seed = entry("https://a.t/")
    assert frontier.commit.guesses.is_wrong(seed, Event.REFUSED)
    frontier.admission.schedule([frontier.commit.guesses.other_scheme(seed)], 0.0)
    [came] = unpack_rows(row for _, row in agent.outbox.rows("b"))
    assert (came.url, came.seed_note) == ("http://a.t/", "news")
    frontier.commit.guesses.settle(seed)
    assert not frontier.commit.guesses.is_wrong(seed, Event.REFUSED)
    assert [(row.url, row.tag) for row in seeds(frontier.store)] == [("https://a.t/", "news")]


def test_files_do_not_travel() -> None:
    """Whoever finds one reads it: elsewhere there is another one, or none."""
    agent = OwnerRouter(Outbox(MemoryKV()), lambda host, url: "b", "a")
    file = Entry("", "file:///srv/list.html", flags=int(Flag.USER), payload=b"body")
    assert agent.keeps(file)
    assert agent.owns(file)
    assert not len(agent.outbox)


def test_every_row_of_links_fits_into_a_datagram() -> None:
    """However long and unlike each other they are."""
    random = Random(1)
    urls = [
        f"http://b.t/{random.randbytes(random.randrange(900)).hex()[:2000]}" for _ in range(120)
    ]
    agent = routing()
    long = "http://a.t/" + random.randbytes(900).hex()
    pages = [(LinkOrigin(n, long), keys(*urls[n : n + 40])) for n in range(0, 120, 40)]
    agent.own_links(pages)
    packer, rows = MessagePacker("a", 1, BOUNDS), list(agent.outbox.rows("b"))
    for row in rows:
        packer.pack([row], 0)
    assert len(rows) < 60
    assert sent(agent, "b") == urls


def links(origin: list[object], *keys: object) -> bytes:
    """A row of an agent with links of a page."""
    return b"L" + msgpack.packb([[origin, keys]])


def single(*fields: object) -> bytes:
    """A row of an agent with a request: host, row, and what is known of a seed, if anything."""
    return b"E" + msgpack.packb([*fields, ""] if len(fields) == 2 else fields)


@pytest.mark.parametrize("row", [
    b"", b"\xc1", b"L", b"L\x93\x00\x01", b"E\xc1", b"E" + msgpack.packb(7),
    pytest.param(b"E" + b"\x91" * 100_000, id="deep"),
    b"X" + msgpack.packb([9]), b"L" + msgpack.packb([]), b"L" + msgpack.packb([7]),
    links(["deep", "", 0, 0, 0]), links([1, 2, 0, 0, 0]),
    links([1, "", 0, 0], keys("http://b.t/")[0]),
    links([1, "", 0, 0, 0], "text"), links([1, "", 0, 0, 0], b"xx"),
    links([1, "", 0, 0, 0], b"xxb.t\0\xff"),
    links([1, "", 0, 0, 0], b"xxb.t\0file:///etc/passwd"),
    links([1, "", 0, 0, 0], b"xxb.t\0http://c.t/"),
    single(), single("b.t", b"short"), single(2, b"x" * 40),
    single("b.t", pack_row(entry("http://b.t/"))[:-1]),
    single("c.t", pack_row(entry("http://b.t/"))),
    single("b.t", pack_row(entry("http://b.t/", flags=int(Flag.VOLATILE)))),
    single("", pack_row(Entry("", "file:///etc/passwd", payload=b"x"))),
    single("b.t", pack_row(Entry("b.t", "http://b.t/", b"\0\0c.t\0x"))),
    single("b.t", pack_row(Entry("b.t", "http:b.t", b"\0\0b.t\0x"))),
    links([-1, "", 0, 0, 0], keys("http://b.t/")[0]),
    links([1, "", 0, -1, 0], keys("http://b.t/")[0]),
    links([1, "", 0, 0, -1], keys("http://b.t/")[0]),
    links([1, "", 0, 0, 16], keys("http://b.t/")[0]),
    links([1, "", 0, 0, "origin"], keys("http://b.t/")[0]),
    single("b.t", pack_row(entry("http://b.t/")), 7),
    single("b.t", pack_row(entry("http://b.t/")), "two\nlines"),
    single("b.t", pack_row(entry("http://b.t/")), "news\n?\n"),
    single("b.t", pack_row(entry("http://b.t/")), "news", 1),
])  # fmt: skip
def test_rows_that_are_none_are_refused(row: bytes) -> None:
    """Whoever sends them gets nothing in."""
    with pytest.raises(MessageError):
        list(unpack_rows([row]))


def test_slots_are_made_anew() -> None:
    """A peer does not say under which key a URL is known."""
    honest = keys("http://b.t/1")[0]
    row = links([1, "", 0, 0, 0], b"\0\0" + honest[2:])
    (came,) = unpack_rows([row])
    assert came.identity == honest


# Agents


@pytest.mark.parametrize("sift", [False, True], ids=["looked-up", "sifted"])
@pytest.mark.parametrize("name", ["ring", "url-sum", "host-parity"])
def test_agents_are_disjoint_and_miss_nothing(name: str, sift: bool, tmp_path: Path) -> None:
    """Each page is fetched by one of them, once, whoever found it (K2)."""
    web = trees(HOSTS, PAGES, 20)
    stores: list[Store] = [MemoryStore() for _ in range(3)]
    if sift:
        stores = [sieved(tmp_path / str(number)) for number in range(3)]
    agents = Agents(web, load_assignment(name), stores, sift=sift)
    agents.each(lambda crawl: crawl.seed("http://h0.t/0"))
    agents.run()
    assert Counter(agents.urls) == Counter(dict.fromkeys(all_urls(web, PAGES), 1))
    assert all(crawl.urls for crawl in agents.crawls.values())
    for store in stores:
        store.close()


def sieved(folder: Path) -> Store:
    """A store with a sieve."""
    from scrapy_spider_suite.store.seen_index import DROPPED, SieveIndex

    store = RocksStore(folder / "store")
    store.sieve = SieveIndex(folder / "sieve", store.kv(DROPPED), bits=128, capacity=100)
    return store


def test_a_request_that_cannot_travel_has_failed() -> None:
    """What cannot be stored cannot be sent, and must not be fetched here either."""
    web = trees(HOSTS, PAGES, 20)
    agents = Agents(web, load_assignment("ring"), [MemoryStore(), MemoryStore()])
    own = next(iter(agents.crawls.values()))
    routing = next(iter(agents.routings.values()))
    foreign = next(
        url for host in web.addresses if not routing.owns(entry(url := f"http://{host}/0"))
    )
    request = entry(foreign, flags=int(Flag.VOLATILE | Flag.USER), payload=object())
    own.frontier.admission.schedule([request], 0.0)
    agents.run()
    assert not agents.urls
    assert own.frontier.counters.events == {Event.ELSEWHERE: 1}
    state = own.frontier.store.state(state_key(request.host, foreign))
    assert state is None or UrlState.from_bytes(state).event is Event.ELSEWHERE
