"""``scrapy frontier status``: whether the crawl runs, why it waits, and the job in figures."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scrapy_spider_suite.commands.frontier_verbs import acting
from scrapy_spider_suite.fetch.dns_client import server_names
from scrapy_spider_suite.frontier.revisit_rules import RevisitPolicy
from scrapy_spider_suite.operate.judge import wait_rows as waiting_rows
from scrapy_spider_suite.operate.judge import wait_summary, waits_in_status
from scrapy_spider_suite.operate.restrictions import pause_reasons
from scrapy_spider_suite.operate.verb import Invocation, Row, Verb, display_text
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.job_status import CrawlState, read_status
from scrapy_spider_suite.store.revisit_plans import ROWS, RevisitPlans
from scrapy_spider_suite.urls.traps import format_counts

_TOLD = ("started", "ended", "finish_reason", "exit_code", "cache_hit_rate")
_IN_WORDS = (
    "state", "running", "paused", "pauses", "waits", "ended", "finish_reason", "exit_code",
    "last_heard", "silent_name_servers",
)  # fmt: skip
"""The values that text says in the lines that come first."""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--alive", type=acting.seconds, metavar="S",
        help="print nothing; exit code 1 unless a crawl has said in the last S seconds that it "
        "uses the job",
    )  # fmt: skip


def _run(call: Invocation) -> int:
    if call.options.alive is not None:
        return 0 if _is_alive(read_status(call.folder()) or {}, call.options.alive) else 1
    now = time.time()
    with StoreReader(call.folder()) as reader:
        state, status = reader.crawl_state(now), reader.status() or {}
        row = _row(reader, state, status, now)
    if call.json:
        print(json.dumps(row))
        return 0
    outcomes = row.pop("outcomes")
    if "traps" in row:
        row["traps"] = format_counts(row["traps"])
    first = {
        "running": words_of_state(state, status),
        "paused": words_of_pauses(row["pauses"]) or ("yes" if row.get("paused") else ""),
        "waiting": wait_summary(waits_in_status(status), now) if row["waits"] else "",
        "name_servers": words_of_servers(row.get("silent_name_servers")),
    }  # fmt: skip
    lines = {name: words for name, words in first.items() if words}
    lines |= {name: value for name, value in row.items() if name not in _IN_WORDS}
    for name, value in lines.items():
        print(f"{name.replace('_', ' '):<12} {display_text(name, value)}")
    for name, count in sorted(outcomes.items(), key=lambda item: -item[1]):
        print(f"  {name.replace('_', ' '):<20} {count}")
    return 0


def pauses(reader: StoreReader, status: Mapping[str, Any]) -> list[str]:
    """The reasons for which the job is paused; an operator by name."""
    known = () if status.get("ended") else status.get("pauses", ())
    return pause_reasons(reader.store.kv("control"), known)


def words_of_pauses(pauses: list[str]) -> str:
    """One line on what has paused a crawl; "" if nothing has."""
    return f"by {', '.join(pauses)}" if pauses else ""


def silent_servers(state: CrawlState, status: Mapping[str, Any]) -> Row:
    """The name servers of a crawl that runs, if none of them answers."""
    servers = status.get("silent_name_servers") if state.running else None
    return {} if servers is None else {"silent_name_servers": servers}


def words_of_servers(servers: Sequence[str] | None) -> str:
    """One line on name *servers* that do not answer; "" if there are none."""
    if servers is None:
        return ""
    return f"none answers ({server_names(servers)}; SUITE_DNS_SERVERS chooses them)"


def words_of_state(state: CrawlState, status: Mapping[str, Any]) -> str:
    """One line on whether the crawl that wrote *status* runs, and how it ended."""
    heard = display_text("when", status.get("when", status.get("started")))
    if state is CrawlState.KILLED:
        return f"no: killed, last heard {heard}"
    if state is CrawlState.SILENT:
        return f"yes, but silent since {heard}: its event loop stands still"
    if state is CrawlState.RUNNING:
        return "yes, and stopping" if status.get("closing") else "yes"
    if not status.get("ended"):
        return "no"
    code = status.get("exit_code")
    how = str(status.get("finish_reason")) + ("" if code is None else f", exit code {code}")
    return f"no: ended {display_text('ended', status['ended'])} ({how})"


def _row(reader: StoreReader, state: CrawlState, status: Mapping[str, Any], now: float) -> Row:
    counters = reader.counters()
    row: Row = {
        "running": state.running, "state": state.value, "pauses": pauses(reader, status),
        "waits": waiting_rows(waits_in_status(status), now),
        "pending": counters.pending, "done": counters.done,
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
    revisits = RevisitPlans(reader.store.kv(ROWS), RevisitPolicy())
    if len(revisits):
        row |= {"to_revisit": len(revisits), "next_due": revisits.next_due()}
    unextracted = len(reader.unextracted)
    if unextracted:
        row["unextracted"] = unextracted
    if counters.traps:
        row["traps"] = {trap.value: count for trap, count in counters.traps.items()}
    if state.running:
        facts = ("process", "hosts", "leased", "paused")
        row |= {name: status[name] for name in facts if name in status}
        row |= silent_servers(state, status)
    if state in (CrawlState.KILLED, CrawlState.SILENT):
        row["last_heard"] = status.get("when")
    return row | {name: status[name] for name in _TOLD if status.get(name) not in (None, {})}


def _is_alive(status: Mapping[str, Any], silent: float) -> bool:
    """Whether a crawl that has been *silent* for so many seconds at most says that it runs."""
    return not status.get("ended") and time.time() - float(status.get("when", 0)) < silent


VERBS = (
    Verb(
        "status", "whether the crawl runs, why it waits, and the job in figures", _run, _options,
        examples=("status -j crawls/news", "status --alive 1800 -j crawls/news"),
        exits={1: "with --alive: no crawl uses the job, or it stands still"},
    ),
)  # fmt: skip
