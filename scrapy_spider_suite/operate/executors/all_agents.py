"""Asks the agents of a crawl through Redis, and adds up their answers."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, Literal, NamedTuple, TypeVar

from scrapy.exceptions import UsageError

from scrapy_spider_suite.cluster.assignment import (
    SETTING,
    Assignment,
    OwnerTable,
    fingerprint,
    load_assignment,
)
from scrapy_spider_suite.cluster.membership import MemberRecord, MemberState
from scrapy_spider_suite.cluster.registry import ClusterAdmin, ClusterOverview, list_crawls
from scrapy_spider_suite.errors import ClusterError, RegistryError, SettingsError
from scrapy_spider_suite.operate.actions import Answer, whoami
from scrapy_spider_suite.operate.executors.agent_calls import (
    KEPT,
    PIECE,
    AgentCall,
    AgentReply,
    CallSender,
    ListPiece,
    new_call_id,
)
from scrapy_spider_suite.operate.verb import Found, Invocation, JobVerb, Question, add_up
from scrapy_spider_suite.operate.verbs import find_verb
from scrapy_spider_suite.runtime.text import counted, printable
from scrapy_spider_suite.settings.values import RedisUrl, redis_url
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.url_lists import ORIGIN, BadLine, SeedLines

T = TypeVar("T")

_SHOWN = 10


class CrawlPlace(NamedTuple):
    """A crawl in a Redis."""

    redis: RedisUrl
    crawl: str


class CrawlConnection(NamedTuple):
    """Open connections to the agents of a crawl, and a recent overview."""

    place: CrawlPlace
    office: ClusterAdmin
    caller: CallSender
    overview: ClusterOverview


def redis_of(text: str | None) -> RedisUrl:
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
    """The name of the crawl, if *call* gives one."""
    return call.crawl or call.settings.get("SUITE_CRAWL_NAME")


async def find_crawl(redis: RedisUrl, name: str | None) -> CrawlPlace:
    """Return the crawl *name*, or the only crawl in *redis*.

    Raises `ClusterError`: no crawl, several, or an invalid name.
    """
    if name:
        return CrawlPlace(redis, name)
    try:
        names = await list_crawls(redis.url)
    except ValueError as error:
        raise ClusterError(f"{redis}: {error}") from None
    if not names:
        raise ClusterError(f"Redis at {redis} holds no crawl of several agents")
    if len(names) > 1:
        some = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        raise ClusterError(f"Redis at {redis} holds {len(names)} crawls: give --crawl, of {some}")
    return CrawlPlace(redis, names[0])


@asynccontextmanager
async def connect(call: Invocation) -> AsyncIterator[CrawlConnection]:
    """Connect to the crawl that *call* names. Raises `ClusterError`: it does not exist."""
    redis, name = redis_of(call.jobdir), crawl_name(call)
    place = await find_crawl(redis, name)
    try:
        office, caller = ClusterAdmin(redis.url, place.crawl), CallSender(redis.url, place.crawl)
    except ValueError as error:
        raise ClusterError(f"--crawl: {error}") from None
    try:
        overview = await office.overview()
        if overview is None:
            names = ", ".join((await list_crawls(redis.url))[:_SHOWN]) or "none"
            raise ClusterError(
                f"Redis at {redis} holds no crawl {place.crawl!r}; those there are: {names}"
            )
        yield CrawlConnection(place, office, caller, overview)
    finally:
        await office.close()
        await caller.close()


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run *work*; return its result."""
    return asyncio.run(work)


_ASSIGNMENT = re.compile(r"'?([\w.-]+)'? \(([0-9a-f]{16})\)")
_SEND_POLL = 0.05
_SHOWN_BAD, _KEPT = 5, 1_000

Whose = Callable[[str, str], str]
"""(host, URL) -> the agent that gets the URL."""


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


def owners(overview: ClusterOverview, there: Mapping[str, MemberRecord]) -> Whose:
    """The owner of a URL; if it is not *there*, any agent that is."""
    assignment = assignment_in(overview)
    table = OwnerTable.of(assignment, overview.view.members)
    names = [member.name for member in table.members]
    return _whose(assignment, names, table.owners.tolist(), there)


def holders(overview: ClusterOverview, there: Mapping[str, MemberRecord]) -> Whose:
    """The holder of a URL, which has its row; if it is not *there*, any agent that is."""
    assignment = assignment_in(overview)
    names = {number: row.name for number, row in overview.view.numbers.items()}
    holders = overview.holders.holders.tolist()
    most = max([*names, *holders])
    return _whose(assignment, [names.get(number, "") for number in range(most + 1)], holders, there)


def _whose(
    assignment: Assignment, names: list[str], units: list[int], there: Mapping[str, MemberRecord]
) -> Whose:
    known = sorted(there)

    def whose(host: str, url: str) -> str:
        unit = assignment.unit(host, url)
        name = names[units[unit]]
        return name if name in there else known[unit % len(known)]

    return whose


@dataclass
class AgentList:
    """The lines for one agent, in a file."""

    path: Path
    bytes: int = 0
    origin: tuple[str, str] | None = None

    @property
    def pieces(self) -> int:
        return -(-self.bytes // PIECE)


@dataclass
class DividedList:
    """A list, divided among agents.

    Attributes:
        parts: by the agent's name; none is empty.
        bad: the number of lines that are no seeds.
        bad_lines: the first of these lines.
    """

    parts: dict[str, AgentList] = field(default_factory=dict)
    bad: int = 0
    bad_lines: list[BadLine] = field(default_factory=list)

    @property
    def first_bad(self) -> list[str]:
        """The first few bad lines, as text."""
        return [str(line) for line in self.bad_lines[:_SHOWN_BAD]]


@contextmanager
def divide_list(lines: Iterable[str], whose: Whose) -> Iterator[DividedList]:
    """Divide *lines*; reads all of them first."""
    found, read = DividedList(), SeedLines("URLs")
    with TemporaryDirectory(prefix="suite-list-") as folder, ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for line in lines:
            seed = read.read(line.encode("utf-8", "replace"))
            if isinstance(seed, BadLine):
                found.bad += 1
                found.bad_lines += [seed] * (len(found.bad_lines) < _KEPT)
            elif seed is not None:
                name = whose(host_of(seed.url), seed.url)
                if name not in files:
                    path = Path(folder) / str(len(files))
                    files[name] = stack.enter_context(path.open("wb"))
                    found.parts[name] = AgentList(path)
                _write(found.parts[name], files[name], line, (read.origin, read.tag))
        for file in files.values():
            file.flush()
        yield found


def _write(part: AgentList, file: BinaryIO, line: str, origin: tuple[str, str]) -> None:
    text = f"{line}\n"
    if part.origin != origin:
        part.origin = origin
        text = f"{ORIGIN}{origin[0]}\t{origin[1]}\n{text}"
    part.bytes += file.write(text.encode("utf-8", "replace"))


async def send(caller: CallSender, id: str, agent: str, part: AgentList, seconds: float) -> None:
    """Send *part*; give up after *seconds* without room. Raises `RegistryError`."""
    with part.path.open("rb") as file:
        for number in range(part.pieces):
            piece = ListPiece(number, number * PIECE, file.read(PIECE))
            deadline = time.monotonic() + seconds
            while not await caller.send(id, agent, piece):
                if time.monotonic() > deadline:
                    return  # whoever waits for its answer says so
                await asyncio.sleep(_SEND_POLL)


_POLL = 0.1
_LOOK = 2.0
"""Seconds between checks for agents that ended."""
_TELL = 5.0
"""Seconds until the agents waited for are printed."""


@dataclass(frozen=True)
class AgentQuestion:
    """See `AgentCall`."""

    kind: Literal["act", "look"]
    verb: str
    who: str
    why: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    urgent: bool = False


@dataclass
class AgentAnswers:
    """Answers, and reasons of agents without one, by the agent's name."""

    replies: dict[str, AgentReply] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


def taking_part(line: CrawlConnection) -> dict[str, MemberRecord]:
    """Agents that take part, also those away, by name. Raises `ClusterError`: none."""
    rows = {
        row.name: row for row in line.overview.view.rows
        if row.state in (MemberState.ACTIVE, MemberState.LEAVING)
    }  # fmt: skip
    if not rows:
        raise ClusterError(f"no agent takes part in the crawl {line.place.crawl}")
    return rows


def missing_agents(line: CrawlConnection, rows: Mapping[str, MemberRecord]) -> dict[str, str]:
    """Agents that do not run, with the reason."""
    now = line.overview.now
    return {name: _silence(row, now) for name, row in rows.items() if row.missing(now)}


def _silence(row: MemberRecord, now: float) -> str:
    return f"not heard for {now - row.heard / 1000:,.0f} s" if row.incarnation else "stopped"


async def ask(
    line: CrawlConnection, question: AgentQuestion, rows: Mapping[str, MemberRecord],
    seconds: float,
    parts: Mapping[str, AgentList] | None = None,
) -> AgentAnswers:  # fmt: skip
    """Ask the agents *rows*, each with its part of a list if there are *parts*.

    Does not wait for agents that are away: they carry out an act when they are back, within a day.
    Raises `ClusterError`.
    """
    gone = missing_agents(line, rows)
    asked = [name for name in rows if question.kind == "act" or name not in gone]
    id, now = new_call_id(urgent=question.urgent), time.time()
    until = now + (KEPT if question.kind == "act" else seconds)

    def call(name: str) -> AgentCall:
        return AgentCall(
            id=id, kind=question.kind, verb=question.verb, who=question.who, why=question.why,
            when=now, until=until, arguments=dict(question.arguments), words=list(question.words),
            pieces=0 if parts is None else parts[name].pieces,
        )  # fmt: skip

    calls = {name: call(name) for name in asked}
    standing = next((each for each in calls.values() if each.stands), None)
    if standing is not None:
        await line.caller.keep_standing(standing)
    await line.caller.submit(calls)
    if parts is not None:
        sending = [send(line.caller, id, name, parts[name], seconds) for name in asked]
        await asyncio.gather(*sending)
    heard = await _wait(line, id, [name for name in asked if name not in gone], seconds, gone)
    if standing is not None and _ends_standing(standing) and not heard.silent:
        await line.caller.remove_standing(standing)
    return heard


def _ends_standing(call: AgentCall) -> bool:
    verb = find_verb(call.verb)
    return verb is not None and verb.ends_standing


async def _wait(
    line: CrawlConnection, id: str, names: list[str], seconds: float, gone: Mapping[str, str]
) -> AgentAnswers:
    heard, caller, lost = AgentAnswers(), line.caller, dict(gone)
    began = look = time.monotonic()
    told = False

    def waits() -> list[str]:
        done = heard.replies.keys() | caller.refused.keys() | lost.keys()
        return [name for name in names if name not in done]

    while waits():
        now, found = time.monotonic(), {}
        try:
            if now >= look + _LOOK:
                look, found = now, await _lost(line, waits())
            heard.replies |= await caller.answers(id, waits())  # also of those that have just gone
        except RegistryError as error:
            if error.kind != "away" or now > began + seconds:
                raise
        lost |= {name: found[name] for name in waits() if name in found}
        if now > began + seconds:
            break
        if not told and now > began + _TELL and waits():
            told = True
            print(f"waiting for {', '.join(waits())}, {seconds:g} s at most", file=sys.stderr)
        await asyncio.sleep(_POLL)
    heard.silent = {
        **lost, **caller.refused, **dict.fromkeys(waits(), f"no answer within {seconds:g} s"),
    }  # fmt: skip
    return heard


async def _lost(line: CrawlConnection, names: list[str]) -> dict[str, str]:
    overview = await line.office.overview()
    rows = {} if overview is None else {row.name: row for row in overview.view.rows}
    now = 0.0 if overview is None else overview.now
    return {
        name: _silence(row, now) for name in names
        if (row := rows.get(name)) is not None and row.missing(now)
    }  # fmt: skip


SILENT = "silent"
"""The fact with the agents without an answer."""
AGENTS = "agents"
"""The fact with the answer of each agent."""
_MOST = 20


WAIT: Final = 60.0
"""Seconds to wait for a look."""


def run_on_agents(verb: JobVerb, call: Invocation, words: list[str]) -> int:
    """Do *verb* on all agents of the crawl; return the exit code.

    *words* follow the verb on the command line.
    """
    if verb.not_remote:
        raise UsageError(
            f"{verb.name} works on a job directory, not over Redis: {verb.not_remote}",
            print_help=False,
        )
    question = verb.plan(call)
    if verb.look is None or (verb.apply is not None and not question.counts):
        return verb.say(call, run_async(_act(verb, call, question)))
    heard, found = run_async(_look(verb, call, question, words))
    return _show(verb, call, heard, found)


async def _act(verb: JobVerb, call: Invocation, question: Question) -> Answer:
    options = call.options
    asked = AgentQuestion(
        "act", verb.name, options.who or whoami(), options.why, arguments=question.arguments,
        urgent=verb.urgent,
    )  # fmt: skip
    async with connect(call) as line:
        return merge_answers(*await _ask_all(line, asked, question, options.wait))


async def _look(
    verb: JobVerb, call: Invocation, question: Question, words: list[str]
) -> tuple[AgentAnswers, DividedList | None]:
    who = getattr(call.options, "who", None) or whoami()
    kept = words if question.words is None else question.words
    asked = AgentQuestion("look", verb.name, who, words=tuple(kept))
    async with connect(call) as line:
        return await _ask_all(line, asked, question, WAIT)


async def _ask_all(
    line: CrawlConnection, asked: AgentQuestion, question: Question, seconds: float
) -> tuple[AgentAnswers, DividedList | None]:
    """Ask all agents; of a list each gets its own lines."""
    if question.lines is None:
        return await ask(line, asked, taking_part(line), seconds), None
    rows = await running(line)
    whose = (owners if question.by_owner else holders)(line.overview, rows)
    with divide_list(question.lines, whose) as found:
        parts = {name: rows[name] for name in found.parts}
        return await ask(line, asked, parts, seconds, found.parts), found


def _show(
    verb: JobVerb, call: Invocation, heard: AgentAnswers, found: DividedList | None
) -> int:
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
    if fine or found is not None:
        by_agent = {name: _rows(reply) for name, reply in fine.items()}
        bad = (0, []) if found is None else (found.bad, found.bad_lines)
        shown = verb.show(call, Found(by_agent, *bad))
    if heard.silent:
        _complain(silence(heard.silent))
        return 1 if getattr(call.options, "alive", None) is not None else 3
    if unable:
        return 2
    codes = [reply.code for reply in fine.values()] + [1] * bool(found and found.bad)
    return max(shown, min(codes, default=0))


def _rows(reply: AgentReply) -> list[Any]:
    """Raises `ClusterError`: the lines are no JSON."""
    try:
        return [json.loads(line) for line in reply.lines]
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"{reply.agent} answers what the suite did not print: {error}") from None


def _complain(text: str) -> None:
    print(f"scrapy frontier: {printable(text)}", file=sys.stderr)


async def running(line: CrawlConnection) -> dict[str, Any]:
    """The agents that run. Raises `ClusterError`: none."""
    rows = taking_part(line)
    gone = missing_agents(line, rows)
    found = {name: row for name, row in rows.items() if name not in gone}
    if not found:
        raise ClusterError(f"no agent of the crawl {line.place.crawl} runs: {_list(gone)}")
    return found


def merge_answers(heard: AgentAnswers, found: DividedList | None = None) -> Answer:
    """Merge all answers into one; *found* is the list that was sent."""
    replies = heard.replies
    id = next(iter(replies.values())).id if replies else ""
    said = answer_lines(replies)
    facts = add_up(reply.facts for reply in replies.values())
    if found is not None:
        facts = _with_bad(facts, found)
        if found.bad:
            bad = counted(found.bad, "line is no seed", "lines are no seeds")
            said.append(f"{bad}: {'; '.join(found.first_bad)}")
    facts[AGENTS] = {
        name: {"ok": not reply.code, "said": reply.said, **reply.facts}
        for name, reply in sorted(replies.items())
    }  # fmt: skip
    if heard.silent:
        facts[SILENT] = dict(sorted(heard.silent.items()))
    ok = bool(replies or not heard.silent) and not any(reply.code for reply in replies.values())
    return Answer(id, ok, "\n".join(said) or "nobody has answered", facts)


def _with_bad(facts: dict[str, Any], found: DividedList) -> dict[str, Any]:
    bad = facts.get("no_web_addresses", 0) + found.bad
    first = [*found.first_bad, *facts.get("first_bad", [])]
    urls = facts.get("urls", 0) + found.bad
    return facts | {"urls": urls, "no_web_addresses": bad, "first_bad": first}


def answer_lines(replies: Mapping[str, AgentReply]) -> list[str]:
    """A line per different message, with its agents."""
    by_text: dict[str, list[str]] = {}
    for name, reply in sorted(replies.items()):
        by_text.setdefault(reply.said, []).append(name)
    return [f"{_names(names)}: {text}" for text, names in by_text.items()]


def _names(names: list[str]) -> str:
    if len(names) <= _MOST:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST])} and {len(names) - _MOST} more"


def silence(heard: Mapping[str, str]) -> str:
    """One line with the agents without an answer, and the reasons."""
    return f"no answer from {_list(heard)}"


def _list(why: Mapping[str, str]) -> str:
    some = [f"{name} ({reason})" for name, reason in sorted(why.items())]
    return ", ".join(some[:_MOST]) + (f" and {len(some) - _MOST} more" if some[_MOST:] else "")
