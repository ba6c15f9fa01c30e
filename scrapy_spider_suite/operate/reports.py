"""The tables of ``scrapy frontier report``, and how rows of several agents add up.

Rows come from the store, never from the fetch log.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any, Final, NamedTuple

from scrapy_spider_suite.analysis.link_stats import ROWS as LINKS
from scrapy_spider_suite.analysis.link_stats import LinkStats, link_report
from scrapy_spider_suite.crawl.seeds import bad_seed_lines
from scrapy_spider_suite.store.counters import Counters, FetchTotals, Table
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.url_states import seeds
from scrapy_spider_suite.urls.hosts import registered_domain

Row = dict[str, Any]

_DOMAIN_COLUMNS = ("domain", "hosts", "done", "failed", "pending", "attempts")
_LINK_COLUMNS = ("pages", "links", "internal", "external", "in_links", "out_hosts", "in_hosts")


def _seeds(reader: StoreReader) -> Iterator[Row]:
    for seed in seeds(reader.store):
        state = seed.state
        yield {
            "seed": seed.url,
            "state": None if state is None else state.state.value,
            "reason": state.event.value if state and state.event else None,
            "status": state.status or None if state else None,
            "attempts": state.attempts if state else None,
            "when": state.when or None if state else None,
            "tag": seed.tag or None,
        }


def _hosts(reader: StoreReader) -> Iterator[Row]:
    for name, record in reader.hosts():
        yield {
            "host": name, "done": record.done, "failed": record.failed, "pending": record.pending,
            "attempts": record.attempts, "given_up": record.dead or None,
        }  # fmt: skip


def _domains(reader: StoreReader) -> Iterator[Row]:
    """Hosts added up by registered domain, those with the most URLs done first."""
    totals: dict[str, list[int]] = {}
    for name, record in reader.hosts():
        row = totals.setdefault(registered_domain(name), [0, 0, 0, 0, 0])
        for at, number in enumerate(
            (1, record.done, record.failed, record.pending, record.attempts)
        ):
            row[at] += number
    for domain, row in sorted(totals.items(), key=lambda item: (-item[1][1], item[0])):
        yield dict(zip(_DOMAIN_COLUMNS, (domain, *row), strict=True))


def _link_stats(reader: StoreReader) -> LinkStats:
    return LinkStats(reader.store.kv(LINKS))


def _links(reader: StoreReader) -> Iterator[Row]:
    for name, links in _link_stats(reader).hosts():
        yield {"host": name, **{column: getattr(links, column) for column in _LINK_COLUMNS}}


def _degrees(reader: StoreReader) -> Iterator[Row]:
    """How often each degree occurs, of pages (``out``, ``external``) and of hosts."""
    for name, counts in link_report(_link_stats(reader)).degrees.items():
        for degree, count in sorted(counts.items()):
            yield {"of": name, "degree": degree, "count": count}


def _tally(table: str, column: str) -> ReadRows:
    def rows(reader: StoreReader) -> Iterator[Row]:
        found: Table = getattr(FetchTotals.load(reader.store), table)
        for key, (fetches, size, ms) in sorted(
            found.items(), key=lambda item: (-item[1][0], item[0])
        ):
            mean = round(ms / max(1, fetches))
            yield {column: key, "fetches": fetches, "bytes": size, "mean_ms": mean}

    return rows


def _counts(name: str, *columns: str) -> ReadRows:
    return lambda reader: (
        dict(zip(columns, row, strict=True)) for row in _link_stats(reader).table(name)
    )


def _sizes(reader: StoreReader) -> Iterator[Row]:
    for power, number in _link_stats(reader).table("sizes"):
        yield {"below": 1 << int(power), "fetches": number}


def crawl_facts(counters: Counters, tallies: FetchTotals) -> Row:
    """The crawl in figures, over all of its runs."""
    fetches, size, ms = tallies.total()
    seconds = max(1e-9, counters.seconds)
    kinds = {f"fetches_{kind}": row[0] for kind, row in sorted(tallies.kinds.items())}
    return {
        "seconds": round(counters.seconds),
        "done": counters.done, "failed": counters.failed, "pending": counters.pending,
        "retried": counters.retried, "filtered": counters.filtered,
        "dead_hosts": counters.dead_hosts,
        "fetches": fetches, **kinds, "bytes": size, "mean_ms": round(ms / max(1, fetches)),
        "fetches_per_second": round(fetches / seconds, 2),
        "kilobytes_per_second": round(size / seconds / 1_000, 2),
    }  # fmt: skip


ReadRows = Callable[[StoreReader], Iterable[Row]]


class Report(NamedTuple):
    """How the rows of one report are read, shown, and added up over agents.

    Attributes:
        columns: a number is one of URLs unless the name of its column says otherwise.
        rows: reads all rows of a store; they are never all in memory.
        keys: rows of agents that agree in these columns are added up; (): none are.
        order: the columns by which the greatest rows are chosen; (): the first rows are.
        is_sorted: rows are in that order even without a limit.
        limit_first: each agent applies the limit to its own rows.
    """

    columns: tuple[str, ...]
    rows: ReadRows
    keys: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    is_sorted: bool = False
    limit_first: bool = False


REPORTS: Final = {
    "seeds": Report(
        ("seed", "state", "reason", "status", "attempts", "when", "tag"), _seeds, limit_first=True
    ),
    "bad-seeds": Report(
        ("origin", "line", "text", "why"),
        lambda reader: map(asdict, bad_seed_lines(reader.store)), limit_first=True,
    ),
    "hosts": Report(
        ("host", "done", "failed", "pending", "attempts", "given_up"), _hosts, ("host",),
        ("done",), limit_first=True,
    ),
    "statuses": Report(
        ("status", "fetches", "bytes", "mean_ms"), _tally("statuses", "status"), ("status",),
        ("fetches",), is_sorted=True,
    ),
    "types": Report(
        ("type", "fetches", "bytes", "mean_ms"), _tally("types", "type"), ("type",),
        ("fetches",), is_sorted=True,
    ),
    "domains": Report(_DOMAIN_COLUMNS, _domains, ("domain",), ("done",), is_sorted=True),
    "links": Report(
        ("host", *_LINK_COLUMNS), _links, ("host",), ("in_hosts", "in_links"), limit_first=True
    ),
    "degrees": Report(("of", "degree", "count"), _degrees, ("of", "degree"), ("count",)),
    "languages": Report(
        ("language", "fetches"), _counts("languages", "language", "fetches"), ("language",),
        ("fetches",),
    ),
    "sizes": Report(("below", "fetches"), _sizes, ("below",), ("fetches",)),
    "anchors": Report(
        ("word", "times"), _counts("anchors", "word", "times"), ("word",), ("times",)
    ),
}  # fmt: skip


def read_rows(name: str, reader: StoreReader, limit: int) -> Iterable[Row]:
    """At most *limit* rows of the report *name*, the greatest; 0: all."""
    report = REPORTS[name]
    rows = report.rows(reader)
    if limit and report.order:
        return _greatest(rows, report, limit)
    return islice(rows, limit or None)


def _greatest(rows: Iterable[Row], report: Report, limit: int) -> list[Row]:
    return heapq.nlargest(
        limit, rows, key=lambda row: tuple(row.get(column) or 0 for column in report.order)
    )


_MEAN = "mean_ms"
_LEAST, _MOST = ("begun",), ("seconds",)
_WITHOUT = ("job", "agent")


def crawl_of_agents(rows: list[Row]) -> Row:
    """The report ``crawl`` of several agents."""
    return {"agents": len(rows), **_added(rows)}


def rows_of_agents(name: str, rows: list[Row], limit: int) -> list[Row]:
    """The rows of the report *name* of several agents, added up; *limit* 0: all."""
    report = REPORTS[name]
    if report.keys:
        rows = _by_key(rows, report.keys)
        if limit or report.is_sorted:
            rows = _greatest(rows, report, limit or len(rows))
    return rows[: limit or None]


def _by_key(rows: Iterable[Row], keys: tuple[str, ...]) -> list[Row]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(key)) for key in keys), []).append(row)
    return [
        {**_added(group), **{key: group[0].get(key) for key in keys}} for group in groups.values()
    ]


def _added(rows: list[Row]) -> Row:
    """Add numbers up, weight means by fetches; keep the first of other values."""
    found: Row = {}
    for row in rows:
        for name, value in row.items():
            if name in _WITHOUT:
                continue
            known = found.get(name)
            if not isinstance(value, int | float) or not isinstance(known, int | float):
                found[name] = value if known is None else known
            elif name in _LEAST:
                found[name] = min(known, value)
            elif name in _MOST:
                found[name] = max(known, value)
            else:
                found[name] = round(known + value, 2)
    if _MEAN in found:
        fetches = max(1, found.get("fetches") or 0)
        spent = sum((row.get(_MEAN) or 0) * (row.get("fetches") or 0) for row in rows)
        found[_MEAN] = round(spent / fetches)
    return found
