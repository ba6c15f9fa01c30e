"""What actions are carried out on: a job, in a running crawl or lying still."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from scrapy_spider_suite.crawl.crawl_policy import TWINS_TABLE as TWINS
from scrapy_spider_suite.crawl.queue.frontier import Frontier, UrlEdits
from scrapy_spider_suite.crawl.robots import RobotsStore
from scrapy_spider_suite.errors import (
    ActionError,
    JobDamagedError,
    JobError,
    SettingsError,
)
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.operate.terms import normalizer_of_job
from scrapy_spider_suite.runtime.files import lock_file
from scrapy_spider_suite.settings.project import LIVE_SCRAPY_SETTINGS
from scrapy_spider_suite.settings.suite import find_setting
from scrapy_spider_suite.store import job_directory
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.job_directory import JobFile
from scrapy_spider_suite.store.request_codec import pack_cookies, unpack_cookies, without_host
from scrapy_spider_suite.store.rocks_store import RocksStore, open_store
from scrapy_spider_suite.urls.normalizer import Normal
from scrapy_spider_suite.urls.twins import site_of


class JobTarget:
    """A job that no crawl is using; a running one (`live`) has more to be told of what changed."""

    running = False

    def __init__(self, folder: Path, store: RocksStore, frontier: Frontier) -> None:
        self.folder = folder
        self.store = store
        self.frontier = frontier
        self.rework = UrlEdits(frontier, store)

    @property
    def kv(self) -> KV:
        """What the control channel keeps in the job."""
        return self.store.kv("control")

    @property
    def normal(self) -> Normal:
        """What brings a URL into the normal form of the job's crawl. Raises `ActionError`."""
        try:
            return normalizer_of_job(self.store)
        except SettingsError as error:
            raise ActionError(str(error)) from None

    @staticmethod
    def now() -> float:
        """Monotonic seconds."""
        return time.monotonic()

    @staticmethod
    def wall() -> float:
        """Seconds since the epoch."""
        return time.time()

    def commit(self) -> bool:
        """Make everything durable; False if that cannot be done now."""
        self.frontier.flush()
        return True

    def pause(self, *, paused: bool) -> None:
        """Send nothing more, or go on; what is kept in the job says so to the next crawl."""

    def blocks_changed(self) -> None:
        """Have the next `apply_changes` put blocks in force, or take them out."""

    def apply_changes(self) -> None:
        """Put in force what has changed since the last time; called often."""

    def robots_of(self, host: str, buckets: range) -> list[str]:
        """The origins of *host* whose robots.txt is known, of some *buckets* of them."""
        return RobotsStore(self.store.kv("robots")).origins(host, buckets)

    def forget_robots(self, origin: str) -> bool:
        """Forget the robots.txt of *origin*; whether it was known."""
        return RobotsStore(self.store.kv("robots")).forget(origin)

    def forget_cookies(self, host: str) -> int:
        """Forget the cookies that *host* set for itself; how many there were."""
        kv, gone, now = self.store.kv("cookies"), 0, self.wall()
        for row, packed in list(kv.items()):
            if host.encode() not in packed:
                continue
            cookies = unpack_cookies(packed, now)
            kept = without_host(cookies, host)
            gone += len(cookies) - len(kept)
            if kept:
                kv.put(row, pack_cookies(kept))
            else:
                kv.delete(row)
        return gone

    def forget_twins(self, host: str) -> None:
        """Forget what was seen of the forms of the site of *host*, with and without ``www.``."""
        self.store.kv(TWINS).delete(site_of(host).encode())

    def is_foreign(self, url: str) -> bool:
        """Whether another agent is to have *url*. Raises `ActionError`: that is not known now."""
        if self.store.kv("agent").get(b"crawl"):
            raise ActionError(
                "this job is that of an agent among others, which are to have what is theirs: "
                "start it, or ask those that run (-j redis://...)"
            )
        return False

    def drain(self) -> None:
        """Hand over to other agents what is here. Raises `ActionError`: there are none."""
        raise ActionError("no crawl is running: an agent hands over what it has while it runs")

    def set(self, name: str, value: str, *, dry: bool = False) -> tuple[str, str]:
        """Give a setting another value, unless it is *dry*; return the old and the new one.

        Raises `ActionError`.
        """
        try:
            if name not in LIVE_SCRAPY_SETTINGS:
                find_setting(name)
        except SettingsError as error:
            raise ActionError(str(error)) from None
        raise ActionError(
            f"no crawl is running: `set` changes a running crawl; change {name} where the crawl "
            "is started from"
        )


@contextmanager
def job_at_rest(folder: Path) -> Iterator[JobTarget | None]:
    """The job of the ``suite`` folder *folder*, held like by a crawl; None if one is using it.

    Raises `JobError`s.
    """
    with (folder / "lock").open("a+") as lock:
        if not take_job_lock(lock):
            yield None
            return
        job = JobFile.read(folder)
        if job is None:
            raise JobError(f"{folder.parent} holds no job of scrapy-spider-suite")
        if damage := job_directory.find_damage(folder / "store"):
            raise JobDamagedError(f"the store in {folder / 'store'} is damaged: {damage}")
        # Memory enough, and nobody resident: what is changed is changed on disk.
        store = open_store(folder, memory=64 << 20)
        try:
            job_directory.forget_files(folder / "store")
            yield JobTarget(folder, store, _frontier(store))
        finally:
            store.close()
            job_directory.note_files(folder / "store")


def take_job_lock(lock: IO[str]) -> bool:
    """Take the *lock* file of a job, for as long as it is open; False if another process has it.

    Raises `JobError`.
    """
    try:
        if not lock_file(lock):
            return False
    except OSError as error:
        raise JobError(f"the job cannot be locked: {error.strerror}") from error
    lock.truncate(0)
    lock.write(f"process {os.getpid()} (scrapy frontier)")
    lock.flush()
    return True


def _frontier(store: RocksStore) -> Frontier:
    now, wall = time.monotonic(), time.time()
    return Frontier(
        store, Policy(), now=now, wall=wall, capacity=0, counters=Counters.load(store)
    )
