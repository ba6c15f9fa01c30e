"""The verbs of ``scrapy cluster``: their arguments, help and examples."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from scrapy_spider_suite.operate import fleet
from scrapy_spider_suite.operate.executors import all_agents, cluster_verbs
from scrapy_spider_suite.operate.verb import (
    Invocation,
    Verb,
    add_caution,
    add_why,
    host_argument,
    seconds,
)
from scrapy_spider_suite.urls.normalize import normalize

ABOUT = """\
The crawl is that of --crawl, else SUITE_CRAWL_NAME, else the only one in that Redis.
What is done to a crawl (pause, block, add, ...) is asked by `scrapy frontier VERB -j redis://...`.

`scrapy cluster VERB --help` has the options of a verb, and examples.

Exit codes: 0 done, 1 the answer is no (see the verb), 2 wrong usage, or no such Redis, crawl or
agent, 3 no answer in time."""

_MOST = 64


def _ls_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="those too that have left, died or been removed"
    )


def _subject(text: str) -> str:
    if "://" not in text:
        name = host_argument(text)
        return f"[{name}]" if ":" in name and not name.startswith("[") else name
    url = normalize(text)
    if url is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a host, or a URL of the web")
    return url


def _owner_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="HOST|URL", type=_subject)


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number of agents, 1 to {_MOST}")


def _argument(text: str) -> str:
    if "=" in text:
        return text
    raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")


def _up_options(parser: argparse.ArgumentParser) -> None:
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


def _drain_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    add_why(parser)
    parser.add_argument(
        "--wait", type=seconds, default=3_600.0, metavar="S",
        help="seconds to wait until it has left (3600)",
    )  # fmt: skip


def _remove_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--dead", action="store_true",
        help="its process is known to be gone: others take at once what it has",
    )  # fmt: skip
    add_caution(parser, asks=True)


def _caution(parser: argparse.ArgumentParser) -> None:
    add_caution(parser, asks=True)


def _adopt_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="DIR", nargs="?", type=Path, help="its job directory")
    parser.add_argument(
        "--packs", metavar="FOLDER", type=Path,
        help="its disk is lost: have others know at least what its packs in FOLDER tell",
    )  # fmt: skip
    parser.add_argument("--name", metavar="NAME", help="its name, with --packs")
    add_caution(parser)


def _up(call: Invocation) -> int:
    kind = call.settings.get("SUITE_CLUSTER") or "peers"
    if kind == "peers":
        all_agents.redis_of(call.jobdir)
    return fleet.run_fleet(call, kind, all_agents.crawl_name(call))


def _run(work: Callable[[Invocation], Coroutine[Any, Any, int]]) -> Callable[[Invocation], int]:
    return lambda call: asyncio.run(work(call))


VERBS = (
    Verb(
        "ls", "the agents: their share, hosts, pages, rate, lag, phase, lease",
        _run(cluster_verbs.list_agents), _ls_options,
        about=(
            "share is the percentage of the ring that is an agent's, holds what it has at this\n"
            "moment; pages are those that are done, rate is pages a second, lag is the number of\n"
            "rows of URLs that wait for other agents, heard and lease are seconds: since it was\n"
            "last heard, and until others may take what it has. skew is by how many seconds its\n"
            "clock is behind that of Redis. An agent that is missing was killed, or cannot reach\n"
            "Redis; one that is stopped said that it would be back; one that has ended took part\n"
            "until the crawl was over."
        ),
        examples=("ls -j redis://10.0.0.1/0", "ls --json --all --crawl news -j redis://10.0.0.1/0"),
    ),
    Verb(
        "owner", "who owns a host or a URL, and who has it at this moment",
        _run(cluster_verbs.find_owner), _owner_options,
        "HOST|URL",
        about=(
            "The owner is the agent that should have it, the holder the one that may fetch it.\n"
            "While both are not the same, it is on its way, or waits for an agent that is away."
        ),
        examples=("owner example.com -j redis://10.0.0.1/0",),
    ),
    Verb(
        "up", "start N agents of a spider on this machine, and watch them until they end", _up,
        _up_options, "N SPIDER",
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
    Verb(
        "drain", "have an agent hand over all it has to the others, and end",
        _run(cluster_verbs.drain_agent), _drain_options, "NAME",
        about=(
            "Nothing is fetched twice or lost by it, and the crawl goes on meanwhile. Its job\n"
            "directory can be removed when it has left."
        ),
        examples=('drain b -j redis://10.0.0.1/0 --why "its machine is needed"',),
        exits={1: "it cannot be drained, or did not leave", 3: "it has not left in time: it "
               "goes on"},
    ),
    Verb(
        "remove", "send an agent away that does not come back",
        _run(cluster_verbs.remove_agent), _remove_options, "NAME",
        about=(
            "Others own what it did from now on, and take it when its lease is over (`ls` has the\n"
            "seconds). With --dead at once: only if its process is gone for certain, since else\n"
            "two agents fetch the same hosts. What only its disk had is lost unless its directory\n"
            "is adopted. One that runs ends, without handing over: `drain` it instead."
        ),
        examples=(
            "remove b --dry-run -j redis://10.0.0.1/0",
            "remove b --dead --yes -j redis://10.0.0.1/0",
        ),
    ),
    Verb(
        "adopt", "what an agent had that is gone for good goes to the others",
        _run(cluster_verbs.adopt), _adopt_options,
        "DIR",
        about=(
            "DIR is its job directory, on a disk of this machine; its lease must be over, or it\n"
            "must have been removed. Queues, states and URLs that it had for others go to who has\n"
            "its hosts by now; it can be broken off and done again. Where the disk is lost, what\n"
            "the agent had fetched is known from its packs, and the answer says how many URLs are\n"
            "lost. Pages whose links wait to be read (SUITE_READ_LINKS = on-demand) are\n"
            "unextracted: the agent reads them when it is started once more; where the disk is\n"
            "lost, they are, too. SUITE_HANDOVER_DIR and SUITE_CLUSTER_KEY have to be those of\n"
            "the agents."
        ),
        examples=(
            "adopt crawls/news/b -j redis://10.0.0.1/0",
            "adopt --packs crawls/news/packs --name b -j redis://10.0.0.1/0",
        ),
    ),
    Verb(
        "release", "let others take what nobody claims, after Redis has lost who has what",
        _run(cluster_verbs.release_units), _caution,
        about=(
            "Agents that run claim what they have when Redis was restarted empty. What is not\n"
            "claimed waits for agents that are away, with SUITE_AGENT_GRACE = forever for ever."
        ),
        examples=("release --dry-run -j redis://10.0.0.1/0",),
    ),
    Verb(
        "forget", "remove a crawl from Redis; job directories stay",
        _run(cluster_verbs.forget_crawl), _caution,
        about=(
            "Refused while an agent of it runs. Agents that are started again with their job\n"
            "directories enter it anew, and go on."
        ),
        examples=("forget --crawl news --yes -j redis://10.0.0.1/0",),
    ),
)  # fmt: skip
