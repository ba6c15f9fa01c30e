"""What `drop` takes out beside URLs: robots.txt, and the cookies that a host set for itself."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from http.cookiejar import Cookie
from pathlib import Path

import pytest

from scrapy_spider_suite.crawl.crawl_policy import TWINS_TABLE as TWINS
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.crawl.robots import BUCKETS, RobotsStore
from scrapy_spider_suite.downloadermiddlewares.cookies import HostCookiesMiddleware
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.robots_rules import judge_robots
from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.verbs import actions
from scrapy_spider_suite.store import url_states
from scrapy_spider_suite.store.interface import MemoryKV
from scrapy_spider_suite.store.request_codec import pack_cookies, unpack_cookies
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.twins import Twins, site_of


def cookie(domain: str, name: str = "a") -> Cookie:
    """A cookie that lasts."""
    return Cookie(
        0, name, "1", None, False, domain, True, domain.startswith("."), "/", True, False,
        4_000_000_000, False, None, None, {},
    )  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Iterator[JobTarget]:
    """A job that is nothing but a store."""
    store = RocksStore(tmp_path / "store")
    yield JobTarget(tmp_path, store, Frontier(store, Policy(), now=0.0, wall=0.0, capacity=0))
    store.close()


def test_cookies_on_disk(site: JobTarget) -> None:
    """Those of its own, with the dot or without; those of its domain and of others stay."""
    kv = site.store.kv("cookies")
    kv.put(b"host\0one", pack_cookies([cookie("www.a.test"), cookie(".a.test", "b")]))
    kv.put(b"host\0two", pack_cookies([cookie(".www.a.test")]))
    kv.put(b"jar\0three", pack_cookies([cookie("www.b.test")]))
    assert site.forget_cookies("www.a.test") == 2
    assert {key: [c.name for c in unpack_cookies(row, 0.0)] for key, row in kv.items()} == {
        b"host\0one": ["b"], b"jar\0three": ["a"],
    }  # fmt: skip
    assert site.forget_cookies("www.a.test") == 0


def test_cookies_in_memory() -> None:
    """In the jar of the registered domain, which other hosts of it share."""
    middleware = HostCookiesMiddleware()
    middleware.changed = set()
    key = (None, "a.test")
    middleware.restore(key, [cookie("www.a.test"), cookie(".a.test", "b")])
    middleware.restore((None, "b.test"), [cookie("www.b.test")])
    assert middleware.forget("www.a.test") == 1
    assert middleware.forget("a.test") == 1
    assert middleware.forget("a.test") == 0
    assert len(middleware) == 1
    assert middleware.row(key) is None
    assert key in middleware.changed


def test_robots(site: JobTarget) -> None:
    """From memory and from disk."""
    kv = MemoryKV()
    robots = RobotsStore(kv)
    robots.put(judge_robots("http://a.test", 200, b"User-agent: *\nDisallow: /x", now=0.0))
    assert robots.forget("http://a.test")
    assert not robots.forget("http://a.test")
    assert robots.last("http://a.test") is None
    assert len(robots) == 0
    assert list(kv.items()) == []
    RobotsStore(site.store.kv("robots")).put(judge_robots("http://a.test", 404, b"", now=0.0))
    for origin in ("http://a.test:8080", "https://a.test", "http://a.test.b", "http://b.a.test"):
        RobotsStore(site.store.kv("robots")).put(judge_robots(origin, 404, b"", now=0.0))
    mine = ["http://a.test", "http://a.test:8080", "https://a.test"]
    assert sorted(site.robots_of("a.test", range(BUCKETS))) == mine
    assert site.forget_robots("http://a.test")
    assert not site.forget_robots("http://a.test")


def test_robots_of_other_ports_and_schemes_go_with_their_host(site: JobTarget) -> None:
    """Also of those at which nothing was found."""
    robots = RobotsStore(site.store.kv("robots"))
    for origin in ("http://a.test", "https://a.test:8443", "http://b.test:8080"):
        robots.put(judge_robots(origin, 404, b"", now=0.0))
    work = actions()["drop"](site, Action("1", "drop", {"subject": "a.test"}, "job", "me", 0.0))
    assert isinstance(work, Generator)
    with pytest.raises(StopIteration) as end:  # noqa: PT012 - whatever portion is the last
        while True:
            next(work)
            site.commit()
    _, facts = end.value.value
    assert facts["robots"] == 2
    assert [key[1:] for key, _ in site.store.kv("robots").items()] == [b"http://b.test:8080"]


def test_what_sitemaps_and_twins_left(site: JobTarget) -> None:
    """Of what is pending, too, and of the site in all its forms; others keep theirs."""
    hosts = ("www.a.test", "b.test")
    for host in hosts:
        entry = Entry(host, f"http://{host}/x")
        site.frontier.admission.schedule([entry], 0.0)
        url_states.note_lastmod(site.store, entry.identity, 5)
        url_states.note_sitemap(site.store, entry.identity, host)
    twins = Twins(site.store.kv(TWINS))
    for name in ("a.test", "b.test"):
        twins.redirected(f"http://{name}/", f"https://{name}/", permanent=True)
    site.commit()
    work = actions()["drop"](site, Action("1", "drop", {"subject": "www.a.test"}, "job", "me", 0.0))
    assert isinstance(work, Generator)
    for _ in work:
        site.commit()
    site.commit()
    left = [url_states.lastmod(site.store, state_key(host, f"http://{host}/x")) for host in hosts]
    known = [
        url_states.voucher_of_sitemap(site.store, state_key(host, f"http://{host}/x"))
        for host in hosts
    ]
    assert (left, known) == ([None, 5], [None, "b.test"])
    assert [key for key, _ in site.store.kv(TWINS).items()] == [b"b.test"]
    twins.forget(site_of("b.test"))
    assert not list(site.store.kv(TWINS).items())
