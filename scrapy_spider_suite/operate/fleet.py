"""``scrapy cluster up``: agents as processes of one command. As a program: one of these agents.

All users of the machine can read a command line, and settings and arguments may hold passwords. So
an agent gets the words of the user through a pipe. With a Redis of their own, the agents live and
end with the command: a killed one is started again.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from scrapy.addons import AddonManager
from scrapy.cmdline import execute
from scrapy.exceptions import UsageError
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.project import inside_project

from scrapy_spider_suite.cluster.local_redis import LocalRedis
from scrapy_spider_suite.errors import JobInUseError
from scrapy_spider_suite.operate.verb import Invocation, as_number
from scrapy_spider_suite.runtime.files import last_line
from scrapy_spider_suite.runtime.helper_processes import Restarts, signal_name
from scrapy_spider_suite.runtime.refusal import ExitCode
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.values import Endpoint, endpoint
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import read_status

MODULE: Final = "scrapy_spider_suite.operate.fleet"
_SUMS: Final = ("done", "failed", "pending")
_SETTLED: Final = ("finished", "waiting", "drained")
"""Finish reasons of agents without rows in transit."""


class _Agent:
    """An agent: its *command*, which is *said* the words of the user, and its process."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, command: Sequence[str], said: bytes) -> None:
        self.command, self.said = command, said
        self.status = read_status(folder) or {}  # the newest of the job, of any process
        self.own_status: dict[str, Any] = {}  # the last that this process wrote
        self.end_printed = False
        self.kill_printed = False
        self.restarts = Restarts()
        self._folder = folder
        self._earlier = 0  # pages of its processes that were killed
        self._was_cut_short = False

    def began(self, process: subprocess.Popen[bytes]) -> None:
        """Note that *process* is started, perhaps in place of one that was killed."""
        self._earlier = self.fetched
        self._was_cut_short |= bool(self.own_status)
        self._before, self.own_status = _writer(self.status), {}
        self.process, self.kill_printed = process, False
        self.restarts.began(time.monotonic())

    @property
    def fetched(self) -> int:
        return self._earlier + int(as_number(self.own_status.get("fetched")))

    def read_status(self) -> None:
        found = read_status(self._folder) or {}
        self.status = {**self.status, **found}  # a process that ended early gave no numbers
        # Numbers of processes come again, in a container each time; and another command may have
        # started the agent anew.
        writer = _writer(found)
        if writer[0] == self.process.pid and writer != self._before:
            self.own_status = found

    @property
    def settled(self) -> bool:
        """Whether it has ended, and its rows are counted exactly once."""
        return self.end_printed and self.own_status.get("finish_reason") in _SETTLED

    @property
    def cut_short(self) -> bool:
        """Whether a process ended without a last status, which is written once a second."""
        killed = (self.process.returncode or 0) < 0
        known = self.own_status
        cut_short = self.end_printed and not known.get("ended") and (killed or bool(known))
        return cut_short or self._was_cut_short

    @property
    def exit_code(self) -> int:
        """Below 0: a signal killed it, before its crawl had ended."""
        code, known = self.process.returncode, self.own_status
        said = known.get("exit_code") if known.get("ended") else None
        return said if code < 0 and isinstance(said, int) else code

    def reason(self) -> str:
        if self.exit_code < 0:
            return f"killed by {signal_name(-self.process.returncode)}"
        if not self.own_status:
            return "it did not begin"
        return str(self.own_status.get("finish_reason") or "no reason given")


def _start_process(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    # In a session of its own: Ctrl-C is for the command, which stops all in good order.
    return subprocess.Popen(command, start_new_session=True, **options)


class Fleet:
    """Agents whose job directories and logs lie in *folder*; *redis*: that of their own."""

    def __init__(self, folder: Path, redis: LocalRedis | None = None) -> None:
        self.code = 0  # the highest so far; an agent that was killed counts as interrupted
        self.stopping = False
        self._folder = folder
        self._redis = redis
        self._start_process = _start_process if redis is None else redis.start_process
        self._agents: dict[str, _Agent] = {}
        self._last = (time.monotonic(), 0)

    def start(self, name: str, command: Sequence[str], said: bytes = b"") -> None:
        """Start the agent *name* with the input *said*, unless stopped. Raises `OSError`."""
        if self.stopping:
            return
        agent = _Agent(self._folder / name / FOLDER, command, said)
        self._launch(name, agent)

    def _launch(self, name: str, agent: _Agent) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = self._start_process(
                agent.command, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        agent.began(process)
        self._agents[name] = agent
        if (pipe := process.stdin) is not None:
            with suppress(BrokenPipeError), pipe:  # it may have ended: its exit code says why
                pipe.write(agent.said)
        if self.stopping:
            process.terminate()  # all were to stop while it was being started

    @property
    def running(self) -> int:
        return sum(not agent.end_printed for agent in self._agents.values())

    def stop(self) -> None:
        """Stop all: in good order; in a hurry when called again."""
        self.stopping = True
        for agent in self._agents.values():
            agent.process.terminate()

    def ended(self) -> Iterator[dict[str, Any]]:
        """Facts of the agents that ended since the last call. Raises `OSError`."""
        for name, agent in self._agents.items():
            if agent.end_printed or agent.process.poll() is None:
                continue
            agent.read_status()
            killed = (code := agent.exit_code) < 0
            code = int(ExitCode.INTERRUPTED) if killed else code
            if killed and self._redis is not None and not self.stopping:
                if agent.restarts.due(time.monotonic()):
                    self._launch(name, agent)
                elif not agent.kill_printed:
                    agent.kill_printed = True
                    reason = f"{agent.reason()}; it is started again"
                    yield {"agent": name, "exit_code": code, "finish_reason": reason, "log": ""}
                continue
            agent.end_printed = True
            self.code = max(self.code, code)
            if code and self._redis is not None and not self.stopping and not agent.settled:
                self.stop()  # the others would wait for it
            log = self._folder / f"{name}.log"
            yield {
                "agent": name, "exit_code": code, "finish_reason": agent.reason(),
                "log": f"; {log} ends: {last_line(log)}" if code else "",
            }  # fmt: skip

    def revive_redis(self) -> str:
        """Start its Redis again if that has ended; return why it ended, or "". Raises `OSError`."""
        return "" if self._redis is None else self._redis.revive()

    def facts(self) -> dict[str, Any]:
        """Sums over all agents.

        Both sides of an unfinished hand-over count its rows; no agent counts rows in messages. So
        the sums are *exact* only when all agents have ended in good order.
        """
        agents = self._agents.values()
        for agent in agents:
            agent.read_status()
        fetched = sum(agent.fetched for agent in agents)
        (then, before), now = self._last, time.monotonic()
        self._last = (now, fetched)
        return {
            "time": time.strftime("%H:%M:%S"), "agents": len(agents), "running": self.running,
            "fetched": fetched, "rate": round((fetched - before) / max(0.001, now - then), 2),
            **{key: sum(int(as_number(a.status.get(key))) for a in agents) for key in _SUMS},
            "exact": all(agent.settled for agent in agents),
            "cut_short": sum(agent.cut_short for agent in agents),
            "stopping": "; stopping" if self.stopping else "",
        }  # fmt: skip


def _writer(status: dict[str, Any]) -> tuple[object, object]:
    return status.get("process"), status.get("started")


_SHOWN: Final = 10
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.]")  # characters that no agent's name has
_POLL: Final = 0.2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OWN_SETTINGS: Final = frozenset({
    "JOBDIR", "LOG_FILE", "SUITE_AGENT_ADDRESS", "SUITE_AGENT_NAME", "SUITE_CLUSTER",
    "SUITE_CRAWL_NAME", "SUITE_REDIS_URL", "TELNETCONSOLE_PORT",
})  # fmt: skip
"""Settings that differ between agents, or name the crawl."""


def run_fleet(call: Invocation, kind: str, crawl: str | None) -> int:
    """``up``: start the agents of mode *kind*, watch them, return the highest exit code."""
    options, redis = call.options, None
    folder: Path = options.dir or Path("crawls") / options.spider
    if (folder / FOLDER / "job.json").exists():
        raise UsageError(
            f"{folder} is the job of one process, which agents do not continue: choose another "
            "folder with --dir", print_help=False,
        )  # fmt: skip
    if kind != "lan" and not call.jobdir:
        redis, settings = LocalRedis(folder), call.settings.copy()
        if settings.get("SUITE_AGENT_GRACE") is None:
            # All agents start together: none takes what another had before that is there.
            settings.set("SUITE_AGENT_GRACE", "forever", "cmdline")
        call = replace(call, jobdir=redis.url, settings=settings)
        crawl = crawl or options.spider
    known = [] if redis is None else agents_in(folder)
    names = agent_names(call, kind, known)
    own = own_settings(call, kind, crawl, 0, names[0], folder)
    _refuse_unknown_spider(call, own, pushed=redis is None)
    folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(folder, redis)
    said = json.dumps(list(shared_words(call, kind))).encode()
    with ExitStack() as stack:
        stack.enter_context(stopped_by_signals(fleet))
        if redis is not None:
            power = call.settings.get("SUITE_COMMIT_SURVIVES") == "power"
            running = redis.running(lambda: fleet.stopping, survives_power=power)
            try:
                stack.enter_context(running)
            except JobInUseError as error:
                print(f"scrapy cluster: {error}", file=sys.stderr)
                return int(ExitCode.IN_USE)
            if redis.empty and known:
                print(f"Redis has lost its data: when all agents run, `scrapy cluster release -j "
                      f"{folder}` gives them their hosts", file=sys.stderr, flush=True)  # fmt: skip
        for number, name in enumerate(names):
            own = own_settings(call, kind, crawl, number, name, folder)
            # All users of the machine can read this command line.
            command = [sys.executable, "-m", MODULE, "crawl", options.spider, *_as_options(own)]
            fleet.start(name, command, said)
        if not fleet.running:
            return int(ExitCode.INTERRUPTED)  # stopped before any of them was started
        start = counted(fleet.running, "agent starts; its log", "agents start; their logs")
        print(f"{start}: {folder}/NAME.log", file=sys.stderr, flush=True)
        return watch(call, fleet, options.every)


def _refuse_unknown_spider(call: Invocation, own: Mapping[str, Any], *, pushed: bool) -> None:
    """Raise `UsageError`: no such spider; not *pushed*: its seeds are pushed (scrapy-redis)."""
    if not inside_project():
        return
    settings, name = call.settings.copy(), call.options.spider
    redis = {"SUITE_REDIS_URL": call.jobdir} if own["SUITE_CLUSTER"] != "lan" else {}
    # Add-ons may say where spiders are, and check settings: they get those of an agent.
    settings.setdict({**own, **redis}, "cmdline")
    AddonManager.load_pre_crawler_settings(settings)
    loader = get_spider_loader(settings)
    try:
        spider = loader.load(name)  # a loader need not list all that it knows
    except KeyError:
        known = sorted(loader.list())
        some = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "") or "none"
        raise UsageError(
            f"there is no spider {name!r} in this project; those there are: {some}",
            print_help=False,
        ) from None
    if not pushed and hasattr(spider, "redis_key"):
        raise UsageError(
            f"the seeds of {name} are pushed to a Redis: name it with -j redis://HOST/0",
            print_help=False,
        )


def agents_in(folder: Path) -> list[str]:
    """The names of the agents whose job directories lie in *folder*, in the order of numbers."""
    found = [path.parents[1].name for path in folder.glob(f"*/{FOLDER}/job.json")]
    return sorted(found, key=lambda name: (len(name), name))


def agent_names(call: Invocation, kind: str, known: Sequence[str] = ()) -> list[str]:
    """Names of the agents to start: the *known* ones first, and all of them.

    Raises `UsageError`: SUITE_AGENTS has too few.
    """
    options = call.options
    if kind == "lan":
        listed = [each.partition("=")[0] for each in call.settings.getlist("SUITE_AGENTS")]
        if len(listed) < options.count:
            lists = counted(len(listed), "agent")
            raise UsageError(
                f"SUITE_AGENTS lists {lists}, and {options.count} are to start", print_help=False
            )
        return listed[: options.count]
    first = options.name or call.settings.get("SUITE_AGENT_NAME")
    first = first or _NOT_IN_NAMES.sub("_", socket.gethostname())
    numbered = [f"{first}_{number}" for number in range(1, options.count + 1)]
    new = [name for name in numbered if name not in known]
    return [*known, *new[: max(0, options.count - len(known))]]


def own_settings(
    call: Invocation, kind: str, crawl: str | None, number: int, name: str, folder: Path
) -> dict[str, Any]:
    own: dict[str, Any] = {
        "SUITE_CLUSTER": kind, "SUITE_AGENT_NAME": name, "JOBDIR": str(folder / name),
        "LOG_FILE": str(folder / f"{name}.log"),
        "TELNETCONSOLE_PORT": 0,  # one that is free
    }  # fmt: skip
    if crawl:
        own["SUITE_CRAWL_NAME"] = crawl
    if address := call.settings.get("SUITE_AGENT_ADDRESS"):
        own["SUITE_AGENT_ADDRESS"] = address
        with suppress(ValueError):  # the agent says what is wrong with it
            host, port = endpoint(address)
            own["SUITE_AGENT_ADDRESS"] = str(Endpoint(host, port + number)) if port else address
    return own


def shared_words(call: Invocation, kind: str) -> Iterator[str]:
    """Words for the pipe, the same for all agents: any may hold a password."""
    for argument in call.options.arguments:
        yield from ("-a", argument)
    settings = call.settings
    given = {
        key: settings[key] for key in settings
        if settings.getpriority(key) == SETTINGS_PRIORITIES["cmdline"] and key not in _OWN_SETTINGS
    }  # fmt: skip
    for key, value in given.items():
        if isinstance(value, BaseSettings):  # Scrapy makes settings of JSON
            given[key] = json.dumps(value.copy_to_dict())
    if kind != "lan":
        given["SUITE_REDIS_URL"] = call.jobdir
    yield from _as_options(given)


def _as_options(given: Mapping[str, Any]) -> Iterator[str]:
    for key, value in given.items():
        yield from ("-s", f"{key}={value}")


@contextmanager
def stopped_by_signals(fleet: Fleet) -> Iterator[None]:
    """Let signals stop the agents, which are not in the terminal's group, in good order."""

    def stop(number: int, frame: FrameType | None) -> None:
        fleet.stop()

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    except BaseException:
        fleet.stop()  # nobody would look after those that have been started
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch(call: Invocation, fleet: Fleet, every: float) -> int:
    """Print progress until all have ended; return the highest exit code."""
    last = time.monotonic()
    while fleet.running:
        time.sleep(_POLL)
        if why := fleet.revive_redis():
            print(f"Redis has ended: {why}; it is started again", file=sys.stderr, flush=True)
        for ended in fleet.ended():
            _print(call, ended, "{agent} has ended: {finish_reason} (exit code {exit_code}){log}")
        if time.monotonic() >= last + every:
            last = time.monotonic()
            _print_sums(
                call, fleet, "{time}  {running} of {run}: {pages} fetched "
                "({rate:,.1f}/s); in their jobs {about}{pending:,} pending, {failed:,} failed"
                "{stopping}",
            )  # fmt: skip
    _print_sums(
        call, fleet, "{ended}: {least}{pages} fetched; in their jobs "
        "{about}{done:,} done, {failed:,} failed, {pending:,} pending",
    )  # fmt: skip
    return fleet.code


def _print_sums(call: Invocation, fleet: Fleet, text: str) -> None:
    facts = fleet.facts()
    about, least = "" if facts["exact"] else "about ", "at least " if facts["cut_short"] else ""
    words = {
        "about": about, "least": least, "pages": counted(facts["fetched"], "page"),
        "run": f"{counted(facts['agents'], 'agent')} {'runs' if facts['running'] == 1 else 'run'}",
        "ended": counted(facts["agents"], "agent has ended", "agents have ended"),
    }  # fmt: skip
    _print(call, facts, text, **words)


def _print(call: Invocation, facts: dict[str, Any], text: str, **words: str) -> None:
    print(json.dumps(facts) if call.json else text.format_map({**facts, **words}), flush=True)


if __name__ == "__main__":
    execute([*sys.argv, *json.loads(sys.stdin.buffer.read())])
