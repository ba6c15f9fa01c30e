"""The disk guard by itself: which folders it looks at, and when it gives up."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.maintenance import Maintenance
from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.operate import machine
from scrapy_spider_suite.operate.machine import (
    DiskGuard,
    component_folders,
)
from scrapy_spider_suite.operate.supervision import Supervision
from scrapy_spider_suite.runtime.refusal import DAMAGED, DISK_ERROR, ExitCode, exit_code_for_reason
from scrapy_spider_suite.store.rocks_store import RocksStore

HOUR = 3_600.0


class Crawl:
    """A crawl as far as the guard is concerned, whose store fails with *trouble*."""

    def __init__(self, **settings: Any) -> None:
        self.time = 0.0
        self.trouble = ""
        self.stopped: list[str] = []
        self.closing = False
        crawler = get_crawler(settings_dict=settings)
        crawler.stats = SimpleNamespace(inc_value=lambda name: None)  # type: ignore[assignment]
        self.crawl: Any = SimpleNamespace(
            now=lambda: self.time, crawler=crawler, job=None, store=self,
            frontier=SimpleNamespace(flush=lambda: None), settings=SimpleNamespace(
                min_free=0, fetch_log=False, packs_dir=None, items_dir=None
            ),
        )  # fmt: skip
        self.guard = DiskGuard(self.crawl, self)  # type: ignore[arg-type]

    def recover(self) -> None:
        """Of the store."""
        if self.trouble:
            raise StoreWriteError(f"the store cannot be opened: IO error: {self.trouble}")

    def pause(self, why: str) -> None:
        """Of the scheduler."""

    unpause = pause

    def stop(self, reason: str) -> None:
        """Of the scheduler."""
        self.stopped.append(reason)
        self.closing = True

    def go_on(self, seconds: float) -> None:
        """Let time go by."""
        end = self.time + seconds
        while self.time < end:
            self.time += 1.0
            self.guard.pulse(self.time)


def test_what_a_pause_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    """For room, or until it can be written: more room would not help there."""
    for number, words in ((errno.ENOSPC, "until there is room;"), (errno.EROFS, "until it can be")):
        Crawl().guard.pause_for(f"cannot write packs in packs: {os.strerror(number)}")
        assert words in caplog.messages[-1]


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_broken_disk_ends_the_crawl(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """After a quarter of an hour, once, with a reason that a person has to look at."""
    crawl = Crawl()
    crawl.trouble = os.strerror(number)
    crawl.guard.pause_for(f"IO error: {crawl.trouble}")
    crawl.go_on(890)
    assert crawl.stopped == []
    crawl.go_on(HOUR)
    assert crawl.stopped == [DISK_ERROR]
    assert exit_code_for_reason(DISK_ERROR) is ExitCode.DAMAGED
    [line] = [r.message for r in caplog.records if r.levelno == logging.CRITICAL]
    assert crawl.trouble in line


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_waited_for(number: int) -> None:
    """However long that takes."""
    crawl = Crawl()
    crawl.trouble = os.strerror(number)
    crawl.guard.pause_for(f"IO error: {crawl.trouble}")
    crawl.go_on(24 * HOUR)
    assert crawl.stopped == []
    crawl.trouble = ""
    crawl.go_on(10)
    assert not crawl.guard.stuck


def test_a_full_disk_of_packs_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the store, on another one, can write: pages would be fetched for nothing."""
    free = {tmp_path: 4096}
    monkeypatch.setattr(machine, "free_space", lambda path: (1, free[path]))
    crawl = Crawl()
    crawl.crawl.settings.packs_dir = tmp_path
    crawl.guard.pause_for(f"cannot write packs in packs: {os.strerror(errno.ENOSPC)}")
    crawl.go_on(HOUR)
    assert crawl.guard.stuck
    free[tmp_path] = 2 << 20
    crawl.go_on(10)
    assert not crawl.guard.stuck
    assert crawl.stopped == []


def test_a_pipeline_that_fails_again_and_again_is_one_failure() -> None:
    """Although the store can write in between; failures far apart are none of it."""
    crawl = Crawl()
    for _ in range(100):
        crawl.guard.pause_for(f"an item cannot be written: {os.strerror(errno.EIO)}")
        crawl.go_on(120)
    assert crawl.stopped == []
    for _ in range(100):
        crawl.guard.pause_for(f"an item cannot be written: {os.strerror(errno.EIO)}")
        crawl.go_on(10)
    assert crawl.stopped == [DISK_ERROR]


def test_folders_of_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of media and of the HTTP cache, if they are on a disk of this machine."""
    monkeypatch.chdir(tmp_path)
    assert component_folders(Settings({"FILES_STORE": "s3://bucket/x", "IMAGES_STORE": ""})) == []
    settings = Settings({
        "FILES_STORE": "files", "IMAGES_STORE": f"file://{tmp_path}/images",
        "HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path / "cache"),
    })  # fmt: skip
    expected = [tmp_path / name for name in ("files", "images", "cache")]
    assert component_folders(settings) == expected


def test_folders_of_components_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crawl pauses for them, and for those of the suite, too."""
    names = ("images", "log", "fetches", "packs", "items", "job")
    folders = {name: tmp_path / name for name in names}
    crawl = Crawl(IMAGES_STORE=str(folders["images"]), LOG_FILE=str(folders["log"] / "crawl.log"))
    settings = crawl.crawl.settings
    settings.fetch_log, settings.packs_dir = folders["fetches"], folders["packs"]
    settings.items_dir = folders["items"]
    crawl.crawl.job = SimpleNamespace(folder=folders["job"])
    asked: list[Path] = []
    monkeypatch.setattr(
        machine, "shortage",
        lambda folders, *_, **__: asked.extend(path for path, _ in folders),
    )
    settings.min_free = 1
    crawl.go_on(2)
    assert set(asked) == set(folders.values())


@pytest.mark.parametrize("crawling", [True, False])
def test_systemd_hears_of_a_stop_at_once_and_of_an_end_when_it_has_come(crawling: bool) -> None:
    """`Crawler.crawling` is False as soon as a signal has stopped it."""
    sent: list[str] = []
    notifier = SimpleNamespace(send=lambda **said: sent.extend(said), watchdog=False)
    watched: Any = object.__new__(Supervision)
    watched._crawl = SimpleNamespace(crawler=SimpleNamespace(crawling=crawling))
    watched._scheduler = SimpleNamespace(pauses=[])
    watched._notifier, watched._status, watched._stopping = notifier, None, False
    watched._check_fetching = lambda now: None
    for _ in range(2):
        watched.pulse(0.0, {"done": 1, "failed": 2, "pending": 3, "closing": True})
    assert sent.count("STOPPING") == (0 if crawling else 1)


def test_what_cannot_be_read_ends_the_crawl(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with a line that says what to do; a crawl whose store is whole goes on."""
    crawl = Crawl()
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    maintenance: Any = SimpleNamespace(_crawl=SimpleNamespace(store=store), _engine=crawl)
    assert not Maintenance.end_if_damaged(maintenance)
    assert crawl.stopped == []
    store.damage = "the store in x cannot be read: Corruption"
    for _ in range(2):
        assert Maintenance.end_if_damaged(maintenance)
    assert crawl.stopped == [DAMAGED]
    assert exit_code_for_reason(DAMAGED) is ExitCode.DAMAGED
    [line] = [r.message for r in caplog.records if r.levelno == logging.CRITICAL]
    assert "Corruption: the crawl ends; look at it with `scrapy frontier check`" in line
    store.close()
