"""What is special in a ledger in Redis, and in one in a file; and that they say the same."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.agent_town import WORLD
from support.ledgers import AHEAD, HOLD, WINDOW, A, B, C, InRedis, K, L, User
from support.redis_servers import RedisServer

from scrapy_spider_suite.cluster import redis_server as scripts
from scrapy_spider_suite.cluster.ledger.rate_ledger import (
    DelayWish,
    FetchEnd,
    FileLedger,
    LedgerBatch,
    LedgerLine,
    RedisLedger,
    ReturnedGrant,
)
from scrapy_spider_suite.errors import LedgerError

# Redis's keys expire by its own clock, which is not that of the test: they stay for long.
STAYING = """
local real = redis
local redis = {pcall = real.pcall, call = function(...)
  local words = {...}
  if words[4] == 'PX' then words[5] = words[5] + 1000000 end
  return real.call(unpack(words))
end}
"""


def steps_of(seed: int) -> Iterator[tuple[str, int, str, dict[str, Any]]]:
    """Who says what, after how long, and what happens before."""
    random = Random(seed)
    keys = ["host a", "host b", "address c"]

    def span() -> int:
        return random.choice([0, 1, 40, 999, 5_000, 100_000])

    def some(most: int, make: Callable[[], Any]) -> tuple[Any, ...]:
        return tuple(make() for _ in range(random.randint(0, most)))

    def lines() -> tuple[LedgerLine, ...]:
        serial = random.randint(1, 3)
        return tuple(
            LedgerLine(key, serial, span()) for key in random.sample(keys, random.randint(1, 2))
        )

    def key() -> tuple[str, int]:
        return random.choice(keys), random.randint(1, 3)

    for _ in range(25):
        yield random.choice([A, B, C]), span(), random.choice(["", "", "", "", "era", "wipe"]), {
            "ends": some(2, lambda: FetchEnd(*key(), span(), span())),
            "returns": some(1, lambda: ReturnedGrant(*key())),
            "wishes": some(1, lambda: DelayWish(random.choice(keys), span())),
            "asks": some(2, lines),
        }  # fmt: skip


def test_redis_and_file_say_the_same(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever is said to them: what Lua decides is what Python does."""
    monkeypatch.setattr(scripts, "WORLD", STAYING + WORLD)
    with redis_server.client() as client:
        for seed in range(12):
            there = InRedis(client, redis_server.url)
            granted = asyncio.run(same(there, tmp_path / str(seed), seed))
            assert granted


async def same(there: InRedis, path: Path, seed: int) -> int:
    """Say the same to both; how many grants there were."""
    one, granted = there.ledger(), 0
    two = FileLedger(path, clock=lambda: there.now, run="a")
    eras = dict.fromkeys((A, B, C), 0)
    for process, wait, event, said in steps_of(seed):
        there.wait(wait)
        there.client.set("test:uptime", there.now)  # as the file has it
        if event == "wipe":
            there.wiped()
            await two.close()
            path.unlink(missing_ok=True)
            two = FileLedger(path, clock=lambda: there.now, run="a")
        delays = [end.delay for end in said["ends"]]
        longest = max([0, *delays, *(line.delay for ask in said["asks"] for line in ask)])
        era = 7 if event == "era" else eras[process]
        batch = LedgerBatch(process, era, longest, WINDOW, HOLD, AHEAD, **said)
        reply = await one.settle(batch)
        assert reply == await two.settle(batch), (seed, batch)
        eras[process] = reply.era
        granted += sum(answer.closes > 0 for answer in reply.answers)
    await one.close()
    await two.close()
    return granted


def test_a_redis_that_throws_keys_away_is_refused(redis_server: RedisServer) -> None:
    """And one that is full gives no grant."""

    async def test(client: Any) -> None:
        ledger = RedisLedger(redis_server.url, "town", timeout=60.0)
        user = User(ledger, A)
        client.config_set("maxmemory", "200mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(LedgerError, match="policy is allkeys-lru") as caught:
            await user.ask(K)
        assert caught.value.kind == "eviction"
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        with pytest.raises(LedgerError, match="out of memory"):
            await user.ask(K)
        client.config_set("maxmemory", "0")
        await user.ask(K)
        await ledger.close()

    with redis_server.client() as client:
        client.flushall()
        try:
            asyncio.run(test(client))
        finally:
            client.config_set("maxmemory", "0")
            client.config_set("maxmemory-policy", "noeviction")


def test_a_name_that_is_none_is_refused() -> None:
    """Before anything is asked."""
    with pytest.raises(ValueError, match="no name for a crawl"):
        RedisLedger("redis://127.0.0.1", "a}b")


@pytest.mark.parametrize("content", [b"not a database at all " * 100, None])
def test_a_file_of_somebody_else_is_not_touched(tmp_path: Path, content: bytes | None) -> None:
    """Be it a database or not."""
    path = tmp_path / "ledger"
    if content is None:
        with sqlite3.connect(path) as file:
            file.execute("CREATE TABLE mine (x)")
        file.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()

    async def test() -> None:
        ledger = FileLedger(path)
        with pytest.raises(LedgerError, match=r"did not write|somebody else") as caught:
            await User(ledger, A).ask(K)
        assert caught.value.kind == "damaged"
        await ledger.close()

    asyncio.run(test())
    assert path.read_bytes() == before


def test_a_file_that_was_removed_is_made_anew_and_everything_waits(tmp_path: Path) -> None:
    """As after any loss."""
    path = tmp_path / "ledger"

    async def test() -> None:
        a, b = User(FileLedger(path), A), User(FileLedger(path), B)
        assert (await a.ask(K)).closes
        assert (await b.ask(L)).closes
        path.unlink()
        assert (await a.ask("host other")).wait > HOLD
        assert (await b.ask(K)).wait > HOLD
        await a.ledger.close()
        assert (await b.ask(K)).wait > HOLD
        await b.ledger.close()

    asyncio.run(test())


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    """In one line."""

    async def test() -> None:
        ledger = FileLedger(tmp_path / "none" / "ledger")
        with pytest.raises(LedgerError, match="cannot be used") as caught:
            await User(ledger, A).ask(K)
        assert caught.value.kind == "away"
        await ledger.close()

    asyncio.run(test())


def test_a_folder_that_somebody_else_has_locked_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Such as ``flock FOLDER scrapy crawl ...``, for as long as the crawl takes."""

    async def test() -> None:
        ledger = FileLedger(tmp_path / "ledger")
        async with asyncio.timeout(30):
            assert (await User(ledger, A).ask(K)).closes
        await ledger.close()

    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    unlock = threading.Timer(60, fcntl.flock, [folder, fcntl.LOCK_UN])
    unlock.start()  # so that a test that waits for it fails, and ends
    try:
        asyncio.run(test())
    finally:
        unlock.cancel()
        unlock.join()
        os.close(folder)


def test_who_holds_the_lock_for_too_long_is_not_waited_for(tmp_path: Path) -> None:
    """In one line; it goes on when the lock is free."""

    async def test(lock: int) -> None:
        ledger = FileLedger(tmp_path / "ledger", timeout=0.1)
        with pytest.raises(LedgerError, match="used: another process has locked") as caught:
            await User(ledger, A).ask(K)
        assert caught.value.kind == "away"
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert (await User(ledger, A).ask(K)).closes
        await ledger.close()

    with open(tmp_path / "ledger.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        asyncio.run(test(lock.fileno()))
