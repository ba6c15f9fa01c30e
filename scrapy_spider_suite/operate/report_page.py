"""The report of crawls as one HTML file: no script, nothing from elsewhere, made to be printed.

Whatever pages, servers or job directories say is escaped, and the page allows no script.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scrapy_spider_suite.analysis.charts import bar_chart, line_chart, short_number
from scrapy_spider_suite.analysis.time_series import Array, Rows
from scrapy_spider_suite.operate.judge import display_duration
from scrapy_spider_suite.operate.kept_pauses import EDGES
from scrapy_spider_suite.runtime.text import counted, printable

if TYPE_CHECKING:
    from scrapy_spider_suite.operate.crawl_view import View

Table = Sequence[Mapping[str, Any]]
_POINTS: Final = 200  # most values of a line
_LINES_MAX: Final = 6  # most reasons or events of a chart
_TEXT_MAX: Final = 120  # characters of a value
_NAME_MAX: Final = 40  # characters of the name of a crawl


@dataclass(frozen=True, slots=True)
class CrawlReport:
    """One crawl: its *overview* and *rows* (see `operate.crawl_view`), and *tables* by name.

    The tables are those of the verb ``report``, and ``outcomes``, ``failing``, ``politeness`` and
    ``settings``; ``crawl`` has one row.
    """

    overview: Mapping[str, Any]
    rows: Rows
    tables: Mapping[str, Table]

    @classmethod
    def of(cls, view: View, tables: Mapping[str, Table]) -> CrawlReport:
        overview, facts = view.overview(), tables["crawl"][0]
        pending = overview["gauges"].get("pending")
        if overview["state"] == "running" and pending is not None:  # read a moment later
            tables = {**tables, "crawl": [{**facts, "pending": pending}]}
        begun = facts["begun"]
        return cls(overview, view.series(begun, overview["when"] or time.time(), _POINTS), tables)

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.tables["crawl"][0]

    def table(self, name: str) -> Table:
        return self.tables.get(name, ())

    def name(self) -> str:
        job = str(self.overview["job"])
        short = job if "://" in job else PurePath(job).name
        return printable(str(self.overview["crawl"] or short))[:_NAME_MAX]


def render_page(crawls: Sequence[CrawlReport]) -> str:
    """The page of one crawl, or of several side by side; the first one is named first."""
    reports = _by_name(crawls)
    title = f"{'Crawl' if len(reports) == 1 else 'Crawls'} {', '.join(reports)}"
    parts = [
        _HEAD.format(title=escape(title)), f"<h1>{escape(title)}</h1>", *_states(reports),
        _section("Summary", _summary(reports)), _section("Over time", _rates(reports)),
        _section("Outcomes of URLs", _outcomes(reports)),
        _section("Answers of servers", _answers(reports)), _section("Hosts", _hosts(reports)),
        _section("Politeness as kept", _politeness(reports)), _section("Links", _links(reports)),
        _section("Settings", _settings(reports)),
        "</body></html>\n",
    ]  # fmt: skip
    return "\n".join(parts)


def _by_name(crawls: Sequence[CrawlReport]) -> dict[str, CrawlReport]:
    found: dict[str, CrawlReport] = {}
    for each in crawls:
        name, number = each.name(), 2
        while name in found:
            name, number = f"{each.name()} ({number})", number + 1
        found[name] = each
    return found


_Reports = Mapping[str, CrawlReport]


def _states(reports: _Reports) -> Iterator[str]:
    for name, report in reports.items():
        overview = report.overview
        who = f"<b>{escape(name)}</b>: " if len(reports) > 1 else ""
        job = f"Job {_cell(overview['job'])}, {_utc(time.time())}"
        yield f"<p>{who}{_cell(overview['words'])}<br><small>{job}</small></p>"


def _of(reports: _Reports, name: str) -> str:
    """The name of a crawl behind a title; "" where there is but one."""
    return f" of {name}" if len(reports) > 1 else ""


def _summary(reports: _Reports) -> Iterator[str]:
    rows = [
        ("Spider", [report.facts["spider"] for report in reports.values()]),
        ("Begun", [_utc(report.facts["begun"]) for report in reports.values()]),
        ("Ended", [_utc(report.overview["ended"]) for report in reports.values()]),
        *((text, [show(report.facts) for report in reports.values()]) for text, show in _FACTS),
    ]  # fmt: skip
    yield _table(("", *reports), [(text, *cells) for text, cells in rows], names=reports)
    if len(reports) > 1:
        yield _figure(bar_chart("Gathering speed, pages a second", [
            (f"{name}, {_places(report)}", speed := _speed(report), short_number(speed))
            for name, report in reports.items()
        ]))  # fmt: skip


def _speed(report: CrawlReport) -> float:
    return float(report.facts["pages"]) / max(1e-9, float(report.facts["seconds"]))


def _places(report: CrawlReport) -> str:
    """How many processes fetch, and how many requests each may have under way."""
    agents = report.overview["processes"]
    settings = {row["name"]: row["value"] for row in report.table("settings")}
    places = settings.get("CONCURRENT_REQUESTS")
    return counted(agents, "process", "processes") + (f" of {places}" if places else "")


_Facts = Mapping[str, Any]


def _number(name: str, unit: str = "", divisor: float = 1) -> Callable[[_Facts], str]:
    return lambda facts: f"{_shown(facts[name] / divisor)}{unit}"


_FACTS: Final[Sequence[tuple[str, Callable[[_Facts], str]]]] = (
    ("Time of crawling", lambda facts: display_duration(facts["seconds"])),
    ("Pages", _number("pages")), ("URLs that failed", _number("failed")),
    ("URLs in the queue", _number("pending")), ("Fetches tried again", _number("retried")),
    ("Hosts given up", _number("dead_hosts")), ("Fetches", _number("fetches")),
    ("Received", _number("bytes", " MB", 1e6)), ("Mean time of a fetch", _number("mean_ms", " ms")),
    ("Fetches a second", _number("fetches_per_second")),
    ("Bandwidth", lambda facts: f"{facts['kilobytes_per_second'] * 0.008:,.3g} Mbit/s"),
)  # fmt: skip
_UNITS: Final = (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0), ("seconds", 1.0))


def _rates(reports: _Reports) -> Iterator[str]:
    spans = {name: _span(report.rows) for name, report in reports.items()}
    longest = max(end - begin for begin, end in spans.values())
    unit, length = next((each for each in _UNITS if longest >= 3 * each[1]), _UNITS[-1])

    def chart(title: str, lines: Mapping[str, tuple[str, Array]]) -> str:
        """A chart of the values by the name of the line, each with the name of its crawl."""
        drawn = {}
        for line, (name, values) in lines.items():
            begin, rows = spans[name][0], reports[name].rows
            inside = rows.times >= begin
            times = (rows.times[inside] - begin) / length
            drawn[line] = list(zip(times.tolist(), values[inside].tolist(), strict=True))
        return _figure(line_chart(title, drawn, f"{unit} since the beginning"))

    for title, measure in _MEASURES.items():
        yield chart(title, {name: (name, measure(each.rows)) for name, each in reports.items()})
    for name, report in reports.items():
        by = f"{_of(reports, name)}, by"
        waiting = _greatest(report.rows.columns.gauges, "waiting.", report.rows.mean)
        errors = _greatest(report.rows.columns.counters, "errors.", report.rows.rate)
        for title, lines in (
            (f"Waiting hosts{by} reason", waiting), (f"Failed URLs a second{by} event", errors),
        ):  # fmt: skip
            if lines:
                yield chart(title, {line: (name, values) for line, values in lines.items()})


def _span(rows: Rows) -> tuple[float, float]:
    """When the first known row begins and the last one ends."""
    known = rows.times[np.isfinite(rows.total("pages"))]
    if not len(known):
        return 0.0, 0.0
    return float(known[0]), float(known[-1]) + rows.width


def _mean_rate(rows: Rows) -> Array:
    """Pages a second from the beginning on, without the time between two runs."""
    pages = rows.total("pages")
    seconds = np.cumsum(np.isfinite(pages)) * rows.width
    mean = np.cumsum(np.nan_to_num(pages)) / np.maximum(seconds, 1)
    return np.where(np.isfinite(pages), mean, np.nan)


def _sum(rows: Rows, name: str) -> Array:
    increase = rows.total(name)
    return np.where(np.isfinite(increase), np.cumsum(np.nan_to_num(increase)), np.nan)


_MEASURES: Final[Mapping[str, Callable[[Rows], Array]]] = {
    "Pages a second": lambda rows: rows.rate("pages"),
    "Mean pages a second": _mean_rate,
    "URLs discovered": lambda rows: _sum(rows, "new_urls"),
    "Bandwidth, Mbit/s": lambda rows: rows.rate("bytes") * 8e-6,
    "URLs in the queue": lambda rows: rows.mean("pending"),
    "Memory, MB": lambda rows: rows.maximum("memory") / 1e6,
}


def _greatest(
    names: Iterable[str], prefix: str, read: Callable[[str], Array]
) -> dict[str, Array]:
    """The series that begin with *prefix*, without it: the greatest ones that are not 0."""
    found = {name.removeprefix(prefix): read(name) for name in names if name.startswith(prefix)}
    sums = {name: float(np.nansum(values)) for name, values in found.items()}
    greatest = sorted((name for name in sums if sums[name]), key=lambda name: -sums[name])
    return {name: found[name] for name in greatest[:_LINES_MAX]}


def _outcomes(reports: _Reports) -> Iterator[str]:
    if len(reports) > 1:
        yield from _side_by_side(reports, "outcomes", "event", "urls")
        return
    [report] = reports.values()
    bars = [(_words(row["event"]), row["urls"], f"{row['urls']:,}")
            for row in report.table("outcomes")]  # fmt: skip
    if bars:
        yield _figure(bar_chart("URLs by the event that concluded them", bars))


def _answers(reports: _Reports) -> Iterator[str]:
    yield from _side_by_side(reports, "statuses", "status", "fetches")
    yield from _side_by_side(reports, "types", "type", "fetches")


def _side_by_side(reports: _Reports, table: str, key: str, value: str) -> Iterator[str]:
    """A row for each *key* of a *table*, a column of *value* for each crawl."""
    columns = [{_words(row[key]): row[value] for row in each.table(table)}
               for each in reports.values()]  # fmt: skip
    keys = dict.fromkeys(each for column in columns for each in column)
    if keys:
        names = reports if len(reports) > 1 else (value,)
        cells = [(each, *(c.get(each) for c in columns)) for each in keys]
        yield _table((key, *names), cells, names=reports)


_HOST_COLUMNS: Final = ("host", "done", "failed", "pending", "attempts", "given_up")


def _hosts(reports: _Reports) -> Iterator[str]:
    for name, report in reports.items():
        for title, table in (("with most pages", "hosts"), ("with most failures", "failing")):
            rows = [[row.get(column) for column in _HOST_COLUMNS] for row in report.table(table)]
            if rows:
                yield _table(_HOST_COLUMNS, rows, f"Hosts{_of(reports, name)} {title}")


_PAUSE_COLUMNS: Final = (
    "pauses at", "delay of the settings", "shortest pause", "pauses compared", "shorter ones",
)  # fmt: skip


def _politeness(reports: _Reports) -> Iterator[str]:
    for name, report in reports.items():
        kept = [row for row in report.table("politeness") if row["compared"]]
        if not kept:
            continue
        rows = [
            (row["of"], f"{row['delay']:g} s", f"{row['least']:.3f} s", row["compared"],
             row["shorter"]) for row in kept
        ]  # fmt: skip
        yield _table(_PAUSE_COLUMNS, rows, name if len(reports) > 1 else "")
        for row in kept:
            bars = [(f"{low:g} to {high:g} s" if high else f"{low:g} s or more", n, f"{n:,}")
                    for low, high, n in zip(EDGES, (*EDGES[1:], 0.0), row["classes"], strict=True)
                    if n]  # fmt: skip
            title = f"Pauses between requests to {row['of']}{_of(reports, name)}"
            yield _figure(bar_chart(title, bars))
    yield (
        "<p><small>From the end of a request to the start of the next one to the same host, or "
        "address, in the latest lines of the fetch log. Overrides, SUITE_HOST_CONCURRENCY and "
        "SUITE_REQUESTS_PER_VISIT allow shorter pauses.</small></p>"
    )


_DEGREES: Final = {
    "out": "Links of a page", "external": "Links of a page to other hosts",
    "out_hosts": "Hosts that a host links to", "in_hosts": "Hosts that link to a host",
}  # fmt: skip


def _links(reports: _Reports) -> Iterator[str]:
    for of, title in _DEGREES.items():
        lines = {
            name: [(row["degree"], row["count"]) for row in report.table("degrees")
                   if row["of"] == of] for name, report in reports.items()
        }  # fmt: skip
        if any(x > 0 for points in lines.values() for x, _ in points):
            yield _figure(line_chart(f"{title}: how often", lines, "number of them", log=True))
    yield from _side_by_side(reports, "languages", "language", "fetches")


def _settings(reports: _Reports) -> Iterator[str]:
    yield from _side_by_side(reports, "settings", "name", "value")


def _section(title: str, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return f"<section><h2>{title}</h2>\n{body}</section>" if body else ""


def _figure(svg: str) -> str:
    return f"<figure>{svg}</figure>"


def _table(
    columns: Iterable[Any], rows: Iterable[Iterable[Any]], caption: str = "",
    names: Collection[str] = (),
) -> str:  # fmt: skip
    """*names*: columns that are names, not words."""
    def cells(row: Iterable[Any], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if _is_number(cell) else ''}>{_cell(cell)}</{tag}>" for cell in row
        )

    titles = (column if column in names else _words(column) for column in columns)
    head = "".join(f"<th scope=col>{_cell(title)}</th>" for title in titles)
    body = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    title = f"<caption>{_cell(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    """*value* as text of HTML."""
    text = _shown(value)
    return escape(text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if _is_number(value) else printable(str(value))


def _words(name: Any) -> str:
    return str(name).replace("_", " ") if not str(name).isupper() else str(name)


def _utc(when: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(when)) if when else "-"


_HEAD: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light; }}
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 1180px; margin: 0 auto; padding: 1.5rem; }}
h1 {{ font-size: 1.6rem; margin: 0 0 .5rem; }}
h2 {{ font-size: 1.15rem; border-bottom: 1px solid #ccc; margin: 2rem 0 .8rem; }}
section {{ display: flow-root; }}
figure {{ display: inline-block; margin: 0 .6rem 1rem 0; max-width: 100%; vertical-align: top; }}
svg {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; margin: 0 2rem 1rem 0; display: inline-table;
  vertical-align: top; max-width: 100%; }}
caption {{ text-align: left; font-weight: 600; padding: .3rem 0; }}
th, td {{ text-align: left; padding: .15rem .9rem .15rem 0; border-bottom: 1px solid #eee;
  vertical-align: top; overflow-wrap: anywhere; }}
td:first-child {{ overflow-wrap: break-word; }}
th {{ font-weight: 600; }}
.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
small {{ color: #555; font-size: .85em; }}
@media print {{
  @page {{ size: A4; margin: 14mm; }}
  body {{ font-size: 10.5px; max-width: none; padding: 0; }}
  figure, tr {{ break-inside: avoid; }}
  h2, caption {{ break-after: avoid; }}
  svg[width="360"] {{ max-width: 88mm; }}
}}
</style></head><body>"""
