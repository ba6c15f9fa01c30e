"""What the agents of a crawl have found, put together: verbs that look, with ``-j redis://...``."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from scrapy_spider_suite.commands.agents.shown import OF_ONE, SHOWN, show_counts
from scrapy_spider_suite.commands.agents.words import REFUSED, list_of, words_of
from scrapy_spider_suite.errors import ClusterError
from scrapy_spider_suite.operate.actions import whoami
from scrapy_spider_suite.operate.executors import all_agents
from scrapy_spider_suite.operate.executors.agent_calls import AgentReply
from scrapy_spider_suite.operate.executors.all_agents import (
    AgentAnswers,
    AgentQuestion,
    DividedList,
    ask,
    divide_list,
    holders,
    owners,
    refuse,
    running,
    silence,
    taking_part,
)
from scrapy_spider_suite.operate.verb import Invocation, Verb
from scrapy_spider_suite.runtime.text import printable

WAIT: Final = 60.0
"""Seconds that an agent has to look."""
_JSON: Final = ("{", '"')


def over_redis(verb: Verb, call: Invocation, words: list[str]) -> int:
    """Do what *call* says, by asking the agents of a crawl; *words* follow *verb*."""
    if verb.name in REFUSED:
        raise refuse(verb.name, REFUSED[verb.name])
    counts = getattr(call.options, "dry_run", False) and verb.name != "set"  # whose crawl says it
    if verb.name not in SHOWN and not counts:
        return verb.run(call)  # it has something done
    heard, found = all_agents.run_async(_look(verb, call, words))
    return _say(verb, call, heard, found)


async def _look(
    verb: Verb, call: Invocation, words: list[str]
) -> tuple[AgentAnswers, DividedList | None]:
    listed = list_of(verb.name, call)
    who = getattr(call.options, "who", None) or whoami()
    kept = words_of(verb.name, call, words) if listed is None else listed.words
    question = AgentQuestion("look", verb.name, who, words=tuple(kept))
    async with all_agents.connect(call) as line:
        if listed is None:
            return await ask(line, question, taking_part(line), WAIT), None
        alive = await running(line)
        whose = (owners if verb.name == "add" else holders)(line.overview, alive)
        with divide_list(listed.lines, whose) as found:
            asked = {name: alive[name] for name in found.parts}
            return await ask(line, question, asked, WAIT, found.parts), found


def _say(verb: Verb, call: Invocation, heard: AgentAnswers, found: DividedList | None) -> int:
    """Print what was *heard*, then who was silent; return the exit code."""
    fine = {name: reply for name, reply in sorted(heard.replies.items()) if reply.code in (0, 1)}
    unable = {name: reply for name, reply in heard.replies.items() if name not in fine}
    if unable and (not fine or verb.name not in OF_ONE):
        for text in sorted({f"{name}: {reply.said}" for name, reply in unable.items()}):
            _complain(text)
    for name, reply in fine.items():
        for text in reply.said.splitlines():
            if not (verb.name in OF_ONE and reply.code):
                _complain(f"{name}: {text.removeprefix('scrapy frontier: ')}")
        if reply.cut:
            _complain(f"{name}: there is more than an answer may hold: look at its job directory")
    if fine or found is not None:
        SHOWN.get(verb.name, show_counts)(call, {name: _rows(fine[name]) for name in fine}, found)
    if heard.silent:
        _complain(silence(heard.silent))
        return 1 if getattr(call.options, "alive", None) is not None else 3
    if unable and (not fine or verb.name not in OF_ONE):
        return 2
    codes = [reply.code for reply in fine.values()] + [1] * bool(found and found.bad)
    return (min if verb.name in OF_ONE or verb.name not in SHOWN else max)(codes, default=0)


def _rows(reply: AgentReply) -> list[Any]:
    """What *reply* has found. Raises `ClusterError`: that is none."""
    try:
        return [json.loads(line) if line.startswith(_JSON) else line for line in reply.lines]
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"{reply.agent} answers what the suite did not print: {error}") from None


def _complain(text: str) -> None:
    print(f"scrapy frontier: {printable(text)}", file=sys.stderr)
