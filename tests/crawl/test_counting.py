"""SUITE_LINK_STATS: what is counted is what the pages that are done link to, kills or not.

And packs, their index and the graph that is made of them say the same.
"""

from __future__ import annotations

import gzip
import os
import random
from collections import Counter
from pathlib import Path

import networkx
import pytest
from support import text_index as searched
from support.crawls import crawl, crawl_over_kills, web_settings
from support.webs import FakeWebProcess

from scrapy_spider_suite.analysis.link_graph import GraphBuilder, LinkingPages, page_records
from scrapy_spider_suite.analysis.link_stats import ROWS, HostLinks, LinkStats, degree_counts
from scrapy_spider_suite.packs import open_packs, verify
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig
from scrapy_spider_suite.urls.normalize import host_of, normalize

TABLES = ["links", "hosts", "out", "external", "statuses", "types", "sizes", "anchors"]
KILLS = int(os.environ.get("KILLS", "2"))
"""Each costs the start of a crawl; KILLS=20 is what docs/measurements.md tells of."""


def walked(web: FakeWebProcess) -> networkx.MultiDiGraph:
    """The pages of *web* with their statuses, and their edges: an independent count."""
    pages = networkx.MultiDiGraph()
    for url in web.web.reachable():
        status = web.web.status(url)
        pages.add_node(url, status=status)
        kind = "a" if status == 200 else "redirect"
        for link in {normalize(each) for each in web.web.links(url)}:
            pages.add_edge(url, link, kind=kind)
    return pages


def by_host(pages: networkx.MultiDiGraph) -> tuple[dict[str, HostLinks], networkx.MultiDiGraph]:
    """What *pages* come to for each host, and the links between different ones."""
    good = Counter(host_of(url) for url, status in pages.nodes(data="status") if status == 200)
    links = networkx.MultiDiGraph()
    links.add_nodes_from(good)
    ends = pages.edges(data="kind")
    links.add_edges_from((host_of(a), host_of(b)) for a, b, kind in ends if kind == "a")
    across = networkx.MultiDiGraph(links)
    across.remove_edges_from(list(networkx.selfloop_edges(links, keys=True)))
    linked = networkx.DiGraph(across)
    return {
        host: HostLinks(
            good[host], links.out_degree(host), links.number_of_edges(host, host),
            across.out_degree(host), across.in_degree(host), linked.out_degree(host),
            linked.in_degree(host),
        )
        for host in links
    }, across  # fmt: skip


def compare_counts(job: Path, pages: networkx.MultiDiGraph) -> None:
    """Whether the statistics of *job* say the same as *pages*."""
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
        stats = LinkStats(reader.store.kv(ROWS))
        hosts, pairs, totals = dict(stats.hosts()), list(stats.edges()), stats.totals()
        by_status, degrees = dict(stats.table("statuses")), degree_counts(stats)
    expected, across = by_host(pages)
    assert hosts == expected
    assert {(a, b): number for a, b, number in pairs} == Counter(across.edges())
    statuses = Counter(str(status) for _, status in pages.nodes(data="status"))
    assert by_status == statuses
    assert totals.pages == statuses["200"] == sum(degrees["out"].values())
    assert totals.links == sum(links.links for links in expected.values())


def compare_graph(packs: Path, folder: Path, pages: networkx.MultiDiGraph) -> None:
    """Whether the graph that is made of *packs* is that of *pages*."""
    with GraphBuilder(folder) as builder:
        builder.add(page_records(open_packs(packs), LinkingPages()))
        builder.finish().write_pages(folder)
    vertices, edges = (
        [line.split("\t") for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
        for path in (folder / "page-vertices.txt.gz", folder / "page-edges.txt.gz")
    )
    urls = [url for _, url, _ in vertices]
    assert {url for _, url, fetched in vertices if fetched == "1"} == set(pages)
    said = sorted((urls[int(a)], urls[int(b)], kind) for a, b, kind, _ in edges)
    assert said == sorted(pages.edges(data="kind"))


def test_counts_equal_an_independent_count(tmp_path: Path) -> None:
    """Of every page once; redirects are no links, but edges."""
    config = FakeWebConfig(hosts=15, pages=12, degree=8, redirects=0.05)
    job, packs = tmp_path / "job", tmp_path / "packs"
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(job), SUITE_LINK_STATS=TABLES, SUITE_HOST_DELAY=0,
            SUITE_IP_DELAY=0, SUITE_PACKS_DIR=str(packs),
        )  # fmt: skip
        ended = crawl("support.spiders.Bulk", settings, tmp_path, seeds=web.ready.seeds[0])
        assert ended.reason == "finished", ended.log[-3000:]
        pages = walked(web)
    compare_counts(job, pages)
    compare_graph(packs, tmp_path, pages)


@pytest.mark.slow
def test_all_agree_over_kills(tmp_path: Path) -> None:
    """No page is lost; packs, counts, index and graph are those of an undisturbed run."""
    config = FakeWebConfig(hosts=12, pages=12, degree=8, addresses=6, redirects=0.05)
    job, packs, chance = tmp_path / "job", tmp_path / "packs", random.Random(4)
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(job), SUITE_LINK_STATS=TABLES, SUITE_HOST_DELAY=0.05,
            SUITE_PACKS_DIR=str(packs), SUITE_AGENT_NAME="here", SUITE_INDEX=True,
            SUITE_IP_DELAY=0.03 * KILLS,  # no machine is so fast that it ends between them
        )  # fmt: skip
        times = [chance.uniform(0.0, 1.0) for _ in range(KILLS)]
        last = crawl_over_kills(
            "support.spiders.Bulk", settings, tmp_path, times, seeds=web.ready.seeds[0]
        )
        pages = walked(web)
    assert last.log.count("Spider opened") > len(times) // 2
    assert list(verify(packs)) == []
    compare_counts(job, pages)
    compare_graph(packs, tmp_path, pages)
    found = searched.contents(packs)
    assert found == searched.expected(packs)
    assert set(found) == {url for url, status in pages.nodes(data="status") if status == 200}
