"""``scrapy frontier report``: the job as tables, under the names that Heritrix gives them."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

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

_OTHER_NAMES = {"responsecode": "statuses", "mimetype": "types", "crawl-summary": "crawl"}
"""Heritrix's names -> ours, where they differ."""
NAMES = ("crawl", *reports.REPORTS, *_OTHER_NAMES)


def _report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", choices=NAMES, help=", ".join(NAMES))
    parser.add_argument("--csv", action="store_true", help="print CSV with a line of names")
    parser.add_argument(
        "--limit", type=row_limit, default=0, metavar="N",
        help="only so many rows, the greatest where they are counts (0: all)",
    )  # fmt: skip


def _plan(call: Invocation) -> Question:
    name, limit = call.options.name, call.options.limit
    report = reports.REPORTS.get(_own_name(name))
    # Agents send all rows that are added up: the sum is cut.
    cut = limit and (report is None or report.limit_first)
    return Question(words=(name, "--limit", str(limit)) if cut else (name,))


def _look(call: Invocation, question: Question) -> Iterator[Row]:
    name, folder = _own_name(call.options.name), call.folder()
    with StoreReader(folder) as reader:
        if name == "crawl":
            yield _crawl(reader, folder)
        else:
            yield from reports.read_rows(name, reader, call.options.limit)


def _show(call: Invocation, found: Found) -> int:
    name, options = _own_name(call.options.name), call.options
    rows: Iterable[Row] = (row for each in found.by_agent.values() for row in each)
    if name == "crawl":
        [facts] = [reports.crawl_of_agents(list(rows))] if not found.one_job else rows
        if options.csv:
            _print_csv([facts], tuple(facts))
        else:
            call.facts(facts)
        return 0
    if not found.one_job:
        rows = reports.rows_of_agents(name, list(rows), options.limit)
    columns = reports.REPORTS[name].columns
    if options.csv and not call.json:
        _print_csv(rows, columns)
    else:
        call.table(rows, columns)
    return 0


def _crawl(reader: StoreReader, folder: Path) -> Row:
    file = JobFile.read(folder)
    if file is None:
        raise JobError(f"{folder.parent} holds no job of scrapy-spider-suite")
    begun: Row = {"job": file.id, "spider": file.spider, "begun": round(file.created)}
    return begun | reports.crawl_facts(reader.counters(), FetchTotals.load(reader.store))


def _own_name(name: str) -> str:
    return _OTHER_NAMES.get(name, name)


def _print_csv(rows: Iterable[Row], columns: tuple[str, ...]) -> None:
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
