"""What another agent holds is held back, and little of it in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.handover_sides import Side
from support.virtual_crawl import Crawl, Web

from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.store.rocks_store import RocksStore


def test_few_entries_are_held_back_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a host with more of them the rest waits on disk; all of it goes on when it may."""
    monkeypatch.setattr("scrapy_spider_suite.crawl.queue.leases._MOST", 3)
    a = Side(tmp_path / "a")
    for page in range(40):
        a.put("h0.t", page, "pending")
    holding, fronts = a.frontier.leases.foreign, a.frontier.residents.fronts
    holding.set_rule(lambda host, url: int(url[-1]) % 2 == 0, by_host=False)
    found: list[str] = []

    def visits() -> None:
        for _ in range(60):
            a.now += 5.0
            for host in a.frontier.unresolved_hosts(a.now, 9):
                a.frontier.set_address(host, "10.0.0.1", "10.0.0.1", 1e18, a.now)
            for fetch in a.frontier.leases.acquire(a.now):
                found.append(fetch.entry.url)
                fetch.event = Event.SUCCESS
                a.frontier.leases.release(fetch, a.now)
                a.frontier.commit.settle([fetch], a.now)

    visits()
    assert 0 < len(found) < 40
    assert fronts.leased("h0.t") == 3
    holding.set_rule(None)
    visits()
    assert sorted(found) == sorted(f"http://h0.t/{page}" for page in range(40))
    assert fronts.leased("h0.t") == 0
    a.close()


@pytest.mark.parametrize("by_host", [True, False])
def test_what_is_free_again_is_looked_for_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_host: bool
) -> None:
    """However much is held back, a change takes no longer; another one begins anew."""
    a, asked = Side(tmp_path / "a"), list[str]()
    for page in range(12):
        a.put(f"h{page}.t", page, "pending")
    holding = a.frontier.leases.foreign

    def nothing_but(host: str, url: str) -> bool:
        asked.append(host)
        return host != "h3.t"

    def visits() -> int:
        a.now += 5.0
        for host in a.frontier.unresolved_hosts(a.now, 99):
            a.frontier.set_address(host, f"10.0.0.{host.key[1:-2]}", host.key, 1e18, a.now)
        return sum(len(a.frontier.leases.acquire(a.now)) for _ in range(20))

    holding.set_rule(lambda host, url: True, by_host=by_host)
    assert visits() == 0
    monkeypatch.setattr("scrapy_spider_suite.crawl.queue.leases._PORTION", 5)
    for _ in range(2):
        asked.clear()
        holding.set_rule(nothing_but, by_host=by_host)
        assert len(asked) == 5
    while holding.busy:
        holding.step()
    assert visits() == 1
    holding.set_rule(None)
    assert holding.busy
    while holding.busy:
        holding.step()
    assert visits() == 11
    assert not holding
    a.close()


def test_hosts_that_are_held_back_leave_their_places_to_others(tmp_path: Path) -> None:
    """Whether they were in memory when that began or not; they have visits when it is over."""
    hosts = [f"h{n}.t" for n in range(12)]
    store = RocksStore(tmp_path / "store")
    crawl = Crawl(store, Web({host: f"10.0.0.{host[1:-2]}" for host in hosts}), capacity=4)
    urls = [f"http://{host}/{page}" for host in hosts for page in range(20)]
    crawl.seed(*urls[:40])
    crawl.run(until=20.0)
    before = {fetch.host for fetch in crawl.fetches}
    crawl.frontier.leases.foreign.set_rule(lambda host, url: int(host[1:-2]) < 6)
    crawl.seed(*urls[40:])
    crawl.run(until=1_000.0)
    assert before <= {*hosts[:2]}
    assert {fetch.host for fetch in crawl.fetches if fetch.start > 20.0} == {*hosts[6:]}
    crawl.frontier.leases.foreign.set_rule(None)
    crawl.run(until=3_000.0)
    assert sorted(crawl.urls) == sorted(urls)
    store.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_hosts_on_disk_go_on_as_soon_as_they_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """Those that were put off meanwhile, too, by this process or an earlier one."""
    monkeypatch.setattr("scrapy_spider_suite.store.residency._PORTION", 4)
    hosts = [f"h{n}.t" for n in range(30)]
    web = Web({host: f"10.0.0.{host[1:-2]}" for host in hosts})
    store = RocksStore(tmp_path / "store")
    crawl = Crawl(store, web)
    crawl.seed(*(f"http://{host}/0" for host in hosts))
    crawl.frontier.close()
    starts = 0.0
    for _ in range(1 + restarted):
        crawl = Crawl(store, web, start=starts, resume=True)
        crawl.frontier.leases.foreign.set_rule(lambda host, url: True)
        starts += 100.0
        crawl.run(until=starts)
        crawl.frontier.close()
    if restarted:
        crawl = Crawl(store, web, start=starts, resume=True)
    assert not crawl.fetches
    crawl.frontier.leases.foreign.set_rule(lambda host, url: host == "h7.t")
    assert crawl.frontier.leases.next_visit_in(crawl.now) == 0.0
    crawl.run(until=starts + 20.0)
    assert {fetch.host for fetch in crawl.fetches} == {*hosts} - {"h7.t"}
    assert (crawl.frontier.leases.next_visit_in(crawl.now) or 0.0) > 60.0
    store.close()
