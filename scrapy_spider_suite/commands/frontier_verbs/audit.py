"""``scrapy frontier audit``: what was asked of the job, and what came of it."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from scrapy_spider_suite.operate.actions import AuditLog
from scrapy_spider_suite.operate.verb import Invocation, Row, Verb, add_limit, display_text


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", metavar="VERB", nargs="?", help="only this verb's")
    add_limit(parser)


def _run(call: Invocation) -> int:
    options = call.options
    rows = _rows(AuditLog(call.folder()), options.verb)
    last = deque(rows, maxlen=options.limit or sys.maxsize)
    if call.json:
        call.table(last, ())
    else:
        call.table(map(_shown, last), ("done", "who", "verb", "ok", "said", "why"))
    return 0


def _rows(log: AuditLog, verb: str | None) -> Iterator[Row]:
    return (row for row in log.rows() if verb in (None, row.get("verb")))


def _shown(row: Row) -> dict[str, Any]:
    done, said = display_text("when", row.get("done")), str(row.get("said", ""))
    return {**row, "done": done, "ok": "yes" if row.get("ok") else "no", "said": said[:100]}


VERBS = (
    Verb(
        "audit", "what was asked of the job, by whom and why, and what came of it",
        _run, _options, "[VERB]",
        about="The last ones; --json has all of each, receipts too.",
        examples=("audit -j crawls/news --limit 50", "audit drop --json -j crawls/news"),
    ),
)  # fmt: skip
