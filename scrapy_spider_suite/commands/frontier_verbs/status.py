"""``scrapy frontier status``: the job in figures."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from scrapy_spider_suite.commands.frontier_verbs import acting
from scrapy_spider_suite.commands.verb import Call, Row, Verb, shown
from scrapy_spider_suite.frontier.revisits import Revisiting
from scrapy_spider_suite.guards.status import read_status
from scrapy_spider_suite.storage.reader import StoreReader
from scrapy_spider_suite.storage.revisits import ROWS, Revisits

_SILENT = 10.0
"""Seconds after which a crawl that says nothing does not run."""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--alive", type=acting.seconds, metavar="S",
        help="print nothing; exit code 1 unless a crawl has said in the last S seconds that it "
        "uses the job",
    )  # fmt: skip


def _run(call: Call) -> int:
    if call.options.alive is not None:
        return 0 if _is_running(read_status(call.folder()) or {}, call.options.alive) else 1
    with StoreReader(call.folder()) as reader:
        row = _row(reader)
    if call.json:
        print(json.dumps(row))
        return 0
    outcomes = row.pop("outcomes")
    for name, value in row.items():
        print(f"{name.replace('_', ' '):<12} {shown(name, value)}")
    for name, count in sorted(outcomes.items(), key=lambda item: -item[1]):
        print(f"  {name.replace('_', ' '):<20} {count}")
    return 0


def _row(reader: StoreReader) -> Row:
    counters = reader.counters()
    status = reader.status() or {}
    running = _is_running(status, _SILENT)
    row: Row = {
        "running": running, "pending": counters.pending, "done": counters.done,
        "failed": counters.failed, "retried": counters.retried, "filtered": counters.filtered,
        "dead_hosts": counters.dead_hosts, "seconds": round(counters.seconds),
        "outcomes": {event.value: count for event, count in counters.events.items()},
    }  # fmt: skip
    if reader.store.sieve is not None:
        sieve = reader.store.sieve.statistics()
        row |= {
            "in_sieve": reader.in_sieve(), "sieve_known": sieve.known,
            "sieve_flushes": sieve.flushes,
            "sieve_false_positives": float(f"{sieve.false_positive_bound:.2g}"),
        }  # fmt: skip
    revisits = Revisits(reader.store.kv(ROWS), Revisiting())
    if len(revisits):
        row |= {"to_revisit": len(revisits), "next_due": revisits.next_due()}
    unextracted = len(reader.unextracted)
    if unextracted:
        row["unextracted"] = unextracted
    if running:
        row |= {name: status[name] for name in ("process", "hosts", "leased", "paused")}
    told = ("started", "ended", "finish_reason", "exit_code", "pauses", "cache_hit_rate")
    return row | {name: status[name] for name in told if status.get(name) not in (None, [])}


def _is_running(status: dict[str, Any], silent: float) -> bool:
    """Whether a crawl that has been *silent* for so many seconds at most says that it runs."""
    return not status.get("ended") and time.time() - status.get("when", 0) < silent


VERBS = (
    Verb(
        "status", "the job in figures", _run, _options,
        examples=("status -j crawls/news", "status --alive 1800 -j crawls/news"),
        exits={1: "with --alive: no crawl uses the job, or it stands still"},
    ),
)  # fmt: skip
