"""Calls of an operator to the agents of a crawl, through Redis: both sides.

========================  ==========================================================================
``calls:AGENT``           a list of what is asked of one agent, until it has answered
``answers:ID``            a hash of what the agents have answered to one call
``pieces:ID:AGENT``       a list of URLs that comes with a call, on its way, a few pieces at a time
``standing``              a hash of the last calls that hold until another one: blocks, pauses
========================  ==========================================================================

All lie under ``suite:{CRAWL}:``, are bounded, and expire, but for ``standing``. A call is removed
in one step with its answer, so an agent that was killed or away finds it again; the id tells
whether it was carried out. Anybody may write to the server: both sides check what they read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

import msgspec
from backports import zstd

from scrapy_spider_suite.cluster.messages import LEVEL, decompress
from scrapy_spider_suite.cluster.redis_server import RedisKeys, RedisServer, load_script
from scrapy_spider_suite.cluster.registry import TIMEOUT
from scrapy_spider_suite.errors import AgentCallError, MessageError, RegistryError
from scrapy_spider_suite.operate.verbs import find_verb
from scrapy_spider_suite.runtime.tasks import WarnOnce
from scrapy_spider_suite.runtime.text import counted

logger = logging.getLogger(__name__)

CALL_MAX: Final = 64 << 10
"""Bytes of a call."""
WAITING_MAX: Final = 1_000
"""Calls that may wait for one agent."""
KEPT: Final = 86_400.0
"""Seconds that a call waits for its agent."""
ANSWER_KEPT: Final = 3_600.0
"""Seconds that an answer waits for the asker."""
ANSWER_MAX: Final = 2 << 20
"""Bytes of an answer, packed."""
ANSWER_RAW: Final = 16 << 20
"""Bytes of an answer, unpacked."""
PIECE: Final = 128 << 10
"""Bytes of a piece of a list, unpacked."""
PIECE_MAX: Final = PIECE + 4_096
PIECES: Final = 8
"""Pieces in transit to one agent."""
LATEST: Final = 1e10
NUMBER: Final = 8
"""Bytes of a piece's number, and of its offset, which follows."""

STANDING_MAX: Final = 1_000
"""Calls that may stand."""

_SCRIPTS: Final = {name: load_script(name) for name in ("ask", "answers", "send", "stand")}

Plain = str | int | float | bool | None
_Id = Annotated[str, msgspec.Meta(pattern=r"^(00-)?[0-9]{20}-[0-9a-f]{16}\Z")]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=LATEST)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class AgentCall(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of one agent. Times are seconds since the epoch."""

    id: _Id
    kind: Literal["act", "look"]

    verb: _Word
    who: Annotated[str, msgspec.Meta(max_length=300)]
    when: _Time
    until: _Time
    """The call is not begun later."""

    why: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    arguments: dict[str, Plain] = {}
    """Of an act."""

    words: Annotated[list[str], msgspec.Meta(max_length=100)] = []
    """Of a look: the words after the verb on the command line."""

    pieces: _Number = 0
    """Of the list that comes with the call; 0: no list."""

    @property
    def stands(self) -> str:
        """The verb's word and subject, if the call stands; else ""."""
        verb = find_verb(self.verb) if self.kind == "act" else None
        kind = "" if verb is None else verb.stands
        return f"{kind} {self.arguments.get('subject', '')}" if kind else ""

    def to_bytes(self) -> bytes:
        """Raises `AgentCallError`: it is too long."""
        data = msgspec.json.encode(self)
        if len(data) > CALL_MAX:
            raise AgentCallError(f"{self.verb}: that is longer than {CALL_MAX:,} bytes")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> AgentCall:
        """Decode untrusted bytes. Raises `AgentCallError`."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (ValueError, RecursionError) as error:
            raise AgentCallError(f"no call: {error}") from error


class AgentReply(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent answers."""

    id: _Id
    agent: _Name
    code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """0: done, 1: the answer is no, 2: it cannot be done; further ones are the verb's."""

    said: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    facts: dict[str, Any] = {}
    lines: list[str] = []
    """Results of a look: a JSON value each, or lines of the fetch log."""

    cut: bool = False
    """The answer was too long: lines are missing."""

    def to_bytes(self) -> bytes:
        """Drops the last lines of an answer that is too long, and sets `cut`."""
        reply = self
        while True:
            raw = msgspec.json.encode(reply)
            data = zstd.compress(raw, LEVEL)
            if len(raw) <= ANSWER_RAW and len(data) <= ANSWER_MAX:
                return data
            lines = reply.lines[: len(reply.lines) // 2]
            facts = reply.facts if lines else {}
            reply = msgspec.structs.replace(reply, lines=lines, facts=facts, cut=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> AgentReply:
        """Decode untrusted bytes. Raises `AgentCallError`."""
        try:
            if len(data) > ANSWER_MAX:
                raise ValueError(f"longer than {ANSWER_MAX:,} bytes")
            return msgspec.json.decode(decompress(data, ANSWER_RAW, "an answer"), type=cls)
        except (ValueError, MessageError, RecursionError) as error:
            raise AgentCallError(f"no answer: {error}") from error


class ListPiece(NamedTuple):
    """A part of a list of URLs."""

    number: int
    at: int
    """Bytes of the list before it."""

    data: bytes

    def to_bytes(self) -> bytes:
        head = self.number.to_bytes(NUMBER, "big") + self.at.to_bytes(NUMBER, "big")
        return head + zstd.compress(self.data, LEVEL)

    @classmethod
    def from_bytes(cls, data: bytes) -> ListPiece:
        """Decode untrusted bytes. Raises `AgentCallError`."""
        number, at = data[:NUMBER], data[NUMBER : 2 * NUMBER]
        try:
            if len(data) > PIECE_MAX:
                raise ValueError(f"longer than {PIECE_MAX:,} bytes")
            raw = decompress(data[2 * NUMBER :], PIECE, "a piece")
        except (ValueError, MessageError) as error:
            raise AgentCallError(f"no piece of a list: {error}") from error
        return cls(int.from_bytes(number, "big"), int.from_bytes(at, "big"), raw)


def new_call_id(*, urgent: bool) -> str:
    """Return an id of this moment; *urgent* ids sort before all others."""
    return f"{'00-' if urgent else ''}{time.time_ns():020}-{secrets.token_hex(8)}"


class CallKeys:
    """Names of the keys of calls. Raises `ValueError`: no name of a crawl."""

    def __init__(self, crawl: str) -> None:
        self._prefix = RedisKeys(crawl).prefix

    def calls(self, agent: str) -> str:
        return f"{self._prefix}calls:{agent}"

    def answers(self, id: str) -> str:
        return f"{self._prefix}answers:{id}"

    @property
    def standing(self) -> str:
        return f"{self._prefix}standing"

    def pieces(self, id: str, agent: str) -> str:
        return f"{self._prefix}pieces:{id}:{agent}"


class CallSender:
    """Asks agents of *crawl* in the Redis at *url*. All methods raise `RegistryError`.

    Attributes:
        refused: agents whose answer is unusable, and why.

    Raises:
        ValueError: the URL or the crawl's name is invalid.
    """

    def __init__(self, url: str, crawl: str, *, timeout: float = TIMEOUT) -> None:
        self._server = RedisServer(url, timeout)
        self._keys = CallKeys(crawl)
        self.refused: dict[str, str] = {}

    async def close(self) -> None:
        """Never raises."""
        await self._server.close()

    async def submit(self, calls: Mapping[str, AgentCall]) -> None:
        """Write a call for each agent by its name, of one id: all or none.

        Raises `AgentCallError`: a call is too long, or too many wait.
        """
        if not calls:
            return
        agents = list(calls)
        urgent = next(iter(calls.values())).id.startswith("00-")
        texts = [call.to_bytes() for call in calls.values()]
        [full] = await self._server.run(
            _SCRIPTS["ask"], [self._keys.calls(agent) for agent in agents], str(WAITING_MAX),
            str(round(KEPT * 1000)), str(int(urgent)), *texts,
        )  # fmt: skip
        if full:
            raise AgentCallError(f"{WAITING_MAX:,} calls wait for {agents[full - 1]} already")

    async def keep_standing(self, call: AgentCall) -> None:
        """Keep *call* for later agents; it replaces the standing call about the same subject.

        Raises `AgentCallError`: too many stand.
        """
        [full] = await self._server.run(
            _SCRIPTS["stand"], [self._keys.standing], call.stands, call.to_bytes(),
            str(STANDING_MAX),
        )  # fmt: skip
        if full:
            raise AgentCallError(f"{STANDING_MAX:,} blocks stand already: take some back")

    async def remove_standing(self, call: AgentCall) -> None:
        """Remove the standing call about the same subject: all agents know it."""
        await self._server.run(_SCRIPTS["stand"], [self._keys.standing], call.stands, b"", "0")

    async def answers(self, id: str, agents: Iterable[str]) -> dict[str, AgentReply]:
        """Return the answers so far, by the agent's name."""
        wanted = [agent for agent in agents if agent not in self.refused]
        if not wanted:
            return {}
        found = await self._server.run(
            _SCRIPTS["answers"], [self._keys.answers(id)], str(ANSWER_MAX), *wanted
        )
        replies: dict[str, AgentReply] = {}
        for agent, data in zip(wanted, found, strict=True):
            if not isinstance(data, bytes):
                continue
            try:
                reply = AgentReply.from_bytes(data)
                if (reply.id, reply.agent) != (id, agent):
                    raise AgentCallError(
                        f"the answer of {reply.agent} to another call, or another's"
                    )
            except AgentCallError as error:
                self.refused[agent] = str(error)
            else:
                replies[agent] = reply
        return replies

    async def send(self, id: str, agent: str, piece: ListPiece) -> bool:
        """Send the next piece of a list; False: no room now."""
        [sent] = await self._server.run(
            _SCRIPTS["send"], [self._keys.pieces(id, agent)], str(PIECES),
            str(round(ANSWER_KEPT * 1000)), piece.to_bytes(),
        )  # fmt: skip
        return bool(sent)


LOOK: Final = 1.0
"""Seconds between polls for calls."""
STAND: Final = 60
"""Polls for calls per poll for standing calls."""
ABREAST: Final = 100
"""Calls carried out at a time."""
_AWAY: Final = 10.0
"""Longest pause, in seconds, while Redis is unusable."""
_SILENT: Final = 60.0
"""Seconds to wait for the next piece of a list: its sender was killed then."""
_TIMEOUT: Final = 10.0

_LISTENER_SCRIPTS: Final = {
    name: load_script(name) for name in ("asked", "answer", "piece", "standing")
}


class Carrier(Protocol):
    """Carries out each call once, also after a kill."""

    def place(self, call: AgentCall) -> Path | None:
        """Return the path for the list of *call*; None: the list is complete already."""
        ...

    async def is_new(self, call: AgentCall) -> bool:
        """Whether the standing *call* was never carried out here."""
        ...

    async def carry_out(self, call: AgentCall) -> AgentReply:
        """Carry *call* out, unless that was done before. Raises `AgentCallError`."""
        ...

    def close(self) -> None:
        """Called last."""


@dataclass(slots=True)
class ListenerCounters:

    answered: int = 0
    refused: int = 0
    expired: int = 0
    away: int = 0
    """Times that Redis became unusable."""


class CallListener:
    """Polls Redis for calls to *agent*, and for standing calls; *carrier* carries them out.

    Standing calls are carried out one by one; a failed one is tried again a minute later.

    Raises:
        ValueError: the URL or the crawl's name is invalid.
    """

    def __init__(
        self, url: str, crawl: str, agent: str, carrier: Carrier, *, look: float = LOOK,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.counters = ListenerCounters()
        self._server = RedisServer(url, _TIMEOUT)
        self._keys = CallKeys(crawl)
        self._agent = agent
        self._carrier = carrier
        self._look = look
        self._wall = wall
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._looks = 0
        self._stood: set[bytes] = set()  # calls that stand, and are done
        self._due: dict[str, tuple[bytes, AgentCall]] = {}  # standing calls to do, by subject
        self._standing: asyncio.Task[None] | None = None  # carries them out
        self._under_way: set[str] = set()  # ids of calls
        self._once = WarnOnce(logger, f"calls to {agent}")
        self._lost = ""

    @property
    def stats(self) -> dict[str, int]:
        """Stats by name, without ``suite/``."""
        return {f"calls/{name}": count for name, count in asdict(self.counters).items()}

    async def run(self) -> None:
        """Listen until cancelled; the next process repeats unfinished calls."""
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
        if not self._looks % STAND:
            await self._take_standing()
        self._looks += 1
        long, *texts = await self._server.run(
            _LISTENER_SCRIPTS["asked"], [self._keys.calls(self._agent)], str(ABREAST), str(CALL_MAX)
        )
        if long:
            self._refuse(long, f"longer than {CALL_MAX:,} bytes")
        for text in sorted(texts, key=_id_of):  # urgent ones first, each kind in its order
            if text not in self._tasks:
                self._tasks[text] = asyncio.ensure_future(self._see_to(text))

    async def _take_standing(self) -> None:
        found = await self._server.run(
            _LISTENER_SCRIPTS["standing"], [self._keys.standing], str(STANDING_MAX), str(CALL_MAX)
        )
        self._stood.intersection_update(found)
        self._due.clear()
        for text in found:
            if text not in self._stood:
                try:
                    call = AgentCall.from_bytes(text)
                except AgentCallError as error:
                    self._refuse(1, error)
                    self._stood.add(text)
                else:
                    self._due[call.stands] = text, call
        if self._standing is None or self._standing.done():
            self._standing = asyncio.ensure_future(self._stand())

    async def _stand(self) -> None:
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
        """Return the call's id and answer; b"": no asker waits."""
        try:
            call = AgentCall.from_bytes(text)
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
        reply = AgentReply(id=call.id, agent=self._agent, code=2, said=said[:2_000])
        return call.id, reply.to_bytes()

    async def _carry_out(self, call: AgentCall) -> AgentReply:
        while call.id in self._under_way:
            await asyncio.sleep(self._look)
        self._under_way.add(call.id)
        try:
            return await self._carrier.carry_out(call)
        finally:
            self._under_way.discard(call.id)

    async def _give(self, text: bytes, id: str, data: bytes) -> None:
        keys = self._keys
        places = [keys.calls(self._agent), keys.answers(id), keys.pieces(id, self._agent)]
        given = (text, self._agent, data, str(round(ANSWER_KEPT * 1000)))
        pause = self._look
        while True:
            try:
                await self._server.run(_LISTENER_SCRIPTS["answer"], places, *given)
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

    async def _fetch(self, call: AgentCall, place: Path) -> None:
        """Write the list of *call* to *place*; resumes. Raises `AgentCallError`, `OSError`."""
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

    async def _piece(self, call: AgentCall, have: bytes) -> ListPiece | None:
        """Remove the piece numbered *have*; return the next one, or None if it has not come."""
        while True:
            try:
                found = await self._server.run(
                    _LISTENER_SCRIPTS["piece"], [self._keys.pieces(call.id, self._agent)], have,
                    str(PIECE_MAX),
                )  # fmt: skip
            except RegistryError as error:
                self._is_lost(error)
                await asyncio.sleep(self._look)
            else:
                return ListPiece.from_bytes(found[0]) if found else None

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
        return AgentCall.from_bytes(text).id
    except AgentCallError:
        return ""


def _put(file: int, piece: ListPiece, last: int) -> None:
    """Raises `AgentCallError`: an earlier piece is missing."""
    size = os.fstat(file).st_size
    known = piece.number == last + 1 or last < 0
    if not known or piece.at > size:
        raise AgentCallError(f"piece {piece.number} of a list came without the one before it")
    os.ftruncate(file, piece.at)
    os.pwrite(file, piece.data, piece.at)
