"""Stand-ins for an `Agent`, for tests of its parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from scrapy_spider_suite.cluster.membership import Heartbeat, Ownership
from scrapy_spider_suite.store.interface import KV, MemoryKV


async def _nothing() -> None:
    """Nothing is to be written."""


def stub_agent(
    ownership: Ownership, *, incarnation: int = 1, job_id: str = "job", kv: KV | None = None,
    written: Callable[[], Awaitable[None]] = _nothing,
    heartbeat: Callable[[], Heartbeat] = lambda: Heartbeat(1, True, 0, 0, 0),
    over: Callable[[str], object] = print,
    send_notice: Callable[[str, Sequence[Any]], bool] = lambda to, message: True,
    set_receiving: Callable[[bool], object] = print, **more: Any,
) -> Any:  # fmt: skip
    """An agent without a crawl; *more* is its crawl's."""
    return SimpleNamespace(
        name=ownership.name, ownership=ownership, incarnation=incarnation,
        job=SimpleNamespace(file=SimpleNamespace(id=job_id)), kv=MemoryKV() if kv is None else kv,
        write_durably=written, heartbeat=heartbeat, changed=lambda: None, over=over,
        send_notice=send_notice, set_receiving=set_receiving, at_rest=True,
        crawl=SimpleNamespace(now=lambda: 0.0, wake=lambda: None, **more),
    )  # fmt: skip
