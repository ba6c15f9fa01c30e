"""An agent of ``scrapy cluster up``: ``scrapy``, with words that its command line does not show.

Everybody on the machine may read a command line, and settings and arguments hold passwords under
any name. So those that ``up`` was given come through a pipe, which leaves nothing behind.

Agents as processes of one command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from scrapy.cmdline import execute

from scrapy_spider_suite.runtime.refusal import ExitCode
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_status import read_status


def told(words: Iterable[str]) -> bytes:
    """*words* as they come through the pipe."""
    return json.dumps(list(words)).encode()


if __name__ == "__main__":
    execute([*sys.argv, *json.loads(sys.stdin.buffer.read())])


_SUMS: Final = ("done", "failed", "pending")
_SETTLED: Final = ("finished", "waiting", "drained")
"""Finish reasons of agents that owe the others nothing, and are owed nothing."""
_LAST: Final = 4_096
"""Bytes of the end of a log in which the last line is looked for."""


class _Agent:
    """The *process* of an agent, whose job directory said *before* what it says of the job.

    Attributes:
        status: what the directory says by now, whoever says it.
        own: what this process has said of itself, last; nothing of what others say later.
        over: whether its end was told.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, before: dict[str, Any]
    ) -> None:
        self.process = process
        self.status = before
        self.own: dict[str, Any] = {}
        self.over = False
        self._folder = folder
        self._before = _writer(before)

    def look(self) -> None:
        """Read what the directory says."""
        found = read_status(self._folder) or {}
        self.status = {**self.status, **found}  # who ended before it could count says no numbers
        # Numbers of processes come again, in a container each time; and another command may have
        # started the agent anew.
        writer = _writer(found)
        if writer[0] == self.process.pid and writer != self._before:
            self.own = found

    @property
    def settled(self) -> bool:
        """Whether it has ended, and what it had is counted here or by others, and not by both."""
        return self.over and self.own.get("finish_reason") in _SETTLED

    @property
    def cut_short(self) -> bool:
        """Whether it has ended without a last word: it says what it did once a second."""
        killed = (self.process.returncode or 0) < 0
        return self.over and not self.own.get("ended") and (killed or bool(self.own))

    def reason(self) -> str:
        """Why it has ended."""
        if self.process.returncode < 0:
            return f"killed by {_signal(-self.process.returncode)}"
        if not self.own:
            return "it did not begin"
        return str(self.own.get("finish_reason") or "no reason given")


class Fleet:
    """Agents whose job directories and logs lie in *folder*.

    Attributes:
        code: the highest exit code so far; of one that was killed, as if it had been interrupted.
    """

    def __init__(self, folder: Path) -> None:
        self.code = 0
        self._folder = folder
        self._agents: dict[str, _Agent] = {}
        self._stopping = False
        self._last = (time.monotonic(), 0)

    def start(self, name: str, command: Sequence[str], said: bytes = b"") -> None:
        """Start the agent *name*, whose input is what is *said*, unless they are to stop by now.

        Raises `OSError`.
        """
        if self._stopping:
            return
        job = self._folder / name / FOLDER
        before = read_status(job) or {}
        with (self._folder / f"{name}.log").open("ab") as log:
            # In a session of its own: Ctrl-C is for the command, which stops all in good order.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
            self._agents[name] = _Agent(process, job, before)
        if (pipe := process.stdin) is not None:
            with suppress(BrokenPipeError), pipe:  # it may have ended: its exit code says why
                pipe.write(said)
        if self._stopping:
            process.terminate()  # all were to stop while it was being started

    @property
    def running(self) -> int:
        """How many run."""
        return sum(not agent.over for agent in self._agents.values())

    def stop(self) -> None:
        """Have all of them end: in good order when called once, in a hurry when called again."""
        self._stopping = True
        for agent in self._agents.values():
            if agent.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(agent.process.pid, signal.SIGTERM)

    def ended(self) -> Iterator[dict[str, Any]]:
        """What there is to say of those that have ended since the last call."""
        for name, agent in self._agents.items():
            if agent.over or (code := agent.process.poll()) is None:
                continue
            agent.over = True
            agent.look()
            code = int(ExitCode.INTERRUPTED) if code < 0 else code
            self.code = max(self.code, code)
            yield {
                "agent": name, "exit_code": code, "finish_reason": agent.reason(),
                "log": f"; {self._folder / name}.log ends: {self._last_line(name)}" if code else "",
            }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """How all of them do, added up.

        Pages that were *fetched* stay with who fetched them; what is done, failed and pending goes
        with its hosts. Until a hand-over is through both sides have it, and what is on its way as a
        letter is counted by nobody: that sum is *exact* when all have ended in good order.
        """
        agents = self._agents.values()
        for agent in agents:
            agent.look()
        fetched = sum(_number(agent.own.get("fetched")) for agent in agents)
        (then, before), now = self._last, time.monotonic()
        self._last = (now, fetched)
        return {
            "time": time.strftime("%H:%M:%S"), "agents": len(agents), "running": self.running,
            "fetched": fetched, "rate": round((fetched - before) / max(0.001, now - then), 2),
            **{key: sum(_number(agent.status.get(key)) for agent in agents) for key in _SUMS},
            "exact": all(agent.settled for agent in agents),
            "cut_short": sum(agent.cut_short for agent in agents),
            "stopping": "; stopping" if self._stopping else "",
        }  # fmt: skip

    def _last_line(self, name: str) -> str:
        with (self._folder / f"{name}.log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST))
            lines = log.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


def _writer(status: dict[str, Any]) -> tuple[object, object]:
    return status.get("process"), status.get("started")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real time have no names
        return f"signal {number}"


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0
