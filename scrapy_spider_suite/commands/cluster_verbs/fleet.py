"""Agents as processes of one command."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite.guards.exitcodes import ExitCode
from scrapy_spider_suite.guards.status import read_status
from scrapy_spider_suite.job.directory import FOLDER

_SUMS: Final = ("done", "failed", "pending")
_LAST: Final = 4_096
"""Bytes of the end of a log in which the last line is looked for."""


class Fleet:
    """Agents whose job directories and logs lie in *folder*.

    Attributes:
        code: the highest exit code so far; of one that was killed, as if it had been interrupted.
    """

    def __init__(self, folder: Path) -> None:
        self.code = 0
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._over: set[str] = set()
        self._stopping = False
        self._began = time.time()
        self._last: tuple[float, int] | None = None

    def start(self, name: str, command: Sequence[str], said: bytes = b"") -> None:
        """Start the agent *name*, whose input is what is *said*, unless they are to stop by now.

        Raises `OSError`.
        """
        if self._stopping:
            return
        with (self._folder / f"{name}.log").open("ab") as log:
            # In a session of its own: Ctrl-C is for the command, which stops all in good order.
            self._processes[name] = process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        if (pipe := process.stdin) is not None:
            with suppress(BrokenPipeError), pipe:  # it may have ended: its exit code says why
                pipe.write(said)
        if self._stopping:
            process.terminate()  # all were to stop while it was being started

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._processes) - len(self._over)

    def stop(self) -> None:
        """Have all of them end: in good order when called once, in a hurry when called again."""
        self._stopping = True
        for process in self._processes.values():
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)

    def ended(self) -> Iterator[dict[str, Any]]:
        """What there is to say of those that have ended since the last call."""
        for name, process in self._processes.items():
            if name in self._over or (code := process.poll()) is None:
                continue
            self._over.add(name)
            code = int(ExitCode.INTERRUPTED) if code < 0 else code
            self.code = max(self.code, code)
            yield {
                "agent": name, "exit_code": code, "finish_reason": self._reason(name),
                "log": f"; {self._folder / name}.log ends: {self._last_line(name)}" if code else "",
            }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """How all of them do, added up."""
        found = [self._status(name) for name in self._processes]
        sums = {key: sum(_number(status.get(key)) for status in found) for key in _SUMS}
        # What is done goes from agent to agent with its hosts; what was fetched does not.
        fetched = sum(_number(each.get("fetched")) for each in found if self._is_own(each))
        now = time.monotonic()
        then, before = self._last or (now - 1, fetched)
        self._last = (now, fetched)
        rate = (fetched - before) / max(0.001, now - then)
        return {
            "time": time.strftime("%H:%M:%S"), "agents": len(self._processes),
            "running": self.running, "fetched": fetched, **sums, "rate": round(rate, 2),
            "stopping": "; stopping" if self._stopping else "",
        }  # fmt: skip

    def _status(self, name: str) -> dict[str, Any]:
        return read_status(self._folder / name / FOLDER) or {}

    def _reason(self, name: str) -> str:
        status = self._status(name)
        own = self._is_own(status)
        return str(status.get("finish_reason") or "no reason given") if own else "it did not begin"

    def _is_own(self, status: dict[str, Any]) -> bool:
        """Whether *status* is not that of a process before."""
        return _number(status.get("started")) >= self._began - 1

    def _last_line(self, name: str) -> str:
        with (self._folder / f"{name}.log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST))
            lines = log.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0
