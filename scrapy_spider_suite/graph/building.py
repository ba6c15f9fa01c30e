"""From records of pages to a graph with contiguous ids, in a fixed amount of memory.

Everything is sorted, joined and counted by DuckDB, which spills to disk what its share of the
memory does not hold (the extra ``graph``). Pages are numbered in the order of their SURT, so that
those of a host, and hosts of a domain, have neighbouring ids and edges compress well (Boldi,
Vigna: "The WebGraph framework I", WWW 2004); hosts in that of their reversed names, as in Common
Crawl's host graphs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import duckdb
import numpy as np

from scrapy_spider_suite.graph.forms import Graph
from scrapy_spider_suite.graph.records import KIND_OF, KINDS, PageRecord

MEMORY = 512 << 20
_BATCH = 100_000
"""Links that are handed over at once."""

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


class GraphBuilder:
    """Takes records, then makes the graph of them. Its scratch files lie in *folder*.

    *memory*: bytes that DuckDB may use; what a batch of links takes, some 50 MB, comes on top.
    To be used as a context, at the end of which its files are removed.
    """

    def __init__(self, folder: Path, *, memory: int = MEMORY, threads: int = 2) -> None:
        self._path = folder / "graph.duckdb"
        self._path.unlink(missing_ok=True)  # of a run that was killed
        self._db = duckdb.connect(
            str(self._path),
            config={
                "memory_limit": f"{memory >> 10}KiB",
                "threads": threads,
                "temp_directory": str(folder / "spilled"),
                "preserve_insertion_order": True,
            },
        )
        self._db.execute(_TABLES)
        self._serial = 0
        self._records: list[tuple[int, str, float]] = []
        self._links: list[tuple[int, str, int, bool]] = []

    def __enter__(self) -> GraphBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._db.close()
        self._path.unlink(missing_ok=True)

    def add(self, records: Iterable[PageRecord]) -> None:
        """Take *records*; of one agent after the other, if there are several."""
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

    def finish(self) -> Graph:
        """Number the vertices and sort the edges of all that was added; once."""
        self._hand_over()
        self._db.execute(_PAGES)
        self._db.execute(_HOSTS)
        return Graph(self._db)

    def _hand_over(self) -> None:
        if self._records:
            self._insert("records", *zip(*self._records, strict=True))
        if self._links:
            self._insert("found", *zip(*self._links, strict=True))
        self._records.clear()
        self._links.clear()

    def _insert(self, table: str, *columns: tuple[object, ...]) -> None:
        """Add rows to *table*, given by columns: row by row it would take far longer."""
        arrays = {
            f"c{number}": np.array(column, dtype=object if isinstance(column[0], str) else None)
            for number, column in enumerate(columns)
        }
        self._db.register("batch", arrays)
        self._db.execute(f"INSERT INTO {table} SELECT * FROM batch")
        self._db.unregister("batch")
