"""A finished graph, and the forms of it that the tools of the field load."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt

from scrapy_spider_suite.graph.ranking import pagerank
from scrapy_spider_suite.graph.records import KINDS

Level = Literal["page", "host"]
"""Which of the two graphs."""

_CHUNK = 1 << 20
_NAMES = {"page": "url", "host": "host"}
_KIND = "CASE kind " + " ".join(f"WHEN {n} THEN '{kind}'" for n, kind in enumerate(KINDS)) + " END"


class Sizes(NamedTuple):
    """Numbers of vertices and edges. What was linked to but not fetched is a vertex, too."""

    pages: int
    pages_fetched: int
    page_edges: int
    """Edges of two kinds between two pages are two."""
    hosts: int
    hosts_fetched: int
    host_edges: int
    """Between different hosts."""


class Graph:
    """The pages and hosts of a crawl. Valid as long as its builder is open."""

    def __init__(self, db: duckdb.DuckDBPyConnection) -> None:
        self._db = db

    @property
    def sizes(self) -> Sizes:
        """How large it is."""
        rows = self._db.execute(
            "SELECT (SELECT count(*) FROM pages), (SELECT count(*) FROM pages WHERE fetched),"
            " (SELECT count(*) FROM page_edges), (SELECT count(*) FROM hosts),"
            " (SELECT count(*) FROM hosts WHERE fetched > 0), (SELECT count(*) FROM host_edges)"
        ).fetchall()
        return Sizes(*rows[0])

    def write_hosts(self, folder: Path) -> None:
        """Common Crawl's two files of a host graph.

        ``host-vertices.txt.gz``: id, reversed name. ``host-edges.txt.gz``: from, to. Separated by
        tabs, sorted, ids from 0.
        """
        self._copy("SELECT id, name FROM hosts ORDER BY id", folder / "host-vertices.txt.gz")
        edges = "SELECT source, target FROM host_edges ORDER BY ALL"
        self._copy(edges, folder / "host-edges.txt.gz")

    def write_pages(self, folder: Path) -> None:
        """Two files of the same kind of the page graph, with what is known of each edge.

        ``page-vertices.txt.gz``: id, URL, whether it was fetched (1 or 0). ``page-edges.txt.gz``:
        from, to, kind (``a``, ``frame``, ``redirect``, ``canonical``), nofollow (1 or 0).
        """
        vertices = "SELECT id, url, fetched::INT FROM pages ORDER BY id"
        self._copy(vertices, folder / "page-vertices.txt.gz")
        edges = (
            f"SELECT source, target, {_KIND}, nofollow::INT FROM page_edges "
            "ORDER BY source, target, kind"
        )
        self._copy(edges, folder / "page-edges.txt.gz")

    def write_arcs(self, path: Path, level: Level) -> None:
        """A line ``from<TAB>to`` for each arc, sorted; compressed if *path* ends in ``.gz``.

        WebGraph's arcs list; networkx's and igraph's edge list.
        """
        self._copy(f"SELECT DISTINCT source, target FROM {level}_edges ORDER BY ALL", path)

    def write_ascii(self, path: Path, level: Level) -> None:
        """WebGraph's ASCIIGraph: the number of vertices, then the successors of each on a line.

        Its tools expect *path* to end in ``.graph-txt``.
        """
        count = self._count(level)
        with path.open("w", encoding="ascii") as file:
            file.write(f"{count}\n")
            line = 0
            for source, targets in self._successors(level):
                file.write("\n" * (source - line) + " ".join(map(str, targets)) + "\n")
                line = source + 1
            file.write("\n" * (count - line))

    def degrees(self, level: Level) -> dict[str, dict[int, int]]:
        """How many vertices have each out-degree (``out``) and each in-degree (``in``)."""
        found = {}
        for name, end in (("out", "source"), ("in", "target")):
            rows = self._db.execute(
                f"SELECT degree, count(*) FROM (SELECT count(DISTINCT e.{_other(end)}) AS degree "
                f"FROM {level}s v LEFT JOIN {level}_edges e ON e.{end} = v.id GROUP BY v.id) "
                "GROUP BY degree ORDER BY degree"
            ).fetchall()
            found[name] = dict(rows)
        return found

    def rank(
        self, level: Level, scratch: Path, *, damping: float = 0.85, tolerance: float = 1e-10
    ) -> npt.NDArray[np.float64]:
        """The PageRank of each vertex by its id (see `pagerank`).

        Edges lie in a file in the folder *scratch* meanwhile; in memory are 32 bytes a vertex.
        """
        path = scratch / "edges.bin"
        try:
            number = self._dump_edges(level, path)
            edges = np.memmap(path, np.uint32, "r", shape=(number, 2)) if number else _NONE
            return pagerank(edges, self._count(level), damping=damping, tolerance=tolerance)
        finally:
            path.unlink(missing_ok=True)

    def write_scores(self, path: Path, level: Level, ranks: npt.NDArray[np.float64]) -> None:
        """*ranks* as a file of scores: URL or host, tab, score; the highest first (`Scores`)."""
        table = {"id": np.arange(len(ranks)), "score": ranks}
        self._db.register("ranks", table)
        self._copy(
            f"SELECT {_NAMES[level]}, printf('%.9g', score) FROM {level}s JOIN ranks USING (id) "
            "ORDER BY score DESC, id",
            path,
        )
        self._db.unregister("ranks")

    def _count(self, level: Level) -> int:
        sizes = self.sizes
        return sizes.pages if level == "page" else sizes.hosts

    def _copy(self, query: str, path: Path) -> None:
        """Write the rows of *query* as lines of fields separated by tabs."""
        name = str(path).replace("'", "''")
        packed = "gzip" if path.suffix == ".gz" else "none"
        self._db.execute(
            f"COPY ({query}) TO '{name}' "
            f"(FORMAT csv, DELIMITER '\\t', HEADER false, QUOTE '', COMPRESSION {packed})"
        )

    def _successors(self, level: Level) -> Iterator[tuple[int, list[int]]]:
        rows = self._db.execute(
            f"SELECT source, list(DISTINCT target ORDER BY target) FROM {level}_edges "
            "GROUP BY source ORDER BY source"
        )
        while batch := rows.fetchmany(1_000):
            yield from batch

    def _dump_edges(self, level: Level, path: Path) -> int:
        """Write the arcs as pairs of 32 bits; how many there are."""
        number = 0
        arcs = f"SELECT DISTINCT source, target FROM {level}_edges"
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE dumped AS {arcs}")
        with path.open("wb") as file:
            while True:
                got = self._db.execute(
                    "SELECT source, target FROM dumped WHERE rowid >= ? AND rowid < ?",
                    [number, number + _CHUNK],
                ).fetchnumpy()
                pairs = np.column_stack((got["source"], got["target"])).astype(np.uint32)
                if not len(pairs):
                    break
                file.write(pairs.tobytes())
                number += len(pairs)
        self._db.execute("DROP TABLE dumped")
        return number


_NONE = np.empty((0, 2), np.uint32)


def _other(end: str) -> str:
    return "target" if end == "source" else "source"


def read_edges(path: Path) -> Iterator[tuple[int, int]]:
    """The pairs of a file of arcs, compressed or not; what follows in a line is passed over."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="ascii") as file:
        for line in file:
            source, target, *_ = line.split("\t")
            yield int(source), int(target)
