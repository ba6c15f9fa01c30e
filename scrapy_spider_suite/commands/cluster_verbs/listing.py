"""``scrapy cluster ls``: the agents of a crawl, and how they are."""

from __future__ import annotations

import argparse
from collections import Counter

from scrapy_spider_suite.cluster.assignment import OwnerTable
from scrapy_spider_suite.cluster.membership import MemberRecord as Member
from scrapy_spider_suite.cluster.membership import MemberState
from scrapy_spider_suite.cluster.registry import ClusterOverview
from scrapy_spider_suite.errors import SuiteError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.operate.executors import all_agents
from scrapy_spider_suite.operate.executors.all_agents import assignment_in
from scrapy_spider_suite.operate.verb import Invocation, Row, Verb
from scrapy_spider_suite.runtime.text import counted

_COLUMNS = (
    "agent", "state", "share", "holds", "hosts", "pending", "pages", "rate", "lag", "phase",
    "heard", "skew", "lease",
)  # fmt: skip

_FACTS = ("hosts", "pending", "rate", "lag", "phase", "skew", "machine", "pid", "job")
_HERE = (MemberState.ACTIVE, MemberState.LEAVING)
_GONE = (MemberState.LEFT, MemberState.DEAD, MemberState.REMOVED)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="those too that have left, died or been removed"
    )


def _run(call: Invocation) -> int:
    overview = all_agents.run_async(_look(call))
    rows = agent_rows(overview)
    gone = {row.name for row in overview.view.rows if row.state in _GONE}
    if not call.options.all:
        rows = [row for row in rows if row["agent"] not in gone or row["holds"]]
    call.table(rows, _COLUMNS)
    if not call.json:
        nobodys = int((overview.holders.holders == 0).sum())
        ended = "; the crawl has ended" if overview.ended else ""
        print(f"\n{counted(len(rows), 'agent')}, epoch {overview.view.epoch}; "
              f"{_percent(nobodys)} % of the ring is held by nobody{ended}")  # fmt: skip
    return 0


async def _look(call: Invocation) -> ClusterOverview:
    async with all_agents.connect(call) as line:
        return line.overview


def agent_rows(overview: ClusterOverview) -> list[Row]:
    """What is known of each agent. *share* and *holds* are percents of the ring, the part that it
    should have and the one that it has; *heard* and *lease* are seconds, ago and left."""
    held = Counter(overview.holders.holders.tolist())
    owned = _owned(overview)
    return [_row(row, overview, held[row.number], owned) for row in overview.view.rows]


def _owned(overview: ClusterOverview) -> dict[str, int] | None:
    """How much each agent should have; None: that cannot be told here."""
    try:
        members = overview.view.members
        return OwnerTable.of(assignment_in(overview), members).counts() if members else {}
    except SuiteError:
        return None


def _row(row: Member, overview: ClusterOverview, held: int, owned: dict[str, int] | None) -> Row:
    facts, now = overview.facts.get(row.name, {}), overview.now
    runs = row.state in _HERE and not row.missing(now)
    return {
        "agent": row.name, "state": state_of(row, overview),
        "share": None if owned is None else _percent(owned.get(row.name, 0)),
        "holds": _percent(held), "pages": facts.get("done"),
        **{name: facts.get(name) for name in _FACTS}, "rate": facts.get("rate") if runs else None,
        "heard": round(now - row.heard / 1000, 1),
        "lease": round(max(0.0, row.ends / 1000 - now)) if row.ends else "forever",
        "number": row.number, "weight": row.weight, "idle": row.idle, "address": row.address,
        "sent": row.sent, "received": row.received, "failed": facts.get("failed"),
    }  # fmt: skip


def state_of(row: Member, overview: ClusterOverview) -> str:
    """The state of a member in a word: also whether a process of it runs."""
    if overview.ended and _was_there(row, overview):
        return "ended"
    if row.state not in _HERE:
        return str(row.state)
    if not row.incarnation:
        return "stopped"
    if row.missing(overview.now):
        return "missing"
    if overview.facts.get(row.name, {}).get("paused"):
        return "paused"
    return "idle" if row.idle and row.state is MemberState.ACTIVE else str(row.state)


def _was_there(row: Member, overview: ClusterOverview) -> bool:
    """Whether a member that does not run any more was one at the end of the crawl.

    All of the ring was held by members then, and nobody has taken any of it since: the lease of
    who is dead and holds some has ended afterwards.
    """
    if row.state is MemberState.DEAD:
        return bool((overview.holders.holders == row.number).any())
    return row.state in _HERE and row.missing(overview.now)


def _percent(units: int) -> float:
    return round(100 * units / UNITS, 1)


VERBS = (
    Verb(
        "ls", "the agents: their share, hosts, pages, rate, lag, phase, lease", _run, _options,
        about=(
            "share is the percentage of the ring that is an agent's, holds what it has at this\n"
            "moment; pages are those that are done, rate is pages a second, lag is the number of\n"
            "rows of URLs that wait for other agents, heard and lease are seconds: since it was\n"
            "last heard, and until others may take what it has. skew is by how many seconds its\n"
            "clock is behind that of Redis. An agent that is missing was killed, or cannot reach\n"
            "Redis; one that is stopped said that it would be back; one that has ended took part\n"
            "until the crawl was over."
        ),
        examples=("ls -j redis://10.0.0.1/0", "ls --json --all --crawl news -j redis://10.0.0.1/0"),
    ),
)  # fmt: skip
