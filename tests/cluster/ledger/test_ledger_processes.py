"""Processes that share a ledger, one of them killed; a Redis that is killed and comes back."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from pathlib import Path

import pytest
from support import forks
from support.ledger_processes import fetches_in, gaps
from support.projects import environment
from support.redis_servers import RedisServer

from scrapy_spider_suite.cluster.ledger.grants import SLACK, Grants, Need
from scrapy_spider_suite.cluster.ledger.rate_ledger import RedisLedger
from scrapy_spider_suite.cluster.ledger.shared_limits import LedgerClient
from scrapy_spider_suite.runtime.clock import boottime

SCRIPT = "import sys; from support.ledger_processes import main; sys.exit(main(sys.argv[1:]))"
DELAY, TIMEOUT = 0.03, 0.2


@pytest.mark.parametrize("kind", ["redis", "file"])
def test_four_processes_are_polite_together(
    kind: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    """No two fetches of a key overlap, and after each end the delay passes, though one of them is
    killed in the midst of a fetch: that key waits until it must have ended, and goes on.
    """
    redis_server.flush()
    where = redis_server.url if kind == "redis" else str(tmp_path / "ledger")
    log = tmp_path / "log"
    words = (where, log, 4, 30, 6, DELAY, TIMEOUT, 15)
    done = forks.run(SCRIPT, *map(str, words), folder=tmp_path, environment=environment())
    assert done.returncode == 0, done.stderr
    found = fetches_in(log)
    # Each visit that was under way as the count was reached is one more.
    assert 2 * (3 * 30 + 15) <= sum(map(len, found.values())) <= 2 * (4 * 36)
    for key, fetches in found.items():
        assert len({fetch.process for fetch in fetches}) >= 3
        delay = DELAY if key.startswith("host") else DELAY / 2
        assert min(gaps(fetches)) >= delay - 0.001, key
        for one, two in pairwise(fetches):
            if not one.end:
                assert one.process == "0"
                assert two.start - one.start >= (TIMEOUT + SLACK) * 1e9


def test_a_redis_that_is_killed_stops_what_is_shared_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once; as it comes back empty, everything waits until nothing can be out."""
    caplog.set_level(logging.INFO)

    async def test(server: RedisServer) -> None:
        grants = Grants("a" * 16, timeout=180.0)
        client = LedgerClient(RedisLedger(server.url, "town", 5.0), grants)
        running = asyncio.create_task(client.run())
        grants.ready([Need("host a", 1.0)], boottime())
        client.poke()
        while not grants.counters.refused:  # it has just begun, and may have lost something too
            await asyncio.sleep(0.01)
        server.kill()
        now = boottime()
        assert grants.ready([Need("host b", 1.0)], now) > now
        client.poke()
        while grants.counters.failures < 2:
            await asyncio.sleep(0.01)
        server.start()
        while client.trouble:
            await asyncio.sleep(0.01)
        assert grants.ready([Need("host b", 1.0)], now) > now + 100
        await client.close()
        await running

    with RedisServer(tmp_path / "redis") as server:
        asyncio.run(test(server))
    said = [each.getMessage() for each in caplog.records if each.name.endswith("shared_limits")]
    assert len(said) == 2
    assert "is away" in said[0]
    assert "is back" in said[1]
