"""Asks the agents of a crawl through Redis, and adds up their answers."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, NamedTuple

import msgspec
from scrapy.exceptions import UsageError

from scrapy_spider_suite.cluster.assignment import (
    SETTING,
    Assignment,
    OwnerTable,
    fingerprint,
    load_assignment,
)
from scrapy_spider_suite.cluster.membership import MemberRecord, MemberState
from scrapy_spider_suite.cluster.registry import (
    ClusterAdmin,
    ClusterOverview,
    find_crawl,
    list_crawls,
)
from scrapy_spider_suite.errors import ClusterError, RegistryError, SettingsError, SuiteError
from scrapy_spider_suite.operate.actions import Answer, whoami
from scrapy_spider_suite.operate.executors.agent_calls import (
    PIECE,
    AgentCall,
    AgentReply,
    CallSender,
    ListPiece,
    make_call,
)
from scrapy_spider_suite.operate.executors.call_executor import LookRequest, answer_look
from scrapy_spider_suite.operate.executors.one_job import ask_job
from scrapy_spider_suite.operate.fleet import agents_in
from scrapy_spider_suite.operate.verb import Found, Invocation, JobVerb, Question, add_up
from scrapy_spider_suite.operate.verbs import find_verb
from scrapy_spider_suite.runtime.text import listed, printable
from scrapy_spider_suite.settings.values import RedisUrl, redis_url
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.url_lists import ORIGIN, BadLine, SeedLines

_ASSIGNMENT = re.compile(r"'?([\w.-]+)'? \(([0-9a-f]{16})\)")
_SHOWN = 10
_POLL, _SEND_POLL = 0.1, 0.05
_CHECK = 2.0  # seconds between checks for agents that ended
_TELL = 5.0  # seconds until the agents waited for are printed
WAIT: Final = 60.0  # seconds to wait for a look


class CrawlConnection(NamedTuple):
    """Open connections to the agents of a crawl, and a recent overview."""

    redis: RedisUrl
    crawl: str
    admin: ClusterAdmin
    sender: CallSender
    overview: ClusterOverview


def parse_redis(text: str | None) -> RedisUrl:
    """Raises `UsageError`: *text* names no Redis."""
    try:
        found = redis_url.parse(text or "")
    except ValueError as error:
        raise UsageError(f"-j: {error}", print_help=False) from None
    if not isinstance(found, RedisUrl):
        raise UsageError("which Redis? give -j redis://HOST/0, or set SUITE_REDIS_URL",
                         print_help=False)  # fmt: skip
    return found


def crawl_name(call: Invocation) -> str | None:
    return call.crawl or call.settings.get("SUITE_CRAWL_NAME")


@asynccontextmanager
async def connect(call: Invocation) -> AsyncIterator[CrawlConnection]:
    """Connect to the crawl of *call*, or to the only crawl of its Redis. Raises `ClusterError`."""
    redis = parse_redis(call.jobdir)
    crawl = await find_crawl(redis, crawl_name(call))
    try:
        admin, sender = ClusterAdmin(redis.url, crawl), CallSender(redis.url, crawl)
    except ValueError as error:
        raise ClusterError(f"--crawl: {error}") from None
    try:
        overview = await admin.overview()
        if overview is None:
            names = ", ".join((await list_crawls(redis.url))[:_SHOWN]) or "none"
            raise ClusterError(
                f"Redis at {redis} holds no crawl {crawl!r}; those there are: {names}"
            )
        yield CrawlConnection(redis, crawl, admin, sender, overview)
    finally:
        await admin.close()
        await sender.close()


def assignment_in(overview: ClusterOverview) -> Assignment:
    """Load the assignment function of the crawl. Raises `ClusterError`."""
    text = overview.fixed.get(SETTING, "")
    found = _ASSIGNMENT.fullmatch(text)
    if found is None:
        raise ClusterError(f"the agents do not say which {SETTING} they have: {text[:100]!r}")
    try:
        assignment = load_assignment(found[1])
    except SettingsError as error:
        raise ClusterError(f"run this in the project of the crawl: {error}") from error
    if fingerprint(assignment) != found[2]:
        raise ClusterError(f"{SETTING} = {found[1]!r} is another function here than in the crawl")
    return assignment


FindAgent = Callable[[str, str], str]  # (host, URL) -> the agent that gets the URL


def agent_finder(
    overview: ClusterOverview, running: Mapping[str, MemberRecord], *, by_owner: bool
) -> FindAgent:
    """Find the owner of a URL or, if not *by_owner*, its holder, which has the row.

    Another agent of *running* stands in for an agent that is not among them.
    """
    assignment, known = assignment_in(overview), sorted(running)
    if by_owner:
        table = OwnerTable.of(assignment, overview.view.members)
        names = dict(enumerate(member.name for member in table.members))
        units = table.owners.tolist()
    else:
        names = {number: row.name for number, row in overview.view.numbers.items()}
        units = overview.holders.holders.tolist()

    def find(host: str, url: str) -> str:
        unit = assignment.unit(host, url)
        name = names.get(units[unit], "")
        return name if name in running else known[unit % len(known)]

    return find


@dataclass
class AgentList:
    """The lines for one agent, in a temporary file."""

    file: IO[bytes]
    bytes: int = 0
    origin: tuple[str, str] | None = None

    def write(self, line: str, read: SeedLines, *, bad: bool) -> None:
        """Write *line*, which was *read* last; a *bad* one with its number."""
        text, origin = f"{line}\n", (read.origin, read.tag)
        if bad or self.origin != origin:
            self.origin = origin
            text = f"{ORIGIN}{read.origin}\t{read.tag}\t{read.line - 1}\n{text}"
        self.bytes += self.file.write(text.encode("utf-8", "replace"))

    @property
    def pieces(self) -> int:
        return -(-self.bytes // PIECE)


@contextmanager
def divide_list(
    lines: Iterable[str], find: FindAgent, spare: str
) -> Iterator[dict[str, AgentList]]:
    """Divide *lines* by agent; reads all of them first. *spare* gets lines that are no seeds."""
    parts, read = dict[str, AgentList](), SeedLines("URLs")
    with ExitStack() as stack:
        for line in lines:
            seed = read.read(line.encode("utf-8", "replace"))
            if seed is None:
                continue
            bad = isinstance(seed, BadLine)
            name = spare if isinstance(seed, BadLine) else find(host_of(seed.url), seed.url)
            if name not in parts:
                parts[name] = AgentList(stack.enter_context(TemporaryFile()))
            parts[name].write(line, read, bad=bad)
        yield parts


async def send(sender: CallSender, id: str, agent: str, part: AgentList, seconds: float) -> None:
    """Send *part*; give up after *seconds* without room. Raises `RegistryError`."""
    part.file.seek(0)
    for number in range(part.pieces):
        piece = ListPiece(number, number * PIECE, part.file.read(PIECE))
        deadline = time.monotonic() + seconds
        while not await sender.send(id, agent, piece):
            if time.monotonic() > deadline:
                return  # the wait for its answer ends with a message
            await asyncio.sleep(_SEND_POLL)


@dataclass
class AgentAnswers:
    """Answers, and reasons of agents without one, by the agent's name."""

    replies: dict[str, AgentReply] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


def missing_agents(overview: ClusterOverview, rows: Mapping[str, MemberRecord]) -> dict[str, str]:
    """The agents of *rows* that do not run, with the reason."""
    now = overview.now
    return {
        name: f"not heard for {now - row.heard / 1000:,.0f} s" if row.incarnation else "stopped"
        for name, row in rows.items() if row.missing(now)
    }  # fmt: skip


async def ask(
    connection: CrawlConnection, call: AgentCall, rows: Mapping[str, MemberRecord],
    seconds: float, parts: Mapping[str, AgentList] | None = None,
) -> AgentAnswers:  # fmt: skip
    """Ask the agents *rows*, each with its part of a list if there are *parts*.

    Does not wait for agents that are away: they carry out an act when they are back, within a day.
    Raises `ClusterError`.
    """
    gone, sender = missing_agents(connection.overview, rows), connection.sender
    if call.kind == "look":  # reading a list may have taken long
        now = time.time()
        call = msgspec.structs.replace(call, when=now, until=now + seconds)
    asked = [name for name in rows if call.kind == "act" or name not in gone]
    calls = dict.fromkeys(asked, call)
    if parts is not None:
        calls = {name: msgspec.structs.replace(call, pieces=parts[name].pieces) for name in asked}
    stands = bool(asked and call.stands)
    if stands:
        await sender.keep_standing(call)
    await sender.submit(calls)
    if parts is not None:
        await asyncio.gather(*(send(sender, call.id, name, parts[name], seconds) for name in asked))
    names = [name for name in asked if name not in gone]
    heard = await _wait(connection, call.id, names, seconds, gone)
    verb = find_verb(call.verb) if stands and not heard.silent else None
    if verb is not None and verb.ends_standing:
        await sender.remove_standing(call)
    return heard


async def _wait(
    connection: CrawlConnection, id: str, names: list[str], seconds: float,
    gone: Mapping[str, str],
) -> AgentAnswers:  # fmt: skip
    heard, sender, lost = AgentAnswers(), connection.sender, dict(gone)
    began = checked = time.monotonic()
    told = False

    def waits() -> list[str]:
        done = heard.replies.keys() | sender.refused.keys() | lost.keys()
        return [name for name in names if name not in done]

    while waits():
        now, found = time.monotonic(), {}
        try:
            if now >= checked + _CHECK:
                checked = now
                if (overview := await connection.admin.overview()) is not None:
                    rows = {row.name: row for row in overview.view.rows}
                    found = missing_agents(overview, rows)
            heard.replies |= await sender.answers(id, waits())  # also of those that have just gone
        except RegistryError as error:
            if error.kind != "away" or now > began + seconds:
                raise
        lost |= {name: found[name] for name in waits() if name in found}
        if now > began + seconds:
            break
        if not told and now > began + _TELL and waits():
            told = True
            print(f"waiting for {listed(waits())}, {seconds:g} s at most", file=sys.stderr)
        await asyncio.sleep(_POLL)
    heard.silent = {
        **lost, **sender.refused, **dict.fromkeys(waits(), f"no answer within {seconds:g} s"),
    }  # fmt: skip
    return heard


def run_on_agents(
    verb: JobVerb, call: Invocation, words: list[str], at_rest: Path | None = None
) -> int:
    """Do *verb* on all agents, or on their jobs in the folder *at_rest*; return the exit code."""
    if verb.not_remote:
        raise UsageError(
            f"{verb.name} works on the job of one agent: {verb.not_remote}",
            print_help=False,
        )
    question, options = verb.plan(call), call.options
    who, looks = getattr(options, "who", None) or whoami(), verb.looks(options)
    if looks:
        kept = words if question.words is None else question.words
        asked, seconds = make_call("look", verb.name, who, words=list(kept)), WAIT
    else:
        asked = make_call("act", verb.name, who, why=options.why, urgent=verb.urgent,
                          arguments=dict(question.arguments))  # fmt: skip
        seconds = options.wait
    if at_rest is None:
        heard = asyncio.run(ask_crawl(call, asked, question, seconds))
    else:
        heard = _ask_at_rest(at_rest, asked, question, seconds)
    return _show(verb, call, heard) if looks else verb.say(call, merge_answers(heard))


def _ask_at_rest(jobs: Path, asked: AgentCall, question: Question, seconds: float) -> AgentAnswers:
    if question.lines is not None:
        raise UsageError(
            f"the crawl in {jobs} does not run, and each URL is to go to the agent that has its "
            "host: start it with `scrapy cluster up` first", print_help=False,
        )  # fmt: skip
    heard = AgentAnswers()
    for name in agents_in(jobs):
        folder = jobs / name / FOLDER
        if asked.kind == "look":
            request = LookRequest(asked.id, name, asked.verb, asked.words, None, str(folder))
            heard.replies[name] = answer_look(request)
            continue
        try:
            answer = ask_job(
                folder, asked.verb, asked.arguments, who=asked.who, why=asked.why, wait=seconds,
                id=asked.id,
            )  # fmt: skip
        except SuiteError as error:
            answer = Answer(asked.id, False, str(error))
        if answer is None:
            heard.silent[name] = f"no answer within {seconds:g} s"
        else:
            heard.replies[name] = AgentReply.of_answer(answer, asked.id, name)
    if not (heard.replies or heard.silent):
        raise ClusterError(f"{jobs} holds no job of an agent")
    return heard


async def ask_crawl(
    call: Invocation, asked: AgentCall, question: Question, seconds: float
) -> AgentAnswers:
    """Ask all agents that take part in the crawl of *call*. Raises `ClusterError`."""
    async with connect(call) as connection:
        overview = connection.overview
        rows = {
            row.name: row for row in overview.view.rows
            if row.state in (MemberState.ACTIVE, MemberState.LEAVING)
        }  # fmt: skip
        if not rows:
            raise ClusterError(f"no agent takes part in the crawl {connection.crawl}")
        if question.lines is None:
            return await ask(connection, asked, rows, seconds)
        gone = missing_agents(overview, rows)
        running = {name: row for name, row in rows.items() if name not in gone}
        if not running:
            raise ClusterError(f"no agent of the crawl {connection.crawl} runs: {_list(gone)}")
        find = agent_finder(overview, running, by_owner=question.by_owner)
        with divide_list(question.lines, find, min(running)) as parts:
            takers = {name: running[name] for name in parts}
            return await ask(connection, asked, takers, seconds, parts)


def _show(verb: JobVerb, call: Invocation, heard: AgentAnswers) -> int:
    fine = {name: reply for name, reply in sorted(heard.replies.items()) if reply.code in (0, 1)}
    unable = {name: reply for name, reply in heard.replies.items() if name not in fine}
    if fine and verb.of_one_host:
        unable = {}
    for text in sorted({f"{name}: {reply.said}" for name, reply in unable.items()}):
        _complain(text)
    for name, reply in fine.items():
        for text in reply.said.splitlines():
            if not (verb.of_one_host and reply.code):
                _complain(f"{name}: {text.removeprefix('scrapy frontier: ')}")
        if reply.cut:
            _complain(f"{name}: there is more than an answer may hold: look at its job directory")
    shown = 0
    if fine or not (unable or heard.silent):
        shown = verb.show(call, Found({name: _rows(reply) for name, reply in fine.items()}))
    if heard.silent:
        _complain(f"no answer from {_list(heard.silent)}")
        return 1 if getattr(call.options, "alive", None) is not None else 3
    if unable:
        return 2
    return max(shown, min((reply.code for reply in fine.values()), default=0))


def _rows(reply: AgentReply) -> list[Any]:
    """Raises `ClusterError`: the lines are no JSON."""
    try:
        return [json.loads(line) for line in reply.lines]
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"{reply.agent} answers what the suite did not print: {error}") from None


def _complain(text: str) -> None:
    print(f"scrapy frontier: {printable(text)}", file=sys.stderr)


def merge_answers(heard: AgentAnswers) -> Answer:
    replies = dict(sorted(heard.replies.items()))
    by_text: dict[str, list[str]] = {}
    for name, reply in replies.items():
        by_text.setdefault(reply.said, []).append(name)
    said = [f"{listed(names)}: {text}" for text, names in by_text.items()]
    facts = add_up(reply.facts for reply in heard.replies.values())
    facts["agents"] = {
        name: {"ok": not reply.code, "said": reply.said, **reply.facts}
        for name, reply in replies.items()
    }
    if heard.silent:
        facts["silent"] = dict(sorted(heard.silent.items()))
    ok = bool(replies or not heard.silent) and not any(reply.code for reply in replies.values())
    id = next(iter(replies.values())).id if replies else ""
    return Answer(id, ok, "\n".join(said) or "nobody has answered", facts)




def _list(why: Mapping[str, str]) -> str:
    return listed([f"{name} ({reason})" for name, reason in sorted(why.items())])
