"""``scrapy frontier report``: the job as tables, under the names that Heritrix gives them."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from scrapy_spider_suite.analysis.link_stats import ROWS as LINKS
from scrapy_spider_suite.analysis.link_stats import LinkStats, link_report
from scrapy_spider_suite.crawl.seeds import bad_seed_lines
from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.operate import reports
from scrapy_spider_suite.operate.verb import (
    Found,
    Invocation,
    JobVerb,
    Question,
    Row,
    row_limit,
)
from scrapy_spider_suite.store.counters import FetchTotals
from scrapy_spider_suite.store.job_directory import JobFile
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.url_states import seeds
from scrapy_spider_suite.urls.hosts import registered_domain

_OTHER_NAMES = {"responsecode": "statuses", "mimetype": "types", "crawl-summary": "crawl"}
"""Heritrix's names -> ours, where they differ."""
NAMES = ("crawl", *reports.COLUMNS, *_OTHER_NAMES)


def _tally(table: str, column: str) -> Callable[[StoreReader, int], Iterable[Row]]:
    def rows(reader: StoreReader, limit: int) -> Iterable[Row]:
        return reports.tally_rows(getattr(FetchTotals.load(reader.store), table), column, limit)

    return rows


def _report_seeds(reader: StoreReader, limit: int) -> Iterable[Row]:
    for number, row in enumerate(reports.seed_rows(seeds(reader.store)), 1):
        yield row
        if number == limit:
            break


def _bad_seeds(reader: StoreReader, limit: int) -> Iterable[Row]:
    return map(asdict, islice(bad_seed_lines(reader.store), limit or None))


def _links(reader: StoreReader) -> LinkStats:
    return LinkStats(reader.store.kv(LINKS))


def _counts(name: str) -> Callable[[StoreReader, int], Iterable[Row]]:
    def rows(reader: StoreReader, limit: int) -> Iterable[Row]:
        return reports.count_rows(name, _links(reader).table(name), limit)

    return rows


def _sizes(reader: StoreReader, limit: int) -> Iterable[Row]:
    powers = ((1 << int(power), number) for power, number in _links(reader).table("sizes"))
    return reports.count_rows("sizes", powers, limit)


_ROWS: dict[str, Callable[[StoreReader, int], Iterable[Row]]] = {
    "seeds": _report_seeds,
    "bad-seeds": _bad_seeds,
    "hosts": lambda reader, limit: reports.host_rows(reader.hosts(), limit),
    "statuses": _tally("statuses", "status"),
    "types": _tally("types", "type"),
    "domains": lambda reader, limit: reports.domain_rows(reader.hosts(), registered_domain, limit),
    "links": lambda reader, limit: reports.link_rows(_links(reader).hosts(), limit),
    "degrees": lambda reader, limit: reports.degree_rows(link_report(_links(reader)).degrees),
    "languages": _counts("languages"),
    "sizes": _sizes,
    "anchors": _counts("anchors"),
}


def _report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", choices=NAMES, help=", ".join(NAMES))
    parser.add_argument("--csv", action="store_true", help="print CSV with a line of names")
    parser.add_argument(
        "--limit", type=row_limit, default=0, metavar="N",
        help="only so many rows, the greatest where they are counts (0: all)",
    )  # fmt: skip


def _plan(call: Invocation) -> Question:
    name, limit = call.options.name, call.options.limit
    # Agents send all rows that are added up: the sum is cut.
    cut = limit and own_name(name) not in reports.ADDED_UP
    return Question(words=(name, "--limit", str(limit)) if cut else (name,))


def _look(call: Invocation, question: Question) -> Iterator[Row]:
    name, folder = own_name(call.options.name), call.folder()
    with StoreReader(folder) as reader:
        if name == "crawl":
            yield _crawl(reader, folder)
        else:
            yield from _ROWS[name](reader, call.options.limit)


def _show(call: Invocation, found: Found) -> int:
    name, options = own_name(call.options.name), call.options
    rows: Iterable[Row] = (row for each in found.by_agent.values() for row in each)
    if name == "crawl":
        [facts] = [reports.crawl_of_agents(list(rows))] if not found.one_job else rows
        if options.csv:
            print_csv([facts], tuple(facts))
        else:
            call.facts(facts)
        return 0
    if not found.one_job:
        rows = reports.rows_of_agents(name, list(rows), options.limit)
    columns = reports.COLUMNS[name]
    if options.csv and not call.json:
        print_csv(rows, columns)
    else:
        call.table(rows, columns)
    return 0


def _crawl(reader: StoreReader, folder: Path) -> Row:
    file = JobFile.read(folder)
    if file is None:
        raise JobError(f"{folder.parent} holds no job of scrapy-spider-suite")
    begun: Row = {"job": file.id, "spider": file.spider, "begun": round(file.created)}
    return begun | reports.crawl_facts(reader.counters(), FetchTotals.load(reader.store))


def own_name(name: str) -> str:
    """The name that a report has here."""
    return _OTHER_NAMES.get(name, name)


def print_csv(rows: Iterable[Row], columns: tuple[str, ...]) -> None:
    """Print *columns* of *rows* as CSV, with a line of names."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(column) for column in columns] for row in rows)


VERBS = (
    JobVerb(
        "report", "the job as a table: crawl, seeds, hosts, statuses, types, domains, links",
        add_options=_report_options, arguments="NAME", plan=_plan, look=_look, show=_show,
        about=(
            "Heritrix's names work too: responsecode is statuses, mimetype is types, and\n"
            "crawl-summary is crawl. All are over the whole life of the job, and come from its\n"
            "store: statuses, types and crawl count fetches, robots.txt and media among them; the\n"
            "others count URLs. Link statistics (SUITE_LINK_STATS) are links, degrees, languages,\n"
            "sizes (of bodies, in powers of two) and anchors (words of the texts of links)."
        ),
        examples=(
            "report crawl -j crawls/news",
            "report statuses -j crawls/news",
            "report hosts --limit 100 -j crawls/news --csv",
            "report seeds -j crawls/news --json",
        ),
    ),
)  # fmt: skip
