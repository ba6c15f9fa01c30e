"""``scrapy frontier hosts``: who has the longest queues, and why they wait."""

from __future__ import annotations

import argparse
import heapq
import sys
import time

from scrapy_spider_suite.commands.frontier_verbs.verb import Call, Row, Verb, add_limit
from scrapy_spider_suite.storage.reader import StoreReader, waits_for
from scrapy_spider_suite.storage.records import HostRecord


def host_row(name: str, record: HostRecord) -> Row:
    """What is said of a host, here and by ``why``."""
    now = time.time()
    return {
        "host": name, "pending": record.pending, "done": record.done, "failed": record.failed,
        "next_visit": round(max(0.0, record.next_fetch - now), 1) if record.pending else None,
        "why": waits_for(record, now),
    }  # fmt: skip


def _options(parser: argparse.ArgumentParser) -> None:
    add_limit(parser)


def _run(call: Call) -> int:
    limit = call.options.limit or sys.maxsize
    with StoreReader(call.folder()) as reader:
        longest = heapq.nlargest(limit, reader.hosts(), key=lambda item: item[1].pending)
        rows = [host_row(name, record) for name, record in longest]
    call.table(rows, ("host", "pending", "done", "failed", "next_visit", "why"))
    return 0


VERBS = (
    Verb(
        "hosts", "hosts, those with the longest queues first: length, next visit, why it waits",
        _run, _options, examples=("hosts -j crawls/news --limit 50",),
    ),
)  # fmt: skip
