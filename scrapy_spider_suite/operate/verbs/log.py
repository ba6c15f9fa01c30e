"""``log``, ``audit``, ``manifest``: the fetches of a host, the actions on a job, its record."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.fetch import fetch_log
from scrapy_spider_suite.operate import verb
from scrapy_spider_suite.operate.actions import AuditLog
from scrapy_spider_suite.runtime.text import printable
from scrapy_spider_suite.settings.values import duration
from scrapy_spider_suite.store.job_directory import JobFile, JobHistory
from scrapy_spider_suite.store.job_reader import StoreReader

FORMAT: Final = 1
_COUNTS: Final = ("done", "failed", "filtered", "bytes")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of the job in this ``suite`` folder. Raises `JobError`s."""
    job = JobFile.require(folder)
    with StoreReader(folder) as reader:
        counters = reader.counters()
    return manifest(folder, job, {name: int(getattr(counters, name)) for name in _COUNTS})


def manifest(folder: Path, job: JobFile, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the manifest of *job* with these total *counts*; docs/jobs.md has the fields."""
    runs: dict[str, dict[str, Any]] = {}
    found: dict[str, list[dict[str, Any]]] = {"settings": [], "filters": [], "seeds": []}
    lists = {"settings": "settings", "changed": "settings", "filter": "filters", "seeds": "seeds"}
    for row in JobHistory(folder).rows():
        event, run, when = row.pop("event", ""), row.get("run", ""), row.get("when")
        if event == "begun":
            del row["when"]
            runs[run] = {**row, "begun": when, "ended": None, "reason": None, "counts": None}
        elif event == "ended" and run in runs:
            runs[run] |= {"ended": when, "reason": row.get("reason"), "counts": row.get("counts")}
        elif event in lists:
            found[lists[event]].append(row)
    return {
        "manifest": FORMAT, "job": job.id, "copy_of": job.origin or None, "spider": job.spider,
        "created": job.created, "counts": dict(counts), "runs": list(runs.values()), **found,
        "actions": list(AuditLog(folder).rows()),
    }  # fmt: skip


_EPOCH: Final = 1_000_000_000  # seconds: a number from here on is a time, not an age


def moment(text: str) -> float:
    """The type of ``--since``: seconds since the epoch. Raises `argparse.ArgumentTypeError`."""
    if text.isdecimal() and int(text) >= _EPOCH:
        return float(text)
    with suppress(ValueError):
        if (since := time.time() - float(duration().parse(text))) >= 0:
            return since
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a time ago such as 2h or 7d, or a date such as 2026-11-21 or "
            "2026-11-21T19:03 (UTC)"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _read_log(call: verb.Invocation, question: verb.Question) -> Iterator[str]:
    job = call.folder()
    file = JobFile.read(job)
    chosen = True if file is None else file.settings.get("fetch_log", True)
    places = [job / fetch_log.LOG_FOLDER, *([Path(chosen)] if isinstance(chosen, str) else [])]
    if not any(place.is_dir() for place in places):
        raise JobError(f"{job.parent} has no fetch log (SUITE_FETCH_LOG = {chosen!r})")
    for place in filter(Path.is_dir, places):
        reader = fetch_log.FetchLogReader(place)
        for line in reader.lines(call.options.target, call.options.since):
            yield line.decode("ascii", "replace").rstrip("\n")
        for path in reader.damaged:
            print(f"scrapy frontier: {path} is damaged and was read in part", file=sys.stderr)


def _show_log(call: verb.Invocation, found: verb.Found) -> int:
    if found.one_job:
        lines: Iterable[tuple[str, str]] = ((line, "") for line in found.by_agent[""])
    else:  # a line begins with its time
        every = found.by_agent.items()
        lines = sorted((str(line), name) for name, rows in every for line in rows)
    count = 0
    for count, (line, name) in enumerate(lines, 1):  # noqa: B007
        if not call.json:
            print(line if found.one_job else printable(line))
            continue
        for row in fetch_log.parsed_lines(iter([line.encode("ascii", "replace") + b"\n"])):
            print(json.dumps({"agent": name, **row} if name else row))
    if not count:
        print("scrapy frontier: no such fetch is in the fetch log", file=sys.stderr)
    return 0 if count else 1


def _read_audit(call: verb.Invocation, question: verb.Question) -> Iterable[verb.Row]:
    options = call.options
    rows = (row for row in AuditLog(call.folder()).rows()
            if options.verb in (None, row.get("verb")))  # fmt: skip
    return deque(rows, maxlen=options.limit or sys.maxsize)


def _show_audit(call: verb.Invocation, found: verb.Found) -> int:
    limit = call.options.limit or sys.maxsize
    rows: Iterable[verb.Row] = found.rows()
    if not found.one_job:
        rows = sorted(rows, key=lambda row: verb.as_number(row.get("done")))
    if call.json:
        call.table(deque(rows, limit), ())
        return 0
    alike: dict[object, verb.Row] = {}
    for number, row in enumerate(rows):
        key = number if found.one_job else (row.get("id"), row.get("ok"), row.get("said"))
        names = [*alike[key]["names"], row["agent"]] if key in alike else [row.get("agent", "")]
        done, said = verb.display_text("when", row.get("done")), str(row.get("said", ""))[:100]
        ok = "yes" if row.get("ok") else "no"
        alike[key] = {**row, "names": names, "done": done, "ok": ok, "said": said}
    table = ({**row, "agents": found.names(row["names"])} for row in deque(alike.values(), limit))
    agents = () if found.one_job else ("agents",)
    call.table(table, ("done", "who", "verb", *agents, "ok", "said", "why"))
    return 0


def _show_manifest(call: verb.Invocation, found: verb.Found) -> int:
    for number, row in enumerate(found.rows()):
        if call.json:
            print(json.dumps(row))
            continue
        if number:
            print()
        if not found.one_job:
            print(f"{'agent':<18} {printable(row['agent'])}")
        _print_manifest(call, row)
    return 0


def _print_manifest(call: verb.Invocation, found: dict[str, Any]) -> None:
    runs, last = found["runs"], found["runs"][-1] if found["runs"] else {}
    changed = [row for row in found["settings"] if "name" in row]
    call.facts({
        "job": found["job"], "spider": found["spider"],
        "created": verb.display_text("when", found["created"]),
        "versions": [f"{name} {number}" for name, number in last.get("versions", {}).items()],
        "settings": last.get("settings"),
        "changed": [f"{verb.display_text('when', row['when'])}: {row['name']} "
                    f"{row['old']!r} -> {row['new']!r}"
                    for row in changed],
        "filters": [
            f"{verb.display_text('when', row['when'])}: {row['stage']}: {row['text'][:60]!r}"
            for row in found["filters"]
        ],
        "seeds": [_manifest_seeds(row) for row in found["seeds"]],
        **found["counts"],
        "actions": len(found["actions"]),
    })  # fmt: skip
    print()
    call.table(runs, ("run", "agent", "begun", "ended", "reason"))


def _manifest_seeds(row: verb.Row) -> str:
    first = row.get("first", [])
    more = row.get("named", 0) - len(first)
    what = row.get("source") or ", ".join(first) + (f" and {more} more" if more else "")
    return f"{what}, sha256 {row['sha256']}" if "sha256" in row else str(what)


VERBS = (
    verb.JobVerb(
        "log", "what was fetched of a host or a URL, and when",
        options=(
            verb.option(
                "target", metavar="HOST|URL",
                type=verb.argument_type(
                    lambda text: fetch_log.FetchFilter.parse(verb.without_port(text))
                ),
            ),
            verb.option(
                "--since", type=moment, default=0.0, metavar="TIME",
                help="only fetches that ended since: 2h, 7d (ago), or a date, UTC",
            ),
        ),
        arguments="HOST|URL", look=_read_log, show=_show_log, of_one_host=True,
        about=(
            "Prints lines of the fetch log, the oldest first: robots.txt, media, redirects and\n"
            "failed fetches too; those of a running crawl a second later. The target is a host, a\n"
            ".domain, an address or a URL. docs/evidence.md explains the fields:\n\n"
            f"  {' '.join(fetch_log.FetchLine._fields)}"
        ),
        examples=(
            "log .example.com --since 7d -j crawls/news --json",
            "log https://example.com/page --since 2026-11-21 -j crawls/news",
        ),
        exits={1: "nothing was found"},
    ),
    verb.JobVerb(
        "audit", "what was asked of the job, by whom and why, and what came of it",
        options=(
            verb.option("verb", metavar="VERB", nargs="?", help="only this verb's"), verb.LIMIT,
        ),
        arguments="[VERB]", look=_read_audit, show=_show_audit,
        about="The last ones; --json has all of each, receipts too.",
        examples=("audit -j crawls/news --limit 50", "audit drop --json -j crawls/news"),
    ),
    verb.JobVerb(
        "manifest", "all of a crawl that is to be cited: versions, settings, filters, seeds, runs",
        look=lambda call, question: [read_manifest(call.folder())], show=_show_manifest,
        about=(
            "--json has everything: each run with its agent, versions and counts, the settings\n"
            "and filters with the times since when they held, digests of the seeds, and the audit\n"
            "log. Each agent has its manifest. A run without an end was killed, or goes on."
        ),
        examples=("manifest -j crawls/news", "manifest --json -j crawls/news"),
    ),
)  # fmt: skip
