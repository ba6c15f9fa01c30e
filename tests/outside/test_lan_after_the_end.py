"""An agent of a LAN that is started again after the whole crawl has ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support.crawls import loopback_settings
from support.fleet import OPEN, Fleet
from support.inprocess_crawls import QUIET
from support.names import Setting
from support.redis_servers import free_port
from support.running_crawl import until
from support.websites import Answer, Site, Visit, running

LATE = 100.0
"""Seconds that anything may take on a busy machine."""
HAS_ENDED = "the crawl has ended"


class Town:
    """Hosts that agents a, b and c have crawled to the end of the page /first of each."""

    def __init__(self, folder: Path, site: Site, fleet: Fleet, settings: dict[str, Any]) -> None:
        self._folder, self._site, self._settings = folder, site, settings
        self.fleet = fleet
        self.hosts = [f"http://127.0.0.{number}:{site.server_port}" for number in range(2, 18)]
        site.pages["/first"] = "x"
        self.begin("")

    def begin(self, name: str) -> None:
        """Count from now on, in a test of that *name*.

        A page /second/NAME leads to the page /third/NAME of each host, once *released* is set.
        """
        self._name = name
        self.second, self.third = f"/second/{name}", f"/third/{name}"
        self.reached, self.released = Event(), Event()
        reached, released = self.reached, self.released
        links = "".join(f'<a href="{host}{self.third}">x</a>' for host in self.hosts)

        def second(visit: Visit) -> Answer:
            """Not before it is to be."""
            reached.set()
            released.wait(LATE)
            return Answer(links.encode(), headers={"Content-Type": "text/html"})

        self._site.pages.update({self.second: second, self.third: "x"})
        self._visits = len(self._site.visits)
        self._logged = {agent.name: len(agent.log) for agent in self.fleet.agents.values()}

    def seed(self, name: str, *urls: str) -> None:
        """Have agents that are started from now on read *urls* from the list *name*."""
        listed = self._folder / f"{name}-{self._name}"  # one that was read is not read again
        listed.write_text("\n".join(urls))
        self._settings[Setting.SEEDS] = [str(listed)]

    def start(self, *names: str) -> None:
        """Start those agents."""
        for name in names:
            self.fleet.start(name)

    def opened(self, name: str) -> int:
        """How often that agent has begun to crawl."""
        return self._log(name).count(OPEN)

    def said(self, name: str) -> int:
        """How often that agent has said that the crawl has ended."""
        return self._log(name).count(HAS_ENDED)

    def _log(self, name: str) -> str:
        return self.fleet.agents[name].log[self._logged.get(name, 0) :]

    def paths(self) -> list[str]:
        """All pages that were fetched, a path for each host."""
        return sorted(visit.path for visit in self._site.visits[self._visits :])

    def end(self) -> None:
        """Wait until all agents have ended, as they should."""
        assert self.fleet.wait(LATE), self.fleet.wrong
        assert self.fleet.wrong == []


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A crawl that is over; and so it is again after each test."""
    with crawl(tmp_path_factory.mktemp("over")) as town:
        town.seed("seeds", *(f"{host}/first" for host in town.hosts))
        town.start(*"abc")
        town.end()
        assert town.paths() == ["/first"] * 16
        yield town


@pytest.fixture
def town(over: Town, request: pytest.FixtureRequest) -> Town:
    """What has happened before the test does not count in it."""
    over.begin(re.sub(r"\W", "-", request.node.name))
    return over


@contextmanager
def crawl(folder: Path) -> Iterator[Town]:
    """One that nobody has begun."""
    site = Site({}, "0.0.0.0")
    listed = [f"{name}=127.0.0.1:{free_port()}" for name in "abc"]
    settings = loopback_settings(**{
        **QUIET, "LOGSTATS_INTERVAL": 60,  # which is what has an agent say that it begins
        "ROBOTSTXT_OBEY": False, Setting.CLUSTER: "lan", Setting.CRAWL_NAME: "over",
        Setting.CLUSTER_KEY: "sixteen bytes or more", Setting.AGENTS: listed,
        Setting.IP_CONCURRENCY: 0, Setting.IP_DELAY: 0,
    })  # fmt: skip
    with running(site), Fleet(folder, lambda name: settings, {}) as fleet:
        yield Town(folder, site, fleet, settings)


@pytest.mark.slow
@pytest.mark.long
def test_nothing_more_to_do(town: Town) -> None:
    """It says so and ends, whoever is there: one alone, two of three, all of them."""
    for again in ("b", "ac", "abc"):
        town.start(*again)
        town.end()
    assert [town.said(name) for name in "abc"] == [2, 2, 2]
    assert town.paths() == []


@pytest.mark.slow
def test_more_to_do_for_one_of_those_that_are_started_again(town: Town) -> None:
    """The others have nothing to do at first, and stay, since what it finds may be theirs."""
    town.seed("more", town.hosts[0] + town.second)
    town.start(*"abc")
    until(town.reached.is_set, LATE)
    until(lambda: all(town.opened(name) == 1 for name in "abc"), LATE)
    with pytest.raises(TimeoutError):
        until(lambda: len(town.fleet.alive()) < 3, 20)
    town.released.set()
    town.end()
    assert town.paths() == [town.second] + [town.third] * 16


@pytest.mark.slow
@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.long
def test_more_to_do_while_the_others_are_away(town: Town, first: str) -> None:
    """It waits for them, who come with nothing to do of their own, and end with it; and then it
    is over again."""
    town.seed("more", *(f"{host}{town.second}" for host in town.hosts))
    town.start(first)
    until(town.reached.is_set, LATE)
    others = "abc".replace(first, "")
    town.seed("none")
    town.start(*others)
    until(lambda: all(town.opened(name) == 1 for name in others), LATE)
    town.released.set()
    town.end()
    seconds = town.paths().count(town.second)
    assert 0 < seconds < 16
    assert town.paths() == [town.second] * seconds + [town.third] * 16
    said = town.said("c")
    town.start("c")
    town.end()
    assert town.said("c") == said + 1
