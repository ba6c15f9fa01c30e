"""A start of an agent that is refused: what the line says, and the next start, which does that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.agent_town import candidate
from support.crawls import loopback_settings
from support.fleet import OPEN, Agent, Fleet
from support.redis_servers import RedisServer, free_port
from support.running_crawl import until
from support.stub_agents import stub_agent

from scrapy_spider_suite.cluster import peers
from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.cluster.membership import AgentLease, Candidate, Ownership
from scrapy_spider_suite.cluster.redis_server import server_place
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.errors import JobError, RegistryError
from scrapy_spider_suite.runtime.refusal import ExitCode
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader

LATE = 100.0
"""Seconds that anything may take on a busy machine."""
COMMON = loopback_settings(
    ROBOTSTXT_OBEY=False, SUITE_WHEN_DONE="wait", SUITE_CRAWL_NAME="refused", SUITE_IP_DELAY=0,
    SUITE_IP_CONCURRENCY=0,
)
OTHER: dict[str, Any] = {
    "SUITE_ORDER": "bottom-up", "SUITE_SIEVE_BITS": "64", "SUITE_SEEN_STORE": "sieve",
    "SUITE_NORMAL_FORM": ["tracking"], "SUITE_WINDOW": "leaf", "SUITE_SITEMAPS": "all",
    "SUITE_LINK_STATS": ["links", "hosts"], "SUITE_REVISIT": "adaptive", "SUITE_PAGE_ITEMS": True,
    "SUITE_COMPARE_PAGES": ["payload", "structure", "near"], "SUITE_ITEMS_DIR": "items",
    "SUITE_PACKS_DIR": "packs", "SUITE_GUESS_URLS": "both",
}  # fmt: skip
"""What may leave something in a job, too."""


def takes_part(agent: Agent) -> None:
    """Wait until *agent* crawls."""
    until(lambda: OPEN in agent.news() or _code(agent) is not None, LATE)
    assert _code(agent) is None, agent.log[-2000:]


def refused(agent: Agent, words: str) -> None:
    """Wait until *agent* has been refused with a line that has *words*."""
    assert agent.process is not None
    assert agent.process.wait(LATE) == ExitCode.REFUSED
    assert words in agent.log.splitlines()[-1]


def has_met(job: Path) -> bool:
    """Whether *job* knows that its agent has met others."""
    try:
        with StoreReader(job / FOLDER) as reader:
            return reader.store.kv("agent").get(b"met") is not None
    except JobError:
        return False  # it is being opened


def _code(agent: Agent) -> int | None:
    assert agent.process is not None
    return agent.process.poll()


@pytest.mark.slow
def test_other_fixed_settings(tmp_path: Path) -> None:
    """They are set right, and it takes part by the same directory, to which they then belong."""
    redis = RedisServer(tmp_path / "redis")
    common = {**COMMON, "SUITE_CLUSTER": "peers", "SUITE_REDIS_URL": redis.url}
    more: dict[str, Any] = {}
    with redis, Fleet(tmp_path, lambda name: {**common, **more}, {}) as fleet:
        takes_part(fleet.start("a"))
        more = OTHER
        refused(fleet.start("b"), "same fixed settings: SUITE_NORMAL_FORM is ['tracking'] here")
        more = {"SUITE_SEEN_STORE": "sieve"}
        takes_part(fleet.start("b"))
        fleet.stop("b", LATE)
        more = OTHER
        refused(fleet.start("b"), "cannot change this once it has begun: SUITE_")


@pytest.mark.slow
def test_another_list(tmp_path: Path) -> None:
    """Of agents of a LAN: fixed settings, and the list itself, which is all that it has kept."""
    ports = {name: free_port() for name in "abc"}
    listed = [f"{name}=127.0.0.1:{port}" for name, port in ports.items()]
    common = {**COMMON, "SUITE_CLUSTER": "lan", "SUITE_CLUSTER_KEY": "sixteen bytes or more"}
    right = {"SUITE_AGENTS": listed[:2]}
    more: dict[str, Any] = right
    with Fleet(tmp_path, lambda name: {**common, **more}, {}) as fleet:
        takes_part(fleet.start("a"))
        more = {**OTHER, "SUITE_AGENTS": listed}
        refused(fleet.start("b"), "another list")
        more = right
        job = fleet.start("b").job
        until(lambda: has_met(job), LATE)
        fleet.stop("b", LATE)
        more = {"SUITE_AGENTS": listed}
        refused(fleet.start("b"), "SUITE_AGENTS: expected a, b, the agents that the job was begun")


def test_redis_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is named by which an agent looks for it, and no password is."""
    monkeypatch.setattr(peers, "PATIENCE", 0.0)
    shares = Ownership(load_assignment("ring"), "a")

    class Here(peers.MemberHeartbeat):
        async def candidate(self) -> Candidate:
            return candidate("a")

    async def test() -> None:
        registry = AgentRegistry(
            f"redis://:secret@127.0.0.1:{free_port()}/1", "web", AgentLease(60.0)
        )
        with pytest.raises(RegistryError, match=r"^SUITE_REDIS_URL: Redis at 127\.") as caught:
            await Here(stub_agent(shares), registry).open()
        assert (caught.value.kind, "secret" in str(caught.value)) == ("away", False)
        await registry.close()

    asyncio.run(test())


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["SUITE_REDIS_URL", "SUITE_RATE_LEDGER"])
def test_a_wrong_password(setting: str, tmp_path: Path) -> None:
    """The setting is named whose URL has it, where agents go by a ledger elsewhere, too."""
    with RedisServer(tmp_path / "redis", tcp=True) as redis, redis.client() as client:
        client.config_set("requirepass", "right")
        wrong, right = (redis.url.replace("//", f"//:{each}@") for each in ("wrong1", "right"))
        urls = {"SUITE_REDIS_URL": right, "SUITE_RATE_LEDGER": str(tmp_path / "ledger")}
        common = {**COMMON, "SUITE_CLUSTER": "peers", **urls, setting: wrong}
        with Fleet(tmp_path, lambda name: common, {}) as fleet:
            agent = fleet.start("a")
            refused(agent, f"CRITICAL: {setting}: Redis at {server_place(redis.url)} refuses: ")
            assert "wrong1" not in agent.log
