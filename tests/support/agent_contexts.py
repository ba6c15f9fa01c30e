"""Contexts of agents for tests of their parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from scrapy_spider_suite.cluster.membership import Heartbeat
from scrapy_spider_suite.cluster.mode import AgentContext
from scrapy_spider_suite.cluster.ownership import Ownership
from scrapy_spider_suite.store.interface import KV, MemoryKV


def agent_context(
    ownership: Ownership, *, incarnation: int = 1, job_id: str = "job", kv: KV | None = None,
    written: Callable[[], Awaitable[None]] | None = None,
    heartbeat: Callable[[], Heartbeat] = lambda: Heartbeat(1, True, 0, 0, 0),
    over: Callable[[str], object] = print,
) -> AgentContext:  # fmt: skip
    """The context of an agent that is not there."""

    async def quiet() -> None:
        """Nothing is to be written."""

    return AgentContext(
        ownership, incarnation, job_id, MemoryKV() if kv is None else kv, written or quiet,
        heartbeat, lambda: None, over,  # type: ignore[arg-type]
    )  # fmt: skip
