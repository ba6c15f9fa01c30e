"""Asks the agents of a crawl, and waits for what they answer."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scrapy_spider_suite.agents.calls import KEPT, Call, Reply, new_id
from scrapy_spider_suite.cluster.membership import MemberRecord, MemberState
from scrapy_spider_suite.commands.agents.place import Line
from scrapy_spider_suite.commands.agents.spreading import Part, send
from scrapy_spider_suite.errors import ClusterError, RegistryError

_POLL = 0.1
_LOOK = 2.0
"""Seconds between two looks at who of those that are waited for is still heard."""
_TELL = 5.0
"""Seconds after which it is said who is waited for."""
_TAKE_BACK = ("unblock",)
"""Verbs after which nothing stands, once all agents know.

``resume`` stands until the next pause: an agent that was removed, and comes back, has the pause in
its job.
"""


@dataclass(frozen=True)
class Question:
    """What is asked: *kind* and what belongs to it, as of `agents.calls.Call`."""

    kind: Literal["act", "look"]
    verb: str
    who: str
    why: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    urgent: bool = False


@dataclass
class Heard:
    """What came of a question: what agents answered, and why others did not, by their names."""

    replies: dict[str, Reply] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


def there(line: Line) -> dict[str, MemberRecord]:
    """The agents that take part, by their names, also those that are away.

    Raises `ClusterError`: there are none.
    """
    rows = {
        row.name: row for row in line.overview.view.rows
        if row.state in (MemberState.ACTIVE, MemberState.LEAVING)
    }  # fmt: skip
    if not rows:
        raise ClusterError(f"no agent takes part in the crawl {line.place.crawl}")
    return rows


def away(line: Line, rows: Mapping[str, MemberRecord]) -> dict[str, str]:
    """Which of the agents do not run, it seems, and since when."""
    now = line.overview.now
    return {name: _silence(row, now) for name, row in rows.items() if row.missing(now)}


def _silence(row: MemberRecord, now: float) -> str:
    return f"not heard for {now - row.heard / 1000:,.0f} s" if row.incarnation else "stopped"


async def ask(
    line: Line, question: Question, rows: Mapping[str, MemberRecord], seconds: float,
    parts: Mapping[str, Part] | None = None,
) -> Heard:  # fmt: skip
    """Ask the agents *rows*, each with its part of a list if there are *parts*.

    Those that are away, or are not heard any more, are not waited for; what is to be done they do
    when they are back, within a day. Raises `ClusterError`.
    """
    gone = away(line, rows)
    asked = [name for name in rows if question.kind == "act" or name not in gone]
    id, now = new_id(urgent=question.urgent), time.time()
    until = now + (KEPT if question.kind == "act" else seconds)

    def call(name: str) -> Call:
        return Call(
            id=id, kind=question.kind, verb=question.verb, who=question.who, why=question.why,
            when=now, until=until, arguments=dict(question.arguments), words=list(question.words),
            pieces=0 if parts is None else parts[name].pieces,
        )  # fmt: skip

    calls = {name: call(name) for name in asked}
    standing = next((each for each in calls.values() if each.stands), None)
    if standing is not None:
        await line.caller.stand(standing)
    await line.caller.leave(calls)
    if parts is not None:
        sending = [send(line.caller, id, name, parts[name], seconds) for name in asked]
        await asyncio.gather(*sending)
    heard = await _wait(line, id, [name for name in asked if name not in gone], seconds, gone)
    if standing is not None and standing.verb in _TAKE_BACK and not heard.silent:
        await line.caller.over(standing)
    return heard


async def _wait(
    line: Line, id: str, names: list[str], seconds: float, gone: Mapping[str, str]
) -> Heard:
    heard, caller, lost = Heard(), line.caller, dict(gone)
    began = look = time.monotonic()
    told = False

    def waits() -> list[str]:
        done = heard.replies.keys() | caller.refused.keys() | lost.keys()
        return [name for name in names if name not in done]

    while waits():
        now, found = time.monotonic(), {}
        try:
            if now >= look + _LOOK:
                look, found = now, await _lost(line, waits())
            heard.replies |= await caller.answers(id, waits())  # also of those that have just gone
        except RegistryError as error:
            if error.kind != "away" or now > began + seconds:
                raise
        lost |= {name: found[name] for name in waits() if name in found}
        if now > began + seconds:
            break
        if not told and now > began + _TELL and waits():
            told = True
            print(f"waiting for {', '.join(waits())}, {seconds:g} s at most", file=sys.stderr)
        await asyncio.sleep(_POLL)
    heard.silent = {
        **lost, **caller.refused, **dict.fromkeys(waits(), f"no answer within {seconds:g} s"),
    }  # fmt: skip
    return heard


async def _lost(line: Line, names: list[str]) -> dict[str, str]:
    """Which of the agents *names* do not run by now, and since when. Raises `RegistryError`."""
    overview = await line.office.overview()
    rows = {} if overview is None else {row.name: row for row in overview.view.rows}
    now = 0.0 if overview is None else overview.now
    return {
        name: _silence(row, now) for name in names
        if (row := rows.get(name)) is not None and row.missing(now)
    }  # fmt: skip
