"""The keys of a crawl in Redis, and the scripts that work on them: what everybody asks through.

What an operator asks and orders in the registry of a crawl: for ``scrapy cluster``.

The membership of a crawl and who holds which unit, in Redis: what one agent does there.

Each unit has one *holder* at any time, and it alone fetches what lies in it. Who should hold it,
the *owner*, follows from the members of an epoch; a unit changes its holder only here, in scripts
that look at the epoch and at who holds it (``lua/``). Every call carries the number and incarnation
of the agent and a number of its own, so that nothing is written by a process that is not the member
any more, or by a call that was held up and overtaken.

Redis is not believed to remember: when it was restarted, or lost anything, a new *era* begins, in
which nobody holds anything until the agents have claimed what they know that they hold.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from scrapy_spider_suite.cluster import redis_server
from scrapy_spider_suite.cluster.assignment import Units
from scrapy_spider_suite.cluster.membership import (
    FACTS_MAX,
    GONE,
    PROTOCOL,
    SILENCE,
    AddressQuestion,
    AgentLease,
    Candidate,
    ClockSkew,
    Heartbeat,
    Holders,
    MemberRecord,
    Membership,
    MemberState,
    RegistryAnswer,
    decode_answer,
    decode_units,
    encode_units,
    join_refusal,
)
from scrapy_spider_suite.cluster.messages import SHARED_KEY_MIN
from scrapy_spider_suite.cluster.redis_server import RedisKeys, RedisServer
from scrapy_spider_suite.errors import ClusterError, FencedError, JoinRefusedError, RegistryError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.runtime.clock import boottime
from scrapy_spider_suite.runtime.text import counted

TIMEOUT: Final = 5.0
"""Seconds that a call may take."""

_TYPES: Final = {
    "crawl": "string", "members": "hash", "facts": "hash", "holders": "string",
    "addresses": "hash", "address-eras": "hash",
}  # fmt: skip


class RegistryClient:
    """Asks the scripts of one crawl: what `registry.Registry` and `office.Office` have in common.

    Raises:
        ValueError: there is no such URL, or a crawl cannot have that name.
    """

    def __init__(self, url: str, crawl: str, *, timeout: float = TIMEOUT) -> None:
        keys = RedisKeys(crawl)
        self._server = RedisServer(url, timeout)
        self._scripts = redis_server.load_registry_scripts()
        self._keys = [keys.crawl, keys.members, keys.facts, keys.holders]
        self._types = {f"{keys.prefix}{name}": type_ for name, type_ in _TYPES.items()}
        self._secret = keys.secret

    async def close(self) -> None:
        """Close its connections; never raises."""
        await self._server.close()

    async def _ask(
        self, script: str, given: dict[str, Any], more: bytes = b""
    ) -> tuple[RegistryAnswer, bytes]:
        """What *script* answers. Raises `RegistryError`."""
        given["silence"] = round(SILENCE * 1000)
        text = msgspec.json.encode(given)
        try:
            found = await self._server.run(self._scripts[script], self._keys, text, more)
        except RegistryError as error:
            if error.kind == "type":
                await self._name_key(error)
            raise
        try:
            return decode_answer(found[0]), found[1]
        except (ValueError, TypeError, IndexError) as error:
            raise self._damaged(error) from error

    def _damaged(self, why: object) -> RegistryError:
        text = f"Redis at {self._server.where} answers what the suite did not write: {why}"
        return RegistryError(text, "damaged")

    async def _name_key(self, error: RegistryError) -> None:
        """Raise *error* with the key that is meant."""
        found = await self._server.types([*self._types])
        for (key, expected), type_ in zip(self._types.items(), found, strict=True):
            if type_ not in (expected, "none"):
                text = f"Redis at {self._server.where} holds a {type_} under {key}, which is ours"
                raise RegistryError(text, "type") from error

    def _holders(self, answer: RegistryAnswer, data: bytes) -> Holders:
        if len(data) != 2 * UNITS:
            raise self._damaged(f"{len(data)} bytes of holders")
        return Holders(
            decode_units(data), answer.now / 1000, answer.epoch, answer.era, answer.moves,
            answer.claims / 1000,
        )  # fmt: skip


_Facts = dict[str, str | int | float | bool | None]


class ClusterOverview(NamedTuple):
    """A crawl at one moment."""

    id: str
    now: float
    """By Redis's clock."""

    view: Membership
    facts: dict[str, dict[str, Any]]
    """What each agent says of itself, by its name."""

    holders: Holders
    ended: bool
    fixed: dict[str, str]
    """The settings in which all agents agree, as text."""


async def list_crawls(url: str, *, timeout: float = TIMEOUT) -> list[str]:
    """The names of the crawls in the Redis at *url*, sorted.

    Raises `RegistryError`, and `ValueError`: there is no such URL.
    """
    server = RedisServer(url, timeout)
    try:
        found = await server.names(RedisKeys.FIRST)
    finally:
        await server.close()
    return sorted(name for key in found if (name := RedisKeys.crawl_of(key)))


class ClusterAdmin(RegistryClient):
    """The crawl *crawl* in the Redis at *url*. All its calls raise `RegistryError`."""

    async def overview(self) -> ClusterOverview | None:
        """The crawl; None if there is none of that name."""
        answer, data = await self._ask("look", {"facts": True})
        view = answer.view()
        if answer.code != "ok":
            return None
        return ClusterOverview(
            answer.id, answer.now / 1000, Membership(answer.epoch, ()) if view is None else view,
            dict(_facts(answer)), self._holders(answer, data), answer.ended, self._fixed(answer),
        )  # fmt: skip

    def _fixed(self, answer: RegistryAnswer) -> dict[str, str]:
        try:
            return msgspec.json.decode(answer.fixed, type=dict[str, str])
        except ValueError as error:
            raise self._damaged(error) from error

    async def remove(self, name: str, *, dead: bool = False) -> None:
        """Have others own what the agent *name* does.

        They may take it when its lease is over; at once if it is *dead*, which means that its
        process is known to be gone. Raises `ClusterError`: there is no such agent, or its lease
        has no end and it is not dead.
        """
        code = await self._order("remove", target=name, dead=dead)
        if code == "unknown":
            raise ClusterError(f"no agent of the crawl has the name {name}")
        if code == "endless":
            raise ClusterError(
                f"the lease of {name} has no end: see that its process is gone, and say that it is"
            )

    async def release(self) -> None:
        """Let the owners take what nobody holds, after Redis lost who held it.

        All agents that held something must be there. Raises `ClusterError`: no such crawl.
        """
        await self._order("release")

    async def forget(self) -> None:
        """Remove the crawl, and the messages of its agents, from Redis.

        Raises `ClusterError`: an agent of it runs.
        """
        answer, _ = await self._ask("order", {"order": "forget"})
        if answer.code == "busy":
            raise ClusterError(f"{answer.name} is at work on the crawl: stop it first")

    async def _order(self, order: str, **given: Any) -> str:
        answer, _ = await self._ask("order", {"order": order, **given})
        if answer.code == "lost":
            raise ClusterError("there is no crawl of that name")
        return answer.code


def _facts(answer: RegistryAnswer) -> Iterator[tuple[str, dict[str, Any]]]:
    """What agents say; what is not what they say is left out."""
    flat = answer.facts if isinstance(answer.facts, list) else []
    for name, text in zip(flat[::2], flat[1::2], strict=False):
        try:
            known = msgspec.json.decode(text[:FACTS_MAX], type=_Facts)
        except ValueError:
            continue
        yield name, known


CHUNK: Final = 4_096
"""Units of one call: some milliseconds of Redis's time."""


class Joined(NamedTuple):
    """How an agent was taken."""

    number: int
    id: str
    """Of the crawl: for the job, with `number`."""

    kept: bool
    """It is back before its lease ended: nobody took what it holds."""


class MovedUnits(NamedTuple):
    """What became of units that were to change their holder."""

    units: Units
    """Those that are held now by the one who was to hold them."""

    why: str
    """Why there are none: ``epoch`` (it is another one) or ``target`` (no active member);
    otherwise empty."""


class AgentRegistry(RegistryClient):
    """One process of an agent in the registry of its crawl. Calls wait for each other.

    All of them raise `RegistryError` when Redis cannot be used, after *timeout* seconds at most:
    what was asked for may have been done, or not; the answer to any later call settles it. Those
    of a member raise `FencedError` when the process is not the member any more.

    Args:
        url: of Redis.
        crawl: its name there.
        lease: told of each renewal.
        incarnation: of this process, 64 bits drawn at random.
        clock, wall: seconds, as of `boottime` and since 1970.

    Attributes:
        view: the members, as of the last answer.
        answer: the last answer, for epoch, era, moves and whether the crawl has ended.
        skew: between the clocks of this machine and of Redis.
        lapses: how often it was granted a lease that had none, or none any more.
    """

    def __init__(
        self, url: str, crawl: str, lease: AgentLease, *, incarnation: int | None = None,
        timeout: float = TIMEOUT, clock: Callable[[], float] = boottime,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        super().__init__(url, crawl, timeout=timeout)
        self.lease = lease
        self.view = Membership(0, ())
        self.answer = RegistryAnswer(code="", now=0)
        self.skew: ClockSkew | None = None
        self.lapses = 0
        drawn = secrets.randbits(64) if incarnation is None else incarnation
        self._incarnation = f"{drawn:016x}"
        self._clock, self._wall = clock, wall
        self._one = asyncio.Lock()
        self._calls = 0
        self._version = (-1, -1)  # era and version of the view
        self._since = math.inf  # Redis's time when the lease began that has not lapsed since
        self._grace = 0
        self._who: dict[str, Any] = {}

    @property
    def row(self) -> MemberRecord | None:
        """This agent's own, as of `view`."""
        return self.view.row(self._who.get("name", ""))

    async def join(self, candidate: Candidate) -> Joined:
        """Take part, or take part again.

        Raises:
            JoinRefusedError: it must not, as it is.
        """
        if evicting := await self._server.evicting():
            raise JoinRefusedError(f"SUITE_REDIS_URL: {evicting}", "eviction")
        grace = 0 if candidate.grace is None else round(candidate.grace * 1000)
        given = {
            "name": candidate.name, "number": candidate.number, "job": candidate.job,
            "folder": candidate.folder, "weight": candidate.weight, "address": candidate.address,
            "id": candidate.id, "fresh": secrets.token_hex(8), "protocol": PROTOCOL,
            "fixed": candidate.terms(), "skew": round(candidate.skew * 1000),
            "idle": candidate.idle, "most": candidate.most,
        }  # fmt: skip
        async with self._one:
            self._grace, self._who = grace, {}
            wall = self._wall()
            answer, _ = await self._call("join", given | {"wall": round(wall * 1000)})
            if answer.code == "clock" and self._may_be_right(candidate.skew):
                raise RegistryError(
                    f"Redis at {self._server.where} is away: it answers too late to compare clocks",
                    "away",
                )  # fmt: skip
            if answer.code != "ok":
                raise JoinRefusedError(self._why(answer, candidate, wall), answer.code)
            self._who = {"name": candidate.name, "number": answer.number}
        return Joined(answer.number, answer.id, answer.kept)

    def _may_be_right(self, most: float) -> bool:
        """Whether this machine's clock may differ by no more than *most*, by what the last call
        took."""
        return self.skew is not None and abs(self.skew.offset) - self.skew.bound <= most

    async def renew(self, post: Callable[[], Heartbeat]) -> RegistryAnswer:
        """A heartbeat: renew the lease, and say what *post* returns at that moment.

        When the answer has another epoch, `view` is another one.
        """
        async with self._one:
            said = post()
            given = {
                "idle": said.idle, "sent": said.sent, "received": said.received,
                "activity": said.activity, "epoch": said.epoch, "round": self.answer.round,
                "left": said.left,
            }  # fmt: skip
            facts = msgspec.json.encode(said.facts)
            return (await self._own("renew", given, facts if len(facts) <= FACTS_MAX else b"{}"))[0]

    async def leave(self) -> bool:
        """Own nothing any more, and begin to hand over; False if there is nobody to take it."""
        return await self._go("leaving") != "alone"

    async def finish_leaving(self) -> bool:
        """Be gone, after `leave`; False if it still holds anything.

        Who asks once more, since no answer came, has left all the same.
        """
        try:
            if await self._go("left") == "holds":
                return False
        except FencedError:
            if self.answer.code != MemberState.LEFT:
                raise
        self.lease.dropped()
        return True

    async def announce_stop(self, quiet: Callable[[], float] = lambda: 0.0) -> None:
        """Say that this process stops, and that the agent will be back: so it may be, at once.

        From the call on it may fetch nothing; *quiet* says in how many seconds what it has begun is
        over, and the delay of every address that it was at.
        """
        self.lease.dropped()
        await self._go("resting", quiet=round(max(0.0, quiet()) * 1000))

    async def holders(self) -> Holders:
        """Who holds what."""
        async with self._one:
            answer, data = await self._call("look", {})
            if answer.code != "ok":
                self._raise_gone(answer)
            return self._holders(answer, data)

    async def secret(self) -> str:
        """What the agents of the crawl know and nobody without access to its Redis."""
        async with self._one:
            found = await self._server.agreed(self._secret, secrets.token_hex(16))
        if len(found.encode()) < SHARED_KEY_MIN:
            raise RegistryError(
                f"{self._secret} in Redis at {self._server.where} has {len(found.encode())} bytes, "
                f"expected {SHARED_KEY_MIN} or more: the suite did not write that", "damaged",
            )  # fmt: skip
        return found

    async def ask_addresses(self, asked: AddressQuestion) -> tuple[list[int], list[str]]:
        """Which addresses others fetch from, too: see `addresses.AddressBook`, and ``meet.lua``."""
        async with self._one:
            answer, _ = await self._own("meet", asked._asdict())
        states, news = [int(each) for each in answer.states], list(answer.news)
        if len(states) != len(asked.new):
            questions = counted(len(asked.new), "question")
            raise self._damaged(f"{counted(len(states), 'answer')} to {questions}")
        return states, news

    async def give(self, units: Units, to: int, epoch: int) -> MovedUnits:
        """Have the member with the number *to* hold *units*, which this agent held, and fetches no
        more.
        """
        return await self._move(units, {"how": "give", "to": to, "epoch": epoch})

    async def seize(self, units: Units, epoch: int) -> MovedUnits:
        """Hold *units*, of which this agent is the owner in *epoch*, and whose holder is dead."""
        return await self._move(units, {"how": "seize", "epoch": epoch})

    async def claim(self, units: Units, at: float) -> MovedUnits:
        """Hold *units* again, which this agent was seen to hold *at* a time, in another era.

        *at* is that of `Tokens`. An agent whose lease has not lapsed since gets what nobody else
        claimed. Another one gets nothing before `Tokens.claims`: it may have been taken from it.
        """
        return await self._move(units, {"how": "claim", "at": round(at * 1000)}, at)

    async def _move(self, units: Units, given: dict[str, Any], at: float = 0) -> MovedUnits:
        numbers, found = np.unique(units), []
        why = ""
        for start in range(0, len(numbers), CHUNK):
            data = encode_units(numbers[start : start + CHUNK])
            async with self._one:
                live = at >= self._since and self.lease.live(self._clock(), self._wall())
                answer, moved = await self._own("move", given | {"live": live}, data)
            if answer.code != "ok":
                why = answer.code
                break
            found.append(decode_units(moved))
        return MovedUnits(np.concatenate(found) if found else np.empty(0, np.uint16), why)

    async def _go(self, to: str, **more: int) -> str:
        async with self._one:
            return (await self._own("leave", {"to": to, **more}))[0].code

    async def _own(
        self, script: str, given: dict[str, Any], more: bytes = b""
    ) -> tuple[RegistryAnswer, bytes]:
        """`_call` as the member that this process is. Raises `FencedError`."""
        if not self._who:
            raise FencedError("this process has not joined", again=True)
        answer, data = await self._call(script, given | self._who, more)
        if answer.code in GONE:
            self._raise_gone(answer)
        return answer, data

    async def _call(
        self, script: str, given: dict[str, Any], more: bytes = b""
    ) -> tuple[RegistryAnswer, bytes]:
        """Ask, and learn from the answer what it tells of the lease, the clocks and the members."""
        self._calls += 1
        era, version = self._version
        given |= {
            "incarnation": self._incarnation, "call": self._calls, "grace": self._grace,
            "era": era, "version": version,
        }  # fmt: skip
        sent, wall = self._clock(), self._wall()
        answer, data = await self._ask(script, given, more)
        self.skew = ClockSkew.measured(wall, self._clock() - sent, answer.now / 1000)
        self.answer = answer
        if (view := answer.view()) is not None:
            self.view, self._version = view, (answer.era, answer.version)
        if answer.code == "ok" and script in ("join", "renew"):
            if not self.lease.live(sent, wall):
                self._since = answer.now / 1000
                self.lapses += 1
            granted = (answer.ends - answer.now) / 1000 if answer.ends else None
            self.lease.renewed(sent, wall, granted)
        return answer, data

    def _raise_gone(self, answer: RegistryAnswer) -> None:
        why, again = GONE.get(answer.code, (answer.code, False))
        if not again:
            self.lease.dropped()
        raise FencedError(f"{why}, says Redis at {self._server.where}", again=again)

    def _why(self, answer: RegistryAnswer, candidate: Candidate, wall: float) -> str:
        try:
            return join_refusal(answer, candidate, wall)
        except ValueError as error:
            raise self._damaged(error) from error
