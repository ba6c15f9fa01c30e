"""``scrapy cluster up``: some agents of a spider on this machine."""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from scrapy.addons import AddonManager
from scrapy.exceptions import UsageError
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.project import inside_project

from scrapy_spider_suite.operate import fleet as agent
from scrapy_spider_suite.operate.executors import all_agents
from scrapy_spider_suite.operate.fleet import Fleet
from scrapy_spider_suite.operate.verb import Invocation, Verb, seconds
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.values import Endpoint, endpoint

_MOST: Final = 64
_SHOWN: Final = 10
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_.]")
"""What no agent has in its name."""
_LOOK: Final = 0.2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OURS: Final = frozenset({
    "JOBDIR", "LOG_FILE", "SUITE_AGENT_ADDRESS", "SUITE_AGENT_NAME", "SUITE_CLUSTER",
    "SUITE_CRAWL_NAME", "SUITE_REDIS_URL", "TELNETCONSOLE_PORT",
})  # fmt: skip
"""What each agent is given its own of."""


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number of agents, 1 to {_MOST}")


def _argument(text: str) -> str:
    if "=" in text:
        return text
    raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("count", metavar="N", type=_count)
    parser.add_argument("spider", metavar="SPIDER")
    parser.add_argument(
        "-a", dest="arguments", metavar="NAME=VALUE", action="append", default=[],
        type=_argument, help="an argument of the spider (may be given more than once)",
    )  # fmt: skip
    # Scrapy's own: shown here; the values have been taken by then.
    parser.add_argument(
        "-s", "--set", metavar="NAME=VALUE", action="append", default=[],
        help="a setting of all of them (may be given more than once)",
    )  # fmt: skip
    parser.add_argument(
        "--dir", metavar="DIR", type=Path,
        help="where job directories and logs lie, one of each agent (default: crawls/SPIDER)",
    )  # fmt: skip
    parser.add_argument(
        "--name", metavar="NAME", help="agents are NAME_1, NAME_2, ... (default: this machine's)"
    )
    parser.add_argument(
        "--every", type=seconds, metavar="S", default=10.0,
        help="seconds between two lines on how it goes (10)",
    )  # fmt: skip


def _run(call: Invocation) -> int:
    options, settings = call.options, call.settings
    kind = settings.get("SUITE_CLUSTER") or "peers"
    if kind == "peers":
        all_agents.redis_of(call.jobdir)
    names = _names(call, kind)
    folder = options.dir or Path("crawls") / options.spider
    _refuse_unknown(call, _own(call, kind, 0, names[0], folder))
    folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(folder)
    said = agent.told(_given(call, kind))
    with _stopping(fleet):
        for number, name in enumerate(names):
            own = _own(call, kind, number, name, folder)
            fleet.start(name, [*_command(call, own)], said)
        start = counted(fleet.running, "agent starts; its log", "agents start; their logs")
        print(f"{start}: {folder}/NAME.log", file=sys.stderr, flush=True)
        return _watch(call, fleet, options.every)


def _refuse_unknown(call: Invocation, own: Mapping[str, Any]) -> None:
    """Raise `UsageError` if the project has no such spider: each agent would say so in its log.

    Add-ons may say where spiders are, and find other settings bad than an agent has, so they are
    given its *own*.
    """
    if not inside_project():
        return
    settings, name = call.settings.copy(), call.options.spider
    redis = {"SUITE_REDIS_URL": call.jobdir} if own["SUITE_CLUSTER"] == "peers" else {}
    settings.setdict({**own, **redis}, "cmdline")
    AddonManager.load_pre_crawler_settings(settings)
    loader = get_spider_loader(settings)
    try:
        loader.load(name)  # a loader need not list all that it knows
    except KeyError:
        known = sorted(loader.list())
        some = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "") or "none"
        raise UsageError(
            f"there is no spider {name!r} in this project; those there are: {some}",
            print_help=False,
        ) from None


def _names(call: Invocation, kind: str) -> list[str]:
    """Of the agents that are to be started. Raises `UsageError`: a list has too few."""
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
    first = first or _NO_NAME.sub("_", socket.gethostname())
    return [f"{first}_{number}" for number in range(1, options.count + 1)]


def _command(call: Invocation, own: Mapping[str, Any]) -> Iterator[str]:
    """How an agent is started, as everybody on the machine may see it."""
    yield from (sys.executable, "-m", agent.__name__, "crawl", call.options.spider)
    yield from _settings(own)


def _own(call: Invocation, kind: str, number: int, name: str, folder: Path) -> dict[str, Any]:
    own: dict[str, Any] = {
        "SUITE_CLUSTER": kind, "SUITE_AGENT_NAME": name, "JOBDIR": str(folder / name),
        "LOG_FILE": str(folder / f"{name}.log"),
        "TELNETCONSOLE_PORT": 0,  # one that is free
    }  # fmt: skip
    if crawl := all_agents.crawl_name(call):
        own["SUITE_CRAWL_NAME"] = crawl
    if address := call.settings.get("SUITE_AGENT_ADDRESS"):
        own["SUITE_AGENT_ADDRESS"] = _address(address, number)
    return own


def _given(call: Invocation, kind: str) -> Iterator[str]:
    """The rest of it, the same for all: any of it may hold a password."""
    for argument in call.options.arguments:
        yield from ("-a", argument)
    settings = call.settings
    given = {
        key: _text(settings[key]) for key in settings
        if settings.getpriority(key) == SETTINGS_PRIORITIES["cmdline"] and key not in _OURS
    }  # fmt: skip
    if kind == "peers":
        given["SUITE_REDIS_URL"] = call.jobdir
    yield from _settings(given)


def _settings(given: Mapping[str, Any]) -> Iterator[str]:
    for key, value in given.items():
        yield from ("-s", f"{key}={value}")


def _text(value: Any) -> Any:
    """*value* as ``-s`` takes it: of JSON for a dictionary Scrapy has made settings already."""
    return json.dumps(value.copy_to_dict()) if isinstance(value, BaseSettings) else value


def _address(address: str, number: int) -> str:
    try:
        host, port = endpoint(address)
    except ValueError:
        return address  # the agent says what is wrong with it
    return str(Endpoint(host, port + number)) if port else address


@contextmanager
def _stopping(fleet: Fleet) -> Iterator[None]:
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


def _watch(call: Invocation, fleet: Fleet, every: float) -> int:
    """Say how it goes until all have ended; return the highest of their exit codes."""
    told = time.monotonic()
    while fleet.running:
        time.sleep(_LOOK)
        for ended in fleet.ended():
            _say(call, ended, "{agent} has ended: {finish_reason} (exit code {exit_code}){log}")
        if time.monotonic() >= told + every:
            told = time.monotonic()
            _say_facts(
                call, fleet, "{time}  {running} of {run}: {pages} fetched "
                "({rate:,.1f}/s); in their jobs {about}{pending:,} pending, {failed:,} failed"
                "{stopping}",
            )  # fmt: skip
    _say_facts(
        call, fleet, "{ended}: {least}{pages} fetched; in their jobs "
        "{about}{done:,} done, {failed:,} failed, {pending:,} pending",
    )  # fmt: skip
    return fleet.code


def _say_facts(call: Invocation, fleet: Fleet, text: str) -> None:
    facts = fleet.facts()
    about, least = "" if facts["exact"] else "about ", "at least " if facts["cut_short"] else ""
    words = {
        "about": about, "least": least, "pages": counted(facts["fetched"], "page"),
        "run": f"{counted(facts['agents'], 'agent')} {'runs' if facts['running'] == 1 else 'run'}",
        "ended": counted(facts["agents"], "agent has ended", "agents have ended"),
    }  # fmt: skip
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    _say(call, facts, text)


def _say(call: Invocation, facts: dict[str, Any], text: str) -> None:
    print(json.dumps(facts) if call.json else text.format_map(facts), flush=True)


VERBS = (
    Verb(
        "up", "start N agents of a spider on this machine, and watch them until they end", _run,
        _options, "N SPIDER",
        about=(
            "Agents NAME_1, NAME_2, ... have the job directories DIR/NAME_1, ... and the logs\n"
            "DIR/NAME_1.log, ...; started again with the same DIR they go on where they were. On\n"
            "other machines start more of them, with the same Redis and --crawl. Settings are\n"
            "those of the project and of -s. Ctrl-C or SIGTERM stops all in good order, a second\n"
            "one in a hurry. One that ends is not started again. Where SUITE_AGENT_ADDRESS has a\n"
            "port, the agents have that one, the next, and so on. With SUITE_CLUSTER = lan they\n"
            "are the first of SUITE_AGENTS."
        ),
        examples=(
            "up 4 news -j redis://10.0.0.1/0 --dir crawls/news",
            "up 2 news -a section=sports --crawl sports -j redis://10.0.0.1/0 --every 60",
        ),
        exits={1: "and above: the highest of the exit codes of the agents, as of `scrapy crawl`"},
    ),
)  # fmt: skip
