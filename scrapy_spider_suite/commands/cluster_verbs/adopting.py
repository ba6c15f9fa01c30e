"""``scrapy cluster adopt``: what an agent had that is gone for good goes to the others."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scrapy.exceptions import UsageError

from scrapy_spider_suite.cluster.handover.adopt import (
    AdoptionResult,
    adopt_directory,
    adopt_packs,
    lost_urls,
)
from scrapy_spider_suite.cluster.handover.handover_file import FileTransport, HandoverLabel
from scrapy_spider_suite.cluster.membership import AgentLease, Membership, MemberState
from scrapy_spider_suite.cluster.membership import MemberRecord as Member
from scrapy_spider_suite.cluster.ownership import Ownership
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.cluster.transports.shared_folder import FolderTransport
from scrapy_spider_suite.cluster.transports.tcp import TcpTransport
from scrapy_spider_suite.errors import (
    ClusterError,
    HandoverFileError,
    JobInUseError,
    TransportError,
)
from scrapy_spider_suite.operate.executors import all_agents
from scrapy_spider_suite.operate.executors.all_agents import assignment_in
from scrapy_spider_suite.operate.job_target import JobTarget, job_at_rest
from scrapy_spider_suite.operate.verb import Invocation, Row, Verb, add_caution
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.declarations import read_given, setting_name
from scrapy_spider_suite.settings.suite import DECLARATIONS
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile
from scrapy_spider_suite.store.job_status import StatusFile, read_status

_OUT = "handover"
_RATE = 16 << 20


class _Gone:
    """The inbox of an agent that is gone: nothing is taken any more."""

    def kept(self, label: HandoverLabel) -> bool:
        """See `courier.Inbox`."""
        raise TransportError("this agent is gone")

    async def take(self, label: HandoverLabel, path: Path) -> None:
        """See `courier.Inbox`."""
        raise HandoverFileError("this agent is gone: it takes nothing")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="DIR", nargs="?", type=Path, help="its job directory")
    parser.add_argument(
        "--packs", metavar="FOLDER", type=Path,
        help="its disk is lost: have others know at least what its packs in FOLDER tell",
    )  # fmt: skip
    parser.add_argument("--name", metavar="NAME", help="its name, with --packs")
    add_caution(parser)


def _run(call: Invocation) -> int:
    options = call.options
    packs = options.packs is not None
    if (options.job is not None) is packs or (options.name is not None) is not packs:
        raise UsageError("give DIR, or --packs FOLDER and --name NAME", print_help=False)
    call.facts(all_agents.run_async(_of_packs(call) if packs else _of_job(call)))
    return 0


# Its directory is there


async def _of_job(call: Invocation) -> Row:
    folder = call.options.job / FOLDER
    if JobFile.read(folder) is None:
        raise ClusterError(f"{call.options.job} holds no job of scrapy-spider-suite")
    with ExitStack() as stack:
        site = stack.enter_context(job_at_rest(folder))
        if site is None:
            raise JobInUseError(f"{call.options.job} is in use by a crawl: it is not gone")
        async with all_agents.connect(call) as line:
            row = _whose(line, site, call.options.job)
            counters, left = site.frontier.counters, _left(site, row.name)
            facts: Row = {"agent": row.name, "pending": counters.pending, "done": counters.done}
            if call.options.dry_run:
                return {"dry_run": True, **facts, **left}
            shares = Ownership(assignment_in(line.overview), row.name)
            courier = await _courier(call, line, row.name, folder)
            try:
                found = await adopt_directory(
                    site.frontier, site.store, shares, courier, folder / _OUT / "adopted",
                    crawl=line.overview.id, view=_view(line), say=_say,
                )  # fmt: skip
            finally:
                await courier.close()
                _note(folder, counters)
        return {"adopted": str(call.options.job), "agent": row.name, **_facts(found), **left}


def _left(site: JobTarget, name: str) -> Row:
    if not (pages := len(site.frontier.stored_links.waiting)):
        return {}
    print(
        f"the links of {counted(pages, 'page')} in the packs of {name} were not read yet: start it "
        "once more with this directory and its packs, and it sends them to the others; then drain "
        "it",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    return {"unextracted": pages}


def _note(folder: Path, counters: Counters) -> None:
    """Have the status of the job say what is left in it: others have the rest by now."""
    if (status := read_status(folder)) is not None:
        StatusFile(folder, **status).update(
            pending=counters.pending, done=counters.done, failed=counters.failed
        )


def _whose(line: all_agents.CrawlConnection, site: JobTarget, job: Path) -> Member:
    """The agent that had the job. Raises `ClusterError`: there is none of that crawl."""
    kept = site.store.kv("agent")
    crawl, number = (kept.get(b"crawl") or b"").decode(), int(kept.get(b"number") or b"0")
    row = line.overview.view.numbers.get(number)
    if crawl != line.overview.id or row is None:
        raise ClusterError(f"{job} was not that of an agent of the crawl {line.place.crawl}")
    _refuse_living(row)
    return row


def _refuse_living(row: Member) -> None:
    if row.state in (MemberState.ACTIVE, MemberState.LEAVING):
        raise ClusterError(
            f"{row.name} is a member still: start it, so that it goes on, or `scrapy cluster "
            f"remove {row.name} --dead` before"
        )


# Its packs are


async def _of_packs(call: Invocation) -> Row:
    options = call.options
    async with all_agents.connect(call) as line:
        row = line.overview.view.row(options.name)
        if row is None:
            raise ClusterError(f"no agent of the crawl had the name {options.name}")
        _refuse_living(row)
        facts = line.overview.facts.get(row.name, {})
        if options.dry_run:
            return {"dry_run": True, "agent": row.name, "lost_at_most": lost_urls(facts, 0)}
        shares = Ownership(assignment_in(line.overview), row.name)
        with TemporaryDirectory(prefix="suite-adopt-") as folder:
            courier = await _courier(call, line, row.name, Path(folder))
            try:
                found = await adopt_packs(
                    options.packs, shares, courier, Path(folder) / _OUT, crawl=line.overview.id,
                    view=_view(line),
                )  # fmt: skip
            finally:
                await courier.close()
    return {
        "adopted": str(options.packs), "agent": row.name, **_facts(found),
        "lost": lost_urls(facts, found.urls),
    }  # fmt: skip


# Both


def _facts(found: AdoptionResult) -> Row:
    return {
        "files": found.files, "hosts": found.hosts, "urls": found.urls, "links": found.links,
        "unread": found.unread,
    }  # fmt: skip


def _view(line: all_agents.CrawlConnection) -> Callable[[], Awaitable[Membership]]:
    async def look() -> Membership:
        overview = await line.office.overview()
        if overview is None:
            raise ClusterError(f"the crawl {line.place.crawl} is gone from Redis")
        return overview.view

    return look


async def _courier(
    call: Invocation, line: all_agents.CrawlConnection, name: str, folder: Path
) -> FileTransport:
    """What the agents use among each other, by the settings of the project."""
    wanted = ("handover_dir", "handover_rate", "cluster_key")
    raw = {setting_name(each): call.settings.get(setting_name(each)) for each in wanted}
    given: dict[str, Any] = read_given(DECLARATIONS, raw)
    rate = given.get("handover_rate", _RATE)
    if given.get("handover_dir") is not None:
        courier: FileTransport = FolderTransport(
            given["handover_dir"], line.place.crawl, name, rate
        )
        await courier.start(_Gone())  # for receipts
        return courier
    if given.get("cluster_key") is not None:
        key = given["cluster_key"].text
    else:
        registry = AgentRegistry(line.place.redis.url, line.place.crawl, AgentLease(0.0))
        key = await registry.secret()
        await registry.close()
    return TcpTransport("127.0.0.1", 0, key.encode(), folder / _OUT / "in", rate)


def _say(text: str) -> None:
    logging.getLogger(__name__).info(text)
    print(text, file=sys.stderr, flush=True)


VERBS = (
    Verb(
        "adopt", "what an agent had that is gone for good goes to the others", _run, _options,
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
)  # fmt: skip
