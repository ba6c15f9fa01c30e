"""The link graph of packs: built, written for other tools, ranked, plotted. Extra ``graph``.

Pages are numbered by SURT, so that edges compress well (Boldi, Vigna, WWW 2004); hosts by reversed
name, as in Common Crawl's host graphs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from math import ceil, log10
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt

from scrapy_spider_suite.analysis.ranks import pagerank
from scrapy_spider_suite.packs.cdxj import REVISIT, IndexEntry
from scrapy_spider_suite.packs.reader import Packs, Selection, pages
from scrapy_spider_suite.urls.normalize import normalize

KINDS = ("a", "frame", "redirect", "canonical")

KIND_OF = {"area": "a", "refresh": "redirect"} | {kind: kind for kind in KINDS}
"""Link kinds of packs that are edges, and the kind of the edge."""


@dataclass(frozen=True, slots=True)
class PageRecord:
    """A fetched page: normal *url*, *links*, *when* (seconds, wall). The newest record counts."""

    url: str
    links: Sequence[tuple[str, str, bool]]
    when: float = 0.0


Level = Literal["page", "host"]

_CHUNK = 1 << 20
_NAMES = {"page": "url", "host": "host"}
_KIND = "CASE kind " + " ".join(f"WHEN {n} THEN '{kind}'" for n, kind in enumerate(KINDS)) + " END"


class GraphSizes(NamedTuple):
    """Numbers of vertices and edges; unfetched link targets are vertices, too."""

    pages: int
    pages_fetched: int
    page_edges: int
    hosts: int
    hosts_fetched: int
    host_edges: int


class LinkGraph:
    """The pages and hosts of a crawl; valid while its builder is open."""

    def __init__(self, db: duckdb.DuckDBPyConnection) -> None:
        self._db = db

    @property
    def sizes(self) -> GraphSizes:
        counted = ("pages", "pages WHERE fetched", "page_edges",
                   "hosts", "hosts WHERE fetched > 0", "host_edges")  # fmt: skip
        queries = ", ".join(f"(SELECT count(*) FROM {each})" for each in counted)
        return GraphSizes(*self._db.execute(f"SELECT {queries}").fetchall()[0])

    def write_hosts(self, folder: Path) -> None:
        """Write Common Crawl's files ``host-vertices.txt.gz`` and ``host-edges.txt.gz``."""
        self._copy("SELECT id, name FROM hosts ORDER BY id", folder / "host-vertices.txt.gz")
        edges = "SELECT source, target FROM host_edges ORDER BY ALL"
        self._copy(edges, folder / "host-edges.txt.gz")

    def write_pages(self, folder: Path) -> None:
        """Write ``page-vertices.txt.gz`` and ``page-edges.txt.gz``: see docs/links.md."""
        vertices = "SELECT id, url, fetched::INT FROM pages ORDER BY id"
        self._copy(vertices, folder / "page-vertices.txt.gz")
        edges = f"SELECT source, target, {_KIND}, nofollow::INT FROM page_edges"
        self._copy(f"{edges} ORDER BY source, target, kind", folder / "page-edges.txt.gz")

    def write_arcs(self, path: Path, level: Level) -> None:
        """Write ``from<TAB>to`` for each arc, sorted; ``.gz`` compresses."""
        self._copy(f"SELECT DISTINCT source, target FROM {level}_edges ORDER BY ALL", path)

    def write_ascii(self, path: Path, level: Level) -> None:
        """Write WebGraph's ASCIIGraph, ``.graph-txt``: successors of each vertex."""
        count = self._count(level)
        rows = self._db.execute(
            f"SELECT source, list(DISTINCT target ORDER BY target) FROM {level}_edges "
            "GROUP BY source ORDER BY source"
        )
        with path.open("w", encoding="ascii") as file:
            file.write(f"{count}\n")
            line = 0
            while batch := rows.fetchmany(1_000):
                for source, targets in batch:
                    file.write("\n" * (source - line) + " ".join(map(str, targets)) + "\n")
                    line = source + 1
            file.write("\n" * (count - line))

    def degrees(self, level: Level) -> dict[str, dict[int, int]]:
        """Return the number of vertices by out-degree (``out``) and in-degree (``in``)."""
        found = {}
        for name, end, other in (("out", "source", "target"), ("in", "target", "source")):
            rows = self._db.execute(
                f"SELECT degree, count(*) FROM (SELECT count(DISTINCT e.{other}) AS degree "
                f"FROM {level}s v LEFT JOIN {level}_edges e ON e.{end} = v.id GROUP BY v.id) "
                "GROUP BY degree ORDER BY degree"
            ).fetchall()
            found[name] = dict(rows)
        return found

    def rank(self, level: Level, scratch: Path) -> npt.NDArray[np.float64]:
        """Return the PageRank by vertex id; needs 32 bytes a vertex, edges lie in *scratch*."""
        with tempfile.NamedTemporaryFile(dir=scratch) as file:
            number = self._dump_edges(level, file)
            file.flush()
            none = np.empty((0, 2), np.uint32)
            edges = np.memmap(file.name, np.uint32, "r", shape=(number, 2)) if number else none
            return pagerank(edges, self._count(level))

    def write_scores(self, path: Path, level: Level, ranks: npt.NDArray[np.float64]) -> None:
        """Write *ranks* as a file of scores (`ScoreTable`), the highest first."""
        table = {"id": np.arange(len(ranks)), "score": ranks}
        self._db.register("ranks", table)
        self._copy(
            f"SELECT {_NAMES[level]}, printf('%.9g', score) FROM {level}s JOIN ranks USING (id) "
            "ORDER BY score DESC, id",
            path,
        )
        self._db.unregister("ranks")

    def _count(self, level: Level) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM {level}s").fetchall()[0][0])

    def _copy(self, query: str, path: Path) -> None:
        name = str(path).replace("'", "''")
        packed = "gzip" if path.suffix == ".gz" else "none"
        self._db.execute(
            f"COPY ({query}) TO '{name}' "
            f"(FORMAT csv, DELIMITER '\\t', HEADER false, QUOTE '', COMPRESSION {packed})"
        )

    def _dump_edges(self, level: Level, file: IO[bytes]) -> int:
        number = 0
        arcs = f"SELECT DISTINCT source, target FROM {level}_edges"
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE dumped AS {arcs}")
        part = "SELECT source, target FROM dumped WHERE rowid >= ? AND rowid < ?"
        while True:
            got = self._db.execute(part, [number, number + _CHUNK]).fetchnumpy()
            pairs = np.column_stack((got["source"], got["target"])).astype(np.uint32)
            if not len(pairs):
                self._db.execute("DROP TABLE dumped")
                return number
            file.write(pairs.tobytes())
            number += len(pairs)


MEMORY = 512 << 20
_BATCH = 100_000

_TABLES = """
CREATE TABLE records(serial BIGINT, url VARCHAR, fetched_at DOUBLE);
CREATE TABLE found(serial BIGINT, url VARCHAR, kind UTINYINT, nofollow BOOLEAN);
"""
# The parts of a normal URL; what they are put together to equals `surt`, which a test compares.
_PARTS = r"""regexp_extract(url, '^https?://(\[[^\]]*\]|[^/:]*):?([0-9]*)(.*)$',
    ['host', 'port', 'path'])"""
_REVERSED = "array_to_string(list_reverse(string_split({0}, '.')), '{1}')"
_TURNED = f"CASE WHEN host[1] = '[' THEN host ELSE {_REVERSED.format('host', ',')} || ',' END"
_NAME = f"CASE WHEN host[1] = '[' THEN host ELSE {_REVERSED.format('host', '.')} END"

_PAGES = f"""
CREATE TABLE newest AS SELECT arg_max(serial, (fetched_at, serial)) AS serial, url FROM records
    GROUP BY url;
CREATE TABLE arcs AS
    SELECT newest.url AS source, found.url AS target, kind, bool_and(nofollow) AS nofollow
    FROM found JOIN newest USING (serial) GROUP BY ALL;
CREATE TABLE pages AS SELECT row_number() OVER () - 1 AS id, * FROM (
    SELECT url, host, '(' || {_TURNED} || CASE WHEN port = '' THEN '' ELSE ':' || port END || ')'
        || path AS surt, fetched
    FROM (
        SELECT url, fetched, unnest({_PARTS}) FROM (
            SELECT url, bool_or(fetched) AS fetched FROM (
                SELECT url, true AS fetched FROM newest
                UNION ALL SELECT target, false FROM arcs
            ) GROUP BY url
        )
    ) ORDER BY surt, url
);
CREATE TABLE page_edges AS
    SELECT s.id AS source, t.id AS target, kind, nofollow
    FROM arcs JOIN pages s ON s.url = arcs.source JOIN pages t ON t.url = arcs.target
    ORDER BY ALL;
DROP TABLE records; DROP TABLE found; DROP TABLE newest; DROP TABLE arcs;
"""
_HOSTS = f"""
CREATE TABLE hosts AS SELECT row_number() OVER () - 1 AS id, * FROM (
    SELECT host, {_NAME} AS name, count(*) AS pages, count(*) FILTER (fetched) AS fetched
    FROM pages GROUP BY host ORDER BY name
);
CREATE TABLE host_edges AS
    SELECT source, target, sum(number)::BIGINT AS links FROM (
        SELECT s.host AS from_host, t.host AS to_host, count(*) AS number
        FROM page_edges e JOIN pages s ON s.id = e.source JOIN pages t ON t.id = e.target
        WHERE s.host <> t.host GROUP BY ALL
    ) JOIN (SELECT id AS source, host AS from_host FROM hosts) USING (from_host)
      JOIN (SELECT id AS target, host AS to_host FROM hosts) USING (to_host)
    GROUP BY ALL ORDER BY source, target;
"""


class GraphBuilder(AbstractContextManager["GraphBuilder"]):
    """A context that makes a graph; scratch files lie in *folder*. *memory*: bytes for DuckDB."""

    def __init__(self, folder: Path, *, memory: int = MEMORY) -> None:
        self._path = folder / "graph.duckdb"
        self._path.unlink(missing_ok=True)  # of a run that was killed
        self._db = duckdb.connect(
            str(self._path),
            config={
                "memory_limit": f"{memory >> 10}KiB", "threads": 2,
                "temp_directory": str(folder / "spilled"), "preserve_insertion_order": True,
            },
        )  # fmt: skip
        self._db.execute(_TABLES)
        self._serial = 0
        self._records: list[tuple[int, str, float]] = []
        self._links: list[tuple[int, str, int, bool]] = []

    def __exit__(self, *exc_info: object) -> None:
        self._db.close()
        self._path.unlink(missing_ok=True)

    def add(self, records: Iterable[PageRecord]) -> None:
        kinds = {name: KINDS.index(kind) for name, kind in KIND_OF.items()}
        for record in records:
            serial = self._serial = self._serial + 1
            self._records.append((serial, record.url, record.when))
            self._links += [
                (serial, url, kinds[kind], nofollow)
                for url, kind, nofollow in record.links
                if kind in kinds
            ]
            if len(self._links) + len(self._records) >= _BATCH:
                self._hand_over()

    def finish(self) -> LinkGraph:
        """Number the vertices and sort the edges; once."""
        self._hand_over()
        self._db.execute(_PAGES)
        self._db.execute(_HOSTS)
        return LinkGraph(self._db)

    def _hand_over(self) -> None:
        batch: dict[str, list[Any]] = {"records": self._records, "found": self._links}
        for table, rows in batch.items():
            if rows:
                arrays = {
                    f"c{number}": np.array(column, object if isinstance(column[0], str) else None)
                    for number, column in enumerate(zip(*rows, strict=True))
                }
                self._db.register("batch", arrays)
                self._db.execute(f"INSERT INTO {table} SELECT * FROM batch")
                self._db.unregister("batch")
        self._records, self._links = [], []


HTML: Final = ("text/html", "application/xhtml+xml")
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NOT_MODIFIED: Final = 304


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkingPages(Selection):
    """Selects captures that say where a page leads: HTML, redirects, duplicates."""

    def accepts(self, entry: IndexEntry) -> bool:
        if entry.is_uninformative or entry.status == _NOT_MODIFIED:
            return False
        leads = entry.mime in (*HTML, REVISIT) or entry.status in _REDIRECTS
        return leads and Selection.accepts(self, entry)


def page_records(
    packs: Packs, selection: Selection, progress: Callable[[int], object] = lambda number: None
) -> Iterator[PageRecord]:
    """Yield the selected pages; *progress* is called with 1 for each. Raises `OSError`."""
    for page in pages(packs, selection):
        progress(1)
        if not (page.is_revisit and isinstance(selection, LinkingPages)) or page.mime in HTML:
            when = page.time.timestamp() if page.time else 0.0
            yield PageRecord(normalize(page.url) or page.url, page.links, when)


_WIDTH, _HEIGHT, _MARGIN = 420, 300, 56
_COLOURS = ("#1b6ca8", "#c2571a", "#3a7d44", "#7b4b94")


def plot_degrees(path: Path, title: str, degrees: Mapping[str, Mapping[int, int]]) -> None:
    """Write an SVG of how many vertices have at least each degree. Raises `OSError`."""
    lines = {name: _at_least(counts) for name, counts in degrees.items()}
    points = [point for line in lines.values() for point in line]
    across = max([1, *(ceil(log10(x)) for x, _ in points)])
    up = max([1, *(ceil(log10(y)) for _, y in points)])
    width, height = _WIDTH + 2 * _MARGIN + 20, _HEIGHT + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'<g transform="translate({_MARGIN + 20},{_MARGIN - 16})">',
        _text(_WIDTH / 2, -12, title, "middle", 'font-weight="bold"'),
        f'<path d="M0,0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="#888"/>',
        *(_text(n / across * _WIDTH, _HEIGHT + 16, f"{10**n:,}") for n in range(across + 1)),
        *(_text(-6, _HEIGHT - n / up * _HEIGHT + 4, f"{10**n:,}", "end") for n in range(up + 1)),
        _text(_WIDTH / 2, _HEIGHT + 36, "degree"),
    ]
    for number, (name, line) in enumerate(lines.items()):
        places = " ".join(
            f"{log10(x) / across * _WIDTH:.1f},{_HEIGHT - log10(y) / up * _HEIGHT:.1f}"
            for x, y in line
        )
        colour = _COLOURS[number % len(_COLOURS)]
        legend = f"{name} ({degrees[name].get(0, 0):,} of degree 0)"
        parts += [
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            _text(_WIDTH, 14 + 15 * number, legend, "end", f'fill="{colour}"'),
        ]
    path.write_text("\n".join([*parts, "</g></svg>"]) + "\n", encoding="utf-8")


def _at_least(counts: Mapping[int, int]) -> list[tuple[int, int]]:
    line, left = [], sum(number for degree, number in counts.items() if degree)
    for degree in sorted(degree for degree in counts if degree):
        line.append((degree, left))
        left -= counts[degree]
    return line


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'
