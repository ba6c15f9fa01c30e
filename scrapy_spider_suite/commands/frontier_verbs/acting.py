"""What the verbs that act on a job have in common: who asks and why, the wait, the answer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from scrapy_spider_suite.operate.actions import Answer, whoami
from scrapy_spider_suite.operate.executors.one_job import ask_job
from scrapy_spider_suite.operate.verb import Invocation

EXITS = {
    1: "the answer is no: nothing was changed",
    3: "no answer in time: it stays asked, and is carried out later",
}
"""Exit codes of the verbs that act."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--why``, ``--who`` and ``--wait``."""
    add_why(parser)
    parser.add_argument(
        "--wait", type=seconds, default=60.0, metavar="S",
        help="seconds to wait for a running crawl's answer (60)",
    )  # fmt: skip


def add_why(parser: argparse.ArgumentParser) -> None:
    """Declare ``--why`` and ``--who``."""
    parser.add_argument(
        "--why", metavar="TEXT", default="", help="a comment, which the audit log keeps"
    )
    parser.add_argument("--who", metavar="NAME", help="who asks (default: user@host)")


def act(
    call: Invocation, verb: str, arguments: Mapping[str, Any], urls: Iterable[str] | None = None
) -> int:
    """Have *verb* carried out on the job of *call*; print the answer, return the exit code."""
    return finish(call, answer(call, verb, arguments, urls))


def answer(
    call: Invocation, verb: str, arguments: Mapping[str, Any], urls: Iterable[str] | None = None
) -> Answer | None:
    """The answer to *verb*; None if there was none in time."""
    options = call.options
    who = options.who or whoami()
    if call.redis is not None:
        from scrapy_spider_suite.operate.executors.all_agents import act_on_agents as ask_agents

        return ask_agents(call, verb, arguments, urls, who)
    return ask_job(
        call.folder(), verb, arguments, who=who, why=options.why, urls=urls, wait=options.wait
    )


def finish(call: Invocation, answer: Answer | None) -> int:
    """Print *answer* and return the exit code."""
    if answer is None:
        wait = call.options.wait
        print(f"scrapy frontier: no answer within {wait:g} s; it stays asked", file=sys.stderr)
        return 3
    say(call, answer)
    return silence(answer) or (0 if answer.ok else 1)


def silence(answer: Answer) -> int:
    """Say which agents have not answered, if any; return the exit code then, else 0."""
    silent = answer.facts.get("silent")
    if not silent:
        return 0
    names = ", ".join(f"{name} ({why})" for name, why in silent.items())
    print(f"scrapy frontier: no answer from {names}; they stay asked, for a day", file=sys.stderr)
    return 3


def say(call: Invocation, answer: Answer) -> None:
    """Print *answer*: a refusal goes to stderr unless JSON is wanted."""
    if call.json:
        print(json.dumps({"ok": answer.ok, "said": answer.said, **answer.facts}))
    else:
        print(answer.said, file=sys.stdout if answer.ok else sys.stderr)


def seconds(text: str) -> float:
    """The type of a number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds")
    return number
