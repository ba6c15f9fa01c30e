"""Seeds that are pushed while several agents run: each goes to its owner, whoever has taken it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event

import pytest
from support import frontier_command
from support.crawls import ADDON
from support.fleet import ITEMS, Fleet, State
from support.inprocess_crawls import QUIET
from support.projects import scrapy
from support.pushed_spiders import PROJECT
from support.redis_servers import RedisServer
from support.running_crawl import until
from support.websites import Answer, Site, Visit, running

from scrapy_spider_suite.cluster.assignment import Member, OwnerTable, load_assignment
from scrapy_spider_suite.urls.normalize import host_of

AGENTS = ("a", "b")
SEEDS = 20
"""Of each agent."""
CRAWL, KEY = "pushed", "seeds"
LONG = 8
"""Seconds without work; agents that wait for none agree on the end in less."""
LOOKS = 1.5
"""Seconds in which an agent has noticed that."""
LATE = 100.0
"""Seconds that anything may take on a busy machine."""


def seeds(site: Site) -> Iterator[str]:
    """URLs of hosts that belong to one agent and the other in turn, all served by *site*."""
    ring = load_assignment("ring")
    table = OwnerTable.of(ring, [Member(name) for name in AGENTS])
    hosts: dict[str, list[str]] = {name: [] for name in AGENTS}
    for number in count(2):
        url = f"http://127.0.0.{number}:{site.server_port}/"
        hosts[table.owner(ring.unit(host_of(url), url))].append(url)
        if min(map(len, hosts.values())) == SEEDS:
            break
    for both in zip(*hosts.values(), strict=False):
        yield from both


@contextmanager
def agents(redis: RedisServer, folder: Path, spider: str, idle: int) -> Iterator[Fleet]:
    """They know of each other; without `let_end` they wait for ever."""
    settings = {
        "ADDONS": ADDON, **QUIET, **PROJECT, "MAX_IDLE_TIME_BEFORE_CLOSE": idle,
        "LOG_LEVEL": "INFO", "ROBOTSTXT_OBEY": False, "SUITE_IP_DELAY": 0,
        "REDIS_START_URLS_KEY": KEY, "SUITE_REDIS_URL": redis.url,
        "SUITE_CLUSTER": "peers", "SUITE_CRAWL_NAME": CRAWL, "SUITE_WHEN_DONE": "wait",
    }  # fmt: skip
    with Fleet(folder, lambda name: settings, {}, f"support.pushed_spiders.{spider}") as fleet:
        for name in AGENTS:
            fleet.start(name)
        both = "agents that share the crawl: a, b"
        until(lambda: all(both in each.log for each in fleet.agents.values()), LATE)
        yield fleet


def let_end(redis: RedisServer) -> None:
    """The agents may end by their idle time."""
    wish = ("set", "SUITE_WHEN_DONE", "finish", "-j", redis.url, "--crawl", CRAWL)
    done = frontier_command.scrapy(*wish)
    assert done.returncode == 0, done.stdout + done.stderr


def check(fleet: Fleet, site: Site, pushed: list[str]) -> None:
    """Each of *pushed* was asked for once, by its owner, though some were taken by the other."""
    asked = [f"http://{visit.headers['Host']}{visit.path}" for visit in site.visits]
    assert sorted(asked) == sorted(pushed)
    items = [json.loads(line) for line in (fleet.folder / ITEMS).read_text().splitlines()]
    owners = dict(zip(pushed, AGENTS * SEEDS, strict=True))
    assert {item["url"]: item["agent"] for item in items} == owners
    stats = [agent.stats for agent in fleet.agents.values()]
    assert sum(each.get("suite/redis/taken", 0) for each in stats) == len(pushed)
    assert sum(each["suite/messages/rows"] for each in stats) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spider", "idle"), [("Shared", LONG), ("SharedKey", 1), ("SharedBroad", 1)]
)
@pytest.mark.long
def test_seeds_go_to_their_owners(spider: str, idle: int, tmp_path: Path) -> None:
    """Each is fetched once; who is out of work stays while the other has some; both end at once."""
    released = Event()

    def page(visit: Visit) -> Answer:
        """The first one of all is held back."""
        if visit.headers["Host"] in pushed[0]:
            released.wait(3 * LATE)
        return Answer(b"x")

    site, redis = Site({"/": page}, "0.0.0.0"), RedisServer(tmp_path / "redis")
    pushed = list(seeds(site))
    with (
        running(site), redis, agents(redis, tmp_path, spider, idle) as fleet,
        redis.client() as client,
    ):  # fmt: skip
        client.rpush(KEY, *pushed[:SEEDS])
        until(lambda: len(site.visits) == SEEDS - 1, LATE)
        let_end(redis)
        out_of_work = max(visit.ended for visit in site.visits) + idle + LOOKS
        until(lambda: time.monotonic() > out_of_work)
        client.rpush(KEY, *pushed[SEEDS:])
        until(lambda: len(site.visits) == len(pushed) - 1, LATE)
        released.set()
        assert fleet.wait(LATE), [agent.log[-3000:] for agent in fleet.agents.values()]
        assert fleet.wrong == []
        assert client.keys(f"{KEY}*") == []
    check(fleet, site, pushed)
    last = max(visit.ended for visit in site.visits) - time.monotonic() + time.time()
    assert min(event.when for event in fleet.happened("end")) > last + idle


@pytest.mark.slow
def test_who_waits_for_seeds_is_drained(tmp_path: Path) -> None:
    """Though it would wait for ever; what is pushed afterwards is the other one's."""
    site, redis = Site({"/": b"x"}, "0.0.0.0"), RedisServer(tmp_path / "redis")
    pushed = list(seeds(site))[:6]
    with (
        running(site), redis, agents(redis, tmp_path, "SharedKey", 0) as fleet,
        redis.client() as client,
    ):  # fmt: skip
        client.rpush(KEY, *pushed[:4])
        until(lambda: len(site.visits) == 4, LATE)
        done = scrapy(
            tmp_path, "cluster", "drain", "b", "-j", redis.url, "--crawl", CRAWL, "--wait",
            str(LATE), timeout=2 * LATE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        fleet.left("b")
        until(lambda: fleet.look() or fleet.those(State.LEFT), LATE)
        client.rpush(KEY, *pushed[4:])
        until(lambda: len(site.visits) == 6, LATE)
        fleet.stop("a")
    assert fleet.wrong == []
