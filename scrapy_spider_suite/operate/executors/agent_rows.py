"""Rows that the agents of a crawl answer a look with, for views."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scrapy.settings import Settings

from scrapy_spider_suite.cluster.membership import MemberState
from scrapy_spider_suite.operate.actions import whoami
from scrapy_spider_suite.operate.executors import all_agents
from scrapy_spider_suite.operate.executors.agent_calls import make_call
from scrapy_spider_suite.operate.verb import Invocation

_WAIT: Final = 10.0  # seconds for an answer


def ask_agents(
    url: str, crawl: str, verb: str, words: Sequence[str]
) -> Mapping[str, list[dict[str, Any]]]:
    """Return the rows of each agent that answers in time. Raises `ClusterError`."""
    call = Invocation(url, True, Settings(), argparse.Namespace(), crawl)

    async def ask() -> all_agents.AgentAnswers:
        async with all_agents.connect(call) as connection:
            rows = {
                row.name: row for row in connection.overview.view.rows
                if row.state in (MemberState.ACTIVE, MemberState.LEAVING)
                and not row.missing(connection.overview.now)
            }  # fmt: skip
            asked = make_call("look", verb, whoami(), words=list(words))
            return await all_agents.ask(connection, asked, rows, _WAIT)

    heard = asyncio.run(ask())
    return {
        name: [row for line in reply.lines if isinstance(row := _parsed(line), dict)]
        for name, reply in sorted(heard.replies.items()) if reply.code == 0
    }  # fmt: skip


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
