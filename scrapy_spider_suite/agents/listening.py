"""An agent listens for what is asked of it through Redis: see `calls`.

It looks every second, on a connection of its own, and every minute for what stands: so an agent
that comes later knows what is blocked. What stands is carried out one by one, while calls are
heard; what fails is tried again a minute later. A call is taken out when its answer is there, in
one step; who carries it out knows by its id whether that was done by the process before. While
Redis is away nothing is asked, and answers wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

from scrapy_spider_suite.agents.calls import (
    ANSWER_KEPT,
    CALL_MAX,
    NUMBER,
    PIECE_MAX,
    STANDING_MAX,
    Call,
    Keys,
    Piece,
    Reply,
)
from scrapy_spider_suite.cluster.redis_server import RedisServer, load_script
from scrapy_spider_suite.errors import AgentCallError, RegistryError
from scrapy_spider_suite.runtime.tasks import WarnOnce
from scrapy_spider_suite.runtime.text import counted

logger = logging.getLogger(__name__)

LOOK: Final = 1.0
"""Seconds between two looks for calls."""
STAND: Final = 60
"""Looks for calls to one for those that stand."""
ABREAST: Final = 100
"""Calls that are seen to at a time."""
_AWAY: Final = 10.0
"""Longest time, in seconds, between two tries while Redis cannot be used."""
_SILENT: Final = 60.0
"""Seconds for which the next piece of a list may take; whoever sends it has been killed, then."""
_TIMEOUT: Final = 10.0

_SCRIPTS: Final = {name: load_script(name) for name in ("asked", "answer", "piece", "standing")}


class Carrier(Protocol):
    """Carries out what is asked, each call once, whatever became of the process before."""

    def place(self, call: Call) -> Path | None:
        """Where to write the list that comes with *call*; None: it is here already."""
        ...

    async def is_new(self, call: Call) -> bool:
        """Whether *call*, which stands, was never carried out here."""
        ...

    async def carry_out(self, call: Call) -> Reply:
        """Do what is asked, unless that was done before, and answer. Raises `AgentCallError`."""
        ...

    def close(self) -> None:
        """Nothing more is asked."""


@dataclass(slots=True)
class ListenerCounters:
    """What became of calls so far."""

    answered: int = 0
    refused: int = 0
    """No calls, or none that this agent carries out."""
    expired: int = 0
    away: int = 0
    """Times that Redis could not be used."""


class Listener:
    """Listens for the calls to *agent* of *crawl*, and has *carrier* carry them out.

    Raises:
        ValueError: there is no such URL, or a crawl cannot have that name.
    """

    def __init__(
        self, url: str, crawl: str, agent: str, carrier: Carrier, *, look: float = LOOK,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.counters = ListenerCounters()
        self._server = RedisServer(url, _TIMEOUT)
        self._keys = Keys(crawl)
        self._agent = agent
        self._carrier = carrier
        self._look = look
        self._wall = wall
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._looks = 0
        self._stood: set[bytes] = set()  # calls that stand, and are done
        self._due: dict[str, tuple[bytes, Call]] = {}  # those that are not, by what they are about
        self._standing: asyncio.Task[None] | None = None  # carries them out
        self._under_way: set[str] = set()  # ids of calls
        self._once = WarnOnce(logger, f"calls to {agent}")
        self._lost = ""

    @property
    def stats(self) -> dict[str, int]:
        """By the names of stats, without ``suite/``."""
        return {f"calls/{name}": count for name, count in asdict(self.counters).items()}

    async def run(self) -> None:
        """Listen until this is cancelled; what is under way is then left for the next process."""
        pause = self._look
        try:
            while True:
                try:
                    await self._take()
                except RegistryError as error:
                    self._is_lost(error)
                    pause = min(2 * pause, _AWAY)
                else:
                    self._is_there()
                    pause = self._look
                await asyncio.sleep(pause)
        finally:
            tasks = [*self._tasks.values(), *filter(None, [self._standing])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._carrier.close()
            await self._server.close()

    async def _take(self) -> None:
        """See to the calls that are new."""
        if not self._looks % STAND:
            await self._take_standing()
        self._looks += 1
        long, *texts = await self._server.run(
            _SCRIPTS["asked"], [self._keys.calls(self._agent)], str(ABREAST), str(CALL_MAX)
        )
        if long:
            self._refuse(long, f"longer than {CALL_MAX:,} bytes")
        for text in sorted(texts, key=_id_of):  # urgent ones first, each kind in its order
            if text not in self._tasks:
                self._tasks[text] = asyncio.ensure_future(self._see_to(text))

    async def _take_standing(self) -> None:
        """Have calls that stand and are new here carried out, while others are heard."""
        found = await self._server.run(
            _SCRIPTS["standing"], [self._keys.standing], str(STANDING_MAX), str(CALL_MAX)
        )
        self._stood.intersection_update(found)
        self._due.clear()
        for text in found:
            if text not in self._stood:
                try:
                    call = Call.from_bytes(text)
                except AgentCallError as error:
                    self._refuse(1, error)
                    self._stood.add(text)
                else:
                    self._due[call.stands] = text, call
        if self._standing is None or self._standing.done():
            self._standing = asyncio.ensure_future(self._stand())

    async def _stand(self) -> None:
        """Carry out what stands and never was; what fails is found again at the next look."""
        while self._due:
            about, (text, call) = next(iter(self._due.items()))
            try:
                new = bool(about) and await self._carrier.is_new(call)
                # What was heard meanwhile about the same is later, or is the same.
                due = self._due.get(about) == (text, call)
                if new and due:
                    del self._due[about]
                    await self._carry_out(call)
                if due or not new:
                    self._stood.add(text)
            except AgentCallError as error:
                self._refuse(1, error)
                self._stood.add(text)
            except OSError as error:
                self._once.say("standing", f"{call.verb} stands: {error.strerror or error}")
            except Exception:  # a fault in one call must not end the listening
                logger.exception("what stands (%s) failed", call.verb)
            if self._due.get(about) == (text, call):
                del self._due[about]

    async def _see_to(self, text: bytes) -> None:
        try:
            id, data = await self._answer_of(text)
            await self._give(text, id, data)
        finally:
            # A look that was under way meanwhile still has it.
            asyncio.get_running_loop().call_later(self._look, self._tasks.pop, text, None)

    async def _answer_of(self, text: bytes) -> tuple[str, bytes]:
        """The id of the call, and its answer; nothing if nobody waits for one."""
        try:
            call = Call.from_bytes(text)
        except AgentCallError as error:
            self._refuse(1, error)
            return "", b""
        if call.until < self._wall():
            self.counters.expired += 1
            return call.id, b""
        self._due.pop(call.stands, None)
        try:
            if call.pieces and (place := self._carrier.place(call)) is not None:
                await self._fetch(call, place)
            return call.id, (await self._carry_out(call)).to_bytes()
        except AgentCallError as error:
            self._refuse(1, error)
            said = str(error)
        except OSError as error:
            said = f"{call.verb}: {error.strerror or error}"
        except Exception as error:  # a fault in one call must not end the listening
            logger.exception("what was asked (%s) failed", call.verb)
            said = f"it failed: {error!r}"
        reply = Reply(id=call.id, agent=self._agent, code=2, said=said[:2_000])
        return call.id, reply.to_bytes()

    async def _carry_out(self, call: Call) -> Reply:
        """Carry out *call*, which may stand and come, after what is under way of the same."""
        while call.id in self._under_way:
            await asyncio.sleep(self._look)
        self._under_way.add(call.id)
        try:
            return await self._carrier.carry_out(call)
        finally:
            self._under_way.discard(call.id)

    async def _give(self, text: bytes, id: str, data: bytes) -> None:
        """Give the answer, as soon as Redis takes it."""
        keys = self._keys
        places = [keys.calls(self._agent), keys.answers(id), keys.pieces(id, self._agent)]
        given = (text, self._agent, data, str(round(ANSWER_KEPT * 1000)))
        pause = self._look
        while True:
            try:
                await self._server.run(_SCRIPTS["answer"], places, *given)
            except RegistryError as error:
                self._is_lost(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _AWAY)
            else:
                self.counters.answered += bool(data)
                return

    def _refuse(self, count: int, why: object) -> None:
        self.counters.refused += count
        self._once.say("call", f"refused {why}")

    # Lists

    async def _fetch(self, call: Call, place: Path) -> None:
        """Write the list that comes with *call* to *place*, from where the process before was.

        Raises `AgentCallError` and `OSError`.
        """
        have, number = b"", -1
        silent = self._wall()
        with open(os.open(place, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            while number < call.pieces - 1:
                piece = await self._piece(call, have)
                if piece is not None:
                    _put(file.fileno(), piece, number)
                    number, have, silent = piece.number, piece.to_bytes()[:NUMBER], self._wall()
                elif self._wall() - silent > _SILENT:
                    raise AgentCallError(
                        f"{call.verb}: of {counted(call.pieces, 'piece')} of the list "
                        f"{number + 1} came"
                    )
                else:
                    await asyncio.sleep(self._look / 20)
            # The last one goes with the answer: a process that comes after this one finds it.
            await asyncio.to_thread(os.fsync, file.fileno())

    async def _piece(self, call: Call, have: bytes) -> Piece | None:
        """The next piece, once that with the number *have* is out; None: it is not there yet."""
        while True:
            try:
                found = await self._server.run(
                    _SCRIPTS["piece"], [self._keys.pieces(call.id, self._agent)], have,
                    str(PIECE_MAX),
                )  # fmt: skip
            except RegistryError as error:
                self._is_lost(error)
                await asyncio.sleep(self._look)
            else:
                return Piece.from_bytes(found[0]) if found else None

    # Redis

    def _is_lost(self, error: RegistryError) -> None:
        if self._lost != error.kind:
            self.counters.away += 1
            logger.warning("%s: nothing is heard of what is asked of %s", error, self._agent)
        self._lost = error.kind

    def _is_there(self) -> None:
        if self._lost:
            logger.info("Redis is back: what is asked of %s is heard again", self._agent)
        self._lost = ""


def _id_of(text: bytes) -> str:
    try:
        return Call.from_bytes(text).id
    except AgentCallError:
        return ""


def _put(file: int, piece: Piece, last: int) -> None:
    """Write *piece* where it belongs. Raises `AgentCallError`: one before it is missing."""
    size = os.fstat(file).st_size
    known = piece.number == last + 1 or last < 0
    if not known or piece.at > size:
        raise AgentCallError(f"piece {piece.number} of a list came without the one before it")
    os.ftruncate(file, piece.at)
    os.pwrite(file, piece.data, piece.at)
