"""Guards that go by what pages say: session ids, combined queries, redirects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.trap_webs import YEAR, TrapCrawl
from support.virtual_crawl import entry

from scrapy_spider_suite.crawl.queue import traps as module
from scrapy_spider_suite.crawl.queue.traps import Traps, TrapStats
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.store.seen_index import DROPPED, SIEVE_FOLDER, SieveIndex
from scrapy_spider_suite.urls.traps import Trap, TrapLimits

H = "http://a.test"


def traps(known: Callable[[bytes], bool] = lambda identity: True, **limits: int) -> Traps:
    """Those of a new job."""
    store = MemoryStore()
    return Traps(store, Policy(traps=TrapLimits(**limits)), TrapStats(store), known)


def said(text: str) -> bytes:
    """A page that says *text*, again and again, and a little more."""
    told = f"<h1>{text}</h1><p>{f'{text} ' * 40}</p>"
    return f"<title>Of a site</title>{told}<p>Written by somebody, some day.</p>".encode()


def sid(number: int) -> str:
    """A session id."""
    return f"sid={number:020}"


# Session ids


def closed_sessions(guard: Traps) -> None:
    """Have *guard* see that session ids make no difference at a.test."""
    for number in range(4):
        guard.learn_page(f"{H}/p?{sid(number)}", "a.test", said("the same"), [H], pages=9)


def test_each_page_is_fetched_with_one_session_id() -> None:
    """Whoever is queued first stands for it; at its turn, where several were queued before."""
    guard = traps(sessions=3)
    waiting = [Entry("a.test", f"{H}/p?{sid(number)}") for number in range(40, 44)]
    for each in waiting:
        guard.admit(each, HostRecord())
    closed_sessions(guard)
    assert [guard.contains(each) for each in waiting] == [False, True, True, True]
    assert [guard.contains(each) for each in waiting[:1]] == [False]
    other = Entry("a.test", f"{H}/q?{sid(1)}")
    assert guard.refuses(other.url, "a.test", YEAR) is None, "of this page none is known yet"
    guard.admit(other, HostRecord())
    refusal = guard.refuses(f"{H}/q?{sid(2)}", "a.test", YEAR)
    assert refusal == (Trap.SESSIONS, "/q")
    for url in (other.url, f"{H}/q", f"{H}/q?PHPSESSID={2:020}"):
        assert guard.refuses(url, "a.test", YEAR) is None
    assert traps(sessions=0).refuses(f"{H}/q?{sid(2)}", "a.test", YEAR) is None


@pytest.mark.parametrize(
    ("event", "free"),
    [
        (Event.SUCCESS, False), (Event.NOT_STORED, False), (Event.TIMEOUT, True),
        (Event.CLIENT_ERROR, True), (Event.REPLACED, True),
    ],
)  # fmt: skip
def test_a_session_that_has_ended_stands_for_no_page(event: Event, free: bool) -> None:
    """Another one may, such as that to which it redirects."""
    guard = traps(sessions=3)
    closed_sessions(guard)
    first = Entry("a.test", f"{H}/q?{sid(1)}")
    guard.admit(first, HostRecord())
    guard.concluded(Entry("a.test", f"{H}/q?{sid(2)}"), event)
    assert guard.closed(f"{H}/q?{sid(3)}", "a.test") is not None
    guard.concluded(first, event)
    assert (guard.closed(f"{H}/q?{sid(3)}", "a.test") is None) is free


def test_articles_named_by_tokens_are_no_sessions() -> None:
    """They say something new each; what was taken for sessions is seen again, and opened."""
    guard = traps(sessions=3)
    for number in range(100):
        body = said(f"article {'i' * number}")
        guard.learn_page(f"{H}/p?{sid(number)}", "a.test", body, [H], pages=9)
    assert guard.closed(f"{H}/p?{sid(1)}", "a.test") is None
    stubs = traps(sessions=3)
    closed_sessions(stubs)
    stubs.admit(Entry("a.test", f"{H}/p?{sid(5)}"), HostRecord())
    let = [n for n in range(100, 150) if not stubs.refuses(f"{H}/p?{sid(n)}", "a.test", YEAR)]
    assert let == [115, 131], "a few are let through to see"
    for number in let:
        assert not stubs.contains(Entry("a.test", f"{H}/p?{sid(number)}")), "at their turn, too"
        assert stubs.closed(f"{H}/p?{sid(7)}", "a.test") is not None or number > 115
        body = said(f"news {'i' * number}")
        stubs.learn_page(f"{H}/p?{sid(number)}", "a.test", body, [H], pages=9)
    assert stubs.closed(f"{H}/p?{sid(7)}", "a.test") is None
    assert "a.test" in stubs.reopened


# Queries


def test_pages_of_tables_with_two_parameters() -> None:
    """Each has a line of its own, and all of their links are known."""
    guard = traps(query=6)
    for number in range(400):
        url = f"{H}/book?chapter={number % 20}&part={number // 20}"
        links = [f"{H}/book?chapter={n}&part={number // 20}" for n in range(20)]
        guard.learn_page(url, "a.test", said(f"line {'i' * number}"), links, pages=9)
    assert guard.closed(f"{H}/book?chapter=1&part=1", "a.test") is None


@pytest.mark.parametrize(
    ("more", "path", "closed"),
    [
        ("", "", True),
        ("", "http://b.test/share?of={}", True),
        ("", "/login?next=%2Fshow%3F{}", True),
        ("", "/calendar/{}", True),
        ("<img src=/{}>", "", False),
        ("", "/page/{}", False),
        ("", "/page?id={}", False),
        ("", "/show?board={}&sort=new{}", False),
    ],
)
def test_what_makes_a_combination_more_than_that(more: str, path: str, closed: bool) -> None:
    """Something to see or to read, or a new page; no headline, nor links that know the page."""
    guard = traps(lambda identity: b"show" in identity and b"new" not in identity, query=6, same=4)
    for number in range(9):
        guard.learn_page(f"{H}/calendar/{number}", "a.test", said("nothing"), [], pages=9)
    for number in range(60):
        url, name = f"{H}/show?board={number % 5}&sort={number // 5 % 5}", "i" * number
        links = [f"{H}/show?board={n}&sort=1" for n in range(5)]
        if path:
            there = path.format(*[name if path != "/calendar/{}" else number] * 2)
            links.append(there if "://" in there else H + there)
        body = said("a list") + f"<h1>{name}{more}</h1>".format(name).encode()
        guard.learn_page(url, "a.test", body, links, pages=9)
    assert bool(guard.closed(f"{H}/show?board=1&sort=2", "a.test")) is closed


def test_a_value_of_its_own_is_no_combination() -> None:
    """However much was in vain: a thread may have been named by nobody before."""
    guard = traps(query=6)
    for number in range(60):
        url = f"{H}/show?board={number % 5}&sort={number // 5 % 5}"
        links = [f"{H}/show?board={n}&sort=1" for n in range(5)]
        guard.learn_page(url, "a.test", said("a list"), links, pages=9)
    assert guard.closed(f"{H}/show?board=1&sort=2", "a.test") == (Trap.QUERY, "/show")
    assert guard.closed(f"{H}/show?board=1&sort=99", "a.test") is None
    assert guard.closed(f"{H}/show?board=1", "a.test") is None


def test_what_failed_in_a_trap_that_is_none_has_another_chance() -> None:
    """With the next link that leads to it."""
    crawl = TrapCrawl(MemoryStore(), TrapLimits(same=3))
    crawl.on_page = lambda lease: None
    guard, url = crawl.frontier.traps, "http://lost-trap.test/lost/77"
    for number in range(4):
        page = f"http://lost-trap.test/lost/{number}"
        guard.learn_page(page, "lost-trap.test", said("lost"), [], pages=9)
    guard.learn_page("http://lost-trap.test/lost/9", "lost-trap.test", said("lost"), [], pages=9)
    crawl.seed(url)
    crawl.run(fetches=9)
    state = UrlState.from_bytes(crawl.frontier.store.state(state_key("lost-trap.test", url)) or b"")
    assert (state.state, state.event, crawl.urls) == (State.FAILED, Event.TRAP, [])
    assert crawl.frontier.admission.schedule([entry(url)], crawl.now) == 0
    assert guard.reopen("lost-trap.test")
    assert not guard.reopen("lost-trap.test")
    assert crawl.frontier.admission.schedule([entry(url)], crawl.now) == 1
    crawl.run(fetches=9)
    assert crawl.urls == [url]
    assert crawl.frontier.counters.failed == 0


# Redirects


def test_redirects_to_one_page_have_an_end() -> None:
    """From ever new URLs; those that lead to a page each go on, as do those to another scheme."""
    guard = traps(same=5)
    for number in range(5):
        guard.learn_redirect(Entry("a.test", f"{H}/out?to={number}"), f"{H}/login")
        guard.learn_redirect(Entry("a.test", f"{H}/short/{number}"), f"{H}/page/{number}")
        guard.learn_redirect(Entry("a.test", f"{H}/plain/{number}"), f"https://a.test/plain/{number}")
        guard.learn_redirect(Entry("a.test", "data:,x"), f"{H}/login")
    assert guard.closed(f"{H}/out?to=99", "a.test") is None
    guard.learn_redirect(Entry("a.test", f"{H}/out?to=5"), f"{H}/login")
    assert guard.closed(f"{H}/out?to=99", "a.test") == (Trap.SAME, "/out?to")
    for path in ("/short/99", "/plain/99", "/out", "/"):
        assert guard.closed(H + path, "a.test") is None


# Orders


def test_only_orders_that_were_queued_count() -> None:
    """A link that a filter drops must not have another order of it refused."""
    guard = traps(permuted=1)
    first, second = f"{H}/s?a=1&b=2", f"{H}/s?b=2&a=1"
    assert guard.passed([first, second], YEAR) == [first, second]
    assert guard.passed([second], YEAR) == [second]
    for url in (second, first):
        guard.admit(Entry("a.test", url), HostRecord())
    assert guard.passed([first, second], YEAR) == [second]
    assert guard.contains(Entry("a.test", first)), "it was queued before that was known"
    assert not guard.contains(Entry("a.test", second))
    later = traps(permuted=1)
    later.note_known(first)
    assert later.passed([second], YEAR) == []


# Hosts


def test_an_address_in_a_query_is_no_host() -> None:
    """Links are judged by their own hosts, whatever else stands in them."""
    guard = traps(hosts=3)
    for number in range(8):
        guard.learn_page(f"http://h{number}.evil.test/", f"h{number}.evil.test", said("x"), [],
                         pages=0)  # fmt: skip
    trapped = "http://new.evil.test/"
    links = [f"{H}/?u=://.evil.test", f"{H}/?u=http://new.evil.test/", f"{H}/a://b.evil.test:8/"]
    assert guard.passed([*links, trapped, f"{H}:8080/"], YEAR) == [*links, f"{H}:8080/"]


# What it costs


def test_bodies_are_compared_where_it_may_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first pages of a host, nor those that begin otherwise, few of a host that is well;
    all once two were the same."""
    compared = list[bytes]()

    def counted(body: bytes, host: str, *, numbers: bool = False) -> int:
        if not numbers:
            compared.append(body)
        return hash(body)

    monkeypatch.setattr(module, "content_hash", counted)
    guard = traps(same=24, hosts=24)
    for number in range(8):
        guard.learn_page(f"{H}/{number}", "www.a.test", said("x"), [], pages=number)
    assert not compared
    for number in range(8, 64):
        other = said(f"{chr(number)}: {'i' * number}")
        guard.learn_page(f"{H}/p/{number}", "a.test", other, [], pages=number)
    assert len(compared) < 30  # digits and the case of letters do not count
    compared.clear()
    for number in range(64, 464):
        guard.learn_page(f"{H}/p/{number}", "a.test", said("i" * number), [], pages=number)
    assert 60 < len(compared) < 140
    before = len(compared)
    for number in range(464, 664):
        guard.learn_page(f"{H}/cal/{number}", "a.test", said("nothing on"), [], pages=number)
    assert guard.closed(f"{H}/cal/1", "a.test") == (Trap.SAME, "/cal/0")
    assert len(compared) - before < 200


@pytest.mark.parametrize("sift", [False, True])
def test_although_its_link_was_met_a_moment_ago(sift: bool, tmp_path: Path) -> None:
    """The cache knows the URL, which is looked up all the same where something was opened."""
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    if sift:
        store.sieve = SieveIndex(tmp_path / SIEVE_FOLDER, store.kv(DROPPED), capacity=1024)
    crawl = TrapCrawl(store, TrapLimits(same=3), cache=1 << 12, sift=sift)
    origin, guard = "http://lost-trap.test", crawl.frontier.traps
    url = f"{origin}/lost/77"
    crawl.on_page = lambda lease: lease.links.append(url)
    for number in (0, 1, 2, 9, 10):
        guard.learn_page(f"{origin}/lost/{number}", "lost-trap.test", said("lost"), [], pages=9)
    for page in ("/a", "/b"):
        crawl.seed(origin + page)
        crawl.run(fetches=9)
    assert crawl.urls == [f"{origin}/a", f"{origin}/b"]
    assert guard.reopen("lost-trap.test")
    crawl.seed(f"{origin}/c")
    crawl.run(fetches=9)
    assert crawl.urls[2:] == [f"{origin}/c", url]
    store.close()
