"""The tables of ``scrapy frontier report``, and how rows of several agents add up.

Rows come from the store, never from the fetch log.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, Final, NamedTuple

from scrapy_spider_suite.analysis.link_stats import ROWS as LINKS
from scrapy_spider_suite.analysis.link_stats import HostLinks, LinkStats, link_report
from scrapy_spider_suite.crawl.seeds import bad_seed_lines
from scrapy_spider_suite.store.counters import Counters, FetchTotals, Table
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.store.url_states import SeedRow, seeds
from scrapy_spider_suite.urls.hosts import registered_domain

Row = dict[str, Any]
ReadRows = Callable[[StoreReader, int], Iterable[Row]]

_DOMAIN_COLUMNS = ("domain", "hosts", "done", "failed", "pending", "attempts")

def seed_rows(found: Iterable[SeedRow]) -> Iterator[Row]:
    """What became of each seed; *when* is the time of its last attempt, since the epoch."""
    for seed in found:
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


def host_rows(hosts: Iterable[tuple[str, HostRecord]], limit: int = 0) -> Iterator[Row]:
    """The *limit* hosts with the most URLs done, the greatest first; 0: all, as the store has them.

    All of them are never in memory.
    """
    if limit:
        hosts = heapq.nlargest(limit, hosts, key=lambda item: item[1].done)
    for name, record in hosts:
        yield {
            "host": name, "done": record.done, "failed": record.failed, "pending": record.pending,
            "attempts": record.attempts, "given_up": record.dead or None,
        }  # fmt: skip


def domain_rows(
    hosts: Iterable[tuple[str, HostRecord]], domain_of: Callable[[str], str], limit: int = 0
) -> list[Row]:
    """Hosts added up by registered domain, those with the most URLs done first."""
    totals: dict[str, list[int]] = {}
    for name, record in hosts:
        row = totals.setdefault(domain_of(name), [0, 0, 0, 0, 0])
        for at, number in enumerate(
            (1, record.done, record.failed, record.pending, record.attempts)
        ):
            row[at] += number
    ordered = sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))
    return [
        dict(zip(_DOMAIN_COLUMNS, (domain, *row), strict=True))
        for domain, row in (ordered[:limit] if limit else ordered)
    ]


def link_rows(hosts: Iterable[tuple[str, HostLinks]], limit: int = 0) -> Iterator[Row]:
    """The links of the *limit* hosts that most others link to; 0: of all, as the store has them."""
    if limit:
        hosts = heapq.nlargest(limit, hosts, key=lambda item: (item[1].in_hosts, item[1].in_links))
    for name, links in hosts:
        yield {"host": name, **asdict(links)}


def degree_rows(degrees: Mapping[str, Mapping[int, int]], limit: int = 0) -> list[Row]:
    """How often each degree occurs, of pages (``out``, ``external``) and of hosts.

    The *limit* most frequent; 0: all, in the order of degrees.
    """
    rows: list[Row] = [
        {"of": name, "degree": degree, "count": count}
        for name, counts in degrees.items()
        for degree, count in sorted(counts.items())
    ]
    return heapq.nlargest(limit, rows, key=lambda row: row["count"]) if limit else rows


def count_rows(
    columns: tuple[str, str], table: Iterable[tuple[Any, int]], limit: int = 0
) -> Iterator[Row]:
    """Rows of two *columns*; of *limit* rows those with the greatest counts, 0: all in order."""
    if limit:
        table = heapq.nlargest(limit, table, key=lambda row: row[1])
    for row in table:
        yield dict(zip(columns, row, strict=True))


def tally_rows(table: Table, column: str, limit: int = 0) -> list[Row]:
    """One of the tallies, what was most frequent first; *column* names its key."""
    ordered = sorted(table.items(), key=lambda item: (-item[1][0], item[0]))
    return [
        {column: key, "fetches": fetches, "bytes": size, "mean_ms": round(ms / max(1, fetches))}
        for key, (fetches, size, ms) in (ordered[:limit] if limit else ordered)
    ]


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


def _tally(table: str, column: str) -> ReadRows:
    return lambda reader, limit: tally_rows(
        getattr(FetchTotals.load(reader.store), table), column, limit
    )


def _seeds(reader: StoreReader, limit: int) -> Iterable[Row]:
    for number, row in enumerate(seed_rows(seeds(reader.store)), 1):
        yield row
        if number == limit:
            break


def _bad_seeds(reader: StoreReader, limit: int) -> Iterable[Row]:
    return map(asdict, islice(bad_seed_lines(reader.store), limit or None))


def _links(reader: StoreReader) -> LinkStats:
    return LinkStats(reader.store.kv(LINKS))


def _counts(name: str, columns: tuple[str, str]) -> ReadRows:
    return lambda reader, limit: count_rows(columns, _links(reader).table(name), limit)


def _sizes(reader: StoreReader, limit: int) -> Iterable[Row]:
    powers = ((1 << int(power), number) for power, number in _links(reader).table("sizes"))
    return count_rows(("below", "fetches"), powers, limit)


class Report(NamedTuple):
    """How the rows of one report are read, shown, and added up over agents.

    Attributes:
        columns: a number is one of URLs unless the name of its column says otherwise.
        rows: reads at most so many rows of a store, the greatest; 0: all.
        keys: rows of agents that agree in these columns are added up; (): none are.
        order: the column by which the greatest rows are chosen.
        is_sorted: rows are in that order even without a limit.
        limit_first: each agent applies the limit to its own rows.
    """

    columns: tuple[str, ...]
    rows: ReadRows
    keys: tuple[str, ...] = ()
    order: str = ""
    is_sorted: bool = False
    limit_first: bool = False


REPORTS: Final = {
    "seeds": Report(
        ("seed", "state", "reason", "status", "attempts", "when", "tag"), _seeds, limit_first=True
    ),
    "bad-seeds": Report(("origin", "line", "text", "why"), _bad_seeds, limit_first=True),
    "hosts": Report(
        ("host", "done", "failed", "pending", "attempts", "given_up"),
        lambda reader, limit: host_rows(reader.hosts(), limit), ("host",), "done",
        limit_first=True,
    ),
    "statuses": Report(
        ("status", "fetches", "bytes", "mean_ms"), _tally("statuses", "status"), ("status",),
        "fetches", is_sorted=True,
    ),
    "types": Report(
        ("type", "fetches", "bytes", "mean_ms"), _tally("types", "type"), ("type",), "fetches",
        is_sorted=True,
    ),
    "domains": Report(
        _DOMAIN_COLUMNS,
        lambda reader, limit: domain_rows(reader.hosts(), registered_domain, limit), ("domain",),
        "done", is_sorted=True,
    ),
    "links": Report(
        ("host", "pages", "links", "internal", "external", "in_links", "out_hosts", "in_hosts"),
        lambda reader, limit: link_rows(_links(reader).hosts(), limit), ("host",), "in_hosts",
        limit_first=True,
    ),
    "degrees": Report(
        ("of", "degree", "count"),
        lambda reader, limit: degree_rows(link_report(_links(reader)).degrees, limit),
        ("of", "degree"), "count",
    ),
    "languages": Report(
        ("language", "fetches"), _counts("languages", ("language", "fetches")), ("language",),
        "fetches",
    ),
    "sizes": Report(("below", "fetches"), _sizes, ("below",), "fetches"),
    "anchors": Report(
        ("word", "times"), _counts("anchors", ("word", "times")), ("word",), "times"
    ),
}  # fmt: skip


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
            column = report.order
            rows = heapq.nlargest(limit or len(rows), rows, key=lambda row: row.get(column) or 0)
    return rows[: limit or None]


def _by_key(rows: Iterable[Row], keys: tuple[str, ...]) -> list[Row]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(key)) for key in keys), []).append(row)
    return [
        {**_added(group), **{key: group[0].get(key) for key in keys}} for group in groups.values()
    ]


def _added(rows: list[Row]) -> Row:
    """Their numbers added up, means by the number of fetches; of the rest what the first says."""
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
