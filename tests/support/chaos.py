"""Agents of one crawl that come and go at random, and what is to be said of the crawl then."""

from __future__ import annotations

import math
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.flaky_folders import FLAKY
from support.fleet import HEARTBEAT, OPEN, Event, Fleet, State
from support.polite_crawls import Size
from support.projects import scrapy
from support.redis_servers import RedisServer, free_port
from support.relays import Address, Relay, lossy_network
from support.verdict import SETTLE, Verdict, verdict_of
from support.webs import FakeWebProcess

CRAWL = "chaos"
KEY = "known to the agents of this crawl"
FAULTS = ("restart", "restart-aof", "pause", "cut")
"""What can happen to Redis; the first with what it held lost."""
THE_FOLDER, REDIS = "the folder", "Redis"
FROZEN = ("DownloadTimeoutError",)
"""What may be said of a transfer that was under way when its process was."""
DURABLE = 12.0
"""Seconds until a fetcher's pages are in a checkpoint that is reported, on a busy machine."""
_LATER = 3
"""Exit code of ``drain``: it goes on by itself."""
_SLACK = 4.0
"""Seconds that a pause is longer than a lease."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to happen. Times are seconds."""

    size: Size
    agents: int
    """At a time, at most."""
    seconds: float
    """Of chaos; then all come back, and the crawl ends by itself."""
    pace: tuple[float, float] = (2.0, 6.0)
    """From one act to the next."""
    within: float = 60.0
    """The time that the crawl has to end, after the last request, or to make another one."""
    transport: str = "peers"
    """Or ``shared-queue``, or ``lan``; or empty, for agents that know nothing of each other."""
    assignment: str = "ring"
    fault: str = ""
    """What happens to Redis; then nothing is done to the agents."""
    fault_seconds: float = 30.0
    grace: float | str = 36.0
    """Of the agents; one is frozen for longer, or for 10 s if it is ``forever``."""
    hard: bool = False
    """Of a shared queue: disks are lost, the folder is slow and fails, Redis is restarted."""
    loss: float = 0.05
    seed: int = 1

    @property
    def forgets(self) -> bool:
        """Whether Redis writes to disk, but is killed before its last second is there."""
        return self.fault == "restart-aof" or self.hard

    @property
    def by_redis(self) -> bool:
        """Whether agents may join a crawl that runs."""
        return self.transport in ("peers", "shared-queue")

    def settings(self) -> dict[str, Any]:
        """Settings of all agents."""
        return {
            "CONCURRENT_REQUESTS": 16, "DOWNLOAD_TIMEOUT": 4, "SUITE_STOP_TIMEOUT": 5,
            "SUITE_CLUSTER": self.transport, "SUITE_CRAWL_NAME": CRAWL,
            "SUITE_ASSIGNMENT": self.assignment, "SUITE_AGENT_GRACE": self.grace,
        }  # fmt: skip

    def web(self, log: Path) -> FakeWebProcess:
        """The web: over UDP agents keep no address together, so each host has its own."""
        own = {"addresses": self.size.hosts} if self.transport == "lan" else {}
        return FakeWebProcess(self.size.web(log, seeds=1, seeds_file=None, **own))


@dataclass
class Ground:
    """All that a crawl stands on, as it is while it runs."""

    web: FakeWebProcess
    log: Path
    fleet: Fleet
    redis: RedisServer | None = None
    relay: Relay | None = None
    places: Mapping[str, Address] = field(default_factory=dict)
    """Where agents listen for datagrams."""


@contextmanager
def ground(plan: Plan, folder: Path) -> Iterator[Ground]:
    """Start the web, and Redis or the network; the agents are not started yet."""
    with ExitStack() as stack:
        web = stack.enter_context(plan.web(folder / "arrivals"))
        common = {**plan.size.settings(web.ready), **plan.settings()}
        redis, relay, places = None, None, dict[str, Address]()
        own: Callable[[str], Mapping[str, Any]] = lambda name: {}  # noqa: E731
        if plan.by_redis:
            server = RedisServer(folder / "redis", tcp=True, durable=plan.forgets)
            redis = stack.enter_context(server)
            port = int(redis.url.rpartition(":")[2])
            if plan.fault == "cut":
                relay = stack.enter_context(Relay(("127.0.0.1", port)))
                port = relay.port
            common |= {
                "SUITE_REDIS_URL": f"redis://127.0.0.1:{port}", "SUITE_AGENT_ADDRESS": "127.0.0.1",
            }  # fmt: skip
            if plan.transport == "shared-queue":
                kind = "flaky://" if plan.hard else ""
                common["SUITE_RUNS_DIR"] = f"{kind}{folder / 'runs'}"
                os.environ[FLAKY] = str(folder / "trouble")
        elif plan.transport == "lan":
            places = {name_of(n): (f"127.0.8.{n}", free_port()) for n in range(1, plan.agents + 1)}
            told = stack.enter_context(lossy_network(places, plan.loss, plan.seed))
            # No agent knows where the others go: each host has an address of its own.
            common |= {"SUITE_CLUSTER_KEY": KEY, "SUITE_IP_DELAY": 0, "SUITE_IP_CONCURRENCY": 0}
            own = lambda name: {"SUITE_AGENTS": listed(told[name])}  # noqa: E731
        (folder / "agents").mkdir()
        fleet = stack.enter_context(
            Fleet(folder / "agents", lambda name: {**common, **own(name)},
                  {"seeds": web.ready.seeds[0]})
        )  # fmt: skip
        yield Ground(web, folder / "arrivals", fleet, redis, relay, places)


def name_of(number: int) -> str:
    """Of an agent."""
    return f"agent{number}"


def listed(places: Mapping[str, Address]) -> list[str]:
    """SUITE_AGENTS."""
    return [f"{name}={host}:{port}" for name, (host, port) in places.items()]


@dataclass
class Chaos:
    """Does what *plan* says to the agents of *ground*."""

    plan: Plan
    ground: Ground
    say: Callable[[str], object] = print
    resumes: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.fleet = self.ground.fleet
        self._gone = self._spoilt = False
        self.chance = random.Random(self.plan.seed)

    def run(self) -> Verdict:
        """All of it."""
        self.begin()
        return self.go_on()

    def go_on(self) -> Verdict:
        """What comes after `begin`."""
        if self.plan.fault:
            self.spoil_redis(self.plan.fault)
        else:
            self._act()
        self._all_come_back()
        self.say(f"{self._now():6.1f} s: nothing happens any more")
        self.fleet.wait(self.plan.within, lambda: self.ground.log.stat().st_size)
        self.say(f"{self._now():6.1f} s: all have ended")
        self.ground.web.stop()
        web, lease = self.ground.web, float(str(self.plan.grace).replace("forever", "inf"))
        if not self.plan.by_redis:
            lease = math.inf  # nobody takes over what another one has
        settle = DURABLE if self.plan.transport == "shared-queue" else SETTLE
        arrivals = web.arrivals()
        return verdict_of(self.fleet, web.web, self.plan.size, arrivals, lease, FROZEN, settle)

    def _now(self) -> float:
        return time.monotonic() - self.began

    def begin(self) -> None:
        """Start one agent; or all, where none joins a crawl that runs, or they are to stay."""
        count = 1 if self.plan.by_redis and not self.plan.fault else self.plan.agents
        for number in range(1, count + 1):
            self.fleet.start(name_of(number))
        until = time.monotonic() + 60
        while self.fleet.alive() and not self.ground.web.arrivals() and time.monotonic() < until:
            self._rest(0.2)

    def _rest(self, seconds: float) -> None:
        """Let time pass, and go on for those whose pause is over."""
        until = time.monotonic() + seconds
        while True:
            self.fleet.look()
            now = time.monotonic()
            for name in [name for name, when in self.resumes.items() if when <= now]:
                self._do("resume", name)
            if now >= until:
                return
            time.sleep(min(0.1, until - now))

    # What is done to agents

    def _act(self) -> None:
        until = self.began + self.plan.seconds
        while time.monotonic() < until and not self.fleet.those(State.OVER):
            self._rest(self.chance.uniform(*self.plan.pace))
            possible = list(self._possible())
            if possible:
                kinds = sorted({what for what, _ in possible})
                kind = self.chance.choice(kinds)
                self._do(*self.chance.choice([each for each in possible if each[0] == kind]))

    def _possible(self) -> Iterator[tuple[str, str]]:
        """Acts, of which some agent is left at work."""
        fleet, peers = self.fleet, self.plan.by_redis
        runs = fleet.those(State.RUNS)
        down = fleet.those(State.STOPPED, State.KILLED)
        there = len(runs) + len(down) + len(self.resumes)
        yield from (("start", name) for name in down)
        if peers and there < self.plan.agents:
            yield "start", name_of(len(fleet.agents) + 1)
        if len(runs) < 2 and self.plan.transport:
            return
        for name in runs:
            yield from (("stop", name), ("kill", name), ("kill", name))
            # One that is frozen while it joins says that Redis does not answer, and ends.
            if not self.resumes and OPEN in fleet.agents[name].log:
                yield "pause", name
            if peers and can_drain():
                yield "drain", name
            if self.plan.hard:
                yield "lose", name
                if not self._gone and len(runs) > 2:
                    yield "remove", name
        if self.plan.hard and not self._spoilt:
            yield from (("slow", THE_FOLDER), ("fail", THE_FOLDER), ("restart", REDIS))

    def _do(self, what: str, name: str) -> None:
        self.say(f"{self._now():6.1f} s: {what} {name}")
        if what == "drain":
            drain(self.ground, name)
            return
        if name in (THE_FOLDER, REDIS):
            self._spoil(what)
            return
        if what in ("lose", "remove"):
            self._lose_disk(name, for_good=what == "remove")
            return
        getattr(self.fleet, what)(name)
        if what == "pause":
            longer = self.plan.grace if isinstance(self.plan.grace, float) else 10.0
            self.resumes[name] = time.monotonic() + longer + _SLACK
        if what == "resume":
            del self.resumes[name]

    def _lose_disk(self, name: str, *, for_good: bool) -> None:
        self.fleet.kill(name)
        shutil.rmtree(self.fleet.agents[name].job)
        if for_good:
            self._gone = True
            self.fleet.agents[name].state = State.LEFT

    def _spoil(self, what: str) -> None:
        """Redis restarts; or the folder of blobs is slow, or fails, for some seconds."""
        redis, trouble = self.ground.redis, self.ground.fleet.folder.parent / "trouble"
        assert redis is not None
        if what == "restart":
            self._restart(redis)
            return
        trouble.write_text("slow 0.5" if what == "slow" else "fail")
        self._spoilt = True
        self._rest(self.chance.uniform(3.0, 10.0))
        self._spoilt = False
        trouble.unlink()

    def _all_come_back(self) -> None:
        while self.resumes:
            self._rest(0.5)
        for name in self.fleet.those(State.STOPPED, State.KILLED):
            self._do("start", name)

    # What is done to Redis

    def _restart(self, redis: RedisServer) -> None:
        began = time.time()
        if self.plan.forgets:
            with redis.forgetting():
                self._rest(1.0)
        else:
            redis.kill()
        self._rest(1.0)
        redis.start()
        if self.plan.forgets:  # with runs that were cut then; fetchers learn of it by a heartbeat
            until = time.time() + HEARTBEAT
            self.fleet.events.append(Event(began, "forget", "Redis", until))

    def spoil_redis(self, fault: str) -> None:
        """Let that happen to Redis, of `FAULTS`."""
        redis, relay = self.ground.redis, self.ground.relay
        assert redis is not None
        self._rest(self.plan.seconds / 3)
        self.say(f"{self._now():6.1f} s: Redis: {fault}")
        if fault == "pause":
            redis.pause()
            self._rest(self.plan.fault_seconds)
            redis.resume()
        elif fault == "cut":
            assert relay is not None
            relay.cut()
            self._rest(self.plan.fault_seconds)
            relay.mend()
        else:
            self._restart(redis)
        self.say(f"{self._now():6.1f} s: Redis is back")


def can_drain() -> bool:
    """Whether there is the command for it."""
    from importlib.metadata import entry_points

    return bool(entry_points(group="scrapy.commands").select(name="cluster"))


def drain(ground: Ground, name: str) -> None:
    """Ask an agent to hand over all that it has, and to go (``scrapy cluster drain``)."""
    assert ground.redis is not None
    # Those that take it may be away until something else is done: then it leaves later.
    command = ["drain", name, "-j", f"{ground.redis.url}/{CRAWL}", "--wait", "20"]
    said = scrapy(ground.fleet.folder, "cluster", *command)
    if said.returncode not in (0, _LATER):
        text = (said.stderr.splitlines() or [""])[-1]
        if "agent runs that could take" not in text:  # those that were started have yet to join
            ground.fleet.wrong.append(f"scrapy cluster drain {name}: {said.returncode}: {text}")
        return
    ground.fleet.left(name)


def run(plan: Plan, folder: Path, say: Callable[[str], object] = print) -> Verdict:
    """Do what *plan* says, in *folder*."""
    with ground(plan, folder) as here:
        return Chaos(plan, here, say).run()
