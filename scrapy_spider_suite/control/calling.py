"""What is asked of an agent through Redis (`agents.calls`) is done like what is asked of its job.

What changes something becomes an action in the job's folder, under the id of the call: so it is
carried out in portions, once, whoever is killed meanwhile, and is in the audit log with who asked
and why. Whoever only looks is answered by a process of its own, which reads the job beside the
crawl.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_spider_suite.agents.calls import KEPT, Call, Reply
from scrapy_spider_suite.agents.listening import Listener
from scrapy_spider_suite.control.actions import Action, Answer
from scrapy_spider_suite.control.audit import AuditLog
from scrapy_spider_suite.control.folder import ActionFolder
from scrapy_spider_suite.control.looking import Lookers
from scrapy_spider_suite.control.verbs import VERBS
from scrapy_spider_suite.errors import ActionError, AgentCallError
from scrapy_spider_suite.runtime import files

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent

_SUFFIX: Final = "-call"
"""Ends the ids of actions that come from calls: they never are those of others."""
_NOT_FROM_AFAR: Final = frozenset({"snapshot"})
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
        self._ids: set[str] = set()  # of all calls that were ever carried out here
        self._one, self._leaving = asyncio.Lock(), asyncio.Lock()
        self._lookers = Lookers()

    def place(self, call: Call) -> Path | None:
        """See `Carrier`."""
        id = f"{call.id}{_SUFFIX}"
        if call.kind == "act" and (self._actions.wanted(id) or self._actions.answered(id)):
            return None
        if self._done is not None and id in self._done:
            return None
        self._actions.path.mkdir(exist_ok=True)
        return self._actions.urls_of(id)

    async def is_new(self, call: Call) -> bool:
        """See `Carrier`."""
        await self._earlier()
        id = f"{call.id}{_SUFFIX}"
        return not (id in self._ids or self._actions.wanted(id) or self._actions.answered(id))

    async def carry_out(self, call: Call) -> Reply:
        """See `Carrier`."""
        if call.kind == "look":
            return await self._look(call)
        if call.verb not in VERBS or call.verb in _NOT_FROM_AFAR:
            raise AgentCallError(f"nobody does {call.verb[:80]!r} when asked through Redis")
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
        async with self._leaving:  # in the order in which they were asked
            if not (self._actions.wanted(id) or self._actions.answered(id)):
                who = f"{call.who} (Redis)"
                action = Action(id, call.verb, call.arguments, self._job, who, call.when, call.why)
                try:
                    await asyncio.to_thread(self._leave, action)
                except ActionError as error:
                    raise AgentCallError(str(error)) from error
        while (answer := self._actions.collect(id)) is None:
            if not self._actions.wanted(id) and not self._actions.answered(id):
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
        self._actions.leave(action)
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

    async def _look(self, call: Call) -> Reply:
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
        return Reply(
            id=call.id, agent=self._name, code=seen.code, said=seen.said[-_SAID:].strip(),
            lines=seen.lines, cut=seen.cut,
        )  # fmt: skip

    def close(self) -> None:
        """End what looks for others."""
        self._lookers.close()


def make_call_service(agent: Agent) -> Listener:
    """Return the service by which *agent* carries out calls that come through Redis."""
    redis, job = agent.crawl.settings.redis_url, agent.job
    calling = Calling(job.folder, job.file.id, agent.name)
    return Listener("" if redis is None else redis.url, agent.crawl_name, agent.name, calling)


def _of_calls(rows: Iterable[dict[str, Any]]) -> dict[str, tuple[float, Answer]]:
    """When calls were carried out, and the answers, by the ids of their actions."""
    found = {}
    for row in rows:
        id, done, facts = row.get("id"), row.get("done"), row.get("facts")
        if isinstance(id, str) and id.endswith(_SUFFIX) and isinstance(done, int | float):
            said, known = str(row.get("said", "")), facts if isinstance(facts, dict) else {}
            found[id] = (done, Answer(id, bool(row.get("ok")), said, known))
    return found
