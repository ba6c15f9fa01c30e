"""Orders on disk: with fronts shorter than queues, retries, a kill, and a look from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.virtual_crawl import WALL, Crawl, Web, copy_of, entry

from scrapy_spider_suite.frontier.entries import BREADTH_FIRST, BestFirst, BottomUp, Order
from scrapy_spider_suite.frontier.outcomes import Event, Pace
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store import host_queues
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore

SOON = Policy(host=Pace(1.0), address=Pace(0.1))
PATHS = ["/", "/n/", "/n/2", "/n/1/b", "/n/1/", "/a", "/n/1/a", "/z?q=1", "/z"]
LEAVES_FIRST = ["/a", "/n/1/a", "/n/1/b", "/n/1/", "/n/2", "/n/", "/z?q=1", "/z", "/"]
ORDERS = [
    (BREADTH_FIRST, PATHS), (BottomUp(), LEAVES_FIRST), (BottomUp(alternating=True), LEAVES_FIRST),
    (BestFirst(lambda each: len(each.url)), sorted(PATHS, key=len, reverse=True)),
]  # fmt: skip


@pytest.mark.parametrize(("order", "expected"), ORDERS, ids=["found", "up", "fro", "best"])
def test_an_order_holds_over_refills_retries_and_kills(
    order: Order, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed once comes last; after a kill the crawl goes on where it was."""
    monkeypatch.setattr(host_queues, "_FRONT", 2)

    def event(url: str, attempt: int) -> Event:
        first = url == f"http://a.t{expected[0]}" and attempt == 1
        return Event.SERVER_ERROR if first else Event.SUCCESS

    web = Web({"a.t": "10.0.0.1"}, event=event)
    crawl = Crawl(RocksStore(tmp_path / "store", memory=4 << 20), web, SOON, order=order)
    crawl.seed(*(f"http://a.t{path}" for path in PATHS))
    with StoreReader(tmp_path) as reader:
        assert [each.url[10:] for each in reader.pending("a.t")] == expected
        assert list(reader.check()) == []
    crawl.run(fetches=4)
    crawl.frontier.flush()
    assert [url[10:] for url in crawl.urls] == expected[:4]
    copy = copy_of(tmp_path / "store", tmp_path / "killed" / "store")
    with StoreReader(copy.parent) as reader:
        left = [each.url[10:] for each in reader.pending("a.t")]
        assert list(reader.check()) == []
    assert left == expected[4:] + expected[:1]
    again = Crawl(
        RocksStore(copy, memory=4 << 20), web, SOON, order=order, wall=WALL + 60.0, resume=True,
        unclean=True,
    )  # fmt: skip
    high = entry("http://a.t/high", priority=1)
    again.frontier.admission.schedule([high], again.now)
    again.run()
    assert [url[10:] for url in again.urls] == ["/high", *left]
