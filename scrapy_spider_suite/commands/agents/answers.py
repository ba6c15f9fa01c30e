"""What several agents have done, or counted, put together into one answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scrapy.exceptions import UsageError

from scrapy_spider_suite.agents.calls import Reply
from scrapy_spider_suite.commands.agents import place
from scrapy_spider_suite.commands.agents.asking import Heard, Question, ask, away, there
from scrapy_spider_suite.commands.agents.spreading import Spread, holders, owners, spread
from scrapy_spider_suite.commands.verb import Call
from scrapy_spider_suite.control.actions import Answer
from scrapy_spider_suite.control.verbs import URGENT
from scrapy_spider_suite.errors import ClusterError
from scrapy_spider_suite.runtime.text import counted

SILENT = "silent"
"""The fact that names agents which have not answered, and why."""
AGENTS = "agents"
"""The fact that has what each agent says."""
_MOST = 20


def act(
    call: Call, verb: str, arguments: Mapping[str, Any], urls: Iterable[str] | None, who: str
) -> Answer:
    """Have *verb* carried out by all agents of the crawl of *call*, and put their answers together.

    Of *urls* each agent gets its own.
    """
    options = call.options
    question = Question(
        "act", verb, who, options.why, arguments=arguments, urgent=verb in URGENT
    )
    return place.run(_act(call, question, urls, options.wait))


async def _act(
    call: Call, question: Question, urls: Iterable[str] | None, seconds: float
) -> Answer:
    async with place.lines(place.redis_of(call.redis), place.name_of(call)) as line:
        rows = there(line)
        if urls is None:
            return together(await ask(line, question, rows, seconds))
        rows = await running(line)
        whose = (owners if question.verb == "add" else holders)(line.overview, rows)
        with spread(urls, whose) as found:
            asked = {name: rows[name] for name in found.parts}
            heard = await ask(line, question, asked, seconds, found.parts)
            return together(heard, found)


async def running(line: place.Line) -> dict[str, Any]:
    """The agents that are not away. Raises `ClusterError`: none is there."""
    rows = there(line)
    gone = away(line, rows)
    found = {name: row for name, row in rows.items() if name not in gone}
    if not found:
        raise ClusterError(f"no agent of the crawl {line.place.crawl} runs: {_list(gone)}")
    return found


def together(heard: Heard, found: Spread | None = None) -> Answer:
    """One answer of all. *found*: a list that came with it."""
    replies = heard.replies
    id = next(iter(replies.values())).id if replies else ""
    said = lines(replies)
    facts = total(reply.facts for reply in replies.values())
    if found is not None:
        facts = _with_bad(facts, found)
        if found.bad:
            bad = counted(found.bad, "line is no seed", "lines are no seeds")
            said.append(f"{bad}: {'; '.join(found.first_bad)}")
    facts[AGENTS] = {
        name: {"ok": not reply.code, "said": reply.said, **reply.facts}
        for name, reply in sorted(replies.items())
    }  # fmt: skip
    if heard.silent:
        facts[SILENT] = dict(sorted(heard.silent.items()))
    ok = bool(replies or not heard.silent) and not any(reply.code for reply in replies.values())
    return Answer(id, ok, "\n".join(said) or "nobody has answered", facts)


def _with_bad(facts: dict[str, Any], found: Spread) -> dict[str, Any]:
    bad = facts.get("no_web_addresses", 0) + found.bad
    first = [*found.first_bad, *facts.get("first_bad", [])]
    urls = facts.get("urls", 0) + found.bad
    return facts | {"urls": urls, "no_web_addresses": bad, "first_bad": first}


def lines(replies: Mapping[str, Reply]) -> list[str]:
    """What each agent says; what several say alike once."""
    by_text: dict[str, list[str]] = {}
    for name, reply in sorted(replies.items()):
        by_text.setdefault(reply.said, []).append(name)
    return [f"{_names(names)}: {text}" for text, names in by_text.items()]


def _names(names: list[str]) -> str:
    if len(names) <= _MOST:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST])} and {len(names) - _MOST} more"


def total(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers added up, lists one after the other; of the rest what all say alike."""
    sums: dict[str, Any] = {}
    for facts in found:
        for name, value in facts.items():
            if name not in sums:
                sums[name] = value
            elif _is_number(value) and _is_number(sums[name]):
                sums[name] = sums[name] + value
            elif isinstance(value, list) and isinstance(sums[name], list):
                sums[name] = [*sums[name], *(each for each in value if each not in sums[name])]
            elif isinstance(value, dict) and isinstance(sums[name], dict):
                sums[name] = total([sums[name], value])
            elif value != sums[name]:
                sums[name] = None
    return {name: value for name, value in sums.items() if value is not None}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def silence(heard: Mapping[str, str]) -> str:
    """One line on who has not answered, and why."""
    return f"no answer from {_list(heard)}"


def _list(why: Mapping[str, str]) -> str:
    some = [f"{name} ({reason})" for name, reason in sorted(why.items())]
    return ", ".join(some[:_MOST]) + (f" and {len(some) - _MOST} more" if some[_MOST:] else "")


def refuse(verb: str, instead: str) -> UsageError:
    """The error that says that *verb* is not for a crawl in Redis, and what to do *instead*."""
    return UsageError(f"{verb} works on a job directory, not over Redis: {instead}",
                      print_help=False)  # fmt: skip
