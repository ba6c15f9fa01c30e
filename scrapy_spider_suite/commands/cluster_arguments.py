"""The verbs of ``scrapy cluster``: their arguments, help and examples."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from scrapy_spider_suite.operate import fleet, verb
from scrapy_spider_suite.operate.executors import all_agents, cluster_verbs
from scrapy_spider_suite.urls.normalize import normalize

_AGENTS_MAX = 64


def _subject(text: str) -> str:
    if "://" not in text:
        name = verb.host_argument(text)
        return f"[{name}]" if ":" in name and not name.startswith("[") else name
    url = normalize(text)
    if url is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a host, or a URL of the web")
    return url


def _count(text: str) -> int:
    if text == "auto":
        return count_cores()
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _AGENTS_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"{text!r}: expected a number of agents, 1 to {_AGENTS_MAX}, or auto: one a core"
    )


def count_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores that this process may use, 1 to 64; *quota* is that of its container."""
    usable = getattr(os, "sched_getaffinity", None)
    cores = len(usable(0)) if usable is not None else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no such file, or "max": no quota
        share, period = quota.read_text().split()
        cores = min(cores, int(share) // int(period))
    return max(1, min(cores, _AGENTS_MAX))


def _argument(text: str) -> str:
    if "=" in text:
        return text
    raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")


_UP_OPTIONS = (
    verb.option("count", metavar="N|auto", type=_count),
    verb.option("spider", metavar="SPIDER"),
    verb.option(
        "-a", dest="arguments", metavar="NAME=VALUE", action="append", default=[],
        type=_argument, help="an argument of the spider (may be given more than once)",
    ),
    # Scrapy's own: shown here; the values have been taken by then.
    verb.option(
        "-s", "--set", metavar="NAME=VALUE", action="append", default=[],
        help="a setting of all agents (may be given more than once)",
    ),
    verb.option(
        "--dir", metavar="DIR", type=Path,
        help="folder of job directories and logs, one per agent (default: crawls/SPIDER)",
    ),
    verb.option(
        "--name", metavar="NAME",
        help="agents are NAME_1, NAME_2, ... (default: the name of this machine)",
    ),
    verb.option(
        "--every", type=verb.SECONDS, metavar="S", default=10.0,
        help="seconds between two lines of progress (10)",
    ),
)  # fmt: skip


def _up(call: verb.Invocation) -> int:
    kind = call.settings.get("SUITE_CLUSTER") or "peers"
    if kind != "lan" and call.jobdir:
        all_agents.parse_redis(call.jobdir)
    return fleet.run_fleet(call, kind, all_agents.crawl_name(call))


_Run = Callable[[verb.Invocation], int]


def _run(work: Callable[[verb.Invocation], Coroutine[Any, Any, int]]) -> _Run:
    return lambda call: asyncio.run(work(call))


VERBS = (
    verb.Verb(
        "ls", "the agents: their share, hosts, pages, rate, lag, phase, lease",
        _run(cluster_verbs.list_agents),
        (verb.option("--all", action="store_true",
                help="also agents that have left, died or been removed"),),
        about=(
            "share, holds: percentage of the ring that an agent should have, and has now.\n"
            "pages: pages done; rate: pages a second; lag: rows that wait for other agents.\n"
            "heard: seconds since the last sign of life; lease: seconds until others may take\n"
            "its hosts; skew: seconds that its clock is behind Redis.\n"
            "missing: killed, or without Redis; stopped: expected back; ended: took part until\n"
            "the end of the crawl."
        ),
        examples=("ls -j redis://10.0.0.1/0", "ls --json --all --crawl news -j redis://10.0.0.1/0"),
    ),
    verb.Verb(
        "owner", "who owns a host or a URL, and who holds it now",
        _run(cluster_verbs.find_owner),
        (verb.option("subject", metavar="HOST|URL", type=_subject),), "HOST|URL",
        about=(
            "The owner should have it; the holder may fetch it. If they differ, a hand-over is\n"
            "under way, or waits for an agent that is away."
        ),
        examples=("owner example.com -j redis://10.0.0.1/0",),
    ),
    verb.Verb(
        "up", "start N agents of a spider on this machine, and watch them until they end", _up,
        _UP_OPTIONS, "N|auto SPIDER",
        about=(
            "auto: an agent a core. Agent NAME_1 has the job directory DIR/NAME_1 and the log\n"
            "DIR/NAME_1.log. The same line continues the crawl. Settings: those of the project\n"
            "and of -s. Ctrl-C or SIGTERM stops all agents in order; a second one stops them at\n"
            "once. Where SUITE_AGENT_ADDRESS has a port, the next agents have the next ports.\n"
            "Without -j (and SUITE_REDIS_URL) the agents have a Redis of their own in DIR/redis.\n"
            "Agents that DIR has are started, too, and those that are killed are started again.\n"
            "With -j an agent that ends is not started again; on other machines use the same\n"
            "Redis, --crawl and another NAME. With SUITE_CLUSTER = lan they are the first agents\n"
            "of SUITE_AGENTS."
        ),
        examples=(
            "up auto news",
            "up 2 news -a section=sports --crawl sports -j redis://10.0.0.1/0 --every 60",
        ),
        exits={1: "and above: the highest of the exit codes of the agents, as of `scrapy crawl`"},
    ),
    verb.Verb(
        "drain", "have an agent hand over everything to the others, and end",
        _run(cluster_verbs.drain_agent),
        (
            verb.option("name", metavar="NAME"), verb.WHY, verb.WHO,
            verb.option(
                "--wait", type=verb.SECONDS, default=3_600.0, metavar="S",
                help="seconds to wait until the agent has left (3600)",
            ),
        ),
        "NAME",
        about=(
            "No page is fetched twice or lost, and the crawl continues meanwhile. The job\n"
            "directory can be deleted when the agent has left."
        ),
        examples=('drain b -j redis://10.0.0.1/0 --why "its machine is needed"',),
        exits={1: "it cannot be drained, or did not leave", 3: "it has not left in time: it "
               "goes on"},
    ),
    verb.Verb(
        "remove", "remove an agent that does not come back",
        _run(cluster_verbs.remove_agent),
        (
            verb.option("name", metavar="NAME"),
            verb.option(
                "--dead", action="store_true",
                help="the process is certainly gone: give its hosts away at once",
            ),
            *verb.CAUTION,
        ),
        "NAME",
        about=(
            "Others own its hosts now, and take them when its lease is over (see `ls`); with\n"
            "--dead at once. Use --dead only if the process is certainly gone: otherwise two\n"
            "agents fetch the same hosts. Data on its disk is lost, unless you `adopt` it.\n"
            "An agent that runs ends without handing over: use `drain`."
        ),
        examples=(
            "remove b --dry-run -j redis://10.0.0.1/0",
            "remove b --dead --yes -j redis://10.0.0.1/0",
        ),
    ),
    verb.Verb(
        "adopt", "give the data of a lost agent to the others",
        _run(cluster_verbs.adopt),
        (
            verb.option("job", metavar="DIR", type=Path, help="its job directory"),
            *verb.CAUTION,
        ),
        "DIR",
        about=(
            "DIR is its job directory. Its lease must be over, or it must have been removed.\n"
            "Queues, fetched URLs and URLs for other agents go to the holders of their hosts.\n"
            "Can be interrupted and repeated. Pages whose links were not read yet\n"
            "(SUITE_READ_LINKS = on-demand) are unextracted: start the agent once more to read\n"
            "them. SUITE_HANDOVER_DIR and SUITE_CLUSTER_KEY must be those of the agents."
        ),
        examples=("adopt crawls/news/b -j redis://10.0.0.1/0",),
    ),
    verb.Verb(
        "release", "give away hosts that nobody claims, after Redis has lost its data",
        _run(cluster_verbs.release_units), verb.CAUTION,
        about=(
            "Agents that run claim their hosts when Redis was restarted empty. Other hosts wait\n"
            "for agents that are away: for a lease, or for ever with SUITE_AGENT_GRACE = forever."
        ),
        examples=("release --dry-run -j redis://10.0.0.1/0",),
    ),
    verb.Verb(
        "forget", "remove a crawl from Redis; job directories stay",
        _run(cluster_verbs.forget_crawl), verb.CAUTION,
        about=(
            "Refused while an agent of it runs. Agents that are started again with their job\n"
            "directories join it anew, and continue."
        ),
        examples=("forget --crawl news --yes -j redis://10.0.0.1/0",),
    ),
)  # fmt: skip
