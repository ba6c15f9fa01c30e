"""SyntheticWeb: the same for the same seed, wholly reachable, and as the knobs say."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protego import Protego

from scrapy_spider_suite.testing import FakeWebConfig, SyntheticWeb

shares = st.sampled_from([0.0, 0.1, 0.5, 1.0])


@st.composite
def webs(draw: st.DrawFn) -> SyntheticWeb:
    """A small web with every knob of the graph turned."""
    errors = draw(st.sampled_from([0.0, 0.2, 0.5]))
    config = FakeWebConfig(
        seed=draw(st.integers(0, 1000)),
        hosts=draw(st.integers(1, 40)),
        pages=draw(st.integers(1, 30)),
        pages_sigma=draw(st.sampled_from([0.0, 1.0])),
        depth=draw(st.integers(1, 4)),
        degree=draw(st.integers(0, 12)),
        external=draw(shares),
        errors=errors,
        redirects=draw(st.sampled_from([0.0, 0.2, 0.5])),
        redirects_across=draw(shares),
        robots_missing=draw(shares),
        robots_error=draw(shares),
        robots_disallow=draw(shares),
    )
    return SyntheticWeb(config, (8080,))


def make(**knobs: Any) -> SyntheticWeb:
    """A web on port 8080."""
    return SyntheticWeb(FakeWebConfig(**knobs), (8080,))


@settings(max_examples=60, deadline=None)
@given(webs(), st.booleans())
def test_all_that_counts_as_reachable_is(web: SyntheticWeb, obey_robots: bool) -> None:
    """A walk over the links from host 0 finds exactly the promised set, and no page twice."""
    walked = list(web.walk(web.roots(1), obey_robots=obey_robots))
    promised = list(web.reachable(obey_robots=obey_robots))
    assert sorted(walked) == sorted(promised)
    assert len(set(promised)) == len(promised)


def test_without_robots_every_page_is_promised() -> None:
    """Errors and redirects are pages too."""
    web = make(hosts=7, pages=30, errors=0.3, redirects=0.3)
    assert len(list(web.reachable())) == 7 * 30


@settings(max_examples=60, deadline=None)
@given(webs(), st.data())
def test_paths_are_read_back(web: SyntheticWeb, data: st.DataObject) -> None:
    """``page_index`` inverts ``path`` and ``host_index`` inverts ``host_name``."""
    host = data.draw(st.integers(0, len(web) - 1))
    page = data.draw(st.integers(0, web.traits(host).pages - 1))
    assert web.host_index(web.host_name(host)) == host
    assert web.page_index(host, web.path(page)) == page


@pytest.mark.parametrize("path", ["/x", "/00.html", "/99.html", "/0/99.html", "", "/0.html/", "//"])
def test_other_paths_are_no_pages(path: str) -> None:
    """One path a page: no leading zeros, no steps that the tree does not have."""
    web = make(pages=20, depth=2)
    with pytest.raises(LookupError):
        web.page_index(0, path)


@pytest.mark.parametrize(
    "name",
    ["h000100.fake.test", "h1.fake.test", "h0000001.fake.test", "fake.test", "h000001.x", ""],
)
def test_other_names_are_no_hosts(name: str) -> None:
    """One name a host."""
    with pytest.raises(LookupError):
        make(hosts=100).host_index(name)


def test_large_webs_cost_nothing() -> None:
    """Host number 1,999,999 is there at once, as nothing is made before it is asked for."""
    web = make(hosts=2_000_000)
    assert web.links(web.base(1_999_999) + "/")
    assert web.host_index("h1999999.fake.test") == 1_999_999


def test_the_graph_is_the_same_everywhere() -> None:
    """The links of seed 1 never change: jobs and results of other machines depend on them."""
    web = make(hosts=50, pages=40, errors=0.1, redirects=0.1, pages_sigma=0.5)
    known = hashlib.sha256()
    for url in web.reachable():
        known.update(repr((url, web.status(url), web.links(url))).encode())
    assert known.hexdigest()[:16] == "4baa9dd99f14ee6e"
    assert make(seed=2).links(make().roots(1)[0]) != make().links(make().roots(1)[0])


def test_shares_are_met() -> None:
    """Statuses, external links and the number of links come out as the knobs say."""
    web = make(hosts=200, pages=50, errors=0.2, redirects=0.1, external=0.25, degree=30)
    urls = list(web.reachable())
    statuses = Counter(web.status(url) for url in urls)
    inner = 200 * (1 + (50 - 2) // 4)
    leaves = len(urls) - inner
    assert abs(sum(statuses[each] for each in (404, 500, 503)) / leaves - 0.2) < 0.02
    assert abs(sum(statuses[each] for each in (301, 302, 307, 308)) / leaves - 0.1) < 0.02
    assert 1.5 < statuses[404] / statuses[500] < 2.7
    pages = [url for url in urls if web.status(url) == 200]
    links = [(url, link) for url in pages for link in web.links(url)]
    assert abs(len(links) / len(pages) - 30) < 2
    assert 0.2 < sum(url[:24] != link[:24] for url, link in links) / len(links) < 0.3


def test_redirects_lead_to_pages() -> None:
    """A redirect never leads to another one, so there are no chains and no loops."""
    web = make(hosts=20, pages=30, redirects=0.5, errors=0.2, redirects_across=0.5)
    moved = [url for url in web.reachable() if 300 <= web.status(url) < 400]
    targets = [web.links(url) for url in moved]
    assert len(moved) > 100
    assert all(len(target) == 1 and web.status(target[0]) == 200 for target in targets)
    across = sum(url[:24] != target[0][:24] for url, target in zip(moved, targets, strict=True))
    assert 0.35 < across / len(moved) < 0.65


@settings(max_examples=30, deadline=None)
@given(webs())
def test_robots_means_what_allowed_says(web: SyntheticWeb) -> None:
    """An independent parser of robots.txt comes to the same verdict on every page."""
    for host in range(len(web)):
        robots = web.robots(web.host_name(host))
        rules = Protego.parse(robots.body)
        for page in range(web.traits(host).pages):
            url = web.base(host) + web.path(page)
            wanted = robots.status == 404 or (robots.status == 200 and rules.can_fetch(url, "any"))
            assert web.allowed(url) == wanted


def test_crawl_delay_is_in_robots() -> None:
    """Both by share and by override."""
    web = make(hosts=50, robots_crawl_delay=0.5, crawl_delay=2.5, overrides={0: {"crawl_delay": 7}})
    delays = [Protego.parse(web.robots(web.host_name(k)).body).crawl_delay("x") for k in range(50)]
    assert delays[0] == 7
    assert 10 < delays.count(2.5) < 40
    assert delays.count(None) + delays.count(2.5) == 49


def test_hosts_share_addresses_evenly() -> None:
    """Hosts are dealt out in turn, unless an override says otherwise."""
    web = make(hosts=20, addresses=5, overrides={7: {"address": 0}})
    assert Counter(web.address_index(host) for host in range(20)) == {0: 5, 1: 4, 2: 3, 3: 4, 4: 4}


def test_with_one_address_each_has_its_port() -> None:
    """Where ports stand for addresses, every URL has the port of its host."""
    web = SyntheticWeb(FakeWebConfig(hosts=6, addresses=3), (7001, 7002, 7003))
    assert web.base(4) == "http://h000004.fake.test:7002"
    assert web.status(web.base(4) + "/") == 200
    with pytest.raises(LookupError, match="port"):
        web.status("http://h000004.fake.test:7001/")
    assert SyntheticWeb(FakeWebConfig()).base(0) == "http://h000000.fake.test"


def test_overrides_change_one_host() -> None:
    """A large and slow host among small and quick ones."""
    web = make(hosts=3, pages=5, overrides={1: {"pages": 5000, "latency": 2.0}})
    assert [web.traits(host).pages for host in range(3)] == [5, 5000, 5]
    assert [web.traits(host).latency for host in range(3)] == [0.0, 2.0, 0.0]
    assert len(list(web.walk(web.roots(1)))) == 5010


def test_a_blocked_inner_host_is_walked_around() -> None:
    """An override can break the invariant of robots.txt; the promise then comes from a walk."""
    web = make(hosts=40, pages=3, degree=0, overrides={1: {"robots_status": 503}})
    found = set(web.reachable(obey_robots=True))
    assert found == set(web.walk(web.roots(1), obey_robots=True))
    # Hosts 17 to 32 hang on host 1, and nothing else links to them.
    assert len(found) == (40 - 17) * 3


def test_a_walk_can_be_bounded_by_depth() -> None:
    """Redirects cost no depth, as a crawler counts it."""
    web = make(hosts=1, pages=85, depth=3, degree=0)
    assert [len(list(web.walk(web.roots(1), max_depth=d))) for d in range(4)] == [1, 5, 21, 85]
    moved = make(hosts=1, pages=21, depth=2, degree=0, redirects=1.0)
    assert len(list(moved.walk(moved.roots(1), max_depth=2))) == 21


def test_what_is_not_there_is_404() -> None:
    """Unknown paths have a status, unknown hosts have not."""
    web = make(hosts=2)
    assert web.status(web.base(0) + "/nothing.html") == 404
    assert web.status(web.base(0) + "/?query=1#part") == 200
    with pytest.raises(LookupError):
        web.status("http://elsewhere.test/")
    with pytest.raises(LookupError):
        web.links(web.base(0) + "/nothing.html")
