"""What the page may do to a job: verbs of ``scrapy frontier``, by the same executors."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from scrapy_spider_suite.cluster.local_redis import redis_of
from scrapy_spider_suite.errors import ActionError, SuiteError
from scrapy_spider_suite.operate.actions import Answer, whoami
from scrapy_spider_suite.operate.executors.one_job import ask_job
from scrapy_spider_suite.operate.verb import Invocation, Question, without_port
from scrapy_spider_suite.operate.verbs import find_verb
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.urls.host_patterns import HostPattern

WAIT: Final = 30.0  # seconds for an answer
_DELAYS: Final = ("SUITE_HOST_DELAY", "SUITE_IP_DELAY")
_Text = Annotated[str, Meta(max_length=2_000)]


class Act(Struct, forbid_unknown_fields=True):
    """What the page sends: a verb, and the values of the fields of its form."""

    verb: Literal["pause", "resume", "block", "unblock", "set", "add"]
    subject: _Text = ""
    name: str = ""
    value: _Text = ""
    urls: str = ""
    why: Annotated[str, Meta(max_length=500)] = ""


def carry_out(act: Act, job: str, settings: Any, crawl: str | None) -> Answer:
    """Do *act* on *job*, of agents on their *crawl*; returns within some `WAIT` seconds.

    A refusal is an answer, too.
    """
    try:
        answer = _ask(act, _question(act), job, settings, crawl)
    except (SuiteError, OSError) as error:
        return Answer("", False, str(error))
    late = Answer("", False, f"no answer within {WAIT:g} s; it stays asked")
    return late if answer is None else answer


def _question(act: Act) -> Question:
    """The arguments of *act*, as the command line would make them. Raises `ActionError`."""
    if act.verb in ("block", "unblock"):
        try:
            return Question({"subject": str(HostPattern.parse(without_port(act.subject.strip())))})
        except ValueError as error:
            raise ActionError(str(error)) from None
    if act.verb == "set":
        if act.name not in _DELAYS:
            raise ActionError(f"{act.name[:80]!r}: expected {' or '.join(_DELAYS)}")
        return Question({"name": act.name, "value": act.value.strip()})
    if act.verb == "add":
        # A line that begins with # would be a comment, or the name of a list.
        stripped = (line.strip() for line in act.urls.splitlines())
        lines = [line for line in stripped if not line.startswith("#")]
        if not any(lines):
            raise ActionError("expected URLs or host names, one a line")
        return Question({"first": False}, lines, by_owner=True)
    return Question()


def _ask(
    act: Act, question: Question, job: str, settings: Any, crawl: str | None
) -> Answer | None:
    verb, who = find_verb(act.verb), f"{whoami()} (dashboard)"
    assert verb is not None
    url = redis_of(job)
    if url is None:
        return ask_job(
            Path(job) / FOLDER, verb.name, question.arguments, who=who, why=act.why,
            urls=question.lines, wait=WAIT,
        )  # fmt: skip
    from scrapy_spider_suite.operate.executors import agent_calls, all_agents

    call = Invocation(url, True, settings, argparse.Namespace(), crawl)
    asked = agent_calls.make_call(
        "act", verb.name, who, why=act.why, urgent=verb.urgent, arguments=dict(question.arguments)
    )
    heard = asyncio.run(all_agents.ask_crawl(call, asked, question, WAIT))
    return all_agents.merge_answers(heard)
