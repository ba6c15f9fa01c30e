"""``scrapy packs graph``: what is in the packs of several agents, as files that others load."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import networkx
import pytest
from support.packs import NOW, fetch
from support.packs_command import Packs, write

from scrapy_spider_suite.analysis.ranks import ScoreTable
from scrapy_spider_suite.packs import Capture, Link, RefersTo
from scrapy_spider_suite.packs.warc import NOT_MODIFIED, sha1_digest

A, B, C = "http://www.a.test/", "http://b.test/x", "http://c.test/"


@pytest.fixture
def agents(tmp_path: Path) -> list[Path]:
    """Two agents: a page of each, one again and elsewhere, and what is no page."""
    old = fetch(1, url=A, links=[Link("http://gone.test/")])
    new = fetch(1, url=A, time=NOW + 50, links=[Link(B), Link(C, "frame", True)])
    other = fetch(2, url=B, links=[Link(C), Link("http://b.test/y"), Link(A, "sitemap")])
    text = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n"
    robots = fetch(3, b"", url="http://b.test/robots.txt", head=text, links=[])
    write(tmp_path / "one", "lzo", old, new)
    write(tmp_path / "two", "gz", other, robots)
    return [tmp_path / "one", tmp_path / "two"]


def lines(path: Path) -> list[str]:
    """Of a compressed file."""
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_both_graphs(packs: Packs, agents: list[Path], tmp_path: Path) -> None:
    """Each page as it was last fetched; ids in the order of names; nothing else in the folder."""
    out = tmp_path / "graphs"
    [row] = packs("graph", out, *agents, "--rank", "--plot", "--json").rows
    assert (row["pages"], row["pages_fetched"], row["hosts"], row["host_edges"]) == (4, 2, 3, 3)
    assert sorted(path.name for path in out.iterdir()) == sorted(
        name for level in ("host", "page")
        for name in (f"{level}-degrees.svg", f"{level}-edges.txt.gz", f"{level}-ranks.txt.gz",
                     f"{level}-vertices.txt.gz")
    )  # fmt: skip
    assert sorted(row["files"]) == sorted(str(path) for path in out.iterdir())
    assert lines(out / "page-vertices.txt.gz") == [
        f"0\t{A}\t1", f"1\t{B}\t1", "2\thttp://b.test/y\t0", f"3\t{C}\t0",
    ]  # fmt: skip
    assert lines(out / "page-edges.txt.gz") == [
        "0\t1\ta\t0", "0\t3\tframe\t1", "1\t2\ta\t0", "1\t3\ta\t0",
    ]  # fmt: skip
    assert lines(out / "host-vertices.txt.gz") == ["0\ttest.a.www", "1\ttest.b", "2\ttest.c"]
    graph = networkx.read_edgelist(
        out / "host-edges.txt.gz", delimiter="\t", nodetype=int, create_using=networkx.DiGraph
    )
    expected = networkx.pagerank(graph, tol=1e-12)
    ranks = ScoreTable.read(out / "host-ranks.txt.gz")
    for number, host in enumerate(("www.a.test", "b.test", "c.test")):
        assert ranks.get(host) == pytest.approx(expected[number], rel=1e-5)


def test_what_says_where_a_page_leads(packs: Packs, tmp_path: Path) -> None:
    """Duplicates and redirects do; robots.txt, answers for now and 304 do not."""
    a, b, c, d = (f"http://www.example.com/{name}" for name in "abcd")

    def answer(status: int, kind: str = "text/html") -> bytes:
        lines = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: 0\r\n\r\n"
        return lines.encode()

    def later(url: str, status: int, **changes: Any) -> Capture:
        return fetch(9, b"", url=url, head=answer(status), links=[], time=NOW + 9, **changes)

    whole = RefersTo(a, NOW, sha1_digest(b"same"))
    write(
        tmp_path / "packs", "lzo",
        fetch(0, b"same", url=a, links=[Link(c)]),
        fetch(1, b"", url=b, links=[Link(d)], original=whole),
        fetch(2, b"", url=c, head=answer(301, "text/plain"), links=[Link(d, "redirect")]),
        fetch(3, b"", url=d, head=answer(200, "image/png"), links=[], original=whole),
        later(a, 304, original=whole, profile=NOT_MODIFIED), later(b, 503), later(c, 429),
        later("http://www.example.com/robots.txt", 404),
    )  # fmt: skip
    packs("graph", tmp_path, tmp_path / "packs", "--pages")
    assert lines(tmp_path / "page-vertices.txt.gz") == [
        f"{n}\t{url}\t{int(n < 3)}" for n, url in enumerate((a, b, c, d))
    ]
    assert lines(tmp_path / "page-edges.txt.gz") == [
        "0\t2\ta\t0", "1\t3\ta\t0", "2\t3\tredirect\t0",
    ]  # fmt: skip


def test_one_of_them_in_other_forms(packs: Packs, agents: list[Path], tmp_path: Path) -> None:
    """Only what is asked for; again, over what was there."""
    out = tmp_path / "graphs"
    for _ in range(2):
        said = packs("graph", out, *agents, "--hosts", "--format", "arcs", "--format", "ascii",
                     "--memory", "64M")  # fmt: skip
        assert said.code == 0
    assert sorted(path.name for path in out.iterdir()) == ["host-arcs.txt.gz", "hosts.graph-txt"]
    assert lines(out / "host-arcs.txt.gz") == ["0\t1", "0\t2", "1\t2"]
    assert (out / "hosts.graph-txt").read_text() == "3\n1 2\n2\n\n"
    packs("graph", out, *agents, "--pages", "--host", "b.test")
    assert len(lines(out / "page-vertices.txt.gz")) == 3
    packs("graph", out, *agents, "--pages", "--mime", "text/plain")
    assert lines(out / "page-vertices.txt.gz") == ["0\thttp://b.test/robots.txt\t1"]


def test_without_the_extra(
    packs: Packs, agents: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is said, and nothing is made."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "scrapy_spider_suite.analysis.link_graph", raising=False)
    said = packs("graph", tmp_path / "graphs", *agents)
    assert (said.code, "scrapy-spider-suite[graph]" in said.err) == (2, True)
    assert not (tmp_path / "graphs").exists()
