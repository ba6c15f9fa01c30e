"""A disk that fills up pauses the crawl with one clear line, and nothing is lost (bad input)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.crawls import Crawl, Process, start, web_settings
from support.small_disks import tmpfs
from support.webs import FakeWebProcess

from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig

pytestmark = pytest.mark.slow

PAUSED = "the crawl pauses until there is room; nothing is lost"
GOES_ON = "the crawl goes on"
NEARLY_FULL = {"SUITE_MIN_FREE": "8M", "SUITE_MEMORY": "16M"}
"""Less than 24 MiB free is too little."""
CHUNK = 1 << 16


@pytest.fixture
def web(tmp_path: Path) -> Iterator[FakeWebProcess]:
    """A web of 160 pages that takes six seconds to crawl, or more."""
    config = FakeWebConfig(hosts=8, pages=20, degree=10, addresses=8, log=tmp_path / "arrivals")
    with FakeWebProcess(config) as process:
        yield process


def _settings(web: FakeWebProcess, job: Path, **settings: Any) -> dict[str, Any]:
    return web_settings(
        web.ready.dns_port, JOBDIR=str(job), SUITE_HOST_DELAY=0.3, SUITE_IP_DELAY=0.05,
        **{"DOWNLOAD_DELAY": 0.3, "CONCURRENT_REQUESTS": 16, "SUITE_MIN_FREE": 0, **settings},
    )  # fmt: skip


def _fill(path: Path) -> None:
    """Write to *path* until the disk is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(CHUNK))
        except OSError:
            return


def _fill_but(path: Path, left: int) -> None:
    """Write to *path* until no more than *left* bytes are free."""
    free = shutil.disk_usage(path.parent).free
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - left)


def _status(job: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job / FOLDER / "status.json").read_text())
    return found


def _wait_for(words: str, log: Path, count: int = 1, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while log.read_text().count(words) < count:
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.1)


def _ended(process: Process, folder: Path) -> Crawl:
    process.wait(120)
    stats = json.loads((folder / "stats.json").read_text())
    return Crawl(process.returncode, stats, (folder / "log").read_text(), 0.0)


def _fetched(web: FakeWebProcess) -> list[str]:
    port = web.ready.http_port
    return [f"http://{a.host}:{port}{a.path}" for a in web.arrivals() if a.path != "/robots.txt"]


def _check(web: FakeWebProcess, job: Path, end: Crawl) -> None:
    assert end.reason == "finished"
    assert "Traceback" not in end.log
    web.stop()
    reachable = set(web.web.reachable())
    assert set(_fetched(web)) >= reachable
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
        counters = reader.counters()
    assert (counters.pending, counters.done + counters.failed) == (0, len(reachable))


@pytest.mark.parametrize(
    ("spider", "argument"),
    [("support.spiders.Bulk", "seeds"), ("support.spiders.Ordinary", "start")],
)
def test_full_disk(spider: str, argument: str, web: FakeWebProcess, tmp_path: Path) -> None:
    """The crawl pauses while the disk of its job directory is full, and then goes on to its end."""
    log, filler = tmp_path / "log", tmp_path / "disk" / "filler"
    with tmpfs(tmp_path / "disk", "12m") as disk:
        settings = _settings(web, disk / "job")
        process = start(spider, settings, tmp_path, **{argument: web.ready.seeds[0]})
        try:
            _wait_for("Spider opened", log)
            time.sleep(2.0)
            _fill(filler)
            _wait_for(PAUSED, log)
            time.sleep(1.0)  # what was under way ends, and the server writes its log
            before = len(_fetched(web))
            time.sleep(8.0)
            assert len(_fetched(web)) == before
            assert log.read_text().count(PAUSED) == 1
            filler.unlink()
            _wait_for(GOES_ON, log)
            end = _ended(process, tmp_path)
        finally:
            process.kill()
            process.wait()
        _check(web, disk / "job", end)
    assert end.stats["suite/disk/pauses"] == end.log.count(PAUSED)
    # What was in flight as the disk filled up is kept and committed: nothing is fetched twice.
    assert len(_fetched(web)) == len(set(_fetched(web)))


@pytest.mark.parametrize("where", ["job", "log", "fetches"])
def test_nearly_full_disk(where: str, web: FakeWebProcess, tmp_path: Path) -> None:
    """The crawl pauses before the disk is full, whatever it keeps there, and then goes on."""
    log = tmp_path / "log"
    with tmpfs(tmp_path / "disk", "64m") as disk:
        job = (disk if where == "job" else tmp_path) / "job"
        settings = _settings(web, job, **NEARLY_FULL)
        if where == "log":
            settings["LOG_FILE"] = str(disk / "crawl.log")
            log = disk / "crawl.log"
        elif where == "fetches":
            settings["SUITE_FETCH_LOG"] = str(disk / "fetches")
        log.touch()
        process = start("support.spiders.Bulk", settings, tmp_path, seeds=web.ready.seeds[0])
        try:
            _wait_for("Spider opened", log)
            time.sleep(1.0)
            _fill_but(disk / "filler", (20 if where == "job" else 6) << 20)
            _wait_for(PAUSED, log)
            time.sleep(1.5)  # what was under way ends, and the server writes its log
            before = len(_fetched(web))
            time.sleep(2.0)
            assert len(_fetched(web)) == before
            assert (_status(job)["paused"], _status(job)["pauses"]) == (True, ["the disk"])
            (disk / "filler").unlink()
            _wait_for(GOES_ON, log)
            end = _ended(process, tmp_path)
        finally:
            process.kill()
            process.wait()
        assert end.stats["suite/disk/pauses"] == 1
        assert "cannot write" not in log.read_text()
        _check(web, job, end)
    assert len(_fetched(web)) == len(set(_fetched(web)))


def test_nearly_full_temporary_disk(
    web: FakeWebProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a job directory the store lies among the temporary files."""
    log = tmp_path / "log"
    with tmpfs(tmp_path / "disk", "64m") as disk:
        monkeypatch.setenv("TMPDIR", str(disk))
        settings = _settings(web, disk / "job", **NEARLY_FULL)
        del settings["JOBDIR"]
        process = start("support.spiders.Bulk", settings, tmp_path, seeds=web.ready.seeds[0])
        try:
            _wait_for("Spider opened", log)
            _fill_but(disk / "filler", 20 << 20)
            _wait_for(PAUSED, log)
            (disk / "filler").unlink()
            _wait_for(GOES_ON, log)
            end = _ended(process, tmp_path)
        finally:
            process.kill()
            process.wait()
        assert end.reason == "finished"
        assert list(disk.iterdir()) == []
    web.stop()
    assert set(_fetched(web)) >= set(web.web.reachable())


def test_stopped_on_a_full_disk(web: FakeWebProcess, tmp_path: Path) -> None:
    """SIGTERM in the pause ends the crawl in time; it goes on when there is room."""
    log, filler = tmp_path / "log", tmp_path / "disk" / "filler"
    with tmpfs(tmp_path / "disk", "12m") as disk:
        settings = _settings(web, disk / "job", SUITE_STOP_TIMEOUT=4)
        process = start("support.spiders.Bulk", settings, tmp_path, seeds=web.ready.seeds[0])
        try:
            _wait_for("Spider opened", log)
            time.sleep(2.0)
            _fill(filler)
            _wait_for(PAUSED, log)
            process.send_signal(signal.SIGTERM)
            process.wait(20)
            filler.unlink()
            process = start("support.spiders.Bulk", settings, tmp_path, seeds=web.ready.seeds[0])
            end = _ended(process, tmp_path)
        finally:
            process.kill()
            process.wait()
        _check(web, disk / "job", end)


def test_killed_on_a_full_disk(web: FakeWebProcess, tmp_path: Path) -> None:
    """A crawl that is killed while its disk is full is resumed when there is room again."""
    log, filler = tmp_path / "log", tmp_path / "disk" / "filler"
    with tmpfs(tmp_path / "disk", "12m") as disk:
        settings = _settings(web, disk / "job")
        for attempt in range(2):
            process = start("support.spiders.Bulk", settings, tmp_path, seeds=web.ready.seeds[0])
            try:
                if attempt == 0:
                    _wait_for("Spider opened", log)
                    time.sleep(2.0)
                    _fill(filler)
                    _wait_for(PAUSED, log)
                    process.kill()
                    process.wait()
                    filler.unlink()
                else:
                    end = _ended(process, tmp_path)
            finally:
                process.kill()
                process.wait()
        _check(web, disk / "job", end)


def test_sink_on_a_full_disk(web: FakeWebProcess, tmp_path: Path) -> None:
    """A pipeline that raises ENOSPC leaves its pages pending and pauses the crawl."""
    full, items, log = tmp_path / "full", tmp_path / "items", tmp_path / "log"
    settings = _settings(
        web, tmp_path / "job", TEST_FULL=str(full), TEST_ITEMS=str(items),
        ITEM_PIPELINES={"support.spiders.FullDiskPipeline": 1},
    )  # fmt: skip
    process = start("support.spiders.Ordinary", settings, tmp_path, start=web.ready.seeds[0])
    try:
        _wait_for("Spider opened", log)
        time.sleep(1.0)
        full.touch()
        _wait_for(PAUSED, log)
        full.unlink()
        _wait_for(GOES_ON, log)
        end = _ended(process, tmp_path)
    finally:
        process.kill()
        process.wait()
    assert end.reason == "finished"
    web.stop()
    kept = {json.loads(line)["url"] for line in items.read_text().splitlines()}
    assert kept >= {url for url in web.web.reachable() if web.web.status(url) == 200}
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        assert list(reader.check()) == []
