"""``status``, ``hosts`` and ``urls``: the state of a crawl, of its hosts and of one host's URLs."""

from __future__ import annotations

import heapq
import json
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Any

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.fetch.resolver import server_names
from scrapy_spider_suite.frontier.revisit_rules import RevisitPolicy
from scrapy_spider_suite.operate import job_target, judge, verb
from scrapy_spider_suite.operate.explanations import host_rows
from scrapy_spider_suite.runtime.text import printable
from scrapy_spider_suite.store.job_reader import CrawlState, StoreReader, read_status
from scrapy_spider_suite.store.revisit_plans import ROWS, RevisitPlans
from scrapy_spider_suite.urls.traps import format_counts

_TOLD = ("started", "ended", "finish_reason", "exit_code", "cache_hit_rate")
_IN_WORDS = (
    "state", "running", "paused", "pauses", "waits", "ended", "finish_reason", "exit_code",
    "last_heard", "silent_name_servers",
)  # fmt: skip
"""Values that the first lines of text say in words."""
_SUMS = (
    "pages", "pending", "done", "failed", "retried", "filtered", "dead_hosts", "hosts", "leased",
    "in_trie", "in_sieve", "to_revisit", "unextracted",
)  # fmt: skip
"""The values that can be added up."""


def _read_status(call: verb.Invocation, question: verb.Question) -> Iterator[verb.Row]:
    if call.options.alive is not None:
        status = read_status(call.folder()) or {}
        silent = time.time() - float(status.get("when", 0))
        yield {"alive": not status.get("ended") and silent < call.options.alive}
        return
    now = time.time()
    with StoreReader(call.folder()) as reader:
        state, status = reader.crawl_state(now), reader.status() or {}
        row = _status_row(reader, state, status, now)
    if not call.json:
        words = row["in_words"] = crawl_in_words(state, status, row["pauses"], now)
        if row.get("paused") and not row["pauses"]:
            words["paused"] = "yes"
        if not row["waits"]:
            del words["waiting"]
    yield row


def _show_status(call: verb.Invocation, found: verb.Found) -> int:
    if call.options.alive is not None:
        return 0 if all(row["alive"] for row in found.rows()) else 1
    if not found.one_job:
        _show_agents(call, found)
        return 0
    [row] = found.rows()
    if call.json:
        print(json.dumps(row))
        return 0
    outcomes, words = row.pop("outcomes"), row.pop("in_words")
    if "traps" in row:
        row["traps"] = format_counts(row["traps"])
    lines = {name: text for name, text in words.items() if text}
    lines |= {name: value for name, value in row.items() if name not in _IN_WORDS}
    for name, value in lines.items():
        print(f"{name.replace('_', ' '):<12} {verb.display_text(name, value)}")
    _print_outcomes(outcomes)
    return 0


def _print_outcomes(outcomes: Mapping[str, int]) -> None:
    for name, count in sorted(outcomes.items(), key=lambda item: -item[1]):
        print(f"  {printable(str(name)).replace('_', ' '):<20} {count}")


def _show_agents(call: verb.Invocation, found: verb.Found) -> None:
    rows = list(found.rows())
    added = verb.add_up({name: row[name] for name in _SUMS if name in row} for row in rows)
    outcomes = verb.add_up(row.get("outcomes", {}) for row in rows)
    now = time.time()
    waits = judge.wait_counts((wait for row in rows for wait in row.get("waits", ())), now)
    rows.append({"agent": None, "running": all(row.get("running") for row in rows), **added,
                 "outcomes": outcomes, "waits": judge.wait_rows(waits, now)})  # fmt: skip
    call.table(rows, ("agent", "running", *(name for name in _SUMS if name in added), "paused"))
    if not call.json:
        print(judge.wait_summary(waits, now))
        _print_outcomes(outcomes)


def pauses(reader: StoreReader, status: Mapping[str, Any]) -> list[str]:
    known = () if status.get("ended") else status.get("pauses", ())
    return job_target.pause_reasons(reader.store.kv("control"), known)


def silent_servers(state: CrawlState, status: Mapping[str, Any]) -> verb.Row:
    """The name servers of a running crawl, if none of them answers."""
    servers = status.get("silent_name_servers") if state.running else None
    return {} if servers is None else {"silent_name_servers": servers}


def crawl_in_words(
    state: CrawlState, status: Mapping[str, Any], pauses: list[str], now: float
) -> dict[str, str]:
    """Whether the crawl runs, and what it waits for; "": nothing to be said."""
    servers = silent_servers(state, status).get("silent_name_servers")
    return {
        "running": _state_in_words(state, status),
        "paused": f"by {', '.join(pauses)}" if pauses else "",
        "waiting": judge.wait_summary(judge.waits_in_status(status), now),
        "name_servers": "" if servers is None else
        f"none answers ({server_names(servers)}; SUITE_DNS_SERVERS chooses them)",
    }  # fmt: skip


def _state_in_words(state: CrawlState, status: Mapping[str, Any]) -> str:
    heard = verb.display_text("when", status.get("when", status.get("started")))
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
    return f"no: ended {verb.display_text('ended', status['ended'])} ({how})"


def _status_row(
    reader: StoreReader, state: CrawlState, status: Mapping[str, Any], now: float
) -> verb.Row:
    counters = reader.counters()
    row: verb.Row = {
        "running": state.running, "state": state.value, "pauses": pauses(reader, status),
        "waits": judge.wait_rows(judge.waits_in_status(status), now),
        "pages": counters.pages, "pending": counters.pending, "done": counters.done,
        "failed": counters.failed, "retried": counters.retried, "filtered": counters.filtered,
        "dead_hosts": counters.dead_hosts, "seconds": round(counters.seconds),
        "outcomes": {event.value: count for event, count in counters.events.items()},
    }  # fmt: skip
    if reader.store.archive is not None:
        row["in_trie"] = len(reader.store.archive.urls)
    if reader.store.sieve is not None:
        sieve = reader.store.sieve.sieve
        row |= {
            "in_sieve": reader.in_sieve(), "sieve_known": len(sieve),
            "sieve_flushes": sieve.flushes,
            "sieve_false_positives": float(f"{sieve.parts.false_positive_bound:.2g}"),
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


def _read_hosts(call: verb.Invocation, question: verb.Question) -> Iterator[verb.Row]:
    limit = call.options.limit or sys.maxsize
    with StoreReader(call.folder()) as reader:
        column = attrgetter(call.options.sort)
        first = heapq.nlargest(limit, reader.store.records(), key=lambda item: column(item[1]))
        yield from host_rows(reader, first)


def _show_hosts(call: verb.Invocation, found: verb.Found) -> int:
    options, rows = call.options, found.rows()
    if not found.one_job:
        limit, column = options.limit or sys.maxsize, options.sort
        rows = iter(heapq.nlargest(limit, rows, key=lambda row: verb.as_number(row.get(column))))
    call.table(rows, found.columns("host", "pending", "done", "failed", "next_visit", "why"))
    return 0


def _read_urls(call: verb.Invocation, question: verb.Question) -> Iterator[verb.Row]:
    options = call.options
    with StoreReader(call.folder()) as reader:
        if reader.store.record(options.host) is None:
            raise JobError(f"the job has never met the host {options.host!r}")
        found = (
            row for row in reader.urls(options.host)
            if options.state in (None, row.state.state.value)
        )  # fmt: skip
        for row in islice(found, options.limit or sys.maxsize):
            known = row.state
            yield {
                "state": known.state.value, "reason": known.event.value if known.event else "",
                "status": known.status or None, "attempts": known.attempts,
                "tag": row.tag or None, "url": row.url,
            }  # fmt: skip


def _show_urls(call: verb.Invocation, found: verb.Found) -> int:
    rows = islice(found.rows(), call.options.limit or sys.maxsize)
    call.table(rows, found.columns("state", "reason", "status", "attempts", "tag", "url"))
    return 0


VERBS = (
    verb.JobVerb(
        "status", "whether the crawl runs, why it waits, and the job in figures",
        options=(verb.option(
            "--alive", type=verb.SECONDS, metavar="S",
            help="print nothing; exit code 1 unless a crawl used the job in the last S seconds",
        ),),
        look=_read_status, show=_show_status,
        examples=("status -j crawls/news", "status --alive 1800 -j crawls/news"),
        exits={1: "with --alive: no crawl uses the job, or it stands still"},
    ),
    verb.JobVerb(
        "hosts", "hosts, those with the longest queues first: length, next visit, why it waits",
        options=(
            verb.LIMIT,
            verb.option(
                "--sort", choices=("pending", "failed"), default="pending",
                help="the column whose greatest numbers come first (pending)",
            ),
        ),
        look=_read_hosts, show=_show_hosts,
        examples=("hosts -j crawls/news --limit 50", "hosts -j crawls/news --sort failed"),
    ),
    verb.JobVerb(
        "urls", "the URLs of a host, their states and reasons",
        options=(
            verb.option("host", metavar="HOST", type=verb.host_argument),
            verb.option(
                "--state", choices=["pending", "done", "failed"], help="only those in this state"
            ),
            verb.LIMIT,
        ),
        arguments="HOST", look=_read_urls, show=_show_urls, of_one_host=True,
        examples=("urls example.com --state failed -j crawls/news --json",),
    ),
)  # fmt: skip
