"""Calls: what an operator asks of the agents of a crawl through Redis, and what they answer.

========================  ==========================================================================
``calls:AGENT``           a list of what is asked of one agent, until it has answered
``answers:ID``            a hash of what the agents have answered to one call
``pieces:ID:AGENT``       a list of URLs that comes with a call, on its way, a few pieces at a time
``standing``              a hash of the last calls that hold until another one: blocks, pauses
========================  ==========================================================================

All of them lie under ``suite:{CRAWL}:`` and are bounded; all but what stands expire. A call stays
where it is until it was answered, so that an agent that is killed meanwhile, or is away, finds it
again; its id tells whether it was carried out already. Whoever may write to the server may ask, and
what is read there may be anybody's: both sides look at it before they use it, and what is no call,
or no answer, is refused and counted.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from backports import zstd

from scrapy_spider_suite.cluster.messages import LEVEL, decompress
from scrapy_spider_suite.cluster.redis_server import RedisServer, load_script, prefix_of
from scrapy_spider_suite.cluster.registry import TIMEOUT
from scrapy_spider_suite.errors import AgentCallError, MessageError

CALL_MAX: Final = 64 << 10
"""Bytes of a call."""
WAITING_MAX: Final = 1_000
"""Calls that may wait for an agent."""
KEPT: Final = 86_400.0
"""Seconds for which a call waits for an agent that is away."""
ANSWER_KEPT: Final = 3_600.0
"""Seconds for which an answer waits for whoever asked."""
ANSWER_MAX: Final = 2 << 20
"""Bytes of an answer, packed."""
ANSWER_RAW: Final = 16 << 20
"""Bytes of an answer, unpacked."""
PIECE: Final = 128 << 10
"""Bytes of a piece of a list, unpacked; the packed one is no longer than that and a little."""
PIECE_MAX: Final = PIECE + 4_096
PIECES: Final = 8
"""Pieces that are on the way to an agent at a time."""
LATEST: Final = 1e10
NUMBER: Final = 8
"""Bytes of the number that a piece begins with; the same number of them say where it belongs."""

STANDING: Final = {"pause": "pause", "resume": "pause", "block": "block", "unblock": "block"}
"""Verbs whose calls stand, for agents that come later, or are away for long; and which of them take
the place of each other."""
STANDING_MAX: Final = 1_000
"""Calls that may stand."""

_SCRIPTS: Final = {name: load_script(name) for name in ("ask", "answers", "send", "stand")}

Plain = str | int | float | bool | None
_Id = Annotated[str, msgspec.Meta(pattern=r"^(00-)?[0-9]{20}-[0-9a-f]{16}\Z")]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=LATEST)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of one agent. Times are seconds since the epoch."""

    id: _Id
    kind: Literal["act", "look"]
    """Something is to be done, once; or somebody only looks."""

    verb: _Word
    who: Annotated[str, msgspec.Meta(max_length=300)]
    when: _Time
    until: _Time
    """After which it is not begun any more."""

    why: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    arguments: dict[str, Plain] = {}
    """Of something to be done."""

    words: Annotated[list[str], msgspec.Meta(max_length=100)] = []
    """Of a look: what follows the verb on the command line."""

    pieces: _Number = 0
    """Of a list that comes with it; 0 without one."""

    @property
    def stands(self) -> str:
        """What it is about, if it stands; otherwise empty."""
        kind = STANDING.get(self.verb, "") if self.kind == "act" else ""
        return f"{kind} {self.arguments.get('subject', '')}" if kind else ""

    def to_bytes(self) -> bytes:
        """As it lies in Redis. Raises `AgentCallError`: it is too long."""
        data = msgspec.json.encode(self)
        if len(data) > CALL_MAX:
            raise AgentCallError(f"{self.verb}: that is longer than {CALL_MAX:,} bytes")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Call:
        """Read what anybody may have written. Raises `AgentCallError`: it is no call."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (ValueError, RecursionError) as error:
            raise AgentCallError(f"no call: {error}") from error


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent answers."""

    id: _Id
    agent: _Name
    code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """0: done, 1: the answer is no, 2: it cannot be done; further ones are the verb's."""

    said: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    facts: dict[str, Any] = {}
    lines: list[str] = []
    """What a look has found: JSON, a value each, or lines of the fetch log."""

    cut: bool = False
    """There was more than an answer may hold."""

    def to_bytes(self) -> bytes:
        """As it lies in Redis; of lines that are too many the first."""
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
    def from_bytes(cls, data: bytes) -> Reply:
        """Read what anybody may have written. Raises `AgentCallError`: it is no answer."""
        try:
            if len(data) > ANSWER_MAX:
                raise ValueError(f"longer than {ANSWER_MAX:,} bytes")
            return msgspec.json.decode(decompress(data, ANSWER_RAW, "an answer"), type=cls)
        except (ValueError, MessageError, RecursionError) as error:
            raise AgentCallError(f"no answer: {error}") from error


class Piece(NamedTuple):
    """A part of a list of URLs."""

    number: int
    at: int
    """Bytes of the list before it."""

    data: bytes

    def to_bytes(self) -> bytes:
        """As it lies in Redis."""
        head = self.number.to_bytes(NUMBER, "big") + self.at.to_bytes(NUMBER, "big")
        return head + zstd.compress(self.data, LEVEL)

    @classmethod
    def from_bytes(cls, data: bytes) -> Piece:
        """Read what anybody may have written. Raises `AgentCallError`: it is no piece."""
        number, at = data[:NUMBER], data[NUMBER : 2 * NUMBER]
        try:
            if len(data) > PIECE_MAX:
                raise ValueError(f"longer than {PIECE_MAX:,} bytes")
            raw = decompress(data[2 * NUMBER :], PIECE, "a piece")
        except (ValueError, MessageError) as error:
            raise AgentCallError(f"no piece of a list: {error}") from error
        return cls(int.from_bytes(number, "big"), int.from_bytes(at, "big"), raw)


def new_id(*, urgent: bool) -> str:
    """An id for a call that is made now; *urgent* ones come before all others."""
    return f"{'00-' if urgent else ''}{time.time_ns():020}-{secrets.token_hex(8)}"


class Keys:
    """Where what belongs to the calls of *crawl* lies. Raises `ValueError`: it can have no such
    name."""

    def __init__(self, crawl: str) -> None:
        self._prefix = prefix_of(crawl)

    def calls(self, agent: str) -> str:
        """What is asked of *agent*."""
        return f"{self._prefix}calls:{agent}"

    def answers(self, id: str) -> str:
        """What was answered to a call."""
        return f"{self._prefix}answers:{id}"

    @property
    def standing(self) -> str:
        """What stands."""
        return f"{self._prefix}standing"

    def pieces(self, id: str, agent: str) -> str:
        """A list on its way to *agent*."""
        return f"{self._prefix}pieces:{id}:{agent}"


class Caller:
    """The side of whoever asks agents of *crawl* in the Redis at *url*.

    Its calls raise `RegistryError` when Redis cannot be used.

    Attributes:
        refused: what was found in the place of an answer, and is none, in a line each.

    Raises:
        ValueError: there is no such URL, or a crawl cannot have that name.
    """

    def __init__(self, url: str, crawl: str, *, timeout: float = TIMEOUT) -> None:
        self._server = RedisServer(url, timeout)
        self._keys = Keys(crawl)
        self.refused: dict[str, str] = {}

    async def close(self) -> None:
        """Close its connections; never raises."""
        await self._server.close()

    async def leave(self, calls: Mapping[str, Call]) -> None:
        """Leave a call for each agent by its name, all of one id: all of them, or none.

        Raises `AgentCallError`: it is too long, or too many wait for one of them.
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

    async def stand(self, call: Call) -> None:
        """Keep *call* for agents that come later, instead of what stood about the same.

        Raises `AgentCallError`: too many stand.
        """
        [full] = await self._server.run(
            _SCRIPTS["stand"], [self._keys.standing], call.stands, call.to_bytes(),
            str(STANDING_MAX),
        )  # fmt: skip
        if full:
            raise AgentCallError(f"{STANDING_MAX:,} blocks stand already: take some back")

    async def over(self, call: Call) -> None:
        """Nothing stands about this any more: all agents know it."""
        await self._server.run(_SCRIPTS["stand"], [self._keys.standing], call.stands, b"", "0")

    async def answers(self, id: str, agents: Iterable[str]) -> dict[str, Reply]:
        """What those of *agents* who have done so have answered, by their names."""
        wanted = [agent for agent in agents if agent not in self.refused]
        if not wanted:
            return {}
        found = await self._server.run(
            _SCRIPTS["answers"], [self._keys.answers(id)], str(ANSWER_MAX), *wanted
        )
        replies: dict[str, Reply] = {}
        for agent, data in zip(wanted, found, strict=True):
            if not isinstance(data, bytes):
                continue
            try:
                reply = Reply.from_bytes(data)
                if (reply.id, reply.agent) != (id, agent):
                    raise AgentCallError(
                        f"the answer of {reply.agent} to another call, or another's"
                    )
            except AgentCallError as error:
                self.refused[agent] = str(error)
            else:
                replies[agent] = reply
        return replies

    async def send(self, id: str, agent: str, piece: Piece) -> bool:
        """Send the next piece of a list; False if there is no room for it now."""
        [sent] = await self._server.run(
            _SCRIPTS["send"], [self._keys.pieces(id, agent)], str(PIECES),
            str(round(ANSWER_KEPT * 1000)), piece.to_bytes(),
        )  # fmt: skip
        return bool(sent)
