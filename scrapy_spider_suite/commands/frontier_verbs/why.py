"""``scrapy frontier why``: why a host waits."""

from __future__ import annotations

import argparse

from scrapy_spider_suite.commands.frontier_verbs.hosts import host_rows
from scrapy_spider_suite.commands.frontier_verbs.verb import Call, Verb, host
from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.storage.reader import StoreReader


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", type=host)


def _run(call: Call) -> int:
    name: str = call.options.host
    with StoreReader(call.folder()) as reader:
        record = reader.host(name)
        if record is None:
            raise JobError(f"the job has never met the host {name!r}")
        row = next(host_rows(reader, [(name, record)])) | {
            "crawl_delay": record.crawl_delay or None, "failures_in_a_row": record.failures,
            "attempts": record.attempts, "next_urls": [],
        }  # fmt: skip
        for entry in reader.pending(name):
            row["next_urls"].append(entry.url)
            if len(row["next_urls"]) == 3:
                break
    call.facts(row)
    return 0


VERBS = (
    Verb(
        "why", "why a host waits, and what comes next", _run, _options, "HOST",
        examples=("why example.com -j crawls/news",),
    ),
)  # fmt: skip
