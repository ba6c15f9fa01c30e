"""``scrapy cluster adopt`` in real crawls of two agents, one of which is gone for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import command_line as commandline
from support.chaos import CRAWL
from support.fleet import ITEMS, Fleet
from support.frontier_command import Frontier, Said
from support.polite_crawls import Size
from support.redis_servers import RedisServer
from support.running_crawl import until
from support.verdict import kept_by, verdict_of
from support.webs import FakeWebProcess

from scrapy_spider_suite.commands.cluster import Command
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader, read_status

pytestmark = pytest.mark.slow

SIZE = Size(hosts=12, addresses=12, pages=12, host_delay=0.25, ip_delay=0.03)
LARGE = Size(hosts=8, addresses=8, pages=60, host_delay=0.1, ip_delay=0.01)
"""Of hosts whose queues are long enough for links to wait."""
STAYS, GOES = "a", "b"


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """Begun for each test: agents that meet there begin together, after a while."""
    with RedisServer(tmp_path / "redis", tcp=True) as server:
        yield server


@pytest.fixture
def cluster(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> Frontier:
    """Run the command in this process."""

    def run(*arguments: object) -> Said:
        where = ["--crawl", CRAWL, "-j", redis_server.url, "--json"]
        command, options, left = commandline.parsed(Command(), [*arguments, *where])
        capsys.readouterr()
        command.run(left, options)
        return Said(command.exitcode, capsys.readouterr().out)

    return run


class Here:
    """A crawl of two agents, each of which has fetched some pages."""

    def __init__(self, web: FakeWebProcess, fleet: Fleet) -> None:
        self.web = web
        self.fleet = fleet
        until(lambda: all(self.pages(name) >= 20 for name in (STAYS, GOES)), 60, 0.5)

    def pages(self, name: str) -> int:
        """How many pages an agent has kept."""
        return sum(name in names for names in kept_by(self.fleet.folder).values())

    def kept(self) -> int:
        """How much there is of all that was kept."""
        return (self.fleet.folder / ITEMS).stat().st_size

    def at_rest(self, name: str) -> bool:
        """Whether an agent has nothing under way, and all that it has done is on disk."""
        status = read_status(self.fleet.agents[name].job / FOLDER)
        if status is None or not status["paused"] or status["leased"]:
            return False
        return bool(status["done"] == self.counters(name).done)

    def kill(self, cluster: Frontier) -> None:
        """Kill the agent that goes, and wait until *cluster* misses it."""
        self.fleet.kill(GOES)
        until(lambda: cluster("ls").rows[1]["state"] == "missing", 60, 1.0)

    def counters(self, name: str) -> Counters:
        """What the job of an agent has."""
        with StoreReader(self.fleet.agents[name].job / FOLDER) as reader:
            return reader.counters()


@contextmanager
def crawling(
    redis: RedisServer, folder: Path, size: Size = SIZE, **settings: Any
) -> Iterator[Here]:
    """Agents that follow everything."""
    web = FakeWebProcess(size.web(folder / "arrivals", redirects=0.0, seeds=1, seeds_file=None))
    with web:
        given = size.settings(
            web.ready, SUITE_CLUSTER="peers", SUITE_REDIS_URL=redis.url,
            SUITE_CRAWL_NAME=CRAWL, SUITE_AGENT_ADDRESS="127.0.0.1", **settings,
        )  # fmt: skip
        with Fleet(folder, lambda name: given, {"seeds": web.ready.seeds[0]}) as fleet:
            for name in (STAYS, GOES):
                fleet.start(name)
            yield Here(web, fleet)


def test_the_directory_of_an_agent_that_was_killed(
    redis_server: RedisServer, cluster: Frontier, frontier: Frontier, tmp_path: Path
) -> None:
    """The crawl ends with every page, each fetched once, but what was in flight at the kill."""
    where = ("--crawl", CRAWL, "-j", redis_server.url)
    with crawling(redis_server, tmp_path) as here:
        fleet = here.fleet
        here.kill(cluster)
        # What it had fetched is known only when it has been adopted.
        frontier("pause", "--why", "adopt", *where)
        assert cluster("remove", GOES, "--dead", "--yes").rows[0]["removed"]
        dead = here.counters(GOES)
        [row] = cluster("adopt", fleet.agents[GOES].job).rows
        assert min(dead.done, dead.pending) > 0
        assert (row["agent"], row["unread"]) == (GOES, 0)
        assert row["urls"] >= dead.done + dead.pending + dead.failed
        status = read_status(fleet.agents[GOES].job / FOLDER)
        assert status is not None
        assert (status["pending"], status["done"]) == (0, 0)  # `up` adds them up
        assert frontier("resume", *where).code == 0
        assert fleet.wait(60, here.kept)
        here.web.stop()
        verdict = verdict_of(fleet, here.web.web, SIZE, here.web.arrivals())
        left = here.counters(GOES)
        assert here.counters(STAYS).done == verdict.reachable
    assert list(verdict.broken()) == []
    assert (left.done, left.pending, left.failed) == (0, 0, 0)


@pytest.mark.long
def test_pages_whose_links_were_not_read(
    redis_server: RedisServer, cluster: Frontier, frontier: Frontier, tmp_path: Path
) -> None:
    """They stay with the directory: started once more, the agent sends their links to the other."""
    where = ("--crawl", CRAWL, "-j", redis_server.url)
    packs = tmp_path / "packs"
    more = {"SUITE_READ_LINKS": "on-demand", "SUITE_PACKS_DIR": str(packs)}
    with crawling(redis_server, tmp_path, LARGE, **more) as here:
        fleet = here.fleet
        frontier("pause", "--why", "adopt", *where)
        until(lambda: here.at_rest(GOES), 60, 0.2)  # pages that are not packed yet would come again
        here.kill(cluster)
        assert cluster("remove", GOES, "--dead", "--yes").rows[0]["removed"]
        with StoreReader(fleet.agents[GOES].job / FOLDER) as reader:
            unread = len(reader.unextracted)
        [row] = cluster("adopt", fleet.agents[GOES].job).rows
        assert row["unextracted"] == unread > 0
        fleet.start(GOES)
        assert frontier("resume", *where).code == 0
        assert fleet.wait(60, here.kept)
        here.web.stop()
        verdict = verdict_of(fleet, here.web.web, LARGE, here.web.arrivals())
    assert list(verdict.broken()) == []


@pytest.mark.long
def test_an_agent_that_was_removed_hears_that_the_crawl_goes_on(
    redis_server: RedisServer, cluster: Frontier, frontier: Frontier, tmp_path: Path
) -> None:
    """Its job was paused with all others; when the crawl was resumed, it was no agent."""
    where = ("--crawl", CRAWL, "-j", redis_server.url)
    with crawling(redis_server, tmp_path) as here:
        fleet = here.fleet
        frontier("pause", "--why", "adopt", *where)
        until(lambda: here.at_rest(GOES), 60, 0.2)
        here.kill(cluster)
        assert cluster("remove", GOES, "--dead", "--yes").rows[0]["removed"]
        assert frontier("resume", *where).code == 0
        fleet.start(GOES)
        assert fleet.wait(120, here.kept)
