"""What an operator asks of a job whose links go through the sieve."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.virtual_crawl import entry

from scrapy_spider_suite.crawl.queue.frontier import Frontier, QueueOptions
from scrapy_spider_suite.frontier.outcomes import Event, Pace
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.operate.actions import Action, ActionFolder
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.verbs import actions
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.seen_index import DROPPED, SIEVE_FOLDER, SieveIndex

PAGE = "http://c.t/"
QUICK = Policy(host=Pace(0.0), address=Pace(0.0))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[JobTarget]:
    """A job at rest, with a sieve."""
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    store.sieve = SieveIndex(tmp_path / SIEVE_FOLDER, store.kv(DROPPED))
    options = QueueOptions(cache=1 << 12, sift=True)
    frontier = Frontier(store, QUICK, now=0.0, wall=0.0, capacity=10, options=options)
    yield JobTarget(tmp_path, store, frontier)
    store.close()


def carry_out(site: JobTarget, verb: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """All portions of an action; its receipt."""
    work = actions()[verb](site, Action("1", verb, arguments, "job", "me", 0.0))
    assert isinstance(work, Generator)
    while True:
        try:
            next(work)
        except StopIteration as end:
            site.commit()
            said, facts = end.value
            return said, facts
        site.commit()


def bring(site: JobTarget, *urls: str, flush: bool = True) -> None:
    """Links of a page, and the sieve's word on them."""
    frontier, sifter = site.frontier, site.frontier.states.sieve_queue
    assert sifter is not None
    frontier.admission.schedule([entry(url, referrer=PAGE) for url in urls], 1.0)
    frontier.flush()
    if flush and (begun := sifter.begin()) is not None:
        begun.run()
        for _ in frontier.admission.sift(1.0):
            pass


def fetch(site: JobTarget, *failing: str) -> list[str]:
    """Fetch all that is pending; each is answered with 200, but those that are *failing*."""
    frontier, urls = site.frontier, []
    for host in frontier.unresolved_hosts(1.0, 100):
        frontier.set_address(host, "10.0.0.1", host.key, 1e18, 1.0)
    while fetches := frontier.leases.acquire(1.0):
        for fetch in fetches:
            urls.append(fetch.entry.url)
            lost = fetch.entry.url in failing
            fetch.event, fetch.status = (Event.CLIENT_ERROR, 404) if lost else (Event.SUCCESS, 200)
            frontier.leases.release(fetch, 1.0)
            frontier.commit.settle([fetch], 1.0)
    frontier.flush()
    return sorted(urls)


def test_refetch_by_pattern_says_what_it_does_not_reach(site: JobTarget) -> None:
    """It finds what has rows, and a word about all else."""
    bring(site, "http://a.t/1", "http://a.t/2")
    fetch(site, "http://a.t/2")
    said, facts = carry_out(site, "refetch", pattern="a.t")
    assert facts["urls"] == 1
    assert "fingerprints" in said
    assert fetch(site) == ["http://a.t/2"]


def test_refetch_by_list_reaches_everything(site: JobTarget, tmp_path: Path) -> None:
    """A URL that only the sieve knows is fetched again, once, and needs no row after that."""
    bring(site, "http://a.t/1", "http://a.t/2")
    fetch(site)
    urls = ActionFolder(tmp_path).urls_path("1")
    urls.parent.mkdir()
    urls.write_text("http://a.t/1\nhttp://a.t/3\n")
    _, facts = carry_out(site, "refetch")
    assert (facts["urls"], facts["unknown"]) == (1, 1)
    assert fetch(site) == ["http://a.t/1"]
    assert not site.store.get("states", entry("http://a.t/1").identity)
    assert site.frontier.counters.done == 2


def test_drop_forgets_a_host_and_no_other(site: JobTarget, tmp_path: Path) -> None:
    """Pages that only the sieve knew are counted, links that waited are gone, all may come anew."""
    bring(site, "http://a.t/1", "http://a.t/2", "http://b.t/1")
    fetch(site, "http://a.t/2")
    bring(site, "http://a.t/3", "http://b.t/3", flush=False)
    said, facts = carry_out(site, "drop", subject="a.t")
    assert (facts["pending"], facts["done"], facts["failed"]) == (1, 1, 1), said
    counters = site.frontier.counters
    assert (counters.done, counters.failed) == (1, 0)
    assert sum(counters.events.values()) == 1
    bring(site)
    assert fetch(site) == ["http://b.t/3"]
    bring(site, "http://a.t/1", "http://a.t/2", "http://b.t/1")
    assert fetch(site) == ["http://a.t/1", "http://a.t/2"]
    with StoreReader(tmp_path) as reader:
        assert list(reader.check()) == []


def test_drop_of_a_prefix_says_what_stays(site: JobTarget) -> None:
    """What was answered 200 below it stays seen; what waits or failed there goes."""
    bring(site, "http://a.t/x/1", "http://a.t/x/2")
    fetch(site, "http://a.t/x/2")
    bring(site, "http://a.t/x/3", "http://a.t/y", flush=False)
    _, facts = carry_out(site, "drop", subject="http://a.t/x/")
    assert (facts["pending"], facts["done"], facts["failed"]) == (1, 0, 1)
    assert any("answered 200" in each for each in facts["not_touched"])
    bring(site, "http://a.t/x/1")
    assert fetch(site) == ["http://a.t/y"]


def test_retry(site: JobTarget) -> None:
    """What failed has a row."""
    bring(site, "http://a.t/1", "http://a.t/2")
    fetch(site, "http://a.t/2")
    _, facts = carry_out(site, "retry", reason=Event.CLIENT_ERROR.value)
    assert facts["urls"] == 1
    assert fetch(site) == ["http://a.t/2"]
    assert site.frontier.counters.done == 2
