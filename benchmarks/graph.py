"""A real link graph, from records of pages to files and ranks: time, memory, and whether it is so.

    python benchmarks/graph.py ../shared/data/graph/cnr-2000.edges.tsv.xz [--networkx]
    python benchmarks/graph.py --small                  # a graph of its own

The arcs are made records of pages, whose made-up URLs sort as the ids do, on hosts of 100 pages;
these are built into a graph with 256 MiB for DuckDB, written in every form, and ranked. The arcs
that come out must be those that went in. With ``--networkx`` its PageRank is computed, too, and
compared (it takes some 2 GB). CPU time of the process, over its threads; seconds by the clock too.
"""

from __future__ import annotations

import argparse
import lzma
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np

from scrapy_spider_suite.analysis.link_graph import (
    GraphBuilder,
    PageRecord,
    plot_degrees,
)
from scrapy_spider_suite.analysis.ranks import pagerank
from scrapy_spider_suite.packs import Link

MEMORY = 256 << 20
Arcs = list[tuple[int, int]]


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print what it took."""
    cpu, clock = time.process_time(), time.perf_counter()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    print(f"{what:<44} {cpu:6.1f} s of CPU, {clock:6.1f} s by the clock, peak {peak:,} MB")


def arcs_of(path: Path | None) -> Arcs:
    """The arcs of a file, in the order of their sources; a thousand vertices without one."""
    if path is None:
        draw = random.Random(1)
        return sorted({(draw.randrange(1000), draw.randrange(1000)) for _ in range(8000)})
    with lzma.open(path, "rt") as lines:
        return sorted((int(a), int(b)) for a, b in (line.split("\t") for line in lines))


def url_of(number: int) -> str:
    """URLs that sort as their numbers do."""
    return f"http://www.h{number // 100:06}.test/pages/some-page-{number % 100:02}.html"


def records_of(arcs: Arcs) -> Iterator[PageRecord]:
    """A page for each source."""
    for source, group in groupby(arcs, key=lambda arc: arc[0]):
        yield PageRecord(url_of(source), [Link(url_of(target)) for _, target in group])


def build(arcs: Arcs, folder: Path) -> None:
    """Build, write, rank, and check."""
    with GraphBuilder(folder, memory=MEMORY) as builder:
        with timed("records taken"):
            builder.add(records_of(arcs))
        with timed("numbered and sorted"):
            graph = builder.finish()
        print(graph.sizes)
        with timed("page graph and host graph written"):
            graph.write_pages(folder)
            graph.write_hosts(folder)
        with timed("arcs and ASCIIGraph written, degrees plotted"):
            graph.write_arcs(folder / "arcs.txt", "page")
            graph.write_ascii(folder / "web.graph-txt", "page")
            plot_degrees(folder / "degrees.svg", "Pages", graph.degrees("page"))
        with timed("hosts ranked"):
            graph.rank("host", folder)
        with timed("pages ranked, scores written"):
            graph.write_scores(folder / "scores.txt.gz", "page", graph.rank("page", folder))
        there = sorted({end for arc in arcs for end in arc})
        ids = {number: place for place, number in enumerate(there)}
        written = np.loadtxt(folder / "arcs.txt", np.uint32).tolist()
        same = [[ids[a], ids[b]] for a, b in arcs] == written
        print("the arcs that came out are", "those that went in" if same else "OTHERS")


def compare(arcs: Arcs) -> None:
    """Our ranks beside those of networkx."""
    import networkx  # only where it is asked for

    count = max(map(max, arcs)) + 1
    edges = np.array(arcs, np.uint32)
    with timed("PageRank"):
        ours = pagerank(edges, count, tolerance=1e-12)
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(arcs)
    with timed("PageRank of networkx (graph in memory before)"):
        theirs = networkx.pagerank(graph, tol=1e-12 / count, max_iter=1000)
    expected = np.array([theirs[number] for number in range(count)])
    print(f"largest difference of a rank: {np.max(np.abs(ours / expected - 1)):.1e} of it")


def main() -> None:
    """Print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("arcs", type=Path, nargs="?", help="from TAB to, compressed with xz")
    parser.add_argument("--networkx", action="store_true", help="compare the ranks")
    parser.add_argument("--small", action="store_true", help="a graph of a thousand vertices")
    options = parser.parse_args()
    if options.arcs is None and not options.small:
        parser.error("a file of arcs, or --small")
    with timed("arcs read"):
        arcs = arcs_of(options.arcs)
    with tempfile.TemporaryDirectory() as folder:
        build(arcs, Path(folder))
    if options.networkx or options.small:
        compare(arcs)


if __name__ == "__main__":
    main()
