"""``scrapy frontier report`` of several agents: their tables, added up where they can be."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, Final

from scrapy_spider_suite.commands.frontier_verbs.report import own_name, print_csv
from scrapy_spider_suite.operate.executors.all_agents import DividedList
from scrapy_spider_suite.operate.reports import COLUMNS
from scrapy_spider_suite.operate.verb import Invocation, Row

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


def show_report(
    call: Invocation, found: Mapping[str, list[Any]], spread: DividedList | None
) -> None:
    """Print the report of all agents."""
    name, limit = own_name(call.options.name), call.options.limit
    rows = [row for each in found.values() for row in each if isinstance(row, dict)]
    if name == "crawl":
        facts = {"agents": len(rows), **_added(rows)}
        if call.options.csv:
            print_csv([facts], tuple(facts))
        else:
            call.facts(facts)
        return
    columns = COLUMNS[name]
    if name in _KEYS:
        rows = _by_key(rows, _KEYS[name])
        column = _ORDER[name]
        if limit or name in _SORTED:
            most = limit or len(rows)
            rows = heapq.nlargest(most, rows, key=lambda row: row.get(column) or 0)
    rows = rows[: limit or None]
    if call.options.csv and not call.json:
        print_csv(rows, columns)
    else:
        call.table(rows, columns)


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
