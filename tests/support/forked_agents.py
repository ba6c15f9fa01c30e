"""The agents of ``scrapy cluster up`` as forks of that command: a start by import takes seconds.

The code that ties an agent to its command is run in the fork as it is; then the fork goes on as
the agent, instead of a new program.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, BinaryIO, NoReturn

from scrapy_spider_suite.cluster import local_redis
from scrapy_spider_suite.operate import fleet
from support import forks

_AGENT = """
import json, sys
from scrapy.cmdline import execute
execute([*sys.argv, *json.loads(sys.stdin.buffer.read())])
"""


class ForkedAgent:
    """An agent; its methods are those of `subprocess.Popen`."""

    def __init__(
        self, command: Sequence[str], *, pass_fds: Collection[int], stdout: BinaryIO,
        stderr: BinaryIO, **_: Any,
    ) -> None:  # fmt: skip
        self.returncode: int | None = None
        said, saying = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                _become(command, [said, stdout.fileno(), stderr.fileno()], pass_fds)
            finally:
                os._exit(70)
        os.close(said)
        self.stdin = open(saying, "wb")  # noqa: SIM115

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def terminate(self) -> None:
        """Send it SIGTERM."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


def install() -> None:
    """Let the ``up`` of this process fork for its agents."""

    def start(command: Sequence[str], **options: Any) -> Any:
        kind = ForkedAgent if fleet.MODULE in command else subprocess.Popen
        return kind(command, **options)

    vars(local_redis)["subprocess"] = SimpleNamespace(
        Popen=start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )


def _become(command: Sequence[str], files: list[int], kept: Collection[int]) -> NoReturn:
    """Be what *command* would start."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *kept}:
        with suppress(OSError):
            os.close(file)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    # Python, the code that ties it with its arguments, and the words for Python of the agent.
    _, _, tying, parent, *program = command
    goes_on: list[Sequence[str]] = []
    begin = os.execv
    vars(os)["execv"] = lambda path, words: goes_on.append(words)
    sys.argv = ["-c", parent, *program]
    exec(tying, {"__name__": "__main__"})
    os.execv = begin
    if not goes_on:
        os._exit(0)
    sys.argv = [fleet.__file__, *program[3:]]
    forks._run(_AGENT)
