"""What an agent does, or looks up, when it is asked through Redis.

A change becomes an action in the job's folder, under the id of the call: it is carried out in
portions, once, whoever is killed meanwhile, and is in the audit log with who asked and why. A look
is answered by a helper process, which reads the job beside the crawl.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, suppress
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final

import msgspec
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_spider_suite.errors import ActionError, AgentCallError, SuiteError
from scrapy_spider_suite.operate.actions import Action, ActionFolder, Answer, AuditLog
from scrapy_spider_suite.operate.executors.agent_calls import (
    KEPT,
    AgentCall,
    AgentReply,
    CallListener,
)
from scrapy_spider_suite.operate.verb import AnswerIsNoError, Invocation, VerbParser
from scrapy_spider_suite.operate.verbs import find_verb
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.helper_processes import start_helper

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent

OUT: Final = 8 << 20
"""Characters of what was found that are handed on."""
_MOST: Final = 2
"""Processes at a time: each reads as much of the disk as it can."""
_CALM: Final = 5
"""Niceness of a process that looks: the crawl comes first."""
_IDLE: Final = 60.0
"""Seconds after which one that nobody needs ends."""
_LINE: Final = 8 * OUT
"""Characters of an answer, in which each of those above may be escaped."""


class LookResult(msgspec.Struct):
    """What a process answers."""

    code: int
    lines: list[str]
    said: str
    cut: bool = False


class LookProcesses:
    """The processes of one agent."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_MOST)
        self._idle: list[Popen[str]] = []
        self._ends: dict[int, asyncio.TimerHandle] = {}

    async def ask(self, asked: Any, seconds: float) -> LookResult:
        """Have a process look, for some *seconds* at most."""
        text = msgspec.json.encode(asked).decode()
        async with self._places:
            process = self._idle.pop() if self._idle else None
            if process is None:
                process = await asyncio.to_thread(start_helper, __name__, talks=True, project=True)
            elif process.pid in self._ends:
                self._ends.pop(process.pid).cancel()
            return await self._asked(process, text, seconds)

    async def _asked(self, process: Popen[str], text: str, seconds: float) -> LookResult:
        loop, fine = asyncio.get_running_loop(), False
        end = loop.call_later(max(1.0, seconds), process.kill)
        try:
            seen = await asyncio.to_thread(_talk, process, text)
            fine = seen is not None
        finally:
            end.cancel()
            if fine:
                self._idle.append(process)
                self._ends[process.pid] = loop.call_later(_IDLE, self._let_go, process)
            else:
                _end_process(process)
        return seen or LookResult(2, [], "it took too long, or failed: nothing was found out")

    def _let_go(self, process: Popen[str]) -> None:
        self._ends.pop(process.pid, None)
        if process in self._idle:
            self._idle.remove(process)
            _end_process(process)

    def close(self) -> None:
        """End them all."""
        for process in list(self._idle):
            if process.pid in self._ends:
                self._ends[process.pid].cancel()
            self._let_go(process)


def _talk(process: Popen[str], text: str) -> LookResult | None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError, ValueError):
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        return msgspec.json.decode(process.stdout.readline(_LINE), type=LookResult)
    return None


def _end_process(process: Popen[str]) -> None:
    process.kill()
    with suppress(OSError), process:  # a look that is under way in a thread finds its pipe closed
        pass


_SUFFIX: Final = "-call"
"""Ends the ids of actions that come from calls: they never are those of others."""
_KNOWN: Final = 1_000
"""Answers that are kept in memory: more calls are never under way."""
_POLL: Final = 0.1
_SAID: Final = 2_000


class CallExecutor:
    """Carries out calls on the job whose ``suite`` folder is *folder*, of the agent *name*.

    *job* is the id in ``job.json``. See `agents.listening.Carrier`.
    """

    def __init__(self, folder: Path, job: str, name: str) -> None:
        self._folder = folder
        self._job = job
        self._name = name
        self._actions = ActionFolder(folder)
        self._done: dict[str, Answer] | None = None
        self._ids: set[str] = set()  # of all calls that were ever carried out here
        self._one, self._leaving = asyncio.Lock(), asyncio.Lock()
        self._lookers = LookProcesses()

    def place(self, call: AgentCall) -> Path | None:
        id = f"{call.id}{_SUFFIX}"
        if call.kind == "act" and (self._actions.is_pending(id) or self._actions.is_answered(id)):
            return None
        if self._done is not None and id in self._done:
            return None
        self._actions.path.mkdir(exist_ok=True)
        return self._actions.urls_of(id)

    async def is_new(self, call: AgentCall) -> bool:
        await self._earlier()
        id = f"{call.id}{_SUFFIX}"
        busy = id in self._ids or self._actions.is_pending(id)
        return not (busy or self._actions.is_answered(id))

    async def carry_out(self, call: AgentCall) -> AgentReply:
        if call.kind == "look":
            return await self._look(call)
        verb = find_verb(call.verb)
        if verb is None or verb.apply is None or verb.not_remote:
            raise AgentCallError(f"nobody does {call.verb[:80]!r} when asked through Redis")
        answer = await self._act(call)
        return AgentReply(
            id=call.id, agent=self._name, code=0 if answer.ok else 1,
            said=answer.said[:_SAID], facts=dict(answer.facts),
        )  # fmt: skip

    async def _act(self, call: AgentCall) -> Answer:
        id = f"{call.id}{_SUFFIX}"
        done = await self._earlier()
        if id in done:
            return done[id]
        async with self._leaving:  # in the order in which they were asked
            if not (self._actions.is_pending(id) or self._actions.is_answered(id)):
                who = f"{call.who} (Redis)"
                action = Action(id, call.verb, call.arguments, self._job, who, call.when, call.why)
                try:
                    await asyncio.to_thread(self._leave, action)
                except ActionError as error:
                    raise AgentCallError(str(error)) from error
        while (answer := self._actions.take_answer(id)) is None:
            if not self._actions.is_pending(id) and not self._actions.is_answered(id):
                # Somebody else has taken the answer away: the log has it.
                self._done = None
                if (known := (await self._earlier()).get(id)) is not None:
                    return known
                raise AgentCallError(f"{call.verb}: the action was taken back")
            await asyncio.sleep(_POLL)
        done[id] = answer
        self._ids.add(id)
        if len(done) > _KNOWN:
            del done[next(iter(done))]
        return answer

    def _leave(self, action: Action) -> None:
        self._actions.submit(action)
        files.sync_path(self._actions.path)

    async def _earlier(self) -> dict[str, Answer]:
        """What was carried out of calls that may come again: the audit log has it."""
        async with self._one:
            if self._done is None:
                rows = await asyncio.to_thread(_of_calls, AuditLog(self._folder).rows())
                self._ids.update(rows)
                since = time.time() - 2 * KEPT
                self._done = {id: answer for id, (done, answer) in rows.items() if done > since}
        return self._done

    # Looking

    async def _look(self, call: AgentCall) -> AgentReply:
        place = self._actions.urls_of(f"{call.id}{_SUFFIX}") if call.pieces else None
        asked = {
            "verb": call.verb, "words": call.words, "urls": None if place is None else str(place),
            "folder": str(self._folder),
        }  # fmt: skip
        try:
            seen = await self._lookers.ask(asked, call.until - time.time())
        finally:
            if place is not None:
                place.unlink(missing_ok=True)
        return AgentReply(
            id=call.id, agent=self._name, code=seen.code, said=seen.said[-_SAID:].strip(),
            lines=seen.lines, cut=seen.cut,
        )  # fmt: skip

    def close(self) -> None:
        """End what looks for others."""
        self._lookers.close()


def make_call_service(agent: Agent) -> CallListener:
    """Return the service by which *agent* carries out calls that come through Redis."""
    redis, job = agent.crawl.settings.redis_url, agent.job
    calling = CallExecutor(job.folder, job.file.id, agent.name)
    return CallListener("" if redis is None else redis.url, agent.crawl_name, agent.name, calling)


def _of_calls(rows: Iterable[dict[str, Any]]) -> dict[str, tuple[float, Answer]]:
    """When calls were carried out, and the answers, by the ids of their actions."""
    found = {}
    for row in rows:
        id, done, facts = row.get("id"), row.get("done"), row.get("facts")
        if isinstance(id, str) and id.endswith(_SUFFIX) and isinstance(done, int | float):
            said, known = str(row.get("said", "")), facts if isinstance(facts, dict) else {}
            found[id] = (done, Answer(id, bool(row.get("ok")), said, known))
    return found


class LookRequest(msgspec.Struct, frozen=True):
    """What is asked: *words* follow *verb*, then the path of a list of *urls*, if there is one."""

    verb: str
    words: list[str]
    urls: str | None
    folder: str


def look_for(request: LookRequest) -> Iterator[str]:
    """Look at the job of an agent: lines of JSON. The words are those of a stranger.

    Raises `UsageError`: nobody may ask that.
    """
    verb = find_verb(request.verb)
    if verb is None or verb.look is None or verb.not_remote:
        raise UsageError(f"nobody looks at {request.verb[:80]!r} when asked through Redis")
    words = request.words if request.urls is None else [*request.words, "--", request.urls]
    parser = VerbParser(allow_abbrev=False)
    verb.add_options(parser)
    options = parser.parse_args(words)
    if not verb.may_look(options, request.urls):
        raise UsageError(f"{verb.name}: that cannot be asked through Redis")
    call = Invocation(str(Path(request.folder).parent), True, Settings(), options)
    for row in verb.look(call, verb.plan(call)):
        yield json.dumps(row)


def answer_look(line: bytes) -> LookResult:
    """Answer the request in *line*; never raises."""
    lines, err, code, cut = list[str](), io.StringIO(), 2, False
    with redirect_stderr(err):
        try:
            length = 0
            for text in look_for(msgspec.json.decode(line, type=LookRequest)):
                length += len(text) + 1
                if length > OUT:
                    cut = True
                    break
                lines.append(text)
            code = 0
        except AnswerIsNoError as error:
            code = 1
            print(error, file=err)
        except (SuiteError, UsageError, OSError) as error:
            print(error, file=err)
        except SystemExit:
            print("there is no help from here", file=err)
        except Exception as error:  # the next one may be answered
            print(f"it failed: {error!r}", file=err)
    return LookResult(code, lines, err.getvalue(), cut)


def main(arguments: list[str]) -> int:
    """Answer the requests on standard input, a line each, until there are no more."""
    os.nice(_CALM)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(answer_look(line)) + b"\n")
        sys.stdout.buffer.flush()
    return 0
