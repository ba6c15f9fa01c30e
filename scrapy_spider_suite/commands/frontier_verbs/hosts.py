"""``scrapy frontier hosts``: who has the longest queues, and why they wait."""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections.abc import Iterable, Iterator

from scrapy_spider_suite.commands.verb import Call, Row, Verb, add_limit
from scrapy_spider_suite.control import blocks, pausing
from scrapy_spider_suite.frontier.policy import Bar
from scrapy_spider_suite.storage.clocks import NEVER
from scrapy_spider_suite.storage.reader import StoreReader, waits_for
from scrapy_spider_suite.storage.records import HostRecord


def host_rows(reader: StoreReader, hosts: Iterable[tuple[str, HostRecord]]) -> Iterator[Row]:
    """What is said of each of *hosts*, here and by ``why``."""
    now = time.time()
    policy = blocks.policy_of(reader.store.kv(blocks.STORE), now)
    paused = pausing.paused_by(reader.store.kv("control"))
    for name, record in hosts:
        row = _row(name, record, policy.bar_of_visit(name, "", now), now)
        if paused and record.pending and not record.dead:
            row |= {"next_visit": None, "why": f"the job is paused by {paused}; {row['why']}"}
        yield row


def _row(name: str, record: HostRecord, bar: Bar | None, now: float) -> Row:
    # A host in memory writes down only later that it waits for a block.
    barred = bar is not None and record.pending and not record.dead
    known = record.pending and record.next_fetch < NEVER
    return {
        "host": name, "pending": record.pending, "done": record.done, "failed": record.failed,
        "next_visit": round(max(0.0, record.next_fetch - now), 1) if known else None,
        "why": str(bar) if barred else waits_for(record, now),
    }  # fmt: skip


def _options(parser: argparse.ArgumentParser) -> None:
    add_limit(parser)


def _run(call: Call) -> int:
    limit = call.options.limit or sys.maxsize
    with StoreReader(call.folder()) as reader:
        longest = heapq.nlargest(limit, reader.hosts(), key=lambda item: item[1].pending)
        rows = list(host_rows(reader, longest))
    call.table(rows, ("host", "pending", "done", "failed", "next_visit", "why"))
    return 0


VERBS = (
    Verb(
        "hosts", "hosts, those with the longest queues first: length, next visit, why it waits",
        _run, _options, examples=("hosts -j crawls/news --limit 50",),
    ),
)  # fmt: skip
