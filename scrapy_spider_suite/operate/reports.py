"""The tables of ``scrapy frontier report``, named as Heritrix names its reports.

Each takes what the store knows and returns rows, ready for text, CSV or JSON; nothing here reads
the fetch log.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from scrapy_spider_suite.analysis.link_stats import HostLinks
from scrapy_spider_suite.store.counters import Counters, FetchTotals, Table
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.store.url_states import SeedRow

Row = dict[str, Any]

COLUMNS = {
    "seeds": ("seed", "state", "reason", "status", "attempts", "when", "tag"),
    "bad-seeds": ("origin", "line", "text", "why"),
    "hosts": ("host", "done", "failed", "pending", "attempts", "given_up"),
    "statuses": ("status", "fetches", "bytes", "mean_ms"),
    "types": ("type", "fetches", "bytes", "mean_ms"),
    "domains": ("domain", "hosts", "done", "failed", "pending", "attempts"),
    "links": (
        "host", "pages", "links", "internal", "external", "in_links", "out_hosts", "in_hosts",
    ),
    "degrees": ("of", "degree", "count"),
    "languages": ("language", "fetches"),
    "sizes": ("below", "fetches"),
    "anchors": ("word", "times"),
}
"""Report -> its columns; a number is one of URLs unless its name says otherwise."""


def seed_rows(seeds: Iterable[SeedRow]) -> Iterator[Row]:
    """What became of each seed; *when* is the time of its last attempt, since the epoch."""
    for seed in seeds:
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
        dict(zip(COLUMNS["domains"], (domain, *row), strict=True))
        for domain, row in (ordered[:limit] if limit else ordered)
    ]


def link_rows(hosts: Iterable[tuple[str, HostLinks]], limit: int = 0) -> Iterator[Row]:
    """The links of the *limit* hosts that most others link to; 0: of all, as the store has them."""
    if limit:
        hosts = heapq.nlargest(limit, hosts, key=lambda item: (item[1].in_hosts, item[1].in_links))
    for name, links in hosts:
        yield {"host": name, **asdict(links)}


def degree_rows(degrees: Mapping[str, Mapping[int, int]]) -> Iterator[Row]:
    """How often each degree occurs, of pages (``out``, ``external``) and of hosts."""
    for name, counts in degrees.items():
        for degree, count in sorted(counts.items()):
            yield {"of": name, "degree": degree, "count": count}


def count_rows(report: str, table: Iterable[tuple[Any, int]], limit: int = 0) -> Iterator[Row]:
    """A *report* of two columns; of *limit* rows those with the greatest counts, 0: all in order.
    """
    if limit:
        table = heapq.nlargest(limit, table, key=lambda row: row[1])
    for row in table:
        yield dict(zip(COLUMNS[report], row, strict=True))


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


_KEYS: Final = {
    "statuses": ("status",), "types": ("type",), "domains": ("domain",), "hosts": ("host",),
    "links": ("host",), "degrees": ("of", "degree"), "languages": ("language",),
    "sizes": ("below",), "anchors": ("word",),
}  # fmt: skip
"""Report -> the columns that say which rows are added up; there are others that are not."""
_ORDER: Final = {
    "statuses": "fetches", "types": "fetches", "domains": "done", "hosts": "done",
    "links": "in_hosts", "degrees": "count", "languages": "fetches", "sizes": "fetches",
    "anchors": "times",
}  # fmt: skip
"""Report -> the column by which the greatest rows are known."""
_SORTED: Final = ("statuses", "types", "domains")
_MEAN = "mean_ms"
_LEAST, _MOST = ("begun",), ("seconds",)
_WITHOUT = ("job", "agent")
ADDED_UP: Final = (*_SORTED, "degrees", "languages", "sizes", "anchors")
"""Reports whose rows are added up over agents before they are cut."""


def crawl_of_agents(rows: list[Row]) -> Row:
    """The report ``crawl`` of several agents."""
    return {"agents": len(rows), **_added(rows)}


def rows_of_agents(name: str, rows: list[Row], limit: int) -> list[Row]:
    """The rows of the report *name* of several agents, added up; *limit* 0: all."""
    if name in _KEYS:
        rows = _by_key(rows, _KEYS[name])
        if limit or name in _SORTED:
            column = _ORDER[name]
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
