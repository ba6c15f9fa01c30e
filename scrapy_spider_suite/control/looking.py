"""Processes of an agent that look at its job for others, beside the crawl.

A process is started when somebody asks, and stays for a while: the next one is answered at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from subprocess import Popen
from typing import Any, Final

import msgspec

from scrapy_spider_suite.runtime.helper_processes import start_helper

MODULE: Final = "scrapy_spider_suite.commands.reading"
OUT: Final = 8 << 20
"""Characters of what was found that are handed on."""
_MOST: Final = 2
"""Processes at a time: each reads as much of the disk as it can."""
_IDLE: Final = 60.0
"""Seconds after which one that nobody needs ends."""
_LINE: Final = 8 * OUT
"""Characters of an answer, in which each of those above may be escaped."""


class Seen(msgspec.Struct):
    """What a process answers."""

    code: int
    lines: list[str]
    said: str
    cut: bool = False


class Lookers:
    """The processes of one agent."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_MOST)
        self._idle: list[Popen[str]] = []
        self._ends: dict[int, asyncio.TimerHandle] = {}

    async def ask(self, asked: Any, seconds: float) -> Seen:
        """Have a process look, for some *seconds* at most."""
        text = msgspec.json.encode(asked).decode()
        async with self._places:
            process = self._idle.pop() if self._idle else None
            if process is None:
                process = await asyncio.to_thread(start_helper, MODULE, talks=True, project=True)
            elif process.pid in self._ends:
                self._ends.pop(process.pid).cancel()
            return await self._asked(process, text, seconds)

    async def _asked(self, process: Popen[str], text: str, seconds: float) -> Seen:
        loop, fine = asyncio.get_running_loop(), False
        end = loop.call_later(max(1.0, seconds), process.kill)
        try:
            seen = await asyncio.to_thread(_talk, process, text)
            fine = seen is not None
        finally:
            end.cancel()
            if fine:
                self._idle.append(process)
                self._ends[process.pid] = loop.call_later(_IDLE, self._let_go, process)
            else:
                _end(process)
        return seen or Seen(2, [], "it took too long, or failed: nothing was found out")

    def _let_go(self, process: Popen[str]) -> None:
        self._ends.pop(process.pid, None)
        if process in self._idle:
            self._idle.remove(process)
            _end(process)

    def close(self) -> None:
        """End them all."""
        for process in list(self._idle):
            if process.pid in self._ends:
                self._ends[process.pid].cancel()
            self._let_go(process)


def _talk(process: Popen[str], text: str) -> Seen | None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError, ValueError):
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        return msgspec.json.decode(process.stdout.readline(_LINE), type=Seen)
    return None


def _end(process: Popen[str]) -> None:
    process.kill()
    with suppress(OSError), process:  # a look that is under way in a thread finds its pipe closed
        pass
