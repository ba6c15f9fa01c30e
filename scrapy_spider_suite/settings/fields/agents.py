"""Other processes that crawl with this one: which part each has, and how they meet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import FIXED, FREE, setting
from scrapy_spider_suite.settings.scrapyredis import RedisUrl
from scrapy_spider_suite.settings.shared import (
    Secret,
    address,
    assignment,
    grace,
    redis_or_file,
    secret,
)


@dataclass(frozen=True, kw_only=True)
class Agents:
    """Other processes that crawl with this one: which part each has, and how they meet."""

    cluster: Literal["", "peers", "lan"] = setting(
        v.choice("", "peers", "lan"), "", FIXED,
        "Whether this process is one agent of several that are one crawl: 'peers' meet in the "
        "Redis of SUITE_REDIS_URL under SUITE_CRAWL_NAME, and hand hosts to each other; 'lan' are "
        "those of SUITE_AGENTS, and exchange URLs over UDP, without Redis. Empty: it crawls alone.",
    )
    assignment: str = setting(
        assignment(), "ring", FIXED,
        "Which agent has a URL: 'ring' by consistent hashing of its host, 'url-sum' and "
        "'host-parity' as KSpider and Tarantula, or the import path of a class.",
    )
    agent_grace: float | None = setting(
        grace(), 900.0, FIXED,
        "How long the hosts of an agent that is gone wait for it before others take them, in "
        "seconds, or 'forever'. All agents have the same.",
    )
    agent_weight: float = setting(
        v.number(0.1, 10.0), 1.0, FREE,
        "The part of the crawl that this agent has, beside those of the others.",
    )
    agent_address: str = setting(
        address(), "", FREE,
        "Where other agents reach this one: an address, or address:port. Empty: the address from "
        "which it reaches Redis, and a port that is free.",
    )
    agents: tuple[str, ...] = setting(
        v.texts(), (), FREE,
        "All agents of a 'lan', this one too, each as name=address:port.",
    )
    cluster_key: Secret | None = setting(
        secret(), None, FREE,
        "What the agents of a crawl know and nobody else does, 16 characters or more: they "
        "authenticate each other by it. 'lan' needs one; 'peers' draw one, and keep it in Redis.",
    )
    shared_seeds: bool = setting(
        v.boolean(), True, FREE,
        "Every agent is given the same seeds: each takes its own and leaves the others alone. "
        "False: an agent sends what belongs to others on to them.",
    )
    handover_dir: Path | None = setting(
        v.folder(), None, FREE,
        "A folder that all agents share, through which hosts are handed over; empty: over TCP, to "
        "SUITE_AGENT_ADDRESS.",
    )
    handover_rate: int = setting(
        v.size(), 16 << 20, FREE,
        "Bytes by second that an agent hands over at most; 0 has no bound.",
    )
    outbox_rows: int = setting(
        v.integer(1, unit="rows"), 10_000_000, FREE,
        "The crawl pauses while so many rows wait for other agents, each a request or up to 50 "
        "links of a page, until they have taken a tenth; a row takes 0.1 to 0.8 KB of the disk.",
    )
    ledger: RedisUrl | Path | None = setting(
        redis_or_file(), None, FREE,
        "Where this crawl and others keep one politeness for hosts and addresses that they share: "
        "the URL of a Redis, or a file for the processes of one machine. Empty: it has its own.",
    )
