"""A crawl that meets what it cannot read ends, and says so: half a queue is not all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.crawls import Crawl, crawl
from support.frontier_command import scrapy
from support.websites import Site, running

from scrapy_spider_suite.runtime.refusal import DAMAGED, ExitCode, exit_code_for_reason
from scrapy_spider_suite.store import job_directory
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.rocks_store import RocksStore

pytestmark = pytest.mark.slow


def _damage_queues(store: Path) -> int:
    """Overwrite a part of every table, where rows are; what a job checks at its start is whole.

    Returns how many tables there were.
    """
    database = RocksStore(store)
    for family in database._families.values():
        family.flush()
    database.close()
    large = [path for path in store.glob("*.sst") if path.stat().st_size > 50_000]
    for path in large:
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(size // 12)
            file.write(bytes(size // 2))
    job_directory.note_files(store)
    return len(large)


def test_a_damaged_queue(tmp_path: Path) -> None:
    """Nothing goes on as if what cannot be read had never been; the check says the same."""
    job = tmp_path / "job"
    with running(Site({})) as site:
        seeds = tmp_path / "seeds"
        seeds.write_text("".join(f"{site.url}/{n * n:x}\n" for n in range(6_000)))

        def run(**settings: Any) -> Crawl:
            return crawl(
                "support.spiders.Bulk",
                {
                    "ADDONS": {"scrapy_spider_suite.Addon": 100}, "JOBDIR": str(job),
                    "SUITE_SEEDS": str(seeds), "SUITE_ALLOW_PRIVATE_ADDRESSES": True,
                    "SUITE_HOST_DELAY": 0.0, "SUITE_IP_DELAY": 0.0, "DOWNLOAD_DELAY": 0,
                    "ROBOTSTXT_OBEY": False, "USER_AGENT": "tests (a@b.example)", **settings,
                },
                tmp_path,
            )  # fmt: skip

        run(CLOSESPIDER_PAGECOUNT=300)
        assert _damage_queues(job / FOLDER / "store")
        ended = run()
    assert ended.reason == DAMAGED
    assert exit_code_for_reason(DAMAGED) is ExitCode.DAMAGED
    assert "nothing is lost" not in ended.log
    [line] = [line for line in ended.log.splitlines() if "CRITICAL:" in line]
    assert "cannot be read" in line
    assert "scrapy frontier check" in line
    said = scrapy("check", "-j", str(job))
    assert said.returncode, said.stdout
    assert "cannot be read" in said.stdout + said.stderr
    assert "Traceback" not in said.stderr
