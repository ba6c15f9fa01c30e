"""A user of Redis with the rights of the docs, and no others, is enough for a crawl."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import Chaos, Plan, ground, name_of
from support.polite_crawls import Size

DOCS = Path(__file__).parents[2] / "docs" / "cluster.md"
PASSWORD = "a password: with /signs"
PLAN = Plan(
    size=Size(hosts=8, addresses=4, pages=6, host_delay=0.3, ip_delay=0.02), agents=2, seconds=0.0,
    grace="forever",
)  # fmt: skip


def rights() -> list[str]:
    """The words of the docs."""
    [line] = re.findall(r"^ACL SETUSER (.*)$", DOCS.read_text(), re.MULTILINE)
    return [word.replace(">PASSWORD", f">{PASSWORD}") for word in line.split()]


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["peers", "shared-queue"])
def test_its_rights_are_enough(transport: str, tmp_path: Path) -> None:
    """Two agents crawl, and nothing is refused; none is idle either."""
    plan = replace(PLAN, transport=transport)
    with ground(plan, tmp_path) as here:
        assert here.redis is not None
        with here.redis.client() as client:
            client.execute_command("ACL", "SETUSER", *rights())
            client.execute_command("ACL", "SETUSER", "default", "-@all", "+acl", "+ping")
        given = here.fleet.settings
        port = here.redis.url.rpartition(":")[2]
        url = f"redis://suite:a%20password%3A%20with%20%2Fsigns@127.0.0.1:{port}"
        here.fleet.settings = lambda name: {**given(name), "SUITE_REDIS_URL": url}
        chaos = Chaos(plan, here)
        chaos.begin()
        here.fleet.start(name_of(2))
        assert list(chaos.go_on().broken()) == []
        logs = "".join(agent.log for agent in here.fleet.agents.values())
        assert "NOPERM" not in logs
