"""How what agents have found is shown, verb by verb."""

from __future__ import annotations

import heapq
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from scrapy_spider_suite.commands.agents.reports import show_report
from scrapy_spider_suite.commands.frontier_verbs.manifest import show as show_one
from scrapy_spider_suite.fetch.fetch_log_reader import parsed_lines
from scrapy_spider_suite.operate.executors.all_agents import DividedList, total
from scrapy_spider_suite.operate.judge import wait_counts, wait_summary
from scrapy_spider_suite.operate.judge import wait_rows as waiting_rows
from scrapy_spider_suite.operate.verb import Invocation, Row, display_text
from scrapy_spider_suite.runtime.text import counted, printable

Found = Mapping[str, list[Any]]
"""What each agent has found, by its name; sorted."""
Show = Callable[[Invocation, Found, DividedList | None], None]

_SUMS: Final = (
    "pending", "done", "failed", "retried", "filtered", "dead_hosts", "hosts", "leased",
    "in_sieve", "to_revisit", "unextracted",
)  # fmt: skip
"""What of a status can be added up."""
_SHOWN = 10


def _status(call: Invocation, found: Found, spread: DividedList | None) -> None:
    if call.options.alive is not None:
        return
    rows = [{"agent": name, **row} for name, [row] in found.items()]
    added = total({name: row[name] for name in _SUMS if name in row} for row in rows)
    outcomes = total(row.get("outcomes", {}) for row in rows)
    now = time.time()
    waits = wait_counts((wait for row in rows for wait in row.get("waits", ())), now)
    rows.append({"agent": None, "running": all(row.get("running") for row in rows), **added,
                 "outcomes": outcomes, "waits": waiting_rows(waits, now)})  # fmt: skip
    columns = ("agent", "running", *(name for name in _SUMS if name in added), "paused")
    call.table(rows, columns)
    if not call.json:
        print(wait_summary(waits, now))
        for name, count in sorted(outcomes.items(), key=lambda item: -item[1]):
            print(f"  {printable(str(name)).replace('_', ' '):<20} {count}")


def _hosts(call: Invocation, found: Found, spread: DividedList | None) -> None:
    limit = call.options.limit or sys.maxsize
    sort = call.options.sort
    rows = heapq.nlargest(limit, _rows(found), key=lambda row: _number(row.get(sort)))
    call.table(rows, ("agent", "host", "pending", "done", "failed", "next_visit", "why"))


def _urls(call: Invocation, found: Found, spread: DividedList | None) -> None:
    rows = islice(_rows(found), call.options.limit or sys.maxsize)
    call.table(rows, ("agent", "state", "reason", "status", "attempts", "tag", "url"))


def _why(call: Invocation, found: Found, spread: DividedList | None) -> None:
    """By who knows it; what nobody knows all judge alike. Without an argument: of each agent."""
    rows = list(_rows(found))
    known = [row for row in rows if row.get("state") != "unknown"] or rows[:1]
    for number, row in enumerate(known):
        if number and not call.json:
            print()
        if "waits" in row and not call.json:
            now = time.time()
            row["waiting"] = wait_summary(wait_counts(row.pop("waits"), now), now)
        call.facts(row)


def _log(call: Invocation, found: Found, spread: DividedList | None) -> None:
    """Lines begin with their time."""
    lines = sorted((line, name) for name in found for line in map(str, found[name]))
    for line, name in lines:
        if not call.json:
            print(printable(line))
        else:
            for row in parsed_lines(iter([line.encode("ascii", "replace") + b"\n"])):
                print(json.dumps({"agent": name, **row}))


def _blocks(call: Invocation, found: Found, spread: DividedList | None) -> None:
    columns = ("subject", "who", "since", "until", "reason")
    alike: dict[tuple[Any, ...], list[str]] = {}
    for row in _rows(found):
        alike.setdefault(tuple(row.get(each) for each in columns), []).append(row["agent"])
    rows = (
        {**dict(zip(columns, block, strict=True)),
         "agents": names if call.json else _names(names, found)}
        for block, names in alike.items()
    )  # fmt: skip
    call.table(rows, (*columns, "agents"))


def _names(names: list[str], found: Found) -> str:
    return "all" if len(names) == len(found) else ", ".join(names)


def _audit(call: Invocation, found: Found, spread: DividedList | None) -> None:
    rows = sorted(_rows(found), key=lambda row: _number(row.get("done")))
    limit = call.options.limit or sys.maxsize
    if call.json:
        call.table(deque(rows, limit), ())
        return
    alike: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = (row.get("id"), row.get("ok"), row.get("said"))
        names = [*alike[key]["names"], row["agent"]] if key in alike else [row["agent"]]
        done, said = display_text("when", row.get("done")), str(row.get("said", ""))[:100]
        ok = "yes" if row.get("ok") else "no"
        alike[key] = {**row, "names": names, "done": done, "ok": ok, "said": said}
    last = deque(alike.values(), limit)
    table = ({**row, "agents": _names(row["names"], found)} for row in last)
    call.table(table, ("done", "who", "verb", "agents", "ok", "said", "why"))


def _manifest(call: Invocation, found: Found, spread: DividedList | None) -> None:
    for number, row in enumerate(_rows(found)):
        if call.json:
            print(json.dumps(row))
            continue
        if number:
            print()
        print(f"{'agent':<18} {printable(row['agent'])}")
        show_one(call, row)


def _check(call: Invocation, found: Found, spread: DividedList | None) -> None:
    lines = [(name, str(line)) for name in found for line in found[name]]
    for name, line in lines:
        said = {"agent": name, "wrong": line}
        print(json.dumps(said) if call.json else printable(f"{name}: {line}"))
    if not call.json:
        wrong = f"{counted(len(lines), 'thing is', 'things are')} wrong"
        print(wrong if lines else "everything agrees, in each agent")


def _test(call: Invocation, found: Found, spread: DividedList | None) -> None:
    rows = list(_rows(found))
    rows += [
        {"agent": None, "judgement": "refuse", "decided_by": "normal form", "why": line.why,
         "where": f"{line.origin}:{line.line}", "url": line.text}
        for line in (spread.bad_lines if spread is not None else ())
    ]  # fmt: skip
    call.table(rows, ("agent", "judgement", "decided_by", "why", "where", "url"))


def show_counts(call: Invocation, found: Found, spread: DividedList | None) -> None:
    """What verbs would change, with ``--dry-run``."""
    rows = [{key: row[key] for key in row if key != "agent"} for row in _rows(found)]
    facts: Row = {"dry_run": True, "urls": 0, **total(rows)}
    if spread is not None and spread.bad:
        facts["no_web_addresses"] = facts.get("no_web_addresses", 0) + spread.bad
        facts["first_bad"] = [*spread.first_bad, *facts.get("first_bad", [])]
    first = facts.pop("first", [])[:_SHOWN]
    if not call.json:
        facts |= facts.pop("by_reason", {})
    facts["first"] = first
    if call.json:
        facts["agents"] = {name: rows[0] for name, rows in found.items() if rows}
    call.facts(facts)


def _rows(found: Found) -> Iterator[Row]:
    """All rows, each with the agent whose it is."""
    for name, rows in found.items():
        for row in rows:
            if isinstance(row, dict):
                yield {"agent": name, **row}


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0


SHOWN: Final[dict[str, Show]] = {
    "status": _status, "hosts": _hosts, "why": _why, "urls": _urls, "log": _log,
    "blocks": _blocks, "audit": _audit, "manifest": _manifest, "check": _check, "test": _test,
    "report": show_report,
}  # fmt: skip
"""Verb that only looks -> what shows what was found."""
OF_ONE: Final = frozenset({"why", "urls", "log", "drop"})
"""Those about a host, or a URL: most agents know nothing of it."""
