"""The example project in a real scrapyd, as docs/scrapyd.md has it: agents are jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from support.forks import LEAN
from support.polite_crawls import Size, pages_of
from support.projects import environment
from support.redis_servers import RedisServer, free_port
from support.running_crawl import until
from support.verdict import REFUSED, url_of
from support.webs import FakeWebProcess

from scrapy_spider_suite.store.job_directory import FOLDER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scrapyd.md").read_text(encoding="utf-8")
SIZE = Size(hosts=12, addresses=12, pages=8, host_delay=0.5, ip_delay=0.03)
AGENTS = ("a", "b")
OURS = "/var/crawls"
"""Where the page keeps job directories and seeds."""
ADDRESS = "http://localhost:6800/"
LONG = 240.0
SOMETIMES = 1.0
"""Seconds between two looks: each takes time from those that are looked at."""


def block(language: str, containing: str) -> str:
    """The page's block in *language* that holds that text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = (each for each in blocks if containing in each)
    return str(found)


def fields(containing: str, folder: Path, **values: str) -> list[tuple[str, str]]:
    """What that command of the page sends, with *folder* for its own and variables replaced."""
    given = " ".join(re.findall(r"-d (\S+)", block("sh", containing))).replace(OURS, str(folder))
    for name, value in values.items():
        given = given.replace(f"${name}", value)
    return [(name, value) for name, _, value in (each.partition("=") for each in given.split())]


class Daemon:
    """A scrapyd that runs at *url*; its files and those of its jobs lie in *folder*."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def ask(self, what: str, data: list[tuple[str, str]] | None = None) -> dict[str, Any]:
        """Call its API."""
        body = None if data is None else urlencode(data).encode()
        with urlopen(f"{self.url}{what}", body, timeout=LONG) as answer:
            said = dict(json.load(answer))
        assert said["status"] == "ok", said
        return said

    def ready(self) -> bool:
        """Whether it answers."""
        with suppress(URLError):
            return bool(self.ask("daemonstatus.json"))
        return False

    def schedule(self, agent: str) -> None:
        """Start a job as the page does."""
        self.ask("schedule.json", fields("schedule.json", self.folder, agent=agent))

    def jobs(self, state: str) -> Counter[str]:
        """How often there is a job of that id, in one of scrapyd's states."""
        listed = self.ask("listjobs.json?project=example")[state]
        return Counter(job["id"] for job in listed)

    def status(self, agent: str) -> dict[str, Any]:
        """What the job directory of *agent* says of its latest run; empty before the first."""
        path = self.folder / "broad" / agent / FOLDER / "status.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def logs(self) -> str:
        """The ends of all that was logged, for a test that fails."""
        found = [self.folder / "scrapyd.log", *self.folder.glob("logs/*/*/*.log")]
        return "\n".join(f"{each}: {each.read_text()[-3000:]}" for each in found)


@contextmanager
def scrapyd(folder: Path) -> Iterator[Daemon]:
    """Start it as the page does; it looks for jobs more often, and takes its jobs with it."""
    port = free_port()
    more = f"http_port = {port}\npoll_interval = 0.5\n"
    (folder / "scrapyd.conf").write_text(block("ini", "[scrapyd]") + more)
    with (folder / "scrapyd.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "scrapyd"], cwd=folder, env=environment(), stdout=log,
            stderr=log, start_new_session=True,
        )  # fmt: skip
    daemon = Daemon(folder, f"http://127.0.0.1:{port}/")
    try:
        until(lambda: daemon.ready() or server.poll() is not None, LONG, SOMETIMES)
        yield daemon
    except BaseException:
        print(daemon.logs())
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def deploy(daemon: Daemon, settings: dict[str, Any]) -> None:
    """Deploy the example project with the page's settings and *settings*, as an egg."""
    project = daemon.folder / "project"
    shutil.copytree(ROOT / "example_project", project)
    lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
    with (project / "example" / "settings.py").open("a") as file:
        file.write("".join([block("python", "SUITE_CLUSTER"), *lines]))
    configured = (project / "scrapy.cfg").read_text()
    assert ADDRESS in configured
    (project / "scrapy.cfg").write_text(configured.replace(ADDRESS, daemon.url))
    done = subprocess.run(
        [sys.executable, "-m", "scrapyd_client.deploy"], cwd=project, env=environment(),
        capture_output=True, text=True, timeout=LONG, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def installed() -> None:
    """Skips the test where there is no scrapyd, except on CI."""
    missing = [name for name in ("scrapyd", "scrapyd_client") if find_spec(name) is None]
    if missing:
        say = pytest.fail if os.environ.get("CI") else pytest.skip
        say(f"not installed: {', '.join(missing)}: pip install scrapyd scrapyd-client")


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.long
def test_agents_are_jobs(tmp_path: Path) -> None:
    """One is cancelled, and scheduled again: one polite crawl, all pages once, all finished."""
    config = SIZE.web(tmp_path / "arrivals", seeds_file=tmp_path / "seeds.txt")
    with (
        RedisServer(tmp_path / "redis") as redis, FakeWebProcess(config) as web,
        scrapyd(tmp_path) as daemon,
    ):  # fmt: skip
        own = {"EXTENSIONS_BASE": LEAN, "SUITE_REDIS_URL": redis.url}
        deploy(daemon, SIZE.settings(web.ready) | own)
        for agent in AGENTS:
            daemon.schedule(agent)
        until(lambda: all(daemon.status(each).get("done") for each in AGENTS), LONG, SOMETIMES)
        assert daemon.jobs("running") == Counter(AGENTS)

        daemon.ask("cancel.json", fields("cancel.json", tmp_path))
        until(lambda: daemon.jobs("finished"), LONG, SOMETIMES)
        cancelled = daemon.status("b")
        assert (cancelled["finish_reason"], cancelled["leased"]) == ("shutdown", 0)
        assert daemon.jobs("running") == Counter("a")

        daemon.schedule("b")
        until(lambda: sum(daemon.jobs("finished").values()) == 3, LONG, SOMETIMES)
        assert daemon.jobs("finished") == Counter("abb")
        ended = [daemon.status(agent) for agent in AGENTS]
        assert [status["finish_reason"] for status in ended] == ["finished"] * len(AGENTS)
        assert ended[1]["done"] >= cancelled["done"]
        web.stop()
        arrivals = web.arrivals()
        pages = [url_of(web.web, each) for each in pages_of(arrivals) if each.status not in REFUSED]
        assert sorted(pages) == sorted(web.web.reachable(obey_robots=True))
        assert SIZE.too_early(arrivals) == []
        assert all(status["done"] for status in ended)
