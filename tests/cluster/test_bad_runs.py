"""Runs that nobody should have put there: set aside with their reasons, and the rest goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.chaos import CRAWL, Chaos, Plan, ground, name_of
from support.polite_crawls import Size
from support.projects import scrapy
from support.running_crawl import until

from scrapy_spider_suite.cluster.run_blobs import pack_piece
from scrapy_spider_suite.cluster.run_queue import Run, RunQueue
from scrapy_spider_suite.frontier.entries import Entry, slot_of
from scrapy_spider_suite.store.rows import pack_row

PLAN = Plan(
    size=Size(hosts=12, addresses=4, pages=12, host_delay=0.4, ip_delay=0.02), agents=2,
    seconds=0.0, grace="forever", transport="shared-queue", within=90.0,
)  # fmt: skip
HOST = "elsewhere.example"
ROW = pack_row(Entry(HOST, f"http://{HOST}/"))
SOUND = pack_piece(slot_of(HOST), [(HOST, [ROW])])
OTHER = (slot_of(HOST) + 1) % 65_536
BAD = {
    "garbage": (slot_of(HOST), 1, b"\0garbage"),
    "damaged": (slot_of(HOST), 1, b"\0" + SOUND[:-1] + bytes([SOUND[-1] ^ 1])),
    "of another slot": (OTHER, 1, b"\0" + SOUND),
    "with another number of URLs": (slot_of(HOST), 7, b"\0" + SOUND),
    "at no place": (slot_of(HOST), 1, b"\1short"),
    "missing": (slot_of(HOST), 1, b"\1" + bytes(20)),
}
CONSTANTS = {"scrapy_spider_suite.cluster.shared_queue._TRY_AGAIN": 0.1}


async def put(url: str) -> list[str]:
    """Enqueue the bad runs; their ids."""
    queue = RunQueue(url, CRAWL)
    try:
        runs = [
            ("bulk", slot, Run(bytes([number]) * 8, urls, place))
            for number, (slot, urls, place) in enumerate(BAD.values(), 1)
        ]
        await queue.enqueue("a stranger", 1, runs)
        return [run.id.hex() for _, _, run in runs]
    finally:
        await queue.close()


@pytest.mark.slow
def test_they_are_set_aside(tmp_path: Path) -> None:
    """With reasons; the crawl does all else, and ends."""
    with ground(PLAN, tmp_path) as here:
        assert here.redis is not None
        given = here.fleet.settings
        here.fleet.settings = lambda name: {**given(name), "TEST_CONSTANTS": CONSTANTS}
        chaos = Chaos(PLAN, here)
        chaos.begin()
        here.fleet.start(name_of(2))
        ids = asyncio.run(put(here.redis.url))
        place = ("-j", here.redis.url, "--crawl", CRAWL)

        def aside() -> dict[str, int]:
            said = scrapy(tmp_path, "frontier", "runs", "--json", *place).stdout
            return next(row for row in map(json.loads, said.splitlines()) if "queue" in row)

        until(lambda: aside()["runs_aside"] == len(BAD), within=60.0)
        table = scrapy(tmp_path, "frontier", "runs", *place).stdout
        for words in ("checksum", "slot", "URLs has", "no place", "has no"):
            assert words in table, table
        verdict = chaos.go_on()
        broken = [line for line in verdict.broken() if "it is set aside" not in line]
        assert broken == []
        said = scrapy(tmp_path, "frontier", "runs", "drop", *ids, *place)
        assert said.returncode == 0, said.stderr
        assert aside()["runs_aside"] == 0
