"""``scrapy frontier hosts``: the hosts with most pending or failed URLs, and why they wait."""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections.abc import Iterable, Iterator
from operator import attrgetter

from scrapy_spider_suite.frontier.policy import Exclusion
from scrapy_spider_suite.operate import restrictions
from scrapy_spider_suite.operate.restrictions import paused_by
from scrapy_spider_suite.operate.verb import Invocation, Row, Verb, add_limit
from scrapy_spider_suite.store.host_queues import NEVER, RESIDENT
from scrapy_spider_suite.store.job_reader import StoreReader, wait_reason
from scrapy_spider_suite.store.rows import HostRecord


def host_rows(reader: StoreReader, hosts: Iterable[tuple[str, HostRecord]]) -> Iterator[Row]:
    """What is said of each of *hosts*, here and by ``why``."""
    now = time.time()
    running = reader.crawl_state(now).running
    policy = restrictions.policy_with_blocks(reader.store.kv(restrictions.BLOCKS), now)
    paused = paused_by(reader.store.kv("control"))
    for name, record in hosts:
        row = _row(name, record, policy.exclusion_of_visit(name, "", now), now)
        if not running and record.due == RESIDENT and not row["next_visit"] and _waits(record):
            row["why"] = "no crawl is running"
        if paused and _waits(record):
            row |= {"next_visit": None, "why": f"the job is paused by {paused}; {row['why']}"}
        yield row


def _row(name: str, record: HostRecord, exclusion: Exclusion | None, now: float) -> Row:
    # A host in memory writes down only later that it waits for a block.
    barred = exclusion is not None and _waits(record)
    known = record.pending and record.next_fetch < NEVER
    return {
        "host": name, "pending": record.pending, "done": record.done, "failed": record.failed,
        "next_visit": round(max(0.0, record.next_fetch - now), 1) if known else None,
        "why": str(exclusion) if barred else wait_reason(record, now),
    }  # fmt: skip


def _waits(record: HostRecord) -> bool:
    return bool(record.pending and not record.dead)


def _options(parser: argparse.ArgumentParser) -> None:
    add_limit(parser)
    parser.add_argument(
        "--sort", choices=("pending", "failed"), default="pending",
        help="the column whose greatest numbers come first (pending)",
    )  # fmt: skip


def _run(call: Invocation) -> int:
    limit = call.options.limit or sys.maxsize
    with StoreReader(call.folder()) as reader:
        column = attrgetter(call.options.sort)
        first = heapq.nlargest(limit, reader.hosts(), key=lambda item: column(item[1]))
        rows = list(host_rows(reader, first))
    call.table(rows, ("host", "pending", "done", "failed", "next_visit", "why"))
    return 0


VERBS = (
    Verb(
        "hosts", "hosts, those with the longest queues first: length, next visit, why it waits",
        _run, _options,
        examples=("hosts -j crawls/news --limit 50", "hosts -j crawls/news --sort failed"),
    ),
)  # fmt: skip
