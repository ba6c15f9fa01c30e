"""The drill of an operator: a running crawl, complaints and wishes, and what the server's log says.

Everything is asked by `scrapy frontier`, in processes of its own, and judged by the log of the
in-vitro web. `Drill.run` is the night; the checks of `drill_checks` come after it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import Arrival
from scrapy_spider_suite.testing.fake_web import address_text
from support.crawls import Process, start
from support.frontier_command import scrapy
from support.polite_crawls import Size, pages_of
from support.running_crawl import until
from support.webs import FakeWebProcess

COMPLAINS = 0
"""The host that shows images, is fetched quickly, and complains."""
LEAVES = 1
"""The host whose data are to be dropped."""
ROBOTS_TTL = "scrapy_spider_suite.crawl.robots.TTL"
_STEP = 600.0
"""Seconds after which what is waited for does not come any more."""


@dataclass(frozen=True)
class Plan:
    """How large a drill. Delays are seconds."""

    size: Size
    resumed_delay: float  # the SUITE_HOST_DELAY of the crawl of the copy
    quick: float  # the delay of the host that complains, before it does
    longer: float  # and after it is unblocked
    pages: int  # of that host
    images: int  # of each of these pages: they wait for seconds when the block comes
    complains_after: int  # requests to it
    refetched: int  # URLs

    @property
    def robots_ttl(self) -> float:
        """So short that robots.txt are asked for all the time."""
        return max(1.0, 5 * self.size.host_delay)

    def web(self, log: Path) -> FakeWebProcess:
        """The web, whose host 0 has an address of its own."""
        traits = self.size.gallery(0)
        traits[COMPLAINS] |= {"pages": self.pages, "images": self.images, "robots_status": 200}
        traits[LEAVES] |= {"robots_status": 200}
        return FakeWebProcess(self.size.web(log, overrides=traits))


SMALL = Plan(
    Size(hosts=24, addresses=8, pages=24, host_delay=0.5, ip_delay=0.03),
    resumed_delay=0.05, quick=0.1, longer=0.2, pages=4, images=24, complains_after=5,
    refetched=60,
)  # fmt: skip
FULL = Plan(
    Size(hosts=1000, addresses=300, pages=40, host_delay=4.0, ip_delay=0.3),
    resumed_delay=4.0, quick=0.2, longer=2.0, pages=5, images=40, complains_after=50,
    refetched=5000,
)  # fmt: skip


@dataclass(frozen=True)
class Said:
    """One command: when it was given and had ended (wall), what it printed."""

    arguments: tuple[str, ...]
    began: float
    ended: float
    code: int
    rows: list[Any]

    @property
    def verb(self) -> str:
        """The verb."""
        return self.arguments[0]

    @property
    def row(self) -> Any:
        """Its only row."""
        (row,) = self.rows
        return row


class Desk:
    """Where commands are given, and kept."""

    def __init__(self) -> None:
        self.said: list[Said] = []

    def ask(self, job: Path, *arguments: str, codes: Sequence[int] = (0,)) -> Said:
        """Run ``scrapy frontier`` with *arguments*; raises `RuntimeError` on other exit codes."""
        began = time.time()
        done = scrapy(*arguments, "-j", str(job), "--json", timeout=_STEP)
        ended = time.time()
        if done.returncode not in codes:
            raise RuntimeError(f"{arguments}: {done.returncode} {done.stdout} {done.stderr}")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        said = Said(arguments, began, ended, done.returncode, rows)
        self.said.append(said)
        return said


@dataclass
class Drill:
    """One drill in *folder*; after `run`, all that is to be judged."""

    plan: Plan
    folder: Path
    desk: Desk = field(default_factory=Desk)
    arrivals: list[Arrival] = field(default_factory=list)
    evidence: list[Any] = field(default_factory=list)
    refetched: list[str] = field(default_factory=list)
    left_again: list[Any] = field(default_factory=list)  # what is known of the dropped host
    at_snapshot: dict[str, str] = field(default_factory=dict)  # the state of each URL
    stopped: float = 0.0  # when the first crawl had ended (wall)
    reasons: list[str] = field(default_factory=list)  # why the two crawls ended

    def __post_init__(self) -> None:
        self.job = self.folder / "here" / "job"
        self.copy = self.folder / "elsewhere" / "job"
        self.overrides = self.folder / "overrides"
        for job in (self.job, self.copy):
            job.parent.mkdir()
        self.web = self.plan.web(self.folder / "arrivals")

    def run(self) -> None:
        """All of it: some minutes at full size."""
        with self.web:
            self._set_delay(self.plan.quick)
            # However slow the commands are, it is there to answer them.
            with self._crawl(self.job, self.plan.size.host_delay, idle="wait") as crawl:
                self._block()
                self._refetch()
                self._drop()
                self._unblock()
                self._snapshot()
                crawl.send_signal(signal.SIGTERM)
                crawl.wait(60)
            self.stopped = time.time()
            with self._crawl(self.copy, self.plan.resumed_delay) as crawl:
                crawl.wait(_STEP)
            for job in (self.job, self.copy):
                self.desk.ask(job, "check")  # fails unless everything agrees
            self.web.stop()
            self.arrivals = self.web.arrivals()

    # The crawls

    @contextmanager
    def _crawl(
        self, job: Path, delay: float, idle: str = "finish"
    ) -> Iterator[Process]:
        ready, folder = self.web.ready, job.parent
        settings = self.plan.size.settings(
            ready, JOBDIR=str(job), SUITE_HOST_DELAY=delay, SUITE_OVERRIDES=str(self.overrides),
            TEST_CONSTANTS={ROBOTS_TTL: self.plan.robots_ttl},
            FILES_STORE=str(self.folder / "images"),
            FILES_URLS_FIELD="image_urls", SUITE_WHEN_DONE=idle, TEST_STALLS=str(folder / "stalls"),
            ITEM_PIPELINES={"scrapy.pipelines.files.FilesPipeline": 1},
            EXTENSIONS={"support.loop_watch.Stalls": 1},
        )  # fmt: skip
        seeds = str(self.web.config.seeds_file)
        process = start("support.odd_spiders.Pictures", settings, folder, seeds=seeds)
        try:
            yield process
        except BaseException:
            print((folder / "log").read_text(errors="replace")[-3000:])
            raise
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.reasons.append(json.loads((folder / "stats.json").read_text())["closed"])

    def _set_delay(self, delay: float) -> None:
        """Write the overrides anew, and move them into place, as it is best done."""
        address = address_text(self.web.web.address_index(COMPLAINS))
        new = self.overrides.with_suffix(".new")
        new.write_text(f"{self.host(COMPLAINS)} delay={delay}\n{address}/32 delay={delay}\n")
        os.replace(new, self.overrides)

    # The steps

    def _block(self) -> None:
        host, plan = self.host(COMPLAINS), self.plan
        self._until(lambda: len(self.of(host, self.web.arrivals())) >= plan.complains_after)
        self._ask("block", host, "--why", "they called at 3 am")
        for _ in range(10):  # the fetch log and the server's are each written now and then
            time.sleep(2.0)
            self.evidence = self._ask("log", host).rows
            if len(self.evidence) == len(self.of(host, self.web.arrivals())):
                break

    def _refetch(self) -> None:
        plan, others = self.plan, {self.host(COMPLAINS), self.host(LEAVES)}

        def fetched() -> list[str]:
            arrivals = pages_of(self.web.arrivals())
            found = [self.url(a) for a in arrivals if a.status == 200 and a.host not in others]
            return list(dict.fromkeys(found))

        # Those at the end of the log may still have been in callbacks.
        self._until(lambda: len(fetched()) >= plan.refetched * 1.1)
        self.refetched = fetched()[: plan.refetched]
        changed = self.folder / "changed.txt"
        changed.write_text("\n".join(self.refetched) + "\n")
        asked = self._ask("refetch", str(changed), "--first", "--why", "they changed")
        wanted = set(self.refetched)
        self._until(
            lambda: wanted <= {self.url(a) for a in self.web.arrivals() if a.start > asked.began}
        )

    def _drop(self) -> None:
        host = self.host(LEAVES)
        self._ask("block", host, "--why", "to be forgotten, and not to be found again")
        self._ask("drop", host, "--dry-run")
        self._ask("drop", host, "--yes", "--why", "their lawyer wrote")
        # Others' links may lead there again meanwhile; else it is a host that was never met.
        self.left_again = self._ask("urls", host, "--limit", "0", codes=(0, 2)).rows

    def _unblock(self) -> None:
        host = self.host(COMPLAINS)
        self._set_delay(self.plan.longer)
        time.sleep(1.0)  # docs/overrides.md: two looks, a quarter of a second apart
        asked = self._ask("unblock", host, "--why", "slower now, they agree")
        self._ask("unblock", host, "--why", "did it work?", codes=(1,))
        self._until(
            lambda: sum(a.start > asked.began for a in self.of(host, self.web.arrivals())) >= 3
        )

    def _snapshot(self) -> None:
        taken = self.folder / "taken"
        self._ask("snapshot", str(taken), "--why", "this machine is going away")
        shutil.copytree(taken, self.copy)
        shutil.rmtree(taken)
        with StoreReader(self.copy / FOLDER) as reader:
            self.at_snapshot = {
                row.url: row.state.state.value
                for host, _ in reader.store.records()
                for row in reader.urls(host)
            }

    def stalls(self, job: Path) -> list[tuple[float, float]]:
        """When (wall) the loop of the crawl of *job* had been blocked for long, and how long."""
        try:
            lines = (job.parent / "stalls").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(float(when), float(seconds)) for when, seconds, _ in map(str.split, lines)]

    # Helpers

    def host(self, number: int) -> str:
        """The name of a host."""
        return self.web.web.host_name(number)

    def url(self, arrival: Arrival) -> str:
        """What was asked for."""
        return f"http://{arrival.host}:{self.web.ready.http_port}{arrival.path}"

    @staticmethod
    def of(host: str, arrivals: list[Arrival]) -> list[Arrival]:
        """The requests to *host*."""
        return [arrival for arrival in arrivals if arrival.host == host]

    def asked(self, verb: str, number: int = 0) -> Said:
        """The command of that *verb*, the first or a later one."""
        return [said for said in self.desk.said if said.verb == verb][number]

    def _ask(self, *arguments: str, codes: Sequence[int] = (0,)) -> Said:
        return self.desk.ask(self.job, *arguments, codes=codes)

    @staticmethod
    def _until(true: Callable[[], bool]) -> None:
        until(true, _STEP, 0.5)
