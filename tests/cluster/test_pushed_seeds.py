"""When a crawl whose seeds are pushed has waited for more long enough; without a crawl."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.cluster import pushed_seeds
from scrapy_spider_suite.cluster.pushed_seeds import PushedSeeds, SeedBatch
from scrapy_spider_suite.settings.scrapy_redis import PushedSeedsKey
from scrapy_spider_suite.settings.values import RedisUrl
from scrapy_spider_suite.store.interface import MemoryKV

IDLE = 60


class Source:
    """Messages of which no request is made, one at a time; with the shape of `PushedList`."""

    def __init__(self) -> None:
        self.messages: Iterator[bytes] = iter(())

    async def next_batch(self, count: int) -> SeedBatch | None:
        """The next one, if there is one."""
        message = next(self.messages, None)
        return None if message is None else SeedBatch(message, [message])

    async def remove(self, mark: bytes) -> None:
        """It is gone already."""

    async def count(self, key: str) -> int:
        """Nothing waits there."""
        return 0


def crawl_without_requests(clock: list[float]) -> Any:
    """The core of a crawl in which nothing is ever pending, at the last time of *clock*."""
    kvs: dict[str, MemoryKV] = {}
    return SimpleNamespace(
        crawler=get_crawler(), frontier=SimpleNamespace(pending=0), job=None, normalizer=None,
        now=lambda: clock[-1], pushed=False, settings=SimpleNamespace(redis_url=RedisUrl(
            "redis://a.example"
        )),
        stopping=False, engine=SimpleNamespace(flush=lambda: None),
        seeds=SimpleNamespace(awaited=True), wake=lambda: None,
        store=SimpleNamespace(kv=lambda name: kvs.setdefault(name, MemoryKV()), backlog=0),
    )  # fmt: skip


def test_messages_are_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing waits here by the time of the next look: they were for other agents, none
    were seeds, or their pages came at once."""
    clock, source = [0.0], Source()
    crawl = crawl_without_requests(clock)
    monkeypatch.setattr(pushed_seeds, "PushedList", lambda *_: source)
    key = PushedSeedsKey("seeds", "list", 1, "utf-8", decoded=False, max_idle=IDLE, requests="")
    seeds = PushedSeeds(crawl, key, lambda planted: 0)
    seeds._read = lambda message: None  # the spider's own
    awaits = []

    async def look(now: float, *messages: bytes) -> None:
        clock.append(now)
        source.messages = iter(messages)
        await seeds._read_batch()
        seeds._check_idleness()
        awaits.append(crawl.seeds.awaited)

    async def test() -> None:
        await look(50.0, b"one")
        await look(109.0)
        await look(110.0)
        await look(130.0, b"two")

    asyncio.run(test())
    assert awaits == [True, True, False, True]
