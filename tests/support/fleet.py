"""Agents of one crawl as processes that are started, stopped, killed, paused and started again."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from scrapy_spider_suite.cluster.membership import HEARTBEAT
from support.crawls import Process, start

ITEMS = "items"
"""The file, for all agents, in which each page is noted with who has it."""
SPIDER = "support.spiders.Noting"
OPEN = "The crawl is open: "
"""What an agent logs when it begins to crawl."""
_GOES = ("stop", "kill", "pause", "cut")
_COMES = ("join", "resume", "plug")
_SAID = {
    "this is agent": "join", "the lease of this agent ended": "lapse",
    OPEN: "open",
}  # fmt: skip
"""What an agent logs when it takes part, was too late to renew its lease, and begins to crawl."""
_TICKS = os.sysconf("SC_CLK_TCK")


class State(StrEnum):
    """Of an agent, by what was done to it."""

    RUNS = "runs"
    PAUSED = "paused"
    STOPPED = "stopped"
    KILLED = "killed"
    DRAINED = "drained"
    LEFT = "left"
    """It was drained, and its process has ended."""
    OVER = "over"
    """Its process has ended by itself."""


class Event(NamedTuple):
    """What was done, or what happened, to an agent at a time of the wall clock."""

    when: float
    what: str
    name: str
    until: float = 0.0
    """When it was done for certain: a signal takes its time."""


@dataclass
class Agent:
    """One agent: its folder stays, its processes come and go."""

    name: str
    folder: Path
    state: State = State.STOPPED
    process: Process | None = None
    cpu: float = 0.0
    """Seconds of processor time of its processes, as far as they were looked at."""
    looked: float = 0.0
    read: int = 0
    """Bytes of its log that were looked at."""

    @property
    def job(self) -> Path:
        """Its job directory."""
        return self.folder / "job"

    @property
    def log(self) -> str:
        """What all of its processes have said."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def stats(self) -> dict[str, Any]:
        """The stats of its last process; empty if that did not end by itself."""
        path = self.folder / "stats.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def news(self) -> str:
        """The lines of its log since the last time."""
        with (self.folder / "log").open("rb") as log:
            log.seek(self.read)
            text, _, _ = log.read().rpartition(b"\n")
        self.read += len(text)
        return text.decode(errors="replace")

    def look(self) -> None:
        """Add what its process has used since the last look."""
        if self.process is None or self.process.poll() is not None:
            return
        with suppress(OSError):
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            used = (int(fields[11]) + int(fields[12])) / _TICKS
            self.cpu += used - self.looked
            self.looked = used


@dataclass
class Fleet:
    """Starts agents, each in a folder of its own below *folder*.

    Args:
        settings: of the agent with the given name.
        arguments: of the spider.
        namespace: the file of the network of the agent with the given name.

    Attributes:
        events: all that was done and happened, in order.
        wrong: what no agent should have done.
    """

    folder: Path
    settings: Callable[[str], Mapping[str, Any]]
    arguments: Mapping[str, Any]
    spider: str = SPIDER
    namespace: Callable[[str], Path | None] = lambda name: None
    agents: dict[str, Agent] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process behind."""
        for agent in self.agents.values():
            if agent.process is not None and agent.process.poll() is None:
                agent.process.send_signal(signal.SIGCONT)
                agent.process.kill()
                agent.process.wait()

    def those(self, *states: State) -> list[str]:
        """The names of agents in one of *states*."""
        return [agent.name for agent in self.agents.values() if agent.state in states]

    def happened(self, *what: str) -> list[Event]:
        """The events of these kinds."""
        return [event for event in self.events if event.what in what]

    def lapses(self, grace: float) -> list[Event]:
        """The ends of what agents did, after which they were away for longer than their lease of
        *grace* seconds, which had been renewed up to a heartbeat before: others may have taken over
        what they had.
        """
        found = []
        for number, event in enumerate(self.events):
            if event.what == "lapse":
                found.append(event)
            elif event.what in _GOES:
                later = (e for e in self.events[number:] if e.name == event.name)
                back = next((e.when for e in later if e.what in _COMES), math.inf)
                if back - event.when > grace - HEARTBEAT:
                    found.append(event)
        return found

    # What can be done

    def start(self, name: str) -> Agent:
        """Start an agent, in its directory if it was there before."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        agent = self.agents.setdefault(name, Agent(name, folder))
        settings = {
            **self.settings(name), "JOBDIR": str(agent.job), "SUITE_AGENT_NAME": name,
            "TEST_ITEMS": str(self.folder / ITEMS),
            "ITEM_PIPELINES": {"support.spiders.FilePipeline": 1},
        }  # fmt: skip
        agent.process = start(
            self.spider, settings, folder, namespace=self.namespace(name), **self.arguments
        )
        agent.looked, agent.state = 0.0, State.RUNS
        self.note("start", name)
        return agent

    def stop(self, name: str, within: float = 60.0) -> None:
        """End it as a supervisor does (SIGTERM), and wait until it is gone."""
        agent = self._signal(name, "stop", signal.SIGTERM)
        self._gone(agent, State.STOPPED, within, signal.SIGTERM)

    def kill(self, name: str) -> None:
        """End it with SIGKILL."""
        agent = self._signal(name, "kill", signal.SIGKILL)
        self._gone(agent, State.KILLED, 30.0, signal.SIGKILL)

    def pause(self, name: str) -> None:
        """Let it do nothing (SIGSTOP)."""
        self._signal(name, "pause", signal.SIGSTOP).state = State.PAUSED

    def resume(self, name: str) -> None:
        """Let it go on."""
        self._signal(name, "resume", signal.SIGCONT).state = State.RUNS

    def left(self, name: str) -> None:
        """It was asked to hand over all that it has and to go: note that."""
        self.note("drain", name)
        self.agents[name].state = State.DRAINED

    # What happens

    def look(self) -> None:
        """Note what agents have said, whose process has ended by itself, and what each has used."""
        for agent in self.agents.values():
            agent.look()
            for line in agent.news().splitlines():
                for sign in (sign for sign in _SAID if sign in line):
                    self.note(_SAID[sign], agent.name)
            if agent.process is None or agent.process.poll() is None:
                continue
            if agent.state in (State.RUNS, State.DRAINED):
                self._ended(agent)

    def wait(self, within: float, progress: Callable[[], object] = lambda: None) -> bool:
        """Wait until all processes have ended by themselves.

        False if they have not *within* so many seconds after *progress* was another one.
        """
        known, since = progress(), time.monotonic()
        while self.alive():
            self.look()
            if (found := progress()) != known:
                known, since = found, time.monotonic()
            if time.monotonic() - since > within:
                self.wrong += [f"{name} does not end" for name in self.alive()]
                return False
            time.sleep(0.1)
        self.look()
        return True

    def alive(self) -> list[str]:
        """The names of those whose process is there."""
        return [
            agent.name for agent in self.agents.values()
            if agent.process is not None and agent.process.poll() is None
        ]  # fmt: skip

    def _ended(self, agent: Agent) -> None:
        assert agent.process is not None
        reason = agent.stats.get("closed")
        code, drained = agent.process.returncode, agent.state is State.DRAINED
        agent.state = State.LEFT if drained and reason == "drained" else State.OVER
        self.note("end", agent.name)
        if (code or reason != "finished") and not (drained and reason == "drained"):
            last = (agent.log.splitlines() or [""])[-1]
            self.wrong.append(f"{agent.name} ended with code {code}, {reason}: {last[:300]}")

    def _signal(self, name: str, what: str, sign: signal.Signals) -> Agent:
        agent = self.agents[name]
        assert agent.process is not None
        agent.look()
        begun = time.time()
        agent.process.send_signal(sign)
        self.events.append(Event(begun, what, name, time.time()))
        return agent

    def _gone(self, agent: Agent, state: State, within: float, sign: signal.Signals) -> None:
        assert agent.process is not None
        try:
            code = agent.process.wait(within)
        except subprocess.TimeoutExpired:
            self.wrong.append(f"{agent.name} does not end within {within:g} s of {sign.name}")
            agent.process.kill()
            code = agent.process.wait()
        reason = agent.stats.get("closed")
        if code == 0 and reason == "finished":  # the crawl was over in this moment
            self._ended(agent)
            return
        agent.state = state
        self.note("gone", agent.name)
        # A process that was about to begin has nothing to close.
        past = [event.what for event in self.events if event.name == agent.name]
        began = "open" in past[len(past) - past[::-1].index("start") :]
        if sign is signal.SIGTERM and (code, reason) != (0, "shutdown") and began:
            self.wrong.append(f"{agent.name} was stopped and ended with code {code}, {reason}")

    def note(self, what: str, name: str) -> None:
        """Something was done to an agent, now: write it down."""
        now = time.time()
        self.events.append(Event(now, what, name, now))
