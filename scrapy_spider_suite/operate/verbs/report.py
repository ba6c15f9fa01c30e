"""``report``: the job as tables, also by Heritrix's names, or as a page with charts."""

from __future__ import annotations

import csv
import heapq
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from scrapy.exceptions import UsageError
from scrapy.settings import default_settings

from scrapy_spider_suite.analysis.link_stats import ROWS as LINKS
from scrapy_spider_suite.analysis.link_stats import LinkStats, degree_counts
from scrapy_spider_suite.crawl.seeds import bad_seed_lines
from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.operate import verb
from scrapy_spider_suite.operate.kept_pauses import add_pauses, kept_pauses
from scrapy_spider_suite.runtime.files import replacing_file
from scrapy_spider_suite.settings.declarations import plain_value, setting_name, shown_value
from scrapy_spider_suite.settings.suite import DECLARATIONS
from scrapy_spider_suite.store.counters import FetchTotals, Table
from scrapy_spider_suite.store.job_directory import JobFile, JobHistory
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.url_states import seeds
from scrapy_spider_suite.urls.hosts import registered_domain

_DOMAIN_COLUMNS = ("domain", "hosts", "done", "failed", "pending", "attempts")
_LINK_COLUMNS = ("pages", "links", "internal", "external", "in_links", "out_hosts", "in_hosts")


def _seeds(reader: StoreReader) -> Iterator[verb.Row]:
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


def _hosts(reader: StoreReader) -> Iterator[verb.Row]:
    for name, record in reader.store.records():
        yield {
            "host": name, "done": record.done, "failed": record.failed, "pending": record.pending,
            "attempts": record.attempts, "given_up": record.dead or None,
        }  # fmt: skip


def _domains(reader: StoreReader) -> Iterator[verb.Row]:
    """Hosts added up by registered domain, those with the most URLs done first."""
    totals: dict[str, Counter[str]] = {}
    for name, record in reader.store.records():
        total = totals.setdefault(registered_domain(name), Counter())
        total["hosts"] += 1
        total.update({each: getattr(record, each) for each in _DOMAIN_COLUMNS[2:]})
    for domain, total in sorted(totals.items(), key=lambda item: (-item[1]["done"], item[0])):
        yield {"domain": domain, **total}


def _link_stats(reader: StoreReader) -> LinkStats:
    return LinkStats(reader.store.kv(LINKS))


def _links(reader: StoreReader) -> Iterator[verb.Row]:
    for name, links in _link_stats(reader).hosts():
        yield {"host": name, **{column: getattr(links, column) for column in _LINK_COLUMNS}}


def _degrees(reader: StoreReader) -> Iterator[verb.Row]:
    """How often each degree occurs, of pages (``out``, ``external``) and of hosts."""
    for name, counts in degree_counts(_link_stats(reader)).items():
        for degree, count in sorted(counts.items()):
            yield {"of": name, "degree": degree, "count": count}


def _tally(table: str, column: str) -> ReadRows:
    def rows(reader: StoreReader) -> Iterator[verb.Row]:
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


def _sizes(reader: StoreReader) -> Iterator[verb.Row]:
    for power, number in _link_stats(reader).table("sizes"):
        yield {"below": 1 << int(power), "fetches": number}


def _crawl(reader: StoreReader) -> verb.Row:
    file = JobFile.require(reader.folder)
    counters, totals = reader.counters(), FetchTotals.load(reader.store)
    fetches, size, ms = totals.total()
    seconds = max(1e-9, counters.seconds)
    kinds = {f"fetches_{kind}": row[0] for kind, row in sorted(totals.kinds.items())}
    return {
        "job": file.id, "spider": file.spider, "begun": round(file.created),
        "seconds": round(counters.seconds),
        "pages": counters.pages,
        "done": counters.done, "failed": counters.failed, "pending": counters.pending,
        "retried": counters.retried, "filtered": counters.filtered,
        "dead_hosts": counters.dead_hosts,
        "fetches": fetches, **kinds, "bytes": size, "mean_ms": round(ms / max(1, fetches)),
        "fetches_per_second": round(fetches / seconds, 2),
        "kilobytes_per_second": round(size / seconds / 1_000, 2),
    }  # fmt: skip


ReadRows = Callable[[StoreReader], Iterable[verb.Row]]


class Report(NamedTuple):
    """How the rows of one report are read, shown, and added up over agents."""

    columns: tuple[str, ...]  # numbers are of URLs unless the name of the column says otherwise
    rows: ReadRows  # reads all rows of a store; they are never all in memory
    keys: tuple[str, ...] = ()  # rows of agents that agree in these columns are added up
    order: tuple[str, ...] = ()  # columns by which the greatest rows are chosen; (): the first rows
    is_sorted: bool = False  # rows are in that order even without a limit
    limit_first: bool = False  # each agent applies the limit to its own rows


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


def _greatest(rows: Iterable[verb.Row], report: Report, limit: int) -> list[verb.Row]:
    return heapq.nlargest(
        limit, rows, key=lambda row: tuple(row.get(column) or 0 for column in report.order)
    )


_MEAN = "mean_ms"
_LEAST, _MOST = ("begun",), ("seconds",)
_WITHOUT = ("job", "agent")


def _rows_of_agents(report: Report, rows: list[verb.Row], limit: int) -> list[verb.Row]:
    """The rows of several agents, added up; *limit* 0: all."""
    if report.keys:
        groups: dict[tuple[str, ...], list[verb.Row]] = {}
        for row in rows:
            groups.setdefault(tuple(str(row.get(key)) for key in report.keys), []).append(row)
        rows = [
            {**_added(group), **{key: group[0].get(key) for key in report.keys}}
            for group in groups.values()
        ]
        if limit or report.is_sorted:
            rows = _greatest(rows, report, limit or len(rows))
    return rows[: limit or None]


def _added(rows: list[verb.Row]) -> verb.Row:
    """Add numbers up, weight means by fetches; keep the first of other values."""
    found: verb.Row = {}
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


_PLACES: Final = frozenset({"concurrent_requests"})  # always of interest
_HOSTS_OF_PAGE: Final = 15


def _outcomes(reader: StoreReader) -> Iterator[verb.Row]:
    events = reader.counters().events
    for event, urls in sorted(events.items(), key=lambda item: -item[1]):
        yield {"event": event.value, "urls": urls}


def _failing_hosts(reader: StoreReader) -> Iterator[verb.Row]:
    return (row for row in _hosts(reader) if row["failed"])


def _settings(reader: StoreReader) -> Iterator[verb.Row]:
    """The settings that are not the defaults, and Scrapy's own."""
    stored = JobFile.require(reader.folder).settings
    for name, declared in DECLARATIONS.items():
        default = declared.broad if stored.get("profile") == "broad" else declared.spider
        value = stored.get(name)
        if name in stored and value != plain_value(default):
            yield {"name": setting_name(name), "value": shown_value(value, declared.type.unit)}
    scrapy: Mapping[str, Any] = JobHistory(reader.folder).last()[0].get("scrapy") or {}
    for name, value in scrapy.items():
        usual = vars(default_settings).get(name.upper(), value)  # what is no setting stays out
        if value != plain_value(usual) or name in _PLACES:
            yield {"name": name.upper(), "value": shown_value(value)}


def _politeness(reader: StoreReader) -> Iterator[verb.Row]:
    yield from kept_pauses(reader.folder, JobFile.require(reader.folder).settings)


_OF_PAGE: Final = {
    "outcomes": Report(("event", "urls"), _outcomes, ("event",), ("urls",), is_sorted=True),
    "hosts": REPORTS["hosts"],
    "failing": REPORTS["hosts"]._replace(rows=_failing_hosts, order=("failed",)),
    "politeness": Report((), _politeness),
    "settings": Report((), _settings),
    **{name: REPORTS[name] for name in ("statuses", "types", "degrees", "languages")},
}
"""The tables of the page, beside ``crawl``."""


def _page_rows(reader: StoreReader) -> Iterator[verb.Row]:
    """The rows of all tables of the page, each with the name of its ``report``."""
    yield {"report": "crawl", **_crawl(reader)}
    for name, report in _OF_PAGE.items():
        rows = report.rows(reader)
        if report.limit_first:
            rows = _greatest(rows, report, _HOSTS_OF_PAGE)
        yield from ({"report": name, **row} for row in rows)


def _page_tables(rows: Iterable[verb.Row], *, one_job: bool) -> dict[str, list[verb.Row]]:
    """The tables of the page by their names; rows of several agents are added up."""
    tables: dict[str, list[verb.Row]] = {}
    for row in rows:
        row = dict(row)
        tables.setdefault(row.pop("report"), []).append(row)
    if one_job:
        return tables
    tables["crawl"] = [_added(tables.get("crawl", []))]
    tables["politeness"] = add_pauses(tables.get("politeness", []))
    tables["settings"] = list({row["name"]: row for row in tables.get("settings", [])}.values())
    for name, report in _OF_PAGE.items():
        if report.keys and name in tables:
            limit = _HOSTS_OF_PAGE if report.limit_first else 0
            tables[name] = _rows_of_agents(report, tables[name], limit)
    return tables


def _write_page(call: verb.Invocation, found: verb.Found) -> int:
    """Write the page of the job, and of the jobs beside it."""
    # A crawl loads the modules of all verbs, and needs neither charts nor views.
    from scrapy_spider_suite.operate.crawl_view import open_view
    from scrapy_spider_suite.operate.report_page import CrawlReport, render_page

    if not found.by_agent:
        raise JobError("no agent has answered: there is nothing to report")
    job, tables = str(call.jobdir), {}
    if found.one_job or call.redis is not None:
        every = chain.from_iterable(found.by_agent.values())
        tables[job] = _page_tables(every, one_job=found.one_job)
    else:  # agents at rest, and with them the Redis that has the series of the whole crawl
        for name, rows in found.by_agent.items():
            tables[f"{job}/{name}"] = _page_tables(rows, one_job=True)
    for job in call.options.beside:
        with StoreReader(replace(call, jobdir=job).folder()) as reader:
            tables[job] = _page_tables(_page_rows(reader), one_job=True)
    crawls = [CrawlReport.of(open_view(job, call.settings), each) for job, each in tables.items()]
    path: Path = call.options.html
    try:
        with replacing_file(path) as new:
            new.write_text(render_page(crawls), encoding="utf-8")
    except OSError as error:
        raise JobError(f"{path} cannot be written: {error.strerror}") from error
    call.facts({"written": str(path)})
    return 0


_OTHER_NAMES = {"responsecode": "statuses", "mimetype": "types", "crawl-summary": "crawl"}
"""Heritrix's names -> ours, where they differ."""
NAMES = ("crawl", *REPORTS, *_OTHER_NAMES)


def _plan(call: verb.Invocation) -> verb.Question:
    name, limit = call.options.name, call.options.limit
    if (name is None) == (call.options.html is None):
        raise UsageError("give the NAME of a table, or --html FILE", print_help=False)
    if name is None:
        return verb.Question(words=("--html", "-"))
    # Agents send all rows that are added up: the sum is cut.
    cut = limit and (name == "crawl" or REPORTS[name].limit_first)
    return verb.Question(words=(name, "--limit", str(limit)) if cut else (name,))


def _look(call: verb.Invocation, question: verb.Question) -> Iterator[verb.Row]:
    name, limit = call.options.name, call.options.limit
    with StoreReader(call.folder()) as reader:
        if name is None:
            yield from _page_rows(reader)
            return
        if name == "crawl":
            yield _crawl(reader)
            return
        rows = REPORTS[name].rows(reader)
        if limit and REPORTS[name].order:
            yield from _greatest(rows, REPORTS[name], limit)
        else:
            yield from islice(rows, limit or None)


def _show(call: verb.Invocation, found: verb.Found) -> int:
    options = call.options
    if options.html is not None:
        return _write_page(call, found)
    rows: Iterable[verb.Row] = (row for each in found.by_agent.values() for row in each)
    if options.name == "crawl":
        rows = list(rows)
        facts = rows[0] if found.one_job else {"agents": len(rows), **_added(rows)}
        rows, columns = [facts], tuple(facts)
        if not options.csv:
            call.facts(facts)
            return 0
    else:
        columns = REPORTS[options.name].columns
        if not found.one_job:
            rows = _rows_of_agents(REPORTS[options.name], list(rows), options.limit)
    if options.csv and not call.json:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([row.get(column) for column in columns] for row in rows)
    else:
        call.table(rows, columns)
    return 0


VERBS = (
    verb.JobVerb(
        "report", "the job as a table: crawl, seeds, hosts, statuses, types, ...; or as a page",
        options=(
            verb.option(
                "name", metavar="NAME", nargs="?", type=lambda name: _OTHER_NAMES.get(name, name),
                choices=("crawl", *REPORTS), help=", ".join(NAMES),
            ),
            verb.option("--csv", action="store_true", help="print CSV with a line of names"),
            verb.option(
                "--html", type=Path, metavar="FILE",
                help="in place of NAME: write all of it as one page, with charts",
            ),
            verb.option(
                "--beside", nargs="+", default=[], metavar="JOB",
                help="with --html: directories of other jobs, to be compared",
            ),
            verb.option(
                "--limit", type=verb.ROWS, default=0, metavar="N",
                help="only so many rows, the greatest where they are counts (0: all)",
            ),
        ),
        arguments="NAME|--html FILE", plan=_plan, look=_look, show=_show,
        about=(
            "Heritrix's names work too: responsecode is statuses, mimetype is types, and\n"
            "crawl-summary is crawl. Reports are over all runs of the job. statuses, types and\n"
            "crawl count fetches, of robots.txt and media too; the others count URLs. Of\n"
            "SUITE_LINK_STATS: links, degrees, languages, sizes (of bodies, in powers of two),\n"
            "anchors (words of the texts of links)."
        ),
        examples=(
            "report crawl -j crawls/news",
            "report hosts --limit 100 -j crawls/news --csv",
            "report --html news.html -j crawls/news --beside crawls/blogs",
        ),
    ),
)  # fmt: skip
