"""``scrapy cluster owner``: which agent a host, or a URL, belongs to."""

from __future__ import annotations

import argparse

from scrapy.exceptions import UsageError

from scrapy_spider_suite.cluster.assignment import OwnerTable
from scrapy_spider_suite.cluster.registry import ClusterOverview
from scrapy_spider_suite.commands.cluster_verbs.listing import state_of
from scrapy_spider_suite.operate.executors import all_agents
from scrapy_spider_suite.operate.executors.all_agents import assignment_in
from scrapy_spider_suite.operate.verb import Invocation, Row, Verb, host_argument
from scrapy_spider_suite.urls.normalize import host_of, normalize


def _subject(text: str) -> str:
    if "://" not in text:
        name = host_argument(text)
        return f"[{name}]" if ":" in name and not name.startswith("[") else name
    url = normalize(text)
    if url is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a host, or a URL of the web")
    return url


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="HOST|URL", type=_subject)


def _run(call: Invocation) -> int:
    call.facts(all_agents.run_async(_look(call)))
    return 0


async def _look(call: Invocation) -> Row:
    async with all_agents.connect(call) as line:
        return facts(line.overview, call.options.subject)


def facts(overview: ClusterOverview, subject: str) -> Row:
    """Who should have *subject*, a host or a URL, and who has it; None is nobody.

    Raises `ClusterError`: that cannot be told here; `UsageError`: a host has several.
    """
    assignment = assignment_in(overview)
    url = subject if "://" in subject else f"https://{subject}/"
    if url != subject and not assignment.by_host:
        raise UsageError(f"the URLs of {subject} are with several agents: give one of them",
                         print_help=False)  # fmt: skip
    name = host_of(url)
    unit = assignment.unit(name, url)
    members = overview.view.members
    owner = OwnerTable.of(assignment, members).owner(unit) if members else None
    holder = overview.view.numbers.get(int(overview.holders.holders[unit]))
    return {
        "host": name, "unit": unit, "owner": owner,
        "holder": None if holder is None else holder.name,
        "state": None if holder is None else state_of(holder, overview),
        "job": None if holder is None else overview.facts.get(holder.name, {}).get("job"),
    }  # fmt: skip


VERBS = (
    Verb(
        "owner", "who owns a host or a URL, and who has it at this moment", _run, _options,
        "HOST|URL",
        about=(
            "The owner is the agent that should have it, the holder the one that may fetch it.\n"
            "While both are not the same, it is on its way, or waits for an agent that is away."
        ),
        examples=("owner example.com -j redis://10.0.0.1/0",),
    ),
)  # fmt: skip
