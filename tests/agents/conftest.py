"""One Redis for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from membership import InTown, towns
from redis_servers import RedisServer
from scenes import InScene, scenes


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that forgets; tests that kill or pause one start their own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def in_town(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[InTown]:
    """Run a coroutine function in an empty town."""
    with towns(redis_server, monkeypatch) as run:
        yield run


@pytest.fixture
def in_scene(redis_server: RedisServer, tmp_path: Path) -> InScene:
    """Run a coroutine function with an agent that listens and an empty Redis."""
    return scenes(redis_server, tmp_path)
