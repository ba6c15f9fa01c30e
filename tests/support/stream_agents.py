"""Agents whose messages go through a real Redis, for tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scrapy_spider_suite.cluster.transports.redis_streams import BOUNDS, RedisStreams, StreamLimits
from support.message_transport_contract import Agents
from support.redis_servers import RedisServer

MEMBERS = "suite:{crawl}:members"
INBOX, RECEIPTS = "suite:{crawl}:inbox:b", "suite:{crawl}:receipts:a"


class StreamsAgents(Agents):
    """Agents whose messages are small, and that look soon whether they still lie there."""

    limits: dict[str, Any] = {}  # noqa: RUF012 - read only

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        redis_server.flush()
        self.server = redis_server
        self.processes: dict[str, int] = {}

    def rows(self) -> dict[str, str]:
        """The processes that have started, as Redis knows them."""
        return {
            name: json.dumps({"incarnation": f"{number:016x}", "state": "active", "ends": 0})
            for name, number in self.processes.items()
        }

    def enroll(self) -> None:
        """Have Redis know them."""
        with self.server.client() as client:
            client.hset(MEMBERS, mapping=self.rows())

    def lose(self) -> None:
        """Redis loses everything, and the agents join again."""
        with self.server.client() as client, client.pipeline() as pipe:
            pipe.flushall()
            pipe.hset(MEMBERS, mapping=self.rows())
            pipe.execute()

    def open(self, name: str, incarnation: int) -> RedisStreams:
        """With times that are short."""
        self.processes[name] = incarnation
        self.enroll()
        streams = RedisStreams(
            self.server.url, "crawl", name, incarnation,
            StreamLimits(check=0.2, timeout=2.0, block=0.5, **{"window": 24} | self.limits),
        )  # fmt: skip
        streams.bounds = BOUNDS._replace(packed=1_400)
        return streams
