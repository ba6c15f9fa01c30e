"""Units move between agents in virtual time, while the crawl goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.handover_sides import Movers
from support.virtual_crawl import HOST_DELAY, all_urls, trees

from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.store.counters import wrong_rows
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.seen_index import Archive


@pytest.mark.parametrize("kind", ["ring", "host-parity", "url-sum"])
def test_units_move_while_the_crawl_goes_on(tmp_path: Path, kind: str) -> None:
    """One agent joins, one leaves: each page is fetched once, and no delay is cut short."""
    web = trees(20, 13, 20)
    stores = [RocksStore(tmp_path / f"s{n}", memory=1 << 20) for n in range(3)]
    for n, store in enumerate(stores):
        store.archive = Archive(tmp_path / f"a{n}")
    agents = Movers(web, load_assignment(kind), stores)
    names = list(agents.crawls)
    agents.begin(tmp_path, *names[:2])
    agents.portions = 2 if agents.assignment.by_host else 40
    agents.each(lambda crawl: crawl.seed("http://h0.t/0", "http://h1.t/0"))
    agents.run(until=9.0)
    early = len(agents.urls)
    agents.change(*names)
    while agents.work:
        agents.run(until=agents.now + 1.0)
    middle = len(agents.urls)
    agents.change(*names[1:])
    agents.run()
    assert not agents.work
    assert 0 < early < middle < len(agents.urls)
    assert Counter(agents.urls) == Counter(all_urls(web, 13))
    last: dict[str, float] = {}
    fetches = [fetch for crawl in agents.crawls.values() for fetch in crawl.fetches]
    for fetch in sorted(fetches, key=lambda fetch: fetch.start):
        # Where URLs of one host lie with several agents, its delay is the business of a ledger.
        gap = fetch.start - last.get(fetch.host, -1e9)
        assert gap >= HOST_DELAY - 1e-3 or not agents.assignment.by_host
        last[fetch.host] = fetch.end
    counts = [crawl.frontier.counters for crawl in agents.crawls.values()]
    assert sum(each.done for each in counts) == len(web.addresses) * 13
    assert not sum(each.pending for each in counts)
    assert counts[0].done == 0  # it has left, with all it knew
    assert all(crawl.fetches for crawl in agents.crawls.values())
    for store in stores:
        assert list(wrong_rows(store)) == []
        store.close()
