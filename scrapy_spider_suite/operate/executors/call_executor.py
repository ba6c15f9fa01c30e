"""An agent carries out calls that come through Redis.

A change becomes an action in the job's folder, under the id of the call: it is carried out once,
also after a kill, and is in the audit log. A look is answered by a helper process, which reads the
job beside the crawl.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final

import msgspec
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_spider_suite.cluster.redis_server import RedisServer, load_script
from scrapy_spider_suite.errors import ActionError, AgentCallError, RegistryError, SuiteError
from scrapy_spider_suite.operate.actions import Action, ActionFolder, Answer, AuditLog
from scrapy_spider_suite.operate.executors.agent_calls import (
    ANSWER_KEPT,
    CALL_MAX,
    NUMBER,
    PIECE_MAX,
    SAID,
    STANDING_MAX,
    AgentCall,
    AgentReply,
    CallKeys,
    ListPiece,
)
from scrapy_spider_suite.operate.verb import AnswerIsNoError, Invocation, VerbParser
from scrapy_spider_suite.operate.verbs import find_verb
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.helper_processes import start_helper
from scrapy_spider_suite.runtime.tasks import WarnOnce, cancel_tasks, retry_forever
from scrapy_spider_suite.runtime.text import counted

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import ClusterAgent

logger = logging.getLogger(__name__)

OUT: Final = 8 << 20  # most characters of the lines of an answer
_MOST: Final = 2  # processes at a time: each reads as much of the disk as it can
_CALM: Final = 5  # niceness of a process that looks: the crawl comes first
_IDLE: Final = 60.0  # seconds after which an idle process ends
_LINE: Final = 8 * OUT  # most characters of an encoded answer: each one may be escaped
_SUFFIX: Final = "-call"  # ends the ids of actions that come from calls
_POLL: Final = 0.1
LISTEN: Final = 1.0  # seconds between polls for calls
STAND: Final = 60  # polls for calls per poll for standing calls
ABREAST: Final = 100  # calls carried out at a time
_SILENT: Final = 60.0  # seconds to wait for the next piece of a list: its sender was killed then
_TIMEOUT: Final = 10.0
_SCRIPTS: Final = {name: load_script(name) for name in ("asked", "answer", "piece", "standing")}


class LookRequest(msgspec.Struct, frozen=True):
    """*words* follow *verb*, then the path of a list of *urls*, if there is one."""

    id: str
    agent: str
    verb: str
    words: list[str]
    urls: str | None
    folder: str


class LookProcesses:
    """The helper processes of one agent, which read its job beside the crawl."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_MOST)
        self._idle: dict[Popen[str], asyncio.TimerHandle] = {}

    async def ask(self, request: LookRequest, seconds: float) -> AgentReply:
        loop, seen = asyncio.get_running_loop(), None
        async with self._places:
            if self._idle:
                process, end = self._idle.popitem()
                end.cancel()
            else:
                process = await asyncio.to_thread(start_helper, __name__, talks=True, project=True)
            kill = loop.call_later(max(1.0, seconds), process.kill)
            try:
                seen = await asyncio.to_thread(_talk, process, request)
            finally:
                kill.cancel()
                if seen is None:
                    _end_process(process)
                else:
                    self._idle[process] = loop.call_later(_IDLE, self._end_idle, process)
        said = "it took too long, or failed: nothing was found out"
        return seen or AgentReply(id=request.id, agent=request.agent, code=2, said=said)

    def _end_idle(self, process: Popen[str]) -> None:
        self._idle.pop(process).cancel()
        _end_process(process)

    def close(self) -> None:
        for process in list(self._idle):
            self._end_idle(process)


def _talk(process: Popen[str], request: LookRequest) -> AgentReply | None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError, ValueError):
        process.stdin.write(f"{msgspec.json.encode(request).decode()}\n")
        process.stdin.flush()
        return msgspec.json.decode(process.stdout.readline(_LINE), type=AgentReply)
    return None


def _end_process(process: Popen[str]) -> None:
    process.kill()
    with suppress(OSError), process:  # a look that is under way in a thread finds its pipe closed
        pass


class CallExecutor:
    """Carries out each call once, also after a kill, on the job with the ``suite`` folder *folder*.

    *job* is the id in ``job.json``, *name* that of the agent.
    """

    def __init__(self, folder: Path, job: str, name: str) -> None:
        self._folder = folder
        self._job = job
        self._name = name
        self._actions = ActionFolder(folder)
        self._ids: set[str] | None = None  # of all calls that were ever carried out here
        self._reading, self._submitting = asyncio.Lock(), asyncio.Lock()
        self._processes = LookProcesses()

    def list_path(self, call: AgentCall) -> Path | None:
        """Return the path for the list of *call*; None: the list is complete already."""
        id = f"{call.id}{_SUFFIX}"
        if (call.kind == "act" and self._is_left(id)) or id in (self._ids or ()):
            return None
        self._actions.path.mkdir(exist_ok=True)
        return self._actions.urls_path(id)

    def _is_left(self, id: str) -> bool:
        return self._actions.is_pending(id) or self._actions.is_answered(id)

    async def is_new(self, call: AgentCall) -> bool:
        id = f"{call.id}{_SUFFIX}"
        return id not in await self._known_ids() and not self._is_left(id)

    async def carry_out(self, call: AgentCall) -> AgentReply:
        """Carry *call* out, unless that was done before. Raises `AgentCallError`."""
        if call.kind == "look":
            return await self._look(call)
        verb = find_verb(call.verb)
        if verb is None or verb.apply is None or verb.not_remote:
            raise AgentCallError(f"nobody does {call.verb[:80]!r} when asked through Redis")
        answer = await self._act(call)
        return AgentReply.of_answer(answer, call.id, self._name)

    async def _act(self, call: AgentCall) -> Answer:
        id = f"{call.id}{_SUFFIX}"
        ids = await self._known_ids()
        async with self._submitting:  # in the order in which they were asked
            if not (id in ids or self._is_left(id)):
                who = f"{call.who} (Redis)"
                action = Action(id, call.verb, call.arguments, self._job, who, call.when, call.why)
                try:
                    await asyncio.to_thread(self._actions.submit, action)
                    await asyncio.to_thread(files.sync_path, self._actions.path)
                except ActionError as error:
                    raise AgentCallError(str(error)) from error
        while (answer := self._actions.pop_answer(id)) is None:
            if not self._is_left(id):  # it was carried out before: the log has the answer
                answer = await asyncio.to_thread(self._audited, id)
                if answer is None:
                    raise AgentCallError(f"{call.verb}: the action was taken back")
                break
            await asyncio.sleep(_POLL)
        ids.add(id)
        return answer

    async def _known_ids(self) -> set[str]:
        async with self._reading:
            if self._ids is None:
                rows = AuditLog(self._folder).rows()
                found = await asyncio.to_thread(lambda: {str(row["id"]) for row in rows})
                self._ids = found
            return self._ids

    def _audited(self, id: str) -> Answer | None:
        """The answer to the action *id* in the audit log."""
        for row in AuditLog(self._folder).rows():
            if row["id"] == id:
                # The log alone says that the drop of an unknown host was not ok: see `append`.
                ok = row["ok"] or row["facts"].get("known") is False
                return Answer(id, ok, row["said"], row["facts"])
        return None

    async def _look(self, call: AgentCall) -> AgentReply:
        place = self._actions.urls_path(f"{call.id}{_SUFFIX}") if call.pieces else None
        request = LookRequest(
            call.id, self._name, call.verb, call.words, None if place is None else str(place),
            str(self._folder),
        )  # fmt: skip
        try:
            return await self._processes.ask(request, call.until - time.time())
        finally:
            if place is not None:
                place.unlink(missing_ok=True)

    def close(self) -> None:
        self._processes.close()


@dataclass(slots=True)
class ListenerCounters:
    answered: int = 0
    refused: int = 0
    expired: int = 0
    away: int = 0  # times that Redis became unusable


class CallListener:
    """Polls Redis for calls to *agent*, and for standing calls; *executor* carries them out.

    Standing calls are carried out one by one; a failed one is tried again a minute later.
    Raises `ValueError`: the URL or the crawl's name is invalid.
    """

    def __init__(
        self, url: str, crawl: str, agent: str, executor: CallExecutor, *, pause: float = LISTEN
    ) -> None:
        self.counters = ListenerCounters()
        self._server = RedisServer(url, _TIMEOUT)
        self._keys = CallKeys(crawl)
        self._agent = agent
        self._executor = executor
        self._pause = pause
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._polls = 0
        self._stood: set[bytes] = set()  # calls that stand, and are done
        self._latest: dict[str, str] = {}  # ids of calls about a subject, heard since that poll
        self._standing: asyncio.Task[None] | None = None  # carries them out
        self._under_way: set[str] = set()  # ids of calls
        self._once = WarnOnce(logger, f"calls to {agent}")
        self._lost = ""

    @property
    def stats(self) -> dict[str, int]:
        return {f"calls/{name}": count for name, count in asdict(self.counters).items()}

    async def run(self) -> None:
        """Listen until cancelled; the next process repeats unfinished calls."""
        try:
            await retry_forever(self._poll, self._redis_lost, self._redis_back, "calls")
        finally:
            await cancel_tasks(self._standing, *self._tasks.values())
            self._executor.close()
            await self._server.close()

    async def _poll(self) -> None:
        if not self._polls % STAND:
            await self._poll_standing()
        self._polls += 1
        long, *texts = await self._server.run(
            _SCRIPTS["asked"], [self._keys.calls(self._agent)], str(ABREAST), str(CALL_MAX)
        )
        if long:
            self._refuse(long, f"longer than {CALL_MAX:,} bytes")
        for text in sorted(texts, key=_id_of):  # urgent ones first, each kind in its order
            if text not in self._tasks:
                self._tasks[text] = asyncio.ensure_future(self._handle(text))
        await asyncio.sleep(self._pause)

    async def _poll_standing(self) -> None:
        if self._standing is not None and not self._standing.done():
            return
        self._latest.clear()
        found = await self._server.run(
            _SCRIPTS["standing"], [self._keys.standing], str(STANDING_MAX), str(CALL_MAX)
        )
        self._stood.intersection_update(found)
        due = [text for text in found if text not in self._stood]
        self._standing = asyncio.ensure_future(self._obey_standing(due))

    async def _obey_standing(self, due: list[bytes]) -> None:
        for text in sorted(due, key=_id_of):
            try:
                call = AgentCall.from_bytes(text)
                new = bool(call.stands) and await self._executor.is_new(call)
                if new and call.id >= self._latest.get(call.stands, ""):
                    await self._carry_out(call)
                self._stood.add(text)
            except AgentCallError as error:
                self._refuse(1, error)
                self._stood.add(text)
            except OSError as error:
                self._once.say("standing", f"{call.verb} stands: {error.strerror or error}")
            except Exception:  # a fault in one call must not end the listening
                logger.exception("what stands (%s) failed", call.verb)

    async def _handle(self, text: bytes) -> None:
        try:
            id, data = await self._make_answer(text)
            keys = self._keys
            await self._run(
                "answer", [keys.calls(self._agent), keys.answers(id), keys.pieces(id, self._agent)],
                text, self._agent, data, str(round(ANSWER_KEPT * 1000)),
            )  # fmt: skip
            self.counters.answered += bool(data)
        finally:
            # A look that was under way meanwhile still has it.
            asyncio.get_running_loop().call_later(self._pause, self._tasks.pop, text, None)

    async def _make_answer(self, text: bytes) -> tuple[str, bytes]:
        """Return the call's id and answer; b"": no asker waits."""
        try:
            call = AgentCall.from_bytes(text)
        except AgentCallError as error:
            self._refuse(1, error)
            return "", b""
        if call.until < time.time():
            self.counters.expired += 1
            return call.id, b""
        if call.stands:
            self._latest[call.stands] = max(call.id, self._latest.get(call.stands, ""))
        try:
            if call.pieces and (place := self._executor.list_path(call)) is not None:
                await self._receive_list(call, place)
            return call.id, (await self._carry_out(call)).to_bytes()
        except AgentCallError as error:
            self._refuse(1, error)
            said = str(error)
        except OSError as error:
            said = f"{call.verb}: {error.strerror or error}"
        except Exception as error:  # a fault in one call must not end the listening
            logger.exception("what was asked (%s) failed", call.verb)
            said = f"it failed: {error!r}"
        reply = AgentReply(id=call.id, agent=self._agent, code=2, said=said[:SAID])
        return call.id, reply.to_bytes()

    async def _carry_out(self, call: AgentCall) -> AgentReply:
        while call.id in self._under_way:
            await asyncio.sleep(self._pause)
        self._under_way.add(call.id)
        try:
            return await self._executor.carry_out(call)
        finally:
            self._under_way.discard(call.id)

    async def _run(self, script: str, keys: list[str], *values: str | bytes) -> list[Any]:
        while True:
            try:
                return await self._server.run(_SCRIPTS[script], keys, *values)
            except RegistryError as error:
                self._redis_lost(error)
                await asyncio.sleep(self._pause)

    def _refuse(self, count: int, why: object) -> None:
        self.counters.refused += count
        self._once.say("call", f"refused {why}")

    async def _receive_list(self, call: AgentCall, place: Path) -> None:
        """Write the list of *call* to *place*; resumes. Raises `AgentCallError`, `OSError`."""
        have, number = b"", -1
        key = self._keys.pieces(call.id, self._agent)
        silent = time.time()
        with open(os.open(place, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            while number < call.pieces - 1:
                found = await self._run("piece", [key], have, str(PIECE_MAX))  # removes *have*
                if found:
                    piece = ListPiece.from_bytes(found[0])
                    _write_piece(file.fileno(), piece, number)
                    number, have, silent = piece.number, piece.to_bytes()[:NUMBER], time.time()
                elif time.time() - silent > _SILENT:
                    raise AgentCallError(
                        f"{call.verb}: of {counted(call.pieces, 'piece')} of the list "
                        f"{number + 1} came"
                    )
                else:
                    await asyncio.sleep(self._pause / 20)
            # The last one goes with the answer: a process that comes after this one finds it.
            await asyncio.to_thread(os.fsync, file.fileno())

    def _redis_lost(self, error: Exception) -> str:
        if not isinstance(error, RegistryError):
            return ""
        if self._lost != error.kind:
            self.counters.away += 1
            logger.warning("%s: nothing is heard of what is asked of %s", error, self._agent)
        self._lost = error.kind
        return error.kind

    def _redis_back(self, kind: str) -> None:
        self._lost = ""
        logger.info("Redis is back: what is asked of %s is heard again", self._agent)


def _id_of(text: bytes) -> str:
    try:
        return AgentCall.from_bytes(text).id
    except AgentCallError:
        return ""


def _write_piece(file: int, piece: ListPiece, last: int) -> None:
    """Raises `AgentCallError`: an earlier piece is missing."""
    size = os.fstat(file).st_size
    known = piece.number == last + 1 or last < 0
    if not known or piece.at > size:
        raise AgentCallError(f"piece {piece.number} of a list came without the one before it")
    os.ftruncate(file, piece.at)
    os.pwrite(file, piece.data, piece.at)


def make_call_service(agent: ClusterAgent) -> CallListener:
    redis, job = agent.crawl.settings.redis_url, agent.job
    calling = CallExecutor(job.folder, job.file.id, agent.name)
    return CallListener("" if redis is None else redis.url, agent.crawl_name, agent.name, calling)


def look_for(request: LookRequest) -> Iterator[str]:
    """Look at the job of an agent by untrusted words: lines of JSON.

    Raises `UsageError`: the look is not allowed through Redis.
    """
    verb = find_verb(request.verb)
    if verb is None or verb.look is None or verb.not_remote:
        raise UsageError(f"nobody looks at {request.verb[:80]!r} when asked through Redis")
    words = request.words if request.urls is None else [*request.words, "--", request.urls]
    parser = VerbParser(allow_abbrev=False)
    verb.declare(parser)
    options = parser.parse_args(words)
    if not (verb.looks(options) and verb.reads_only(options, request.urls)):
        raise UsageError(f"{verb.name}: that cannot be asked through Redis")
    call = Invocation(str(Path(request.folder).parent), True, Settings(), options)
    for row in verb.look(call, verb.plan(call)):
        yield json.dumps(row)


def answer_look(request: LookRequest) -> AgentReply:
    """Never raises."""
    lines, err, code, cut = list[str](), io.StringIO(), 2, False
    with redirect_stderr(err):
        try:
            length = 0
            for text in look_for(request):
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
    return AgentReply(
        id=request.id, agent=request.agent, code=code, said=err.getvalue()[-SAID:].strip(),
        lines=lines, cut=cut,
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    os.nice(_CALM)
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=LookRequest)
        sys.stdout.buffer.write(msgspec.json.encode(answer_look(request)) + b"\n")
        sys.stdout.buffer.flush()
    return 0
