"""What a supervisor sees of a crawl: its exit code, its status, its notifications, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.forks import Fork
from support.projects import SCRAPY, Project, environment
from support.redis_servers import free_port
from support.running_crawl import until
from support.webs import FakeWebProcess

from scrapy_spider_suite.runtime.refusal import ExitCode
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig

pytestmark = pytest.mark.slow

STOP = 4.0
"""SUITE_STOP_TIMEOUT, seconds."""
FAST = {"SUITE_HOST_DELAY": 0.02, "SUITE_IP_DELAY": 0.0}
STILL = 3
"""SUITE_STALL_TIMEOUT, seconds."""


class Supervised:
    """A project in *folder*, and the commands that crawl *web* with it."""

    def __init__(self, folder: Path, web: FakeWebProcess) -> None:
        self.folder, self.web = folder, web
        self.job, self.log = folder / "job", folder / "log"
        self.project = Project(
            folder / "project", SPIDER_MODULES=["support.spiders", "support.stalling_spiders"],
            SUITE_DNS_SERVERS=f"127.0.0.1:{web.ready.dns_port}", TELNETCONSOLE_ENABLED=False,
            SUITE_ALLOW_PRIVATE_ADDRESSES=["127.0.0.0/8"], SUITE_STOP_TIMEOUT=STOP,
            LOG_LEVEL="INFO", JOBDIR=str(self.job), **FAST,
        )  # fmt: skip

    @contextmanager
    def crawling(
        self, spider: str = "bulk", extra: dict[str, str] | None = None, **settings: Any
    ) -> Iterator[Fork]:
        """``scrapy crawl``, entered once its spider is open; it is gone after the block."""
        argument = "start" if spider == "ordinary" else "seeds"
        options = [f"-s{name}={value}" for name, value in settings.items()]
        line = ["crawl", spider, "-a", f"{argument}={self.seeds()[argument]}", *options]
        with self.log.open("wb") as log:
            process = Fork(
                SCRAPY, line, self.project.folder, environment() | (extra or {}), log, log
            )
        try:
            until(lambda: "Spider opened" in self.said() or process.poll() is not None)
            yield process
        finally:
            process.kill()
            process.wait()

    def seeds(self) -> dict[str, str]:
        """Where each kind of spider begins."""
        return {"start": self.web.ready.seeds[0], "seeds": ",".join(self.web.ready.seeds)}

    def crawl(self, spider: str = "bulk", **settings: Any) -> int:
        """``scrapy crawl`` to its end; its exit code."""
        with self.crawling(spider, **settings) as process:
            return process.wait(60)

    def said(self) -> str:
        """The log."""
        return self.log.read_text(errors="replace")

    def status(self) -> dict[str, Any]:
        """What status.json says."""
        found: dict[str, Any] = json.loads((self.job / FOLDER / "status.json").read_text())
        return found

    def fetched(self) -> list[str]:
        """The paths of all pages that were fetched."""
        return [f"{a.host}{a.path}" for a in self.web.arrivals() if a.path != "/robots.txt"]

    def check(self) -> int:
        """Check that the job is sound, and that nothing reachable is unknown; what is pending."""
        with StoreReader(self.job / FOLDER) as reader:
            assert list(reader.check()) == []
            return reader.counters().pending

    def finish(self) -> None:
        """Resume to the end: all that can be reached has been fetched."""
        assert self.crawl() == ExitCode.FINISHED, self.said()
        assert self.check() == 0
        self.web.stop()
        port = self.web.ready.http_port
        urls = self.web.web.reachable(obey_robots=True)
        reachable = {url.removeprefix("http://") for url in urls}
        assert {url.replace(".test", f".test:{port}") for url in self.fetched()} >= reachable


@pytest.fixture
def crawls(tmp_path: Path) -> Iterator[Supervised]:
    """See `Supervised`; the web takes about five seconds to crawl, on a machine with time."""
    config = FakeWebConfig(
        hosts=30, pages=15, degree=10, addresses=30, seeds=30, latency=0.3,
        log=tmp_path / "arrivals",
    )  # fmt: skip
    with FakeWebProcess(config) as web:
        yield Supervised(tmp_path, web)


def small_web(folder: Path) -> FakeWebProcess:
    """A web that is crawled in no time."""
    return FakeWebProcess(
        FakeWebConfig(hosts=4, pages=4, degree=4, seeds=4, log=folder / "arrivals")
    )


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeWebProcess]:
    """Such a web of all tests that do not look at what reached it."""
    with small_web(tmp_path_factory.mktemp("web")) as web:
        yield web


@pytest.fixture
def small(tmp_path: Path, web: FakeWebProcess) -> Supervised:
    """See `Supervised`."""
    return Supervised(tmp_path, web)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Supervised]:
    """See `Supervised`; with such a web of its own."""
    with small_web(tmp_path) as web:
        yield Supervised(tmp_path, web)


# How a crawl ends


def test_work_left_and_finished(alone: Supervised) -> None:
    """One code each, in the status too."""
    assert alone.crawl(CLOSESPIDER_PAGECOUNT=3) == ExitCode.WORK_LEFT
    status = alone.status()
    assert (status["exit_code"], status["finish_reason"]) == (3, "closespider_pagecount")
    assert status["started"] <= status["ended"] <= time.time()
    assert status["pending"] == alone.check() > 0
    told = alone.project.scrapy("frontier", "status", "--json", JOBDIR=str(alone.job))
    row = json.loads(told.stdout)
    assert (row["running"], row["exit_code"]) == (False, 3)
    assert row["finish_reason"] == "closespider_pagecount"
    alone.finish()
    assert (alone.status()["exit_code"], alone.status()["finish_reason"]) == (0, "finished")


def test_a_start_that_is_refused_says_what_the_job_has(small: Supervised) -> None:
    """Although it has done nothing itself: the address of this agent is taken."""
    port = free_port()
    alone: dict[str, Any] = {
        "SUITE_CLUSTER": "lan", "SUITE_AGENTS": f"a=127.0.0.1:{port}", "SUITE_AGENT_NAME": "a",
        "SUITE_CLUSTER_KEY": "sixteen bytes or more", "SUITE_IP_CONCURRENCY": 0,
        "SUITE_IP_DELAY": 0,
    }  # fmt: skip
    assert small.crawl(CLOSESPIDER_PAGECOUNT=3, **alone) == ExitCode.WORK_LEFT
    before = small.status()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", port))
        assert small.crawl(**alone) == ExitCode.REFUSED
    after = small.status()
    assert after["started"] > before["ended"]
    for name in ("done", "failed", "pending"):
        assert after[name] == before[name]


def test_the_spider_profile_keeps_scrapys_codes(small: Supervised) -> None:
    """Unless the project wants others."""
    limit = {"CLOSESPIDER_PAGECOUNT": 1}
    assert small.crawl("ordinary", **limit) == 0
    assert small.status()["exit_code"] == 0
    assert small.crawl("ordinary", **limit, SUITE_EXIT_CODES=True) == ExitCode.WORK_LEFT


def test_sigterm_under_load(crawls: Supervised) -> None:
    """It ends in time, everything is committed, and nothing is fetched twice."""
    with crawls.crawling() as process:
        until(lambda: len(crawls.fetched()) > 60)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == ExitCode.INTERRUPTED
        assert time.monotonic() - began < STOP + 8.0
    assert crawls.status()["finish_reason"] == "shutdown"
    with StoreReader(crawls.job / FOLDER) as reader:
        done = reader.counters().done + reader.counters().failed
    assert crawls.check() > 0
    assert done >= len(crawls.fetched())
    crawls.finish()
    assert len(crawls.fetched()) == len(set(crawls.fetched()))


def test_two_signals_in_a_hurry(crawls: Supervised) -> None:
    """The process ends at once, the job is as after a kill, and goes on."""
    with crawls.crawling() as process:
        until(lambda: len(crawls.fetched()) > 60)
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == ExitCode.INTERRUPTED
    assert crawls.check() > 0
    crawls.finish()


def test_a_stopped_process_goes_on(crawls: Supervised) -> None:
    """SIGSTOP for longer than SUITE_STALL_TIMEOUT is no stall."""
    slowly = {"SUITE_HOST_DELAY": 0.6, "SUITE_STALL_TIMEOUT": STILL, "DOWNLOAD_TIMEOUT": 1}
    with crawls.crawling(**slowly) as process:
        until(lambda: len(crawls.fetched()) > 60)
        process.send_signal(signal.SIGSTOP)
        time.sleep(2 * STILL)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        before = len(crawls.fetched())
        until(lambda: len(crawls.fetched()) > before)
        time.sleep(STILL)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == ExitCode.INTERRUPTED, crawls.said()
    assert crawls.check() > 0


# Standing still


@pytest.mark.parametrize(
    ("spider", "culprit"), [("sleeper", "time.sleep(600)"), ("matcher", "re.match(")]
)
def test_a_loop_that_stands_still(spider: str, culprit: str, small: Supervised) -> None:
    """The process ends with the stacks in the log and in the job; nothing is lost."""
    assert small.crawl(spider, SUITE_STALL_TIMEOUT=STILL) == ExitCode.STALLED
    assert culprit in small.said()
    assert culprit in (small.job / FOLDER / "stacks.txt").read_text()
    status = small.status()
    assert (status["exit_code"], status["finish_reason"]) == (7, "stalled")
    small.check()


def test_nothing_is_fetched_although_hosts_are_ready(small: Supervised) -> None:
    """Lost requests hold every place: the crawl is stopped, and ended when that takes too long."""
    settings = {
        "SUITE_STALL_TIMEOUT": STILL, "DOWNLOAD_TIMEOUT": 1, "CONCURRENT_REQUESTS": 1,
        "DOWNLOADER_MIDDLEWARES": json.dumps({"support.stalling_spiders.Endless": 50}),
        "ROBOTSTXT_OBEY": False,
    }  # fmt: skip
    assert small.crawl(**settings) == ExitCode.STALLED, small.said()
    assert "although hosts are ready" in small.said()
    assert small.status()["finish_reason"] == "stalled"


def test_a_crawl_that_waits_for_its_hosts_is_not_stalled(small: Supervised) -> None:
    """However long they must wait."""
    waits = {"SUITE_HOST_DELAY": 2 * STILL, "SUITE_STALL_TIMEOUT": STILL, "DOWNLOAD_TIMEOUT": 1}
    with small.crawling(**waits, CLOSESPIDER_PAGECOUNT=8) as process:
        assert process.wait(60) == ExitCode.WORK_LEFT, small.said()


def test_a_paused_crawl_is_not_stalled(small: Supervised) -> None:
    """Although its hosts are ready."""

    def act(verb: str) -> None:
        done = small.project.scrapy("frontier", verb, JOBDIR=str(small.job))
        assert done.returncode == 0, done.stderr

    slowly = {"SUITE_HOST_DELAY": 2, "SUITE_STALL_TIMEOUT": STILL, "DOWNLOAD_TIMEOUT": 1}
    with small.crawling(**slowly) as process:
        until((small.job / FOLDER / "status.json").exists)
        act("pause")
        until(lambda: small.status()["pauses"] == ["the operator"])
        time.sleep(2 * STILL)
        act("resume")
        assert process.wait(60) == ExitCode.FINISHED, small.said()


# Being told


def test_a_crawl_that_is_stopped_while_it_meets_others(small: Supervised) -> None:
    """Nothing is left behind: not even a task that the loop would tell of."""
    others = {"SUITE_CLUSTER": "peers", "SUITE_REDIS_URL": "redis://127.0.0.1:1/0"}
    with small.crawling(**others) as process:
        until(lambda: "it is asked again" in small.said() or process.poll() is not None)
        process.terminate()
        assert process.wait(60) == ExitCode.INTERRUPTED, small.said()
    assert "ERROR" not in small.said()
    assert "Traceback" not in small.said()
    assert small.status()["finish_reason"] == "shutdown"


def test_notifications(small: Supervised) -> None:
    """READY, STATUS, WATCHDOG and STOPPING reach a real socket, here one with an abstract name."""
    name = f"suite-{os.getpid()}-{time.monotonic_ns()}"
    extra = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "5000000"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(0.5)
        with small.crawling(extra=extra, SUITE_HOST_DELAY=0.7) as process:
            heard: list[str] = []
            while process.poll() is None:
                try:
                    heard += manager.recv(4096).decode().splitlines()
                except TimeoutError:
                    continue
            assert process.returncode == ExitCode.FINISHED
    assert heard[0] == "READY=1"
    assert "WATCHDOG=1" in heard
    assert any("URLs done" in line for line in heard if line.startswith("STATUS="))
    assert heard[-2:] == ["STOPPING=1", "STATUS=the crawl ended: finished"]
    assert heard.count("STOPPING=1") == 1


def test_a_script_keeps_its_exit_code(small: Supervised, tmp_path: Path) -> None:
    """Whatever becomes of a crawl in it; and nobody is notified in its name."""
    script = tmp_path / "script.py"
    script.write_text(
        "from scrapy.crawler import CrawlerProcess\n"
        "from scrapy.utils.project import get_project_settings\n"
        "settings = get_project_settings()\n"
        "settings.set('CLOSESPIDER_PAGECOUNT', 2)\n"
        "process = CrawlerProcess(settings)\n"
        f"process.crawl('bulk', seeds={small.web.ready.seeds[0]!r})\n"
        "process.start()\n"
        "print('the script goes on')\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=small.project.folder, env=environment(),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "the script goes on\n"), done.stderr
    assert small.status()["finish_reason"] == "closespider_pagecount"
    assert small.status()["exit_code"] is None
