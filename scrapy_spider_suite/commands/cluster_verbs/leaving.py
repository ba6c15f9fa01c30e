"""``scrapy cluster drain``, ``remove``, ``release`` and ``forget``."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping

from scrapy_spider_suite.cluster.membership import MemberRecord as Member
from scrapy_spider_suite.cluster.membership import MemberState
from scrapy_spider_suite.cluster.registry import ClusterOverview
from scrapy_spider_suite.errors import ClusterError
from scrapy_spider_suite.operate.actions import whoami
from scrapy_spider_suite.operate.executors import all_agents
from scrapy_spider_suite.operate.executors.all_agents import AgentQuestion, ask, missing_agents
from scrapy_spider_suite.operate.verb import (
    Invocation,
    Row,
    Verb,
    add_caution,
    add_why,
    confirm,
    seconds,
)
from scrapy_spider_suite.runtime.text import counted

_ANSWER = 15.0
_LOOK = 1.0
_TELL = 10.0
_HERE = (MemberState.ACTIVE, MemberState.LEAVING)


def _member(line: all_agents.CrawlConnection, name: str) -> Member:
    row = line.overview.view.row(name)
    if row is None:
        names = ", ".join(row.name for row in line.overview.view.rows) or "none"
        raise ClusterError(f"no agent of the crawl has the name {name}; those there are: {names}")
    return row


def _held(overview: ClusterOverview, row: Member) -> int:
    return int((overview.holders.holders == row.number).sum())


# drain


def _drain_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    add_why(parser)
    parser.add_argument(
        "--wait", type=seconds, default=3_600.0, metavar="S",
        help="seconds to wait until it has left (3600)",
    )  # fmt: skip


def _drain(call: Invocation) -> int:
    return all_agents.run_async(_drained(call))


async def _drained(call: Invocation) -> int:
    name, deadline = call.options.name, time.monotonic() + call.options.wait
    async with all_agents.connect(call) as line:
        row = _member(line, name)
        if row.state not in _HERE:
            return _no(call, f"{name} is gone already: {row.state}")
        if why := missing_agents(line, {name: row}):
            return _no(call, f"{name} does not run ({why[name]}): start it and drain it, or "
                             f"`scrapy cluster remove {name}`")  # fmt: skip
        others = _others(line.overview, name)
        if not others:
            return _no(call, f"there is no other agent that could take what {name} has")
        if len(gone := missing_agents(line, others)) == len(others):
            return _no(call, f"no agent runs that could take what {name} has "
                             f"({_silent(gone)}): start one")  # fmt: skip
        question = AgentQuestion("act", "drain", call.options.who or whoami(), call.options.why)
        heard = await ask(line, question, {name: row}, _ANSWER)
        reply = heard.replies.get(name)
        if reply is not None and reply.code:
            return _no(call, f"{name}: {reply.said}")
        return await _watch(call, line, name, deadline)


def _others(overview: ClusterOverview, name: str) -> dict[str, Member]:
    rows = overview.view.rows
    return {row.name: row for row in rows if row.state is MemberState.ACTIVE and row.name != name}


def _silent(gone: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {why}" for name, why in gone.items())


def _no(call: Invocation, why: str) -> int:
    print(f"scrapy cluster: {why}", file=sys.stderr)
    return 1


async def _watch(
    call: Invocation, line: all_agents.CrawlConnection, name: str, deadline: float
) -> int:
    began = told = time.monotonic()
    while True:
        overview = await line.office.overview()
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
        if now > told + _TELL and not call.json:
            told = now
            gone = missing_agents(line._replace(overview=overview), _others(overview, name))
            waits = f"; of those that take it, some do not run: {_silent(gone)}" if gone else ""
            print(f"{name}: {_left(overview, row)}{waits}", flush=True)
        await asyncio.sleep(_LOOK)


def _left(overview: ClusterOverview, row: Member) -> str:
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


# remove


def _remove_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--dead", action="store_true",
        help="its process is known to be gone: others take at once what it has",
    )  # fmt: skip
    add_caution(parser, asks=True)


def _remove(call: Invocation) -> int:
    call.facts(all_agents.run_async(_removed(call)))
    return 0


async def _removed(call: Invocation) -> Row:
    options = call.options
    async with all_agents.connect(call) as line:
        row, overview = _member(line, options.name), line.overview
        held, left = _held(overview, row), max(0.0, row.ends / 1000 - overview.now)
        facts: Row = {
            "agent": row.name, "was": str(row.state), "units": held,
            "hosts": overview.facts.get(row.name, {}).get("hosts"),
            "others_take_them": "at once" if options.dead or not left else f"in {left:,.0f} s",
        }  # fmt: skip
        if options.dry_run:
            return {"dry_run": True, **facts}
        if options.dead and not row.missing(overview.now):
            raise ClusterError(
                f"{row.name} was heard {overview.now - row.heard / 1000:.0f} s ago: its process is "
                "not gone; stop it first, or leave --dead out"
            )
        has = f"has {counted(held, 'unit')} of the crawl"
        confirm(call, f"Remove the agent {row.name}, which {has}?")
        await line.office.remove(row.name, dead=options.dead)
        return {"removed": True, **facts}


# release, forget


def _caution(parser: argparse.ArgumentParser) -> None:
    add_caution(parser, asks=True)


def _release(call: Invocation) -> int:
    call.facts(all_agents.run_async(_released(call)))
    return 0


async def _released(call: Invocation) -> Row:
    async with all_agents.connect(call) as line:
        overview = line.overview
        facts: Row = {
            "crawl": line.place.crawl,
            "units": int((overview.holders.holders == 0).sum()),
        }
        if call.options.dry_run:
            return {"dry_run": True, **facts}
        confirm(call, f"Let others take {counted(facts['units'], 'unit')} that nobody claims?")
        await line.office.release()
        return {"released": True, **facts}


def _forget(call: Invocation) -> int:
    call.facts(all_agents.run_async(_forgotten(call)))
    return 0


async def _forgotten(call: Invocation) -> Row:
    async with all_agents.connect(call) as line:
        rows = line.overview.view.rows
        names = [row.name for row in rows]
        facts: Row = {
            "crawl": line.place.crawl, "agents": names, "finished": line.overview.ended,
            "last_heard": max((row.heard / 1000 for row in rows), default=None),
        }  # fmt: skip
        if call.options.dry_run:
            return {"dry_run": True, **facts}
        confirm(call, f"Forget the crawl {line.place.crawl} of {counted(len(names), 'agent')}?")
        await line.office.forget()
        return {"forgotten": True, **facts}


VERBS = (
    Verb(
        "drain", "have an agent hand over all it has to the others, and end", _drain,
        _drain_options, "NAME",
        about=(
            "Nothing is fetched twice or lost by it, and the crawl goes on meanwhile. Its job\n"
            "directory can be removed when it has left."
        ),
        examples=('drain b -j redis://10.0.0.1/0 --why "its machine is needed"',),
        exits={1: "it cannot be drained, or did not leave", 3: "it has not left in time: it "
               "goes on"},
    ),
    Verb(
        "remove", "send an agent away that does not come back", _remove, _remove_options, "NAME",
        about=(
            "Others own what it did from now on, and take it when its lease is over (`ls` has the\n"
            "seconds). With --dead at once: only if its process is gone for certain, since else\n"
            "two agents fetch the same hosts. What only its disk had is lost unless its directory\n"
            "is adopted. One that runs ends, without handing over: `drain` it instead."
        ),
        examples=(
            "remove b --dry-run -j redis://10.0.0.1/0",
            "remove b --dead --yes -j redis://10.0.0.1/0",
        ),
    ),
    Verb(
        "release", "let others take what nobody claims, after Redis has lost who has what",
        _release, _caution,
        about=(
            "Agents that run claim what they have when Redis was restarted empty. What is not\n"
            "claimed waits for agents that are away, with SUITE_AGENT_GRACE = forever for ever."
        ),
        examples=("release --dry-run -j redis://10.0.0.1/0",),
    ),
    Verb(
        "forget", "remove a crawl from Redis; job directories stay", _forget, _caution,
        about=(
            "Refused while an agent of it runs. Agents that are started again with their job\n"
            "directories enter it anew, and go on."
        ),
        examples=("forget --crawl news --yes -j redis://10.0.0.1/0",),
    ),
)  # fmt: skip
