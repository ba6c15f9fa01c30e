"""The gate: whatever fetches, and whatever becomes of a request, goes by one clock."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.crawls import Crawl, crawl
from support.polite_crawls import TOLERANCE, Size
from support.webs import FakeWebProcess

from scrapy_spider_suite.testing import Arrival, gaps
from scrapy_spider_suite.testing.fake_web import address_text

TINY = Size(hosts=6, addresses=3, pages=6, host_delay=0.3, ip_delay=0.05)
FIRST, SECOND = "h000000.fake.test", "h000001.fake.test"


def _crawl(
    spider: str, folder: Path, settings: dict[str, Any] | None = None, **knobs: Any
) -> tuple[Crawl, list[Arrival], list[dict[str, Any]]]:
    """Crawl six hosts; return the crawl, its arrivals and its items."""
    items = folder / "items"
    items.write_text("")
    config = TINY.web(folder / "arrivals", **{"redirects": 0.0, **knobs})
    with FakeWebProcess(config) as web:
        common = {"ITEM_PIPELINES": {"support.spiders.FilePipeline": 1}, "TEST_ITEMS": str(items)}
        end = crawl(
            spider, TINY.settings(web.ready, **{**common, **(settings or {})}), folder,
            seeds=str(config.seeds_file),
        )  # fmt: skip
        web.stop()
        arrivals = web.arrivals()
    assert end.reason == "finished", end.log[-3000:]
    assert end.stats["suite/frontier/pending"] == end.stats["suite/frontier/leased"] == 0
    return end, arrivals, [json.loads(line) for line in items.read_text().splitlines()]


def test_downloads_of_start_callbacks_and_extensions_keep_the_delays(tmp_path: Path) -> None:
    """`engine.download_async` waits like everybody else, and nobody waits for ever."""
    settings = {"EXTENSIONS": {"support.odd_spiders.Fetcher": 1}}
    end, arrivals, items = _crawl("support.odd_spiders.Downloads", tmp_path, settings)
    assert end.stats["test/extension/200"] == 1
    assert sum("page" in item for item in items) == TINY.hosts
    assert TINY.too_early(arrivals) == []


@pytest.mark.parametrize("durable", [False, True])
def test_a_visit_is_released_whatever_becomes_of_its_request(
    durable: bool, tmp_path: Path
) -> None:
    """Ignored, answered, replaced, refused or sent off-site by a middleware: its host goes on."""
    odd = {"support.odd_spiders.OddMiddleware": 450}
    settings: dict[str, Any] = {"DOWNLOADER_MIDDLEWARES": odd}
    if durable:
        settings["JOBDIR"] = str(tmp_path / "job")
    _, arrivals, items = _crawl("support.odd_spiders.Odd", tmp_path, settings)
    ends = Counter(
        (item["url"].rpartition("/")[2], item.get("failure", item.get("status"))) for item in items
    )
    for end in (("ignore", "IgnoreRequest"), ("raise", "ValueError"), ("drop", "IgnoreRequest")):
        assert ends[end] == TINY.hosts
    assert ends["instant", 200] == TINY.hosts
    assert ends["0.html", 200] >= TINY.hosts
    assert TINY.too_early(arrivals) == []


def test_what_comes_from_the_cache_costs_no_delay(tmp_path: Path) -> None:
    """A second crawl from Scrapy's HTTP cache touches no wire and takes no time."""
    settings = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path / "cache")}
    with socket.socket() as probe:  # the URLs of both crawls have to be the same
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    _, first, _ = _crawl("support.odd_spiders.Seeded", tmp_path, settings, port=port)
    assert TINY.too_early(first) == []
    settings["SUITE_HOST_DELAY"] = 3600
    _, both, items = _crawl("support.odd_spiders.Seeded", tmp_path, settings, port=port)
    assert len(both) == len(first)
    assert len(items) > 25


def test_a_slot_that_a_spider_chose_is_its_pacing_key(tmp_path: Path) -> None:
    """Hosts that share a ``download_slot`` share a clock."""
    _, arrivals, _ = _crawl("support.odd_spiders.Slots", tmp_path, {"ROBOTSTXT_OBEY": False})
    clocks = gaps(arrivals, lambda each: str(int(each.host[1:7]) % 2))
    assert [len(each.values) for each in clocks.values()] == [2, 2]
    assert all(each.smallest >= TINY.host_delay - TOLERANCE for each in clocks.values())


def test_download_slots_of_the_project_are_honoured(tmp_path: Path) -> None:
    """DOWNLOAD_SLOTS gives a host a pace of its own, slower or quicker."""
    slots = {FIRST: {"delay": 0.6}, SECOND: {"delay": 0, "concurrency": 3}}
    _, arrivals, _ = _crawl("support.odd_spiders.Seeded", tmp_path, {"DOWNLOAD_SLOTS": slots})
    by_host = gaps(arrivals)
    assert by_host[FIRST].smallest >= 0.6 - TOLERANCE
    assert by_host[SECOND].smallest < 0.2
    assert by_host["h000002.fake.test"].smallest >= TINY.host_delay - TOLERANCE


def test_autothrottle_slows_down_and_never_below_the_promise(tmp_path: Path) -> None:
    """Its delay counts where it is the longer one."""
    settings = {"AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": 0.8}
    _, arrivals, _ = _crawl("support.odd_spiders.Seeded", tmp_path, settings)
    assert TINY.too_early(arrivals) == []
    assert max(max(each.values) for each in gaps(arrivals).values()) >= 0.6


def test_more_than_one_request_to_a_host_where_the_operator_says_so(tmp_path: Path) -> None:
    """SUITE_HOST_CONCURRENCY is used, and never exceeded."""
    settings = {"SUITE_HOST_CONCURRENCY": 3, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0}
    _, arrivals, _ = _crawl("support.odd_spiders.Seeded", tmp_path, settings, latency=0.3)
    assert max(_at_once(arrivals, host) for host in gaps(arrivals)) == 3


def test_overrides_by_host_domain_and_range(tmp_path: Path) -> None:
    """A host's own line wins over its domain's; a range has a delay of its own."""
    rules = tmp_path / "overrides"
    rules.write_text(f"{FIRST} delay=0.1\n.fake.test delay=0.5\n{address_text(1)}/32 delay=0.2\n")
    _, arrivals, _ = _crawl("support.spiders.Bulk", tmp_path, {"SUITE_OVERRIDES": str(rules)})
    by_host, by_address = gaps(arrivals), gaps(arrivals, "address")
    assert 0.1 - TOLERANCE <= by_host[FIRST].smallest < 0.5
    assert by_host[SECOND].smallest >= 0.5 - TOLERANCE
    assert by_address[address_text(1)].smallest >= 0.2 - TOLERANCE
    assert by_address[address_text(0)].smallest < 0.2


def test_a_burst_is_one_visit(tmp_path: Path) -> None:
    """Up to three pages without a pause, one at a time; then the delay; never with Crawl-delay."""
    _, arrivals, _ = _crawl("support.spiders.Bulk", tmp_path, {"SUITE_REQUESTS_PER_VISIT": 3})
    by_host = gaps(arrivals)
    for host, each in by_host.items():
        assert each.smallest >= -TOLERANCE
        quick = [value < TINY.host_delay - TOLERANCE for value in each.values]
        assert (True, True, True) not in zip(quick, quick[1:], quick[2:], strict=False)
        assert any(quick) == (host != "h000003.fake.test")


def _at_once(arrivals: list[Arrival], host: str) -> int:
    """How many requests to *host* were under way at the same time, at most."""
    edges = [(each.start, 1) for each in arrivals if each.host == host]
    edges += [(each.end, -1) for each in arrivals if each.host == host]
    now = most = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most
