"""``scrapy frontier urls``: what the job knows of the URLs of a host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import islice

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.operate.verb import Invocation, Row, Verb, add_limit, host_argument
from scrapy_spider_suite.store.job_reader import StoreReader


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", type=host_argument)
    parser.add_argument(
        "--state", choices=["pending", "done", "failed"], help="only those in this state"
    )
    add_limit(parser)


def _rows(reader: StoreReader, host: str, state: str | None) -> Iterator[Row]:
    for url in reader.urls(host):
        known = url.state
        if state in (None, known.state.value):
            yield {
                "state": known.state.value, "reason": known.event.value if known.event else "",
                "status": known.status or None, "attempts": known.attempts,
                "tag": url.tag or None, "url": url.url,
            }  # fmt: skip


def _run(call: Invocation) -> int:
    options = call.options
    with StoreReader(call.folder()) as reader:
        if reader.host(options.host) is None:
            raise JobError(f"the job has never met the host {options.host!r}")
        limit = options.limit or sys.maxsize
        rows = list(islice(_rows(reader, options.host, options.state), limit))
    call.table(rows, ("state", "reason", "status", "attempts", "tag", "url"))
    return 0


VERBS = (
    Verb(
        "urls", "the URLs of a host, their states and reasons", _run, _options, "HOST",
        examples=("urls example.com --state failed -j crawls/news --json",),
    ),
)  # fmt: skip
