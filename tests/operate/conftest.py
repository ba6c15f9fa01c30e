"""A Redis, and an agent in it that hears calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.calling_agents import InScene, scenes
from support.redis_servers import RedisServer


@pytest.fixture
def in_scene(redis_server: RedisServer, tmp_path: Path) -> InScene:
    """Run a coroutine function with an agent that listens and an empty Redis."""
    return scenes(redis_server, tmp_path)
