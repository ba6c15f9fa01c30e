"""An agent in a real Redis that listens for calls, and somebody who asks, for tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from scrapy_spider_suite.errors import AgentCallError
from scrapy_spider_suite.operate.actions import new_id
from scrapy_spider_suite.operate.executors.agent_calls import (
    AgentCall,
    AgentReply,
    CallKeys,
    CallSender,
)
from scrapy_spider_suite.operate.executors.call_executor import CallListener
from support.redis_servers import RedisServer

CRAWL = "web"
KEYS = CallKeys(CRAWL)


def a_call(**given: Any) -> AgentCall:
    """A call that is made now."""
    now = time.time()
    known = {"id": new_id(urgent=False), "kind": "act", "verb": "pause", "who": "me"}
    return AgentCall(**({"when": now, "until": now + 60, **known} | given))


class Doer:
    """Does what is asked; *done* has it, each as often as it was done."""

    def __init__(self, folder: Path) -> None:
        self.done: list[AgentCall] = []
        self.lists: dict[str, bytes] = {}
        self.folder = folder
        self.wait = asyncio.Event()
        self.wait.set()

    def list_path(self, call: AgentCall) -> Path | None:
        """One file for each call."""
        return self.folder / call.id

    async def is_new(self, call: AgentCall) -> bool:
        """Whether it was never done."""
        return call not in self.done

    async def carry_out(self, call: AgentCall) -> AgentReply:
        """Remember it."""
        await self.wait.wait()
        if call.verb == "unknown":
            raise AgentCallError("nobody does that")
        if call.verb == "fault":
            raise ZeroDivisionError("a fault")
        self.done.append(call)
        if call.pieces:
            self.lists[call.id] = (self.folder / call.id).read_bytes()
        number = {"number": len(self.done)}
        return AgentReply(id=call.id, agent="a", code=0, said="done", facts=number)

    def close(self) -> None:
        """There is nothing to close."""


class Scene:
    """An agent that listens, and somebody who asks."""

    def __init__(self, server: RedisServer, client: Any, folder: Path) -> None:
        self.server, self.client = server, client
        self.doer = Doer(folder)
        self.caller = CallSender(server.url, CRAWL)
        self.start()

    def start(self) -> None:
        """A new process of the agent."""
        self.listener = CallListener(self.server.url, CRAWL, "a", self.doer, pause=0.01)
        self.task = asyncio.ensure_future(self.listener.run())

    async def kill(self) -> None:
        """The process is gone."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def answer(self, id: str, agent: str = "a") -> AgentReply:
        """The answer to a call, once it is there."""
        async with asyncio.timeout(60):
            while True:
                if found := await self.caller.answers(id, [agent]):
                    return found[agent]
                await asyncio.sleep(0.01)

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(60):
            while not met():
                await asyncio.sleep(0.01)


InScene = Callable[[Callable[[Scene], Awaitable[None]]], None]


def scenes(server: RedisServer, folder: Path) -> InScene:
    """What runs a coroutine function with an agent and an empty Redis."""

    async def play(test: Callable[[Scene], Awaitable[None]], client: Any) -> None:
        scene = Scene(server, client, folder)
        try:
            await test(scene)
        finally:
            await scene.kill()
            await scene.caller.close()

    def run(test: Callable[[Scene], Awaitable[None]]) -> None:
        server.flush()
        with server.client() as client:
            asyncio.run(play(test, client))

    return run
