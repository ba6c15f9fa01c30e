"""A job as the target of actions, and the blocks and the pause that it keeps."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.crawl.crawl_policy import TWINS_TABLE, make_normalizer
from scrapy_spider_suite.crawl.queue.frontier import Frontier, UrlEdits
from scrapy_spider_suite.crawl.robots import RobotsStore
from scrapy_spider_suite.errors import ActionError, JobDamagedError, JobError, SettingsError
from scrapy_spider_suite.frontier.policy import Block, Policy, Rule
from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.terms import CrawlTerms
from scrapy_spider_suite.runtime.files import lock_file
from scrapy_spider_suite.settings.project import LIVE_SCRAPY_SETTINGS
from scrapy_spider_suite.settings.suite import find_setting
from scrapy_spider_suite.store import job_directory
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.job_directory import JobFile
from scrapy_spider_suite.store.request_codec import pack_cookies, unpack_cookies, without_host
from scrapy_spider_suite.store.rocks_store import RocksStore, open_store
from scrapy_spider_suite.urls.host_patterns import HostPattern
from scrapy_spider_suite.urls.normalizer import Normal, Normalizer
from scrapy_spider_suite.urls.twins import site_of

BLOCKS = "blocks"  # the `KV` that blocks lie in
OPERATOR = "the operator"  # the reason of a pause, for the scheduler and the status file
_PAUSED = b"paused"


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """One block. Times are seconds since the epoch; *until* may be infinite."""

    subject: str
    who: str
    when: float
    reason: str
    until: float = math.inf

    def put_into(self, policy: Policy) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.when))
        rule = Rule(self.subject, f"block by {self.who} on {stamp}")
        block = Block(rule, self.reason, self.until)
        policy.blocks.put(HostPattern.parse(self.subject), block)

    def put(self, kv: KV) -> None:
        row = msgpack.packb([self.who, self.when, self.reason, self.until])
        kv.put(self.subject.encode(), row)


def stored_blocks(kv: KV) -> Iterator[StoredBlock]:
    for key, data in kv.items():
        yield StoredBlock(key.decode(), *msgpack.unpackb(data))


def policy_with_blocks(kv: KV, wall: float) -> Policy:
    policy = Policy()
    for each in stored_blocks(kv):
        if each.until > wall:
            each.put_into(policy)
    return policy


def apply_blocks(kv: KV, policy: Policy, wall: float) -> float:
    """Put the blocks of a job into *policy*, delete ended blocks; return the next end (wall)."""
    first = math.inf
    known = {str(subject): subject for subject in policy.blocks}
    for each in list(stored_blocks(kv)):
        if each.until <= wall:
            kv.delete(each.subject.encode())
            continue
        known.pop(each.subject, None)
        each.put_into(policy)
        first = min(first, each.until)
    for subject in known.values():
        policy.blocks.remove(subject)
    policy.revision += 1
    return first


def paused_by(kv: KV, *, comment: bool = True) -> str:
    """The name of the operator who paused the job, with their *comment*; "": it is not paused."""
    data = kv.get(_PAUSED)
    if data is None:
        return ""
    who, _, why = msgpack.unpackb(data)
    return f"{who}: {why}" if why and comment else str(who)


def pause_reasons(kv: KV, known: Iterable[str], *, comment: bool = True) -> list[str]:
    """The reasons why a job is paused: an operator by name, and the other *known* reasons."""
    operator = paused_by(kv, comment=comment)
    found = [f"{OPERATOR} ({operator})"] if operator else []
    return found + [each for each in known if each != OPERATOR]


class JobTarget:
    """The job that actions are carried out on, if no crawl is using it."""

    running = False

    def __init__(self, folder: Path, store: RocksStore, frontier: Frontier) -> None:
        self.folder = folder
        self.store = store
        self.frontier = frontier
        self.rework = UrlEdits(frontier, store)

    @property
    def kv(self) -> KV:
        """The rows of the control channel."""
        return self.store.kv("control")

    @property
    def normal(self) -> Normal:
        """The normaliser of the job's last crawl. Raises `ActionError`: it cannot be had here."""
        terms = CrawlTerms.load(self.store.kv("terms"))
        if terms is None:
            return Normalizer()
        try:
            return make_normalizer(terms.settings, self.store.kv(TWINS_TABLE), terms.domains)
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

    def pause(self, action: Action) -> None:
        """Pause the crawl that runs, and those after it, until `resume`."""
        self.kv.put(_PAUSED, msgpack.packb([action.who, action.when, action.why]))

    def resume(self) -> None:
        self.kv.delete(_PAUSED)

    def blocks_changed(self) -> None:
        """Have the next `apply_changes` put blocks in force, or take them out."""

    def apply_changes(self) -> None:
        """Put changed blocks in force; called often."""

    def robots_of(self, host: str, buckets: range) -> list[str]:
        """The origins of *host* with a known robots.txt, of some *buckets*."""
        return RobotsStore(self.store.kv("robots")).origins(host, buckets)

    def forget_robots(self, origin: str) -> bool:
        """Forget the robots.txt of *origin*; False if it was not known."""
        return RobotsStore(self.store.kv("robots")).forget(origin)

    def forget_cookies(self, host: str) -> int:
        """Forget the cookies that *host* set for itself; return their number."""
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
        """Forget which form the site of *host* prefers, with or without ``www.``."""
        self.store.kv(TWINS_TABLE).delete(site_of(host).encode())

    def is_foreign(self, url: str) -> bool:
        """Whether another agent owns *url*. Raises `ActionError`: not known now."""
        if self.store.kv("agent").get(b"crawl"):
            raise ActionError(
                "this job is that of an agent among others, which are to have what is theirs: "
                "start it, or ask those that run (-j redis://...)"
            )
        return False

    def drain(self) -> None:
        """Hand all over to other agents. Raises `ActionError`: there are none."""
        raise ActionError("no crawl is running: an agent hands over what it has while it runs")

    def set(self, name: str, value: str) -> tuple[str, str]:
        """Change a setting; return its old and new value. Raises `ActionError`."""
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
    """The job of the ``suite`` folder *folder*, locked; None if in use. Raises `JobError`s."""
    with (folder / "lock").open("a+") as lock:
        if not take_job_lock(lock):
            yield None
            return
        JobFile.require(folder)
        if damage := job_directory.find_damage(folder / "store"):
            raise JobDamagedError(f"the store in {folder / 'store'} is damaged: {damage}")
        # Memory enough, and nobody resident: what is changed is changed on disk.
        store = open_store(folder, memory=64 << 20)
        try:
            job_directory.forget_files(folder / "store")
            yield JobTarget(folder, store, Frontier(
                store, Policy(), now=time.monotonic(), wall=time.time(), capacity=0,
                counters=Counters.load(store),
            ))  # fmt: skip
        finally:
            store.close()
            job_directory.note_files(folder / "store")


def take_job_lock(lock: IO[str]) -> bool:
    """Lock the open *lock* file of a job; False if another process has it. Raises `JobError`."""
    try:
        if not lock_file(lock):
            return False
    except OSError as error:
        raise JobError(f"the job cannot be locked: {error.strerror}") from error
    lock.truncate(0)
    lock.write(f"process {os.getpid()} (scrapy frontier)")
    lock.flush()
    return True
