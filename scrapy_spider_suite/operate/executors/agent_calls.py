"""Calls of an operator to the agents of a crawl, through Redis: their form, and the sender.

One step removes a call and writes its answer, so an agent that was killed or away finds the call
again; the id tells whether it was carried out. The server is untrusted: both sides check all rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from backports import zstd

from scrapy_spider_suite.cluster.messages import LEVEL, decompress
from scrapy_spider_suite.cluster.redis_server import RedisKeys, RedisServer, load_script
from scrapy_spider_suite.cluster.registry import TIMEOUT
from scrapy_spider_suite.errors import AgentCallError, MessageError
from scrapy_spider_suite.operate.actions import Answer, PlainValue, new_id
from scrapy_spider_suite.operate.verbs import find_verb

CALL_MAX: Final = 64 << 10  # bytes of a call
WAITING_MAX: Final = 1_000  # calls that may wait for one agent
KEPT: Final = 86_400.0  # seconds that a call waits for its agent
ANSWER_KEPT: Final = 3_600.0  # seconds that an answer waits for the asker
ANSWER_MAX: Final = 2 << 20  # bytes of an answer, packed
ANSWER_RAW: Final = 16 << 20  # bytes of an answer, unpacked
PIECE: Final = 128 << 10  # bytes of a piece of a list, unpacked
PIECE_MAX: Final = PIECE + 4_096
PIECES: Final = 8  # pieces in transit to one agent
LATEST: Final = 1e10
NUMBER: Final = 8  # bytes of a piece's number, and of its offset, which follows
STANDING_MAX: Final = 1_000  # calls that may stand
SAID: Final = 2_000  # characters of a message in an answer

_SCRIPTS: Final = {name: load_script(name) for name in ("ask", "answers", "send", "stand")}

_Id = Annotated[str, msgspec.Meta(pattern=r"^(00-)?[0-9]{20}-[0-9a-f]{16}\Z")]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=LATEST)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class AgentCall(msgspec.Struct, frozen=True, kw_only=True):
    """A question to one agent. Times are seconds since the epoch."""

    id: _Id
    kind: Literal["act", "look"]

    verb: _Name
    who: Annotated[str, msgspec.Meta(max_length=300)]
    when: _Time
    until: _Time  # the call is not begun later
    why: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    arguments: dict[str, PlainValue] = {}  # of an act
    words: Annotated[list[str], msgspec.Meta(max_length=100)] = []
    """Of a look: the words after the verb on the command line."""

    pieces: _Number = 0  # of the list that comes with the call; 0: no list

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
    id: _Id
    agent: _Name
    code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """0: done, 1: the answer is no, 2: it cannot be done; further ones are the verb's."""

    said: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    facts: dict[str, Any] = {}
    lines: list[str] = []  # results of a look: a JSON value each, or lines of the fetch log
    cut: bool = False  # the answer was too long: lines are missing

    @classmethod
    def of_answer(cls, answer: Answer, id: str, agent: str) -> AgentReply:
        code, said = 0 if answer.ok else 1, answer.said[:SAID]
        return cls(id=id, agent=agent, code=code, said=said, facts=dict(answer.facts))

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
    number: int
    at: int  # bytes of the list before it
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


def make_call(
    kind: Literal["act", "look"], verb: str, who: str, *, urgent: bool = False, **fields: Any
) -> AgentCall:
    """A call of this moment, not to be begun after a day; `ask` gives a look less."""
    now = time.time()
    id = new_id(urgent=urgent)
    return AgentCall(id=id, kind=kind, verb=verb, who=who, when=now, until=now + KEPT, **fields)


class CallKeys(RedisKeys):
    """The names of the keys of calls, too: all are bounded, and all but `standing` expire."""

    def calls(self, agent: str) -> str:
        """A list of what is asked of *agent*, until it has answered."""
        return f"{self.prefix}calls:{agent}"

    def answers(self, id: str) -> str:
        """A hash of what the agents have answered to the call *id*."""
        return f"{self.prefix}answers:{id}"

    @property
    def standing(self) -> str:
        """A hash of the last calls that hold until another one: blocks, pauses."""
        return f"{self.prefix}standing"

    def pieces(self, id: str, agent: str) -> str:
        """A list of URLs that comes with a call, a few pieces at a time."""
        return f"{self.prefix}pieces:{id}:{agent}"


class CallSender:
    """Asks agents of *crawl* in the Redis at *url*. All methods raise `RegistryError`.

    Raises `ValueError`: the URL or the crawl's name is invalid.
    """

    def __init__(self, url: str, crawl: str, *, timeout: float = TIMEOUT) -> None:
        self._server = RedisServer(url, timeout)
        self._keys = CallKeys(crawl)
        self.refused: dict[str, str] = {}  # agents whose answer is unusable, and why

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
        """Keep *call* for later agents; it replaces its subject's last. Raises `AgentCallError`."""
        [full] = await self._server.run(
            _SCRIPTS["stand"], [self._keys.standing], call.stands, call.to_bytes(),
            str(STANDING_MAX),
        )  # fmt: skip
        if full:
            raise AgentCallError(f"{STANDING_MAX:,} blocks stand already: take some back")

    async def remove_standing(self, call: AgentCall) -> None:
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
