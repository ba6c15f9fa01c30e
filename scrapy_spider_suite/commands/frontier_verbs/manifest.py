"""``scrapy frontier manifest``."""

from __future__ import annotations

import json
from typing import Any

from scrapy_spider_suite.operate.verb import Invocation, Row, Verb, display_text
from scrapy_spider_suite.operate.verbs.log import read_manifest


def _run(call: Invocation) -> int:
    found = read_manifest(call.folder())
    if call.json:
        print(json.dumps(found))
    else:
        show(call, found)
    return 0


def show(call: Invocation, found: dict[str, Any]) -> None:
    """What fits on a screen: runs, seeds, how often settings and filters changed."""
    runs, last = found["runs"], found["runs"][-1] if found["runs"] else {}
    changed = [row for row in found["settings"] if "name" in row]
    call.facts({
        "job": found["job"], "spider": found["spider"],
        "created": display_text("when", found["created"]),
        "versions": [f"{name} {number}" for name, number in last.get("versions", {}).items()],
        "settings": last.get("settings"),
        "changed": [f"{display_text('when', row['when'])}: {row['name']} "
                    f"{row['old']!r} -> {row['new']!r}"
                    for row in changed],
        "filters": [f"{display_text('when', row['when'])}: {row['stage']}: {row['text'][:60]!r}"
                    for row in found["filters"]],
        "seeds": [_seeds(row) for row in found["seeds"]],
        **found["counts"],
        "actions": len(found["actions"]),
    })  # fmt: skip
    print()
    call.table(runs, ("run", "agent", "begun", "ended", "reason"))


def _seeds(row: Row) -> str:
    first = row.get("first", [])
    more = row.get("named", 0) - len(first)
    what = row.get("source") or ", ".join(first) + (f" and {more} more" if more else "")
    return f"{what}, sha256 {row['sha256']}" if "sha256" in row else str(what)


VERBS = (
    Verb(
        "manifest", "all of a crawl that is to be cited: versions, settings, filters, seeds, runs",
        _run,
        about=(
            "--json has the whole: each run with its agent, versions and counts, the settings and\n"
            "the text of every filter with the moment from which on they held, digests of the\n"
            "seeds, and the audit log. Of several agents, each has a job with a manifest. A run\n"
            "without an end was killed, or goes on. Runs of releases before are not in it."
        ),
        examples=("manifest -j crawls/news", "manifest --json -j crawls/news"),
    ),
)
