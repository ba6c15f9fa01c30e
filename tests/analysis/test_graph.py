"""The page graph and the host graph: equal to what networkx makes of the same records."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import networkx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.analysis import ranks
from scrapy_spider_suite.analysis.link_graph import (
    KIND_OF,
    GraphBuilder,
    LinkGraph,
    PageRecord,
    plot_degrees,
)
from scrapy_spider_suite.analysis.ranks import ScoreTable, pagerank
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.packs import Link
from scrapy_spider_suite.urls.hosts import reverse_host, surt
from scrapy_spider_suite.urls.normalize import host_of

HOSTS = ("a.test", "www.a.test", "b.example:8080", "b.example", "[::1]:81", "[::1]", "1.2.3.4")
urls = st.builds(
    "{}://{}/{}".format, st.sampled_from(["http", "https"]), st.sampled_from(HOSTS),
    st.sampled_from(["", "x", "x/y?q='1'", "%22", "é"]),
)  # fmt: skip
links = st.builds(Link, urls, st.sampled_from([*KIND_OF, "sitemap"]), st.booleans())
records = st.lists(
    st.builds(PageRecord, urls, st.lists(links, max_size=6), st.sampled_from([0.0, 1.0, 2.0])),
    max_size=15,
)


def lines(path: Path) -> list[list[str]]:
    """The fields of each line."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [line.split("\t") for line in data.decode().splitlines()]


def edges(path: Path) -> list[tuple[int, int]]:
    return [(int(source), int(target)) for source, target in lines(path)]


def newest(found: list[PageRecord]) -> dict[str, PageRecord]:
    """The record of each page that counts, of those of one time the last, with what is an edge."""
    pages = {}
    for page in sorted(found, key=lambda record: record.when):
        edges = [Link(url, KIND_OF[kind], no) for url, kind, no in page.links if kind != "sitemap"]
        pages[page.url] = PageRecord(page.url, edges, page.when)
    return pages


def check_pages(graph: LinkGraph, folder: Path, pages: dict[str, PageRecord]) -> None:
    """Vertices in SURT order, edges with kind and nofollow."""
    graph.write_pages(folder)
    vertices = lines(folder / "page-vertices.txt.gz")
    linked = {link.url for page in pages.values() for link in page.links}
    expected = sorted(pages.keys() | linked, key=lambda url: (surt(url), url))
    assert vertices == [[str(n), url, str(int(url in pages))] for n, url in enumerate(expected)]
    number = {url: n for n, url in enumerate(expected)}
    edges: dict[tuple[int, int, str], bool] = {}
    for page in pages.values():
        for url, kind, nofollow in page.links:
            key = (number[page.url], number[url], kind)
            edges[key] = edges.get(key, True) and nofollow
    got = lines(folder / "page-edges.txt.gz")
    assert sorted(got) == sorted([str(a), str(b), k, str(int(n))] for (a, b, k), n in edges.items())
    assert [(int(a), int(b)) for a, b, *_ in got] == sorted((a, b) for a, b, _ in edges)


def check_hosts(graph: LinkGraph, folder: Path, pages: dict[str, PageRecord]) -> None:
    """Common Crawl's two files, and the edge list as networkx reads it."""
    graph.write_hosts(folder)
    arcs = {
        (host_of(page.url), host_of(link.url)) for page in pages.values() for link in page.links
    }
    names = sorted(reverse_host(h) for h in {host_of(u) for u in pages} | {b for _, b in arcs})
    assert lines(folder / "host-vertices.txt.gz") == [[str(n), h] for n, h in enumerate(names)]
    number = {name: n for n, name in enumerate(names)}
    expected = sorted((number[reverse_host(a)], number[reverse_host(b)]) for a, b in arcs if a != b)
    assert edges(folder / "host-edges.txt.gz") == expected
    graph.write_arcs(folder / "hosts.arcs", "host")
    assert edges(folder / "hosts.arcs") == expected


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records, records)
def test_a_graph_is_that_of_its_records(
    tmp_path: Path, first: list[PageRecord], second: list[PageRecord]
) -> None:
    """Of two agents; the newest record of a page counts."""
    with GraphBuilder(tmp_path) as builder:
        builder.add(first)
        builder.add(second)
        graph = builder.finish()
        pages = newest(first + second)
        check_pages(graph, tmp_path, pages)
        check_hosts(graph, tmp_path, pages)
    assert not list(tmp_path.glob("graph.duckdb*"))


WEB = [
    PageRecord("http://a.test/", [Link("http://b.test/"), Link("http://c.test/x")]),
    PageRecord("http://b.test/", [Link("http://c.test/x"), Link("http://a.test/")]),
    PageRecord("http://c.test/x", [Link("http://d.test/"), Link("http://c.test/x", "canonical")]),
    PageRecord("http://c.test/y", [Link("http://a.test/", "redirect"), Link("http://a.test/")]),
]


def test_the_forms_that_tools_load(tmp_path: Path) -> None:
    """networkx loads the edge lists with kinds; WebGraph's ASCII graph has a line a vertex."""
    with GraphBuilder(tmp_path) as builder:
        builder.add(WEB)
        graph = builder.finish()
        assert graph.sizes == (5, 4, 8, 4, 3, 6)
        graph.write_pages(tmp_path)
        loaded = networkx.read_edgelist(
            tmp_path / "page-edges.txt.gz", delimiter="\t", nodetype=int,
            create_using=networkx.MultiDiGraph, data=[("kind", str), ("nofollow", int)],
        )  # fmt: skip
        assert loaded.number_of_edges() == 8
        assert Counter(kind for *_, kind in loaded.edges(data="kind")) == {
            "a": 6, "redirect": 1, "canonical": 1,
        }  # fmt: skip
        graph.write_ascii(tmp_path / "web.graph-txt", "page")
        assert (tmp_path / "web.graph-txt").read_text() == "5\n1 2\n0 2\n2 4\n0\n\n"
        simple = networkx.DiGraph(loaded)
        simple.add_nodes_from(range(5))
        for name, degree in (("out", simple.out_degree()), ("in", simple.in_degree())):
            assert graph.degrees("page")[name] == Counter(n for _, n in degree)
        plot_degrees(tmp_path / "plot.svg", "Degrees", graph.degrees("page"))
        assert "4 of degree 0" not in (tmp_path / "plot.svg").read_text()
        assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")


def test_ranks_become_scores(tmp_path: Path) -> None:
    """Of pages and hosts, those that were not fetched too; as best-first asks for them."""
    with GraphBuilder(tmp_path) as builder:
        builder.add(WEB)
        graph = builder.finish()
        for level in ("host", "page"):
            ranks = graph.rank(level, tmp_path)
            graph.write_scores(tmp_path / f"{level}.txt.gz", level, ranks)
        rows = lines(tmp_path / "page.txt.gz")
        assert [float(score) for _, score in rows] == sorted((float(s) for _, s in rows))[::-1]
    of_pages, of_hosts = (ScoreTable.read(tmp_path / f"{name}.txt.gz") for name in ("page", "host"))
    best = max((url for url, _ in rows), key=lambda url: of_pages.of_url(url, 0, ""))
    assert best == rows[0][0]
    assert of_pages.of_url("http://new.test/", 0, "") == 0.0
    found = of_hosts.of_referrer("http://new.test/", 1, "http://c.test/y")
    assert found == of_hosts.get("c.test") > of_hosts.get("d.test") > 0
    assert of_hosts.of_referrer("http://new.test/", 0, "") == 0.0


@settings(max_examples=25)
@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30),
        )
    )
)
def test_pagerank_is_that_of_networkx(graph: tuple[int, set[tuple[int, int]]]) -> None:
    """To a millionth of each rank, with vertices that lead nowhere or to themselves."""
    count, edges = graph
    other = networkx.DiGraph()
    other.add_nodes_from(range(count))
    other.add_edges_from(edges)
    expected = networkx.pagerank(other, tol=1e-13, max_iter=1000)
    with mock.patch.object(ranks, "TOLERANCE", 1e-13):
        got = pagerank(np.array(sorted(edges), np.uint32).reshape(-1, 2), count)
    assert got == pytest.approx([expected[n] for n in range(count)], rel=1e-6)
    assert got.sum() == pytest.approx(1)


def test_nothing_at_all(tmp_path: Path) -> None:
    """A crawl without a page has a graph without a vertex."""
    with GraphBuilder(tmp_path) as builder:
        graph = builder.finish()
        assert graph.sizes == (0, 0, 0, 0, 0, 0)
        assert len(graph.rank("host", tmp_path)) == 0
        graph.write_ascii(tmp_path / "web.graph-txt", "host")
        assert (tmp_path / "web.graph-txt").read_text() == "0\n"
        graph.write_hosts(tmp_path)
        assert lines(tmp_path / "host-edges.txt.gz") == []
        plot_degrees(tmp_path / "plot.svg", "Degrees", graph.degrees("host"))


def test_a_bad_file_of_scores_is_named(tmp_path: Path) -> None:
    """With the line, and what is expected."""
    path = tmp_path / "scores.txt"
    path.write_text("a.test\t0.5\nb.test\n")
    with pytest.raises(SettingsError, match="line 2"):
        ScoreTable.read(path)
    path.write_text("")
    assert ScoreTable.read(path).get("a.test") == 0.0
