"""SUITE_LINK_STATS: what is counted is what the pages that are done link to, kills or not."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from crawls import crawl, web_settings

from scrapy_spider_suite.job.directory import FOLDER
from scrapy_spider_suite.monitor.linkreport import report
from scrapy_spider_suite.monitor.linkstats import ROWS, HostLinks, LinkStats
from scrapy_spider_suite.storage.reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess
from scrapy_spider_suite.urls.normalize import host_of, normalize

TABLES = ["links", "hosts", "out", "external", "statuses", "types"]


def expected(web: FakeWebProcess) -> dict[str, Counter[str]]:
    """An independent count over the pages of *web*."""
    counts: dict[str, Counter[str]] = {
        name: Counter() for name in ("pages", "internal", "external", "in_links", "statuses")
    }
    for url in web.web.reachable():
        status = web.web.status(url)
        counts["statuses"][str(status)] += 1
        if status != 200:
            continue
        host = host_of(url)
        counts["pages"][host] += 1
        for link in {normalize(each) for each in web.web.links(url)}:
            assert link is not None
            where = host_of(link)
            counts["internal" if where == host else "external"][host] += 1
            if where != host:
                counts["in_links"][where] += 1
    return counts


def compare(job: Path, counts: dict[str, Counter[str]]) -> None:
    """Whether *job* says the same."""
    with StoreReader(job / FOLDER) as reader:
        stats = LinkStats(reader.store.kv(ROWS))
        hosts = dict(stats.hosts())
        found = report(stats)
    for name in ("pages", "internal", "external", "in_links"):
        said = Counter({host: getattr(links, name) for host, links in hosts.items()})
        assert +said == counts[name], name
    assert dict(found.tables["statuses"]) == counts["statuses"]
    assert found.totals.pages == counts["pages"].total()
    assert found.totals.links == counts["internal"].total() + counts["external"].total()
    assert sum(found.degrees["out"].values()) == found.totals.pages
    assert isinstance(found.most_linked[0][1], HostLinks)


@pytest.mark.parametrize(
    "kills", [0, pytest.param(4, marks=pytest.mark.slow)], ids=["undisturbed", "killed"]
)
def test_counts_equal_an_independent_count(kills: int, tmp_path: Path) -> None:
    """Of every page once, whatever was in flight when the crawl was killed."""
    config = FakeWebConfig(hosts=30, pages=12, degree=8, redirects=0.05, errors=0.0)
    chance, job = random.Random(kills), tmp_path / "job"
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(job), SUITE_LINK_STATS=TABLES,
            SUITE_HOST_DELAY=0.02 if kills else 0, SUITE_IP_DELAY=0,
            SUITE_PACKS_DIR=str(tmp_path / "packs"),
        )  # fmt: skip
        seed = web.ready.seeds[0]
        for _ in range(kills):
            crawl(
                "crawl_spiders.Bulk", settings, tmp_path, kill_after=chance.uniform(0.1, 0.8),
                seeds=seed,
            )  # fmt: skip
        ended = crawl("crawl_spiders.Bulk", settings, tmp_path, seeds=seed)
        assert ended.reason == "finished", ended.log[-3000:]
        counts = expected(web)
    compare(job, counts)
