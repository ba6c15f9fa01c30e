"""What the verbs of ``scrapy frontier`` do; apart from the command, whose import must be light."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scrapy.exceptions import UsageError

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.inbox import leave
from scrapy_spider_suite.job import FOLDER, JobFile
from scrapy_spider_suite.seeds import read_seeds
from scrapy_spider_suite.settings import SuiteSettings
from scrapy_spider_suite.storage.reader import StoreReader, waits_for
from scrapy_spider_suite.storage.records import HostRecord

Options = dict[str, Any]
Row = dict[str, Any]


def run(verb: str, arguments: list[str], jobdir: str | None, options: Options) -> int:
    """Run *verb* and return the exit code. Raises `SuiteError`s and `UsageError`."""
    if verb not in ("why", "urls", "add") and arguments:
        raise UsageError(f"{verb} takes no argument: {arguments[0]!r}", print_help=False)
    if verb == "settings":
        return _settings(jobdir, options)
    folder = Path(str(jobdir)) / FOLDER
    if JobFile.read(folder) is None:
        raise JobError(f"{jobdir} holds no job of scrapy-spider-suite")
    if verb == "add":
        return _add(folder, arguments)
    with StoreReader(folder) as reader:
        verbs: dict[str, Callable[[StoreReader, list[str], Options], int]] = {
            "status": _status, "hosts": _hosts, "why": _why, "urls": _urls, "check": _check,
        }  # fmt: skip
        return verbs[verb](reader, arguments, options)


def _status(reader: StoreReader, arguments: list[str], options: Options) -> int:
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
    if options["json"]:
        print(json.dumps(row))
        return 0
    outcomes = row.pop("outcomes")
    for name, value in row.items():
        print(f"{name.replace('_', ' '):<12} {value}")
    for name, count in sorted(outcomes.items(), key=lambda item: -item[1]):
        print(f"  {name.replace('_', ' '):<20} {count}")
    return 0


def _host_row(name: str, record: HostRecord) -> Row:
    now = time.time()
    return {
        "host": name, "pending": record.pending, "done": record.done, "failed": record.failed,
        "next_visit": round(max(0.0, record.next_fetch - now), 1) if record.pending else None,
        "why": waits_for(record, now),
    }  # fmt: skip


def _hosts(reader: StoreReader, arguments: list[str], options: Options) -> int:
    import heapq

    limit = options["limit"] or sys.maxsize
    longest = heapq.nlargest(limit, reader.hosts(), key=lambda item: item[1].pending)
    rows = [_host_row(name, record) for name, record in longest]
    _print(rows, ("host", "pending", "done", "failed", "next_visit", "why"), options)
    return 0


def _why(reader: StoreReader, arguments: list[str], options: Options) -> int:
    name = _one(arguments, "why HOST")
    record = reader.host(name)
    if record is None:
        raise JobError(f"the job has never met the host {name!r}")
    row = _host_row(name, record) | {
        "crawl_delay": record.crawl_delay or None, "failures_in_a_row": record.failures,
        "attempts": record.attempts, "next_urls": [],
    }  # fmt: skip
    for entry in reader.pending(name):
        row["next_urls"].append(entry.url)
        if len(row["next_urls"]) == 3:
            break
    if options["json"]:
        print(json.dumps(row))
        return 0
    for key, value in row.items():
        shown = f"\n{'':<18} ".join(value) if isinstance(value, list) else value
        print(f"{key.replace('_', ' '):<18} {'-' if shown in (None, '') else shown}")
    return 0


def _urls(reader: StoreReader, arguments: list[str], options: Options) -> int:
    name = _one(arguments, "urls HOST")
    if reader.host(name) is None:
        raise JobError(f"the job has never met the host {name!r}")
    left = options["limit"] or sys.maxsize
    rows: list[Row] = []
    for url in reader.urls(name):
        state = url.state
        if options["state"] in (None, state.state.value):
            reason = state.event.value if state.event else ""
            rows.append(
                {"state": state.state.value, "reason": reason, "status": state.status or None,
                 "attempts": state.attempts, "url": url.url}
            )  # fmt: skip
            left -= 1
            if not left:
                break
    _print(rows, ("state", "reason", "status", "attempts", "url"), options)
    return 0


def _check(reader: StoreReader, arguments: list[str], options: Options) -> int:
    wrong = 0
    for line in reader.check():
        wrong += 1
        print(json.dumps(line) if options["json"] else line)
    if not options["json"]:
        print(f"{wrong} things are wrong" if wrong else "everything agrees")
    return 1 if wrong else 0


def _add(folder: Path, arguments: list[str]) -> int:
    if not arguments:
        raise UsageError("expected add URL|FILE...", print_help=False)
    count = leave(folder, read_seeds(arguments))
    print(f"{count} URLs left for the crawl; a running one takes them within seconds")
    return 0


def _settings(jobdir: str | None, options: Options) -> int:
    job = JobFile.read(Path(jobdir) / FOLDER) if jobdir else None
    settings = options["settings"].copy()
    if job is not None and settings.get("SUITE_PROFILE", "auto") == "auto":
        # There is no spider here that would say which it is.
        settings.set("SUITE_PROFILE", job.settings.get("profile"), priority="project")
    rows = [row._asdict() for row in SuiteSettings.from_settings(settings).as_table()]
    if job is not None:
        for row in rows:
            row["job"] = job.settings.get(row["name"].removeprefix("SUITE_").lower())
    columns = ("name", "value", "unit", "kind", *(("job",) if job else ()), "meaning")
    _print(rows, columns, options)
    return 0


def _one(arguments: list[str], usage: str) -> str:
    if len(arguments) != 1:
        raise UsageError(f"expected {usage}", print_help=False)
    return arguments[0].lower().rstrip(".")


def _print(rows: Iterable[Row], columns: tuple[str, ...], options: Options) -> None:
    if options["json"]:
        for row in rows:
            print(json.dumps(row))
        return
    table = [[str("-" if row.get(c) is None else row[c]) for c in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *table, strict=True)]
    for line in ([c.replace("_", " ") for c in columns], *table):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(cells).rstrip())
