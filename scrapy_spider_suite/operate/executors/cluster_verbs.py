"""The verbs of ``scrapy cluster`` but ``up``."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from scrapy_spider_suite.cluster.assignment import OwnerTable
from scrapy_spider_suite.cluster.handover.handover_file import FileTransport
from scrapy_spider_suite.cluster.membership import MemberRecord, Membership, MemberState, Ownership
from scrapy_spider_suite.cluster.registry import ClusterOverview
from scrapy_spider_suite.cluster.transports.shared_folder import FolderTransport
from scrapy_spider_suite.cluster.transports.tcp import TcpTransport
from scrapy_spider_suite.errors import ClusterError, JobInUseError, SuiteError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.operate.actions import whoami
from scrapy_spider_suite.operate.executors.agent_calls import make_call
from scrapy_spider_suite.operate.executors.all_agents import (
    CrawlConnection,
    ask,
    assignment_in,
    connect,
    missing_agents,
)
from scrapy_spider_suite.operate.verb import Invocation, Row, confirm
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.declarations import read_given, setting_name
from scrapy_spider_suite.settings.suite import DECLARATIONS
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile
from scrapy_spider_suite.store.job_reader import StatusFile, read_status
from scrapy_spider_suite.urls.normalize import host_of

if TYPE_CHECKING:
    from scrapy_spider_suite.operate.job_target import JobTarget

_COLUMNS = (
    "agent", "state", "share", "holds", "hosts", "pending", "pages", "rate", "lag", "phase",
    "heard", "skew", "lease",
)  # fmt: skip
_FACTS = ("hosts", "pending", "rate", "lag", "phase", "skew", "machine", "pid", "job")
_HERE = (MemberState.ACTIVE, MemberState.LEAVING)
_ANSWER = 15.0
_POLL = 1.0
_PROGRESS = 10.0  # seconds between two lines on how far a drain is
_HANDOVER = "handover"
_RATE = 16 << 20


async def list_agents(call: Invocation) -> int:
    async with connect(call) as connection:
        overview = connection.overview
    held = Counter(overview.holders.holders.tolist())
    members = overview.view.members
    owned: dict[str, int] | None = None
    with suppress(SuiteError):  # the assignment is not to be had here
        owned = OwnerTable.of(assignment_in(overview), members).counts() if members else {}
    rows = [
        _row(row, overview, held[row.number], owned) for row in overview.view.rows
        if call.options.all or row.state in _HERE or held[row.number]
    ]  # fmt: skip
    call.table(rows, _COLUMNS)
    if not call.json:
        nobodys = int((overview.holders.holders == 0).sum())
        ended = "; the crawl has ended" if overview.ended else ""
        print(f"\n{counted(len(rows), 'agent')}, epoch {overview.view.epoch}; "
              f"{_percent(nobodys)} % of the ring is held by nobody{ended}")  # fmt: skip
    return 0


def _row(
    row: MemberRecord, overview: ClusterOverview, held: int, owned: dict[str, int] | None
) -> Row:
    """*share* and *holds* are percents of the ring, as assigned and as held; *heard* and *lease*
    are seconds, ago and left."""
    facts, now = overview.facts.get(row.name, {}), overview.now
    runs = row.state in _HERE and not row.missing(now)
    return {
        "agent": row.name, "state": member_state(row, overview),
        "share": None if owned is None else _percent(owned.get(row.name, 0)),
        "holds": _percent(held), "pages": facts.get("pages"),
        **{name: facts.get(name) for name in _FACTS}, "rate": facts.get("rate") if runs else None,
        "heard": round(now - row.heard / 1000, 1),
        "lease": round(max(0.0, row.ends / 1000 - now)) if row.ends else "forever",
        "number": row.number, "weight": row.weight, "idle": row.idle, "address": row.address,
        "sent": row.sent, "received": row.received, "failed": facts.get("failed"),
    }  # fmt: skip


def member_state(row: MemberRecord, overview: ClusterOverview) -> str:
    """The state of a member in a word: also whether a process of it runs."""
    missing = row.state in _HERE and row.missing(overview.now)
    if overview.ended and (missing or (row.state is MemberState.DEAD and _held(overview, row))):
        # All of the ring was held by members at the end, and no lease was taken since: an agent
        # that is dead and holds units was a member then.
        return "ended"
    if row.state not in _HERE:
        return str(row.state)
    if missing:
        return "missing" if row.incarnation else "stopped"
    if overview.facts.get(row.name, {}).get("paused"):
        return "paused"
    return "idle" if row.idle and row.state is MemberState.ACTIVE else str(row.state)


def _percent(units: int) -> float:
    return round(100 * units / UNITS, 1)


async def find_owner(call: Invocation) -> int:
    """``owner``: print the owner and the holder of a host or a URL. Raises `ClusterError`."""
    async with connect(call) as connection:
        overview = connection.overview
    assignment, subject = assignment_in(overview), call.options.subject
    url = subject if "://" in subject else f"https://{subject}/"
    if url != subject and not assignment.by_host:
        raise UsageError(f"the URLs of {subject} are with several agents: give one of them",
                         print_help=False)  # fmt: skip
    name = host_of(url)
    unit = assignment.unit(name, url)
    members = overview.view.members
    owner = OwnerTable.of(assignment, members).owner(unit) if members else None
    holder = overview.view.numbers.get(int(overview.holders.holders[unit]))
    call.facts({
        "host": name, "unit": unit, "owner": owner,
        "holder": None if holder is None else holder.name,
        "state": None if holder is None else member_state(holder, overview),
        "job": None if holder is None else overview.facts.get(holder.name, {}).get("job"),
    })  # fmt: skip
    return 0


def _find_member(connection: CrawlConnection, name: str) -> MemberRecord:
    row = connection.overview.view.row(name)
    if row is None:
        names = ", ".join(row.name for row in connection.overview.view.rows) or "none"
        raise ClusterError(f"no agent of the crawl has the name {name}; those there are: {names}")
    return row


def _held(overview: ClusterOverview, row: MemberRecord) -> int:
    return int((overview.holders.holders == row.number).sum())


async def drain_agent(call: Invocation) -> int:
    """``drain``: have an agent hand over all it has, and wait until it has left."""
    name, deadline = call.options.name, time.monotonic() + call.options.wait
    async with connect(call) as connection:
        row = _find_member(connection, name)
        if row.state not in _HERE:
            return _refuse(f"{name} is gone already: {row.state}")
        if why := missing_agents(connection.overview, {name: row}):
            return _refuse(f"{name} does not run ({why[name]}): start it and drain it, or "
                           f"`scrapy cluster remove {name}`")  # fmt: skip
        others = _other_agents(connection.overview, name)
        if not others:
            return _refuse(f"there is no other agent that could take what {name} has")
        if len(gone := missing_agents(connection.overview, others)) == len(others):
            return _refuse(f"no agent runs that could take what {name} has "
                           f"({_reasons(gone)}): start one")  # fmt: skip
        asked = make_call("act", "drain", call.options.who or whoami(), why=call.options.why)
        heard = await ask(connection, asked, {name: row}, _ANSWER)
        reply = heard.replies.get(name)
        if reply is not None and reply.code:
            return _refuse(f"{name}: {reply.said}")
        return await _wait_until_left(call, connection, name, deadline)


def _other_agents(overview: ClusterOverview, name: str) -> dict[str, MemberRecord]:
    rows = overview.view.rows
    return {row.name: row for row in rows if row.state is MemberState.ACTIVE and row.name != name}


def _reasons(gone: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {why}" for name, why in gone.items())


def _refuse(why: str) -> int:
    print(f"scrapy cluster: {why}", file=sys.stderr)
    return 1


async def _wait_until_left(
    call: Invocation, connection: CrawlConnection, name: str, deadline: float
) -> int:
    began = last = time.monotonic()
    while True:
        overview = await connection.admin.overview()
        row = None if overview is None else overview.view.row(name)
        if overview is None or row is None or row.state not in _HERE:
            state = "gone" if row is None else str(row.state)
            call.facts({"agent": name, "state": state, "seconds": round(time.monotonic() - began)})
            return 0 if row is None or row.state is MemberState.LEFT else 1
        now = time.monotonic()
        if now > deadline:
            print(f"scrapy cluster: {name} has not left within {call.options.wait:g} s; it goes on "
                  "handing over", file=sys.stderr)  # fmt: skip
            return 3
        if now > last + _PROGRESS and not call.json:
            last = now
            gone = missing_agents(overview, _other_agents(overview, name))
            waits = f"; of those that take it, some do not run: {_reasons(gone)}" if gone else ""
            print(f"{name}: {_work_left(overview, row)}{waits}", flush=True)
        await asyncio.sleep(_POLL)


def _work_left(overview: ClusterOverview, row: MemberRecord) -> str:
    facts = overview.facts.get(row.name, {})
    left = {
        "units": _held(overview, row), "hosts in memory": facts.get("hosts"),
        "URLs that are pending": facts.get("pending"),
        "rows of URLs for other agents": facts.get("lag"),
    }  # fmt: skip
    said = [f"{number:,} {what}" for what, number in left.items() if isinstance(number, int)]
    if any(left.values()):
        return f"{', '.join(said)} are left"
    return "everything is handed over; what it fetches, or writes, has to end"


async def remove_agent(call: Invocation) -> int:
    """``remove``: others own the units of the agent from now on. Raises `ClusterError`."""
    options = call.options
    async with connect(call) as connection:
        row, overview = _find_member(connection, options.name), connection.overview
        held, left = _held(overview, row), max(0.0, row.ends / 1000 - overview.now)
        facts: Row = {
            "agent": row.name, "was": member_state(row, overview), "units": held,
            "hosts": overview.facts.get(row.name, {}).get("hosts"),
            "others_take_them": "at once" if options.dead or not left else f"in {left:,.0f} s",
        }  # fmt: skip
        if options.dead and not options.dry_run and not row.missing(overview.now):
            raise ClusterError(
                f"{row.name} was heard {overview.now - row.heard / 1000:.0f} s ago: its process is "
                "not gone; stop it first, or leave --dead out"
            )
        question = f"Remove the agent {row.name}, which has {counted(held, 'unit')} of the crawl?"
        remove = partial(connection.admin.remove, row.name, dead=options.dead)
        return await _give_order(call, question, remove, "removed", facts)


async def _give_order(
    call: Invocation, question: str, order: Callable[[], Awaitable[None]], done: str, facts: Row
) -> int:
    """Ask, then give the *order*; with --dry-run only print *facts*."""
    if not call.options.dry_run:
        confirm(call, question)
        await order()
    call.facts({"dry_run" if call.options.dry_run else done: True, **facts})
    return 0


async def release_units(call: Invocation) -> int:
    """``release``: let others take the units that no agent claims."""
    async with connect(call) as connection:
        overview = connection.overview
        units = int((overview.holders.holders == 0).sum())
        facts: Row = {"crawl": connection.crawl, "units": units}
        question = f"Let others take {counted(units, 'unit')} that nobody claims?"
        return await _give_order(call, question, connection.admin.release, "released", facts)


async def forget_crawl(call: Invocation) -> int:
    async with connect(call) as connection:
        rows = connection.overview.view.rows
        names = [row.name for row in rows]
        facts: Row = {
            "crawl": connection.crawl, "agents": names, "finished": connection.overview.ended,
            "last_heard": max((row.heard / 1000 for row in rows), default=None),
        }  # fmt: skip
        question = f"Forget the crawl {connection.crawl} of {counted(len(names), 'agent')}?"
        return await _give_order(call, question, connection.admin.forget, "forgotten", facts)


async def adopt(call: Invocation) -> int:
    """``adopt``: hand the hosts of a lost agent to the others."""
    call.facts(await _adopt_job(call))
    return 0


async def _adopt_job(call: Invocation) -> Row:
    # Only `adopt` merges rows of a job: the other verbs load no crawl.
    from scrapy_spider_suite.cluster.handover.handover import adopt_directory
    from scrapy_spider_suite.operate.job_target import job_at_rest

    folder = call.options.job / FOLDER
    JobFile.require(folder)
    with ExitStack() as stack:
        site = stack.enter_context(job_at_rest(folder))
        if site is None:
            raise JobInUseError(f"{call.options.job} is in use by a crawl: it is not gone")
        async with connect(call) as connection:
            row = _agent_of_job(connection, site, call.options.job)
            counters, left = site.frontier.counters, _unread_links(site, row.name)
            facts: Row = {"agent": row.name, "pending": counters.pending, "done": counters.done}
            if call.options.dry_run:
                return {"dry_run": True, **facts, **left}
            shares = Ownership(assignment_in(connection.overview), row.name)
            transport = await _file_transport(call, connection, row.name, folder)
            try:
                found = await adopt_directory(
                    site.frontier, site.store, shares, transport, folder / _HANDOVER / "adopted",
                    crawl=connection.overview.id, view=partial(_membership, connection),
                    say=partial(print, file=sys.stderr, flush=True),
                )  # fmt: skip
            finally:
                await transport.close()
                # The status of the job says what is left in it.
                if (status := read_status(folder)) is not None:
                    StatusFile(folder, **status).update(
                        pending=counters.pending, done=counters.done, failed=counters.failed
                    )
        done: Row = {"adopted": str(call.options.job), "agent": row.name}
        return {**done, **found._asdict(), **left}


def _unread_links(site: JobTarget, name: str) -> Row:
    if not (pages := len(site.frontier.stored_links.waiting)):
        return {}
    print(
        f"the links of {counted(pages, 'page')} in the packs of {name} were not read yet: start it "
        "once more with this directory and its packs, and it sends them to the others; then drain "
        "it",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    return {"unextracted": pages}


def _agent_of_job(connection: CrawlConnection, site: JobTarget, job: Path) -> MemberRecord:
    kept = site.store.kv("agent")
    crawl, number = (kept.get(b"crawl") or b"").decode(), int(kept.get(b"number") or b"0")
    row = connection.overview.view.numbers.get(number)
    if crawl != connection.overview.id or row is None:
        raise ClusterError(f"{job} was not that of an agent of the crawl {connection.crawl}")
    if row.state in _HERE:
        raise ClusterError(
            f"{row.name} is a member still: start it, so that it goes on, or `scrapy cluster "
            f"remove {row.name} --dead` before"
        )
    return row


async def _membership(connection: CrawlConnection) -> Membership:
    overview = await connection.admin.overview()
    if overview is None:
        raise ClusterError(f"the crawl {connection.crawl} is gone from Redis")
    return overview.view


async def _file_transport(
    call: Invocation, connection: CrawlConnection, name: str, folder: Path
) -> FileTransport:
    wanted = ("handover_dir", "handover_rate", "cluster_key")
    raw = {setting_name(each): call.settings.get(setting_name(each)) for each in wanted}
    given: dict[str, Any] = read_given(DECLARATIONS, raw)
    rate = given.get("handover_rate", _RATE)
    if given.get("handover_dir") is not None:
        return FolderTransport(given["handover_dir"], connection.crawl, name, rate)
    secret = given.get("cluster_key")
    key = await connection.admin.secret() if secret is None else secret.text
    return TcpTransport("127.0.0.1", 0, key.encode(), folder / _HANDOVER / "in", rate)
