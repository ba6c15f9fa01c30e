"""A job whose links went through the sieve, seen and asked from outside."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from support.crawls import Crawl
from support.frontier_command import Frontier, small_crawl
from support.webs import FakeWebProcess

from scrapy_spider_suite.runtime.files import lock_file
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader


@pytest.fixture(scope="module")
def sieved(web: FakeWebProcess, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Crawl]:
    """The job of such a crawl, and what it said."""
    folder = tmp_path_factory.mktemp("sieved")
    crawl = small_crawl(web, folder, SUITE_SEEN_STORE="sieve")
    assert crawl.reason == "finished", crawl.log[-2000:]
    return folder / "job", crawl


def test_a_crawl_to_its_end(web: FakeWebProcess, sieved: tuple[Path, Crawl]) -> None:
    """Every page is fetched, none twice; what ended 200 has no row; stats say how it went."""
    job, crawl = sieved
    pages = set(web.web.reachable())
    with StoreReader(job / FOLDER) as reader:
        rows = [row for host, _ in reader.store.records() for row in reader.urls(host)]
        assert list(reader.check()) == []
        done = {url for url in pages if web.web.status(url) == 200}
        # What ended 200 goes by itself but for what no flush has met since.
        assert len(done & {row.url for row in rows}) < len(done) / 2
        assert reader.counters().done + reader.counters().failed == len(pages)
    assert crawl.stats["suite/seen/waiting"] == 0
    assert crawl.stats["suite/seen/known"] == len(pages)
    assert crawl.stats["suite/seen/flushes"] > 0
    assert 0 < crawl.stats["suite/seen/false_positive_bound"] < 1e-24
    assert crawl.stats["suite/seen/cache_hits"] > 0


def test_what_is_told_of_it(
    web: FakeWebProcess, sieved: tuple[Path, Crawl], frontier: Frontier
) -> None:
    """By status, why and check."""
    on = ("-j", str(sieved[0]))
    [row] = frontier("status", "--json", *on).rows
    assert (row["in_sieve"], row["sieve_known"]) == (0, len(set(web.web.reachable())))
    assert row["sieve_false_positives"] < 1e-24
    url = next(url for url in sorted(web.web.reachable()) if web.web.status(url) == 200)
    assert "done" in frontier("why", url, *on).out
    assert "everything agrees" in frontier("check", *on).out


def test_damage_is_named_and_mended(
    sieved: tuple[Path, Crawl], tmp_path: Path, frontier: Frontier
) -> None:
    """What was in it counts as new after that."""
    job = shutil.copytree(sieved[0], tmp_path / "job")
    (file,) = list((job / FOLDER / "sieve").glob("*.rows"))[:1]
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    assert "is damaged" in frontier("check", "-j", str(job)).out
    assert frontier("check", "-j", str(job)).code == 1
    mended = frontier("check", "--repair", "-j", str(job))
    assert (mended.code, "1 thing was repaired" in mended.out) == (0, True)
    assert frontier("check", "-j", str(job)).code == 0


def test_repair_of_a_job_in_use(
    sieved: tuple[Path, Crawl], tmp_path: Path, frontier: Frontier
) -> None:
    """Looking is allowed, repair is refused."""
    job = shutil.copytree(sieved[0], tmp_path / "job")
    with (job / FOLDER / "sieve" / "lock").open("a+") as lock:
        assert lock_file(lock)
        assert frontier("check", "-j", str(job)).code == 0
        refused = frontier("check", "--repair", "-j", str(job))
    assert (refused.code, "in another process" in refused.out) == (2, True), refused.out


def test_a_snapshot_goes_on_as_the_job(
    web: FakeWebProcess, sieved: tuple[Path, Crawl], tmp_path: Path, frontier: Frontier
) -> None:
    """With its sieve: nothing is fetched again."""
    assert frontier("snapshot", str(tmp_path / "job"), "-j", str(sieved[0])).code == 0
    began = time.time()
    crawl = small_crawl(web, tmp_path, SUITE_SEEN_STORE="sieve")
    assert crawl.reason == "finished"
    later = [each for each in web.arrivals() if each.start > began]
    pages = [each for each in later if each.path != "/robots.txt"]
    assert pages == []
    [row] = frontier("status", "--json", "-j", str(tmp_path / "job")).rows
    assert row["sieve_known"] >= len(set(web.web.reachable()))


def test_a_missing_sieve_is_named(
    web: FakeWebProcess, sieved: tuple[Path, Crawl], tmp_path: Path
) -> None:
    """Without it all would be fetched again."""
    job = shutil.copytree(sieved[0], tmp_path / "job")
    shutil.rmtree(job / FOLDER / "sieve")
    crawl = small_crawl(web, tmp_path, SUITE_SEEN_STORE="plain")
    assert crawl.code != 0
    assert "the sieve of seen URLs, is missing" in crawl.log
