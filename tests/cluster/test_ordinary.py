"""Spiders that know nothing of agents, run by two of them: callbacks, arguments and a login."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.chaos import CRAWL, drain, name_of
from support.crawls import web_settings
from support.fleet import ITEMS, Fleet
from support.redis_servers import RedisServer
from support.running_crawl import until
from support.websites import Answer, Site, Visit, links, running

from scrapy_spider_suite.cluster.agent import Agent
from scrapy_spider_suite.cluster.assignment import Member, OwnerTable, load_assignment
from scrapy_spider_suite.exceptions import HostExcluded

NAMES = [name_of(1), name_of(2)]
SITES = 6
PAGES = ("/a", "/b")


def owned() -> Iterator[tuple[str, str]]:
    """Addresses of this machine, and who owns each."""
    ring = load_assignment("ring")
    table = OwnerTable.of(ring, [Member(name) for name in NAMES])
    for number in range(1, 255):
        host = f"127.0.9.{number}"
        yield host, NAMES[table.owners[ring.unit(host, "")]]


class Town(Site):
    """Sites of which each has pages of its own; one links to the next site, and to one for members.

    Nothing is answered before it is `opened`.
    """

    def __init__(self) -> None:
        super().__init__(host="0.0.0.0")
        theirs = [[self._url(host) for host, name in owned() if name == each] for each in NAMES]
        self.gate = theirs[0].pop()
        self.sites = [theirs[number % 2].pop() for number in range(SITES)]
        self.opened = threading.Event()

    def _url(self, host: str) -> str:
        return f"http://{host}:{self.server_port}"

    def answer(self, visit: Visit) -> Answer:
        self.opened.wait(60)
        url = f"http://{visit.headers['Host']}"
        if url == self.gate:
            if visit.method == "POST":
                return Answer(b"welcome", headers={"Set-Cookie": "session=anna"})
            known = "session=anna" in visit.headers.get("Cookie", "")
            return Answer(b"hello anna") if known else Answer(b"who are you?")
        number = self.sites.index(url)
        found = {"/": PAGES, PAGES[0]: self._beyond(number)}
        return Answer(links(*found.get(visit.path, ())).encode())

    def _beyond(self, number: int) -> tuple[str, str]:
        return f"{self.sites[(number + 1) % SITES]}/from/{number}", f"{self.gate}/in/{number}"

    def wanted(self) -> dict[str, dict[str, Any]]:
        """What is to be noted of each URL."""
        found: dict[str, dict[str, Any]] = {f"{self.gate}/login": {"user": "anna"}}
        for number, site in enumerate(self.sites):
            found[f"{site}/"] = {"site": number, "trail": None}
            trail = [f"{site}/"]
            found |= {f"{site}{page}": {"site": number, "trail": trail} for page in PAGES}
            trail = [*trail, f"{site}{PAGES[0]}"]
            other, inside = self._beyond(number)
            found[other] = {"site": number, "trail": trail}
            found[inside] = found[other] | {"greeting": "hello anna"}
        return found

    def owner(self, url: str) -> str:
        """Which agent is to fetch it."""
        return dict(owned())[url.split("/")[2].partition(":")[0]]

    def urls(self) -> Iterator[str]:
        """All that was asked for."""
        for visit in self.visits:
            yield f"http://{visit.headers['Host']}{visit.path}"


@contextmanager
def two_agents(town: Town, folder: Path, transport: str, **own: Any) -> Iterator[SimpleNamespace]:
    """They know of each other before anything is answered."""
    with RedisServer(folder / "redis", tcp=True) as redis:
        if transport == "shared-queue":
            with redis.client() as client:
                client.set("suite:durable", 1)
        settings = web_settings(
            9, SUITE_CLUSTER=transport, SUITE_RUNS_DIR=str(folder / "runs"),
            SUITE_REDIS_URL=redis.url, SUITE_CRAWL_NAME=CRAWL,
            SUITE_AGENT_ADDRESS="127.0.0.1", SUITE_IP_DELAY=0, SUITE_IP_CONCURRENCY=0,
            ROBOTSTXT_OBEY=False, **{"SUITE_HOST_DELAY": 0.1, **own},
        )  # fmt: skip
        given = {"gate": f"{town.gate}/login", "sites": " ".join(f"{s}/" for s in town.sites)}
        with Fleet(folder, lambda name: settings, given, "support.login_spider.Members") as fleet:
            agents = [fleet.start(name) for name in NAMES]
            met = f"agents that share the crawl: {', '.join(NAMES)}"
            until(lambda: all(met in agent.log for agent in agents), 60)
            town.opened.set()
            yield SimpleNamespace(fleet=fleet, redis=redis)


def noted(folder: Path) -> list[dict[str, Any]]:
    """The items."""
    path = folder / ITEMS
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def greeted(folder: Path) -> list[tuple[str, str]]:
    """Who fetched pages for members, and what these said."""
    return [(each["agent"], each["greeting"]) for each in noted(folder) if "greeting" in each]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("transport", ["peers", "shared-queue"])
def test_two_agents_crawl_as_one_does(transport: str, tmp_path: Path) -> None:
    """Each page is fetched once, also those that `start()` of both asks for, and its callback
    called with its arguments by whoever has the host, who has the session of the login."""
    town = Town()
    with running(town), two_agents(town, tmp_path, transport) as ground:
        assert ground.fleet.wait(120)
    assert ground.fleet.wrong == []
    wanted = town.wanted()
    assert Counter(town.urls()) == Counter(wanted.keys())

    items = noted(tmp_path)
    assert len(items) == len(wanted)
    ways = set[tuple[str, str]]()
    for item in items:
        by, agent, url = (item.pop(name) for name in ("by", "agent", "url"))
        assert item == wanted[url]
        if by:
            ways.add((by, agent))
            assert agent == town.owner(url) or transport == "shared-queue"
    # Where agents come and go, one of them may have been quick enough for all.
    assert ways >= set(permutations(NAMES)) or (ways and transport == "shared-queue")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("profile", ["spider", "broad"])
@pytest.mark.parametrize("transport", ["peers", "shared-queue"])
def test_a_session_goes_with_its_host(transport: str, profile: str, tmp_path: Path) -> None:
    """Also if the agent that has logged in leaves right after that."""
    town = Town()
    slowly = {"SUITE_PROFILE": profile, "SUITE_HOST_DELAY": 2}
    with running(town), two_agents(town, tmp_path, transport, **slowly) as ground:
        fleet = ground.fleet
        until(lambda: greeted(tmp_path), 60)
        [(first, _)] = greeted(tmp_path)
        drain(ground, first)
        assert fleet.wait(120)
    assert fleet.wrong == []
    assert {greeting for _, greeting in greeted(tmp_path)} == {"hello anna"}
    assert {agent for agent, _ in greeted(tmp_path)} == set(NAMES)
    assert len(greeted(tmp_path)) == SITES


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("profile", ["spider", "broad"])
def test_a_session_outlives_a_kill(profile: str, tmp_path: Path) -> None:
    """Of the fetcher that has logged in, some seconds ago."""
    town = Town()
    settings = {
        "SUITE_PROFILE": profile, "SUITE_HOST_DELAY": 2, "SUITE_AGENT_GRACE": 40,
        "DOWNLOAD_TIMEOUT": 5, "SUITE_CHECKPOINT_INTERVAL": 1,
    }  # fmt: skip
    with running(town), two_agents(town, tmp_path, "shared-queue", **settings) as ground:
        fleet = ground.fleet
        until(lambda: len(greeted(tmp_path)) > 2, 60)
        [first] = [each["agent"] for each in noted(tmp_path) if "user" in each]
        fleet.kill(first)
        before = len(greeted(tmp_path))
        assert fleet.wait(120)
    assert fleet.wrong == []
    [second] = {*NAMES} - {first}
    assert set(greeted(tmp_path)[before:]) == {(second, "hello anna")}


@pytest.mark.parametrize("ledger", [None, "redis://10.0.0.1"])
def test_media_of_another_agents_host_need_a_ledger(ledger: str | None) -> None:
    """So that no two agents visit it at a time; and nothing is fetched when the lease is over."""
    live = SimpleNamespace(may_fetch=lambda delay: delay < 5.0)
    here: Any = SimpleNamespace(
        crawl=SimpleNamespace(settings=SimpleNamespace(rate_ledger=ledger)), _mode=live,
        is_elsewhere=lambda host, url: host == "b.test",
    )  # fmt: skip
    theirs, ours = ("b.test", "http://b.test/1.png"), ("a.test", "http://a.test/1.png")
    Agent.refuse_fetch(here, *ours, None, 1.0)
    if ledger:
        Agent.refuse_fetch(here, *theirs, None, 1.0)
    else:
        with pytest.raises(HostExcluded, match="another agent has the host; with SUITE_"):
            Agent.refuse_fetch(here, *theirs, None, 1.0)
    with pytest.raises(HostExcluded, match="the lease of this agent has run out"):
        Agent.refuse_fetch(here, *ours, None, 9.0)
    here._mode = None
    with pytest.raises(HostExcluded, match="the lease of this agent has run out"):
        Agent.refuse_fetch(here, *ours, None, 1.0)
