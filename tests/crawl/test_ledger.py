"""Crawls that share a ledger, as the log of the server shows them: one politeness for all."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.crawls import crawl, start, web_settings
from support.inprocess_crawls import Crawled, crawl_here
from support.redis_servers import RedisServer
from support.spiders import Bulk
from support.webs import FakeWebProcess

from scrapy_spider_suite.runtime.refusal import ExitCode
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.testing import Arrival, FakeWebConfig, gaps

pytestmark = pytest.mark.slow

HOST, ADDRESS, TIMEOUT = 0.25, 0.05, 1.0
TOLERANCE = 0.002
"""Seconds that the server's clock readings may be off."""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[FakeWebProcess]:
    """Six hosts at three addresses, all of them seeds."""
    config = FakeWebConfig(
        hosts=6, addresses=3, pages=4, seeds=6, latency=0.02, log=tmp_path / "arrivals",
        seeds_file=tmp_path / "seeds",
    )  # fmt: skip
    with FakeWebProcess(config) as process:
        yield process


def _settings(web: FakeWebProcess, ledger: object, **settings: Any) -> dict[str, Any]:
    return web_settings(
        web.ready.dns_port, SUITE_SEEDS=str(web.config.seeds_file), SUITE_RATE_LEDGER=str(ledger),
        SUITE_HOST_DELAY=HOST, SUITE_IP_DELAY=ADDRESS, DOWNLOAD_TIMEOUT=TIMEOUT, **settings,
    )  # fmt: skip


async def _together(crawls: int, web: FakeWebProcess, ledger: object) -> list[Crawled]:
    given = _settings(web, ledger)
    return await asyncio.gather(*(crawl_here(Bulk, within=100, **given) for _ in range(crawls)))


def _check(web: FakeWebProcess, done: list[Crawled]) -> list[Arrival]:
    """All of them fetched everything, and no request came too early; return what came."""
    web.stop()
    arrivals = web.arrivals()
    for each in done:
        assert each.reason == "finished"
        assert each.stat("suite/outcome/success") == 24
        fetches = each.stat("downloader/request_count")
        assert each.stat("suite/ledger/ended") == 2 * fetches
    for key, least in (("host", HOST), ("address", ADDRESS)):
        for found in gaps(arrivals, key).values():
            assert found.smallest >= least - TOLERANCE, (key, found.pair)
    return arrivals


def _done(job: Path) -> int:
    try:
        return int(json.loads((job / FOLDER / "status.json").read_text())["done"])
    except (OSError, ValueError):
        return 0


@pytest.mark.long
def test_four_crawls_are_polite_together_though_one_is_killed(
    web: FakeWebProcess, run: Callable[[Any], Any], tmp_path: Path
) -> None:
    """Of one web, by a ledger in a file; robots.txt included."""
    (tmp_path / "slain").mkdir()
    job = tmp_path / "slain" / "job"
    # It does not end by itself: on a busy machine it may be done before it is killed.
    given = _settings(web, tmp_path / "ledger", JOBDIR=str(job), SUITE_WHEN_DONE="wait")
    slain = start("support.spiders.Bulk", given, tmp_path / "slain")

    async def kill() -> None:
        while not _done(job):
            assert slain.poll() is None
            await asyncio.sleep(0.02)
        slain.send_signal(signal.SIGKILL)

    async def all_of_them() -> list[Crawled]:
        others, _ = await asyncio.gather(_together(3, web, tmp_path / "ledger"), kill())
        return others

    arrivals = _check(web, run(all_of_them()))
    assert slain.wait() == -signal.SIGKILL
    assert len(arrivals) > 3 * 30


def test_nothing_is_fetched_while_the_ledger_is_away(
    web: FakeWebProcess, run: Callable[[Any], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A Redis that is killed, and comes back later: it is said once, and the crawls go on."""
    caplog.set_level(logging.INFO)

    def said(words: str) -> int:
        return sum(words in each.getMessage() for each in caplog.records)

    async def test(server: RedisServer) -> list[Crawled]:
        crawls = asyncio.ensure_future(_together(2, web, server.url))
        while web.config.log.stat().st_size < 500:
            await asyncio.sleep(0.05)
        server.kill()
        while said("no fetch starts on what is shared") < 2:
            await asyncio.sleep(0.05)
        before = web.config.log.stat().st_size
        await asyncio.sleep(7.0)  # grants that were here are over, and the log is written
        after = web.config.log.stat().st_size
        await asyncio.sleep(1.5)
        assert before <= after == web.config.log.stat().st_size
        server.start()
        return await crawls

    with RedisServer(tmp_path / "redis", durable=True) as server:
        _check(web, run(test(server)))
    assert said("no fetch starts on what is shared") == 2
    assert said("/s is back") == 2


def test_a_file_that_is_no_ledger_is_refused_at_the_start(
    web: FakeWebProcess, tmp_path: Path
) -> None:
    """Before anything is fetched."""
    (tmp_path / "ledger").write_text("not one of ours\n" * 100)
    ended = crawl("support.spiders.Bulk", _settings(web, tmp_path / "ledger"), tmp_path)
    line = ended.log.splitlines()[-1]
    assert f"SUITE_RATE_LEDGER: the ledger {tmp_path / 'ledger'} holds what the suite" in line
    assert ended.code == ExitCode.REFUSED
    web.stop()
    assert not web.arrivals()
