"""Rows that the agents of a crawl answer a look with, for views."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from typing import Final

from scrapy.settings import Settings

from scrapy_spider_suite.operate.actions import whoami
from scrapy_spider_suite.operate.cluster_view import AgentRows
from scrapy_spider_suite.operate.executors import all_agents
from scrapy_spider_suite.operate.executors.agent_calls import make_call
from scrapy_spider_suite.operate.verb import Invocation, Question

_WAIT: Final = 30.0  # seconds for an answer


def ask_agents(url: str, crawl: str, verb: str, words: Sequence[str]) -> AgentRows:
    """Ask the agents that take part in *crawl* to look. Raises `ClusterError`."""
    call = Invocation(url, True, Settings(), argparse.Namespace(), crawl)
    asked = make_call("look", verb, whoami(), words=list(words))
    heard = asyncio.run(all_agents.ask_crawl(call, asked, Question(), _WAIT))
    found = AgentRows({}, dict(heard.silent))
    for name, reply in sorted(heard.replies.items()):
        if reply.code:
            found.missing[name] = reply.said.removeprefix("scrapy frontier: ") or "no answer"
        else:
            rows = map(_parsed, reply.lines)
            found.rows[name] = [row for row in rows if isinstance(row, dict)]
    return found


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
