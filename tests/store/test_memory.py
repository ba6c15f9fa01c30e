"""Memory follows the settings, not what the crawl has met (promise 3)."""

from __future__ import annotations

import gc
import re
import tracemalloc
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
from support.virtual_crawl import Crawl, entry, trees

from benchmarks import __main__ as entry_point
from benchmarks.frontier import PARTS
from scrapy_spider_suite.frontier.outcomes import Pace
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store import counters, host_queues
from scrapy_spider_suite.store import host_queues as hostrecords
from scrapy_spider_suite.store.rocks_store import RocksStore


def objects_of(root: object) -> int:
    """How many objects hang on *root*."""
    seen: dict[int, object] = {}
    found = [root]
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, type | FunctionType | ModuleType):
            seen[id(each)] = each
            found += gc.get_referents(each)
    return len(seen)


def most_objects(folder: Path, hosts: int) -> int:
    """The most objects that a frontier with room for ten hosts was seen with, batches apart."""
    web = trees(hosts, 12, hosts)
    policy = Policy(host=Pace(1.0), address=Pace(0.5))
    crawl = Crawl(RocksStore(folder / "store", memory=1 << 20), web, policy, capacity=10)
    crawl.frontier.admission.schedule((entry(f"http://{host}/0") for host in web.addresses), 0.0)
    most = 0
    for fetches in range(0, 13 * hosts, hosts):
        crawl.run(fetches=fetches)
        crawl.frontier.tick(crawl.now)
        most = max(most, objects_of(crawl.frontier))
    assert len(crawl.urls) == 12 * hosts
    crawl.frontier.store.close()
    return most


def test_nothing_grows_with_the_hosts_and_urls_that_were_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times as many of both, and not an object more than the chance of the moment."""
    monkeypatch.setattr(hostrecords, "_CACHE", 10)
    monkeypatch.setattr(counters, "_CACHE", 10)
    monkeypatch.setattr(host_queues, "_FRONT", 2)
    few, many = (most_objects(tmp_path / str(hosts), hosts) for hosts in (25, 250))
    assert many <= 1.2 * few


@pytest.mark.slow
@pytest.mark.long
def test_the_benchmark_in_small(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten times the hosts cost no more memory, here of the whole process."""
    parts = ["some-hosts", "many-hosts"]
    words = (word for part in parts for word in ("--part", part))
    assert entry_point.main(["frontier", "--small", *words]) == 0
    said = capsys.readouterr().out
    peaks = dict(re.findall(r"^(\S+) .* peak (\d+) MB", said, re.MULTILINE))
    assert peaks.keys() == set(parts), said
    assert int(peaks["many-hosts"]) <= 1.1 * int(peaks["some-hosts"]) + 1


@pytest.mark.slow
@pytest.mark.parametrize("part", ["on-disk", "refills", "host-bytes"])
def test_other_parts_of_the_benchmark(part: str, tmp_path: Path) -> None:
    """Each gives its figures."""
    try:
        assert all(PARTS[part](tmp_path, 100).values())
    finally:
        tracemalloc.stop()
