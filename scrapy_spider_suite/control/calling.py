"""What is asked of an agent through Redis (`agents.calls`) is done like what is asked of its job.

What changes something becomes an action in the job's folder, under the id of the call: so it is
carried out in portions, once, whoever is killed meanwhile, and is in the audit log with who asked
and why. Whoever only looks is answered by a process of its own, which reads the job beside the
crawl.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

from scrapy_spider_suite import durable
from scrapy_spider_suite.agents.calls import ANSWER_RAW, KEPT, Call, Reply
from scrapy_spider_suite.control.actions import Action, Answer
from scrapy_spider_suite.control.audit import AuditLog
from scrapy_spider_suite.control.folder import ActionFolder
from scrapy_spider_suite.control.verbs import VERBS
from scrapy_spider_suite.errors import ActionError, CallError
from scrapy_spider_suite.processes import spawn

READER: Final = "scrapy_spider_suite.commands.reading"
"""The module that looks at a job for others."""
_SUFFIX: Final = "-call"
"""Ends the ids of actions that come from calls: they never are those of others."""
_NOT_FROM_AFAR: Final = frozenset({"snapshot"})
_LOOKS: Final = 2
"""Processes at a time that look: each reads as much of the disk as it can."""
_OUT: Final = ANSWER_RAW // 2
"""Characters of what it prints that are handed on."""
_KNOWN: Final = 1_000
"""Answers that are kept in memory: more calls are never under way."""
_POLL: Final = 0.1
_SAID: Final = 2_000


class Calling:
    """Carries out calls on the job whose ``suite`` folder is *folder*, of the agent *name*.

    *job* is the id in ``job.json``. See `agents.listening.Carrier`.
    """

    def __init__(self, folder: Path, job: str, name: str) -> None:
        self._folder = folder
        self._job = job
        self._name = name
        self._actions = ActionFolder(folder)
        self._done: dict[str, Answer] | None = None
        self._one = asyncio.Lock()
        self._looking = asyncio.Semaphore(_LOOKS)

    def place(self, call: Call) -> Path | None:
        """See `Carrier`."""
        id = f"{call.id}{_SUFFIX}"
        if call.kind == "act" and (self._actions.wanted(id) or self._actions.answered(id)):
            return None
        if self._done is not None and id in self._done:
            return None
        self._actions.path.mkdir(exist_ok=True)
        return self._actions.urls_of(id)

    async def carry_out(self, call: Call) -> Reply:
        """See `Carrier`."""
        if call.kind == "look":
            return await self._look(call)
        if call.verb not in VERBS or call.verb in _NOT_FROM_AFAR:
            raise CallError(f"nobody does {call.verb[:80]!r} when asked through Redis")
        answer = await self._act(call)
        return Reply(
            id=call.id, agent=self._name, code=0 if answer.ok else 1,
            said=answer.said[:_SAID], facts=dict(answer.facts),
        )  # fmt: skip

    async def _act(self, call: Call) -> Answer:
        id = f"{call.id}{_SUFFIX}"
        done = await self._earlier()
        if id in done:
            return done[id]
        if not (self._actions.wanted(id) or self._actions.answered(id)):
            action = Action(
                id, call.verb, call.arguments, self._job, f"{call.who} (Redis)", call.when, call.why
            )
            try:
                await asyncio.to_thread(self._leave, action)
            except ActionError as error:
                raise CallError(str(error)) from error
        while (answer := self._actions.collect(id)) is None:
            if not self._actions.wanted(id) and not self._actions.answered(id):
                # Somebody else has taken the answer away: the log has it.
                self._done = None
                if (known := (await self._earlier()).get(id)) is not None:
                    return known
                raise CallError(f"{call.verb}: the action was taken back")
            await asyncio.sleep(_POLL)
        done[id] = answer
        if len(done) > _KNOWN:
            del done[next(iter(done))]
        return answer

    def _leave(self, action: Action) -> None:
        self._actions.leave(action)
        durable.sync(self._actions.path)

    async def _earlier(self) -> dict[str, Answer]:
        """What was carried out of calls that may come again: the audit log has it."""
        async with self._one:
            if self._done is None:
                self._done = await asyncio.to_thread(_of_calls, AuditLog(self._folder).rows())
        return self._done

    # Looking

    async def _look(self, call: Call) -> Reply:
        place = self._actions.urls_of(f"{call.id}{_SUFFIX}") if call.pieces else None
        asked = {
            "verb": call.verb, "words": call.words, "list": None if place is None else str(place),
            "folder": str(self._folder),
        }  # fmt: skip
        try:
            async with self._looking:
                code, out, said = await _ask(json.dumps(asked), call.until - time.time())
        finally:
            if place is not None:
                place.unlink(missing_ok=True)
        lines, cut = out[:_OUT].splitlines(), len(out) > _OUT
        return Reply(
            id=call.id, agent=self._name, code=code, said=said[-_SAID:].strip(),
            lines=lines[:-1] if cut else lines, cut=cut,
        )  # fmt: skip


def _of_calls(rows: Iterable[dict[str, Any]]) -> dict[str, Answer]:
    """The answers to calls that may still lie in Redis, by the ids of their actions."""
    since = time.time() - 2 * KEPT
    return {
        str(row["id"]): Answer(str(row["id"]), bool(row.get("ok")), str(row.get("said", "")), facts)
        for row in rows
        if str(row.get("id", "")).endswith(_SUFFIX) and row.get("done", 0) > since
        and isinstance(facts := row.get("facts", {}), dict)
    }  # fmt: skip


async def _ask(asked: str, seconds: float) -> tuple[int, str, str]:
    """Run a process that looks, for some seconds at most: its exit code, and what it said."""
    process = await asyncio.to_thread(spawn, READER, talks=True, project=True)
    end = asyncio.get_running_loop().call_later(max(1.0, seconds), process.kill)
    try:
        return await asyncio.to_thread(_talk, process, asked)
    finally:
        process.kill()
        end.cancel()


def _talk(process: Popen[str], asked: str) -> tuple[int, str, str]:
    with process as talking:
        assert talking.stdin is not None
        assert talking.stdout is not None
        assert talking.stderr is not None
        with suppress(BrokenPipeError):
            talking.stdin.write(asked)
            talking.stdin.close()
        out = talking.stdout.read(_OUT + 1)
        if len(out) > _OUT:
            talking.kill()
            return 0, out, ""
        said = talking.stderr.read()
    if process.returncode < 0:
        return 2, "", "it took too long, and was ended"
    return process.returncode, out, said
