"""Agents of a crawl that do not crawl: members in a real Redis, each with a job, who hear calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from scrapy_spider_suite.cluster.assignment import Member, OwnerTable, fingerprint, load_assignment
from scrapy_spider_suite.cluster.membership import AgentLease, Candidate, Heartbeat
from scrapy_spider_suite.cluster.redis_server import RedisKeys
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.errors import ClusterError
from scrapy_spider_suite.operate.executors.call_executor import CallExecutor, CallListener
from scrapy_spider_suite.operate.executors.one_job import ActionRunner
from scrapy_spider_suite.operate.job_target import job_at_rest
from scrapy_spider_suite.operate.verbs import actions
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile
from scrapy_spider_suite.urls.normalize import host_of
from support.redis_servers import RedisServer

LOOK = 0.02


class Town:
    """Agents with the names and job directories *jobs*, in a thread and an event loop of their own.

    They hold what they own; none of them fetches anything.
    """

    def __init__(
        self, server: RedisServer, jobs: Mapping[str, Path], crawl: str = "web",
        assignment: str = "ring",
    ) -> None:  # fmt: skip
        self.server, self.crawl, self.jobs = server, crawl, dict(jobs)
        self.assignment = load_assignment(assignment)
        terms = f"{assignment!r} ({fingerprint(self.assignment)})"
        self._fixed = {"SUITE_ASSIGNMENT": terms}
        self._registries: dict[str, AgentRegistry] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Town:
        self._thread.start()
        self._do(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def owner(self, url: str) -> str:
        """Who owns *url*."""
        table = OwnerTable.of(self.assignment, [Member(name) for name in self.jobs])
        return table.owner(self.assignment.unit(host_of(url), url))

    @property
    def id(self) -> str:
        """Of the crawl."""
        return next(iter(self._registries.values())).answer.id

    def stop(self, name: str) -> None:
        """The agent *name* is not there any more; it said that it would be back."""
        self._do(self._stop(name))

    def start(self, name: str) -> None:
        """It is back."""
        self._do(self._join(name))

    async def _open(self) -> None:
        for name in self.jobs:
            await self._join(name)
        await self._share()

    async def _join(self, name: str) -> None:
        registry = AgentRegistry(self.server.url, self.crawl, AgentLease(180.0))
        candidate = Candidate(
            name=name,
            job=f"job of {name}",
            folder=f"folder of {name}",
            grace=900.0,
            fixed=self._fixed,
        )
        await registry.join(candidate)
        self._registries[name] = registry
        self._tasks[name] = asyncio.ensure_future(self._live(name, registry))

    async def _share(self) -> None:
        """Let each hold what it owns, as after all hand-overs."""
        first = next(iter(self._registries.values()))
        await first.renew(lambda: _post(first))
        table = OwnerTable.of(self.assignment, first.view.members)
        numbers = [row.number for row in first.view.rows]
        with self.server.client() as client:
            client.set(f"{RedisKeys(self.crawl).prefix}holders", np.array(numbers)[table.owners]
                       .astype(">u2").tobytes())  # fmt: skip

    async def _live(self, name: str, registry: AgentRegistry) -> None:
        folder = self.jobs[name] / FOLDER
        job = JobFile.read(folder)
        assert job is not None
        calling = CallExecutor(folder, job.id, name)
        listener = CallListener(self.server.url, self.crawl, name, calling, pause=LOOK)
        listening = asyncio.ensure_future(listener.run())
        try:
            with ExitStack() as stack:
                site = stack.enter_context(job_at_rest(folder))
                assert site is not None
                operator, beat = ActionRunner(site, job.id, actions()), 0.0
                while True:
                    operator.poll()
                    if time.monotonic() > beat:
                        beat = time.monotonic() + 2
                        with suppress(ClusterError):
                            await registry.renew(lambda: _post(registry))
                    await asyncio.sleep(LOOK)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _stop(self, name: str) -> None:
        task = self._tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        registry = self._registries.pop(name)
        with suppress(ClusterError):
            await registry.announce_stop()
        await registry.close()

    async def _close(self) -> None:
        for name in list(self._tasks):
            await self._stop(name)


def _post(registry: AgentRegistry) -> Heartbeat:
    facts = {"hosts": 5, "pending": 7, "pages": 11, "rate": 1.5, "lag": 2, "paused": False}
    return Heartbeat(registry.answer.epoch, False, 0, 0, 0, facts)
