"""A town of agents in one Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.agent_town import InTown, towns
from support.redis_servers import RedisServer


@pytest.fixture
def in_town(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[InTown]:
    """Run a coroutine function in an empty town."""
    with towns(redis_server, monkeypatch) as run:
        yield run
