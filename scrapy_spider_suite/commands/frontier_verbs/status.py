"""``scrapy frontier status``: the job in figures."""

from __future__ import annotations

import json
import time

from scrapy_spider_suite.commands.frontier_verbs.verb import Call, Row, Verb, shown
from scrapy_spider_suite.storage.reader import StoreReader


def _run(call: Call) -> int:
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
    age = time.time() - status.get("when", 0)
    running = bool(status) and age < 10 and not status.get("ended")
    row: Row = {
        "running": running, "pending": counters.pending, "done": counters.done,
        "failed": counters.failed, "retried": counters.retried, "filtered": counters.filtered,
        "dead_hosts": counters.dead_hosts, "seconds": round(counters.seconds),
        "outcomes": {event.value: count for event, count in counters.events.items()},
    }  # fmt: skip
    if running:
        row |= {name: status[name] for name in ("process", "hosts", "leased", "paused")}
    told = ("started", "ended", "finish_reason", "exit_code", "pauses")
    return row | {name: status[name] for name in told if status.get(name) not in (None, [])}


VERBS = (
    Verb("status", "the job in figures", _run, examples=("status -j crawls/news",)),
)
