"""The registry of a crawl in Redis, for agents and operators.

Holders change only in scripts that check epoch and holder. Calls carry number, incarnation and a
serial, so a stale process writes nothing. After a restart or loss of Redis a new *era* begins:
agents claim their units.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

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
    decode_units,
    encode_units,
    join_refusal,
)
from scrapy_spider_suite.cluster.messages import SHARED_KEY_MIN
from scrapy_spider_suite.cluster.redis_server import RedisKeys, RedisServer, load_script
from scrapy_spider_suite.errors import ClusterError, FencedError, JoinRefusedError, RegistryError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.runtime.clock import boottime
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.values import RedisUrl

TIMEOUT: Final = 5.0  # seconds of a call


class RegistryClient:
    """Calls the registry's scripts for one crawl. Raises `ValueError`: invalid URL or name."""

    def __init__(self, url: str, crawl: str) -> None:
        keys = RedisKeys(crawl)
        self._server = RedisServer(url, TIMEOUT)
        self._scripts = {
            name: load_script("world", "rows", "common", name)
            for name in ("join", "renew", "leave", "move", "overview", "order", "meet")
        }
        self._keys = [keys.crawl, keys.members, keys.facts, keys.holders]
        self._secret, self._prefix = keys.secret, keys.prefix

    async def close(self) -> None:
        await self._server.close()

    async def secret(self) -> str:
        """Return the secret of the crawl's agents, which its Redis keeps."""
        found = await self._server.agreed(self._secret, secrets.token_hex(16))
        if len(found.encode()) < SHARED_KEY_MIN:
            raise self._damaged(f"{self._secret} has fewer than {SHARED_KEY_MIN} bytes")
        return found

    async def agreed(self, name: str, value: str) -> str:
        """Return what the processes of the crawl agreed on as *name*: *value* if it is the first.
        """
        return await self._server.agreed(f"{self._prefix}{name}", value)

    async def _ask(
        self, script: str, given: dict[str, Any], more: bytes = b""
    ) -> tuple[RegistryAnswer, bytes]:
        given["silence"] = round(SILENCE * 1000)
        text = msgspec.json.encode(given)
        found = await self._server.run(self._scripts[script], self._keys, text, more)
        try:
            return msgspec.json.decode(found[0], type=RegistryAnswer), found[1]
        except (ValueError, TypeError, IndexError) as error:
            raise self._damaged(error) from error

    def _damaged(self, why: object) -> RegistryError:
        text = f"Redis at {self._server.where} answers what the suite did not write: {why}"
        return RegistryError(text, "damaged")

    def _holders(self, answer: RegistryAnswer, data: bytes) -> Holders:
        if len(data) != 2 * UNITS:
            raise self._damaged(f"{len(data)} bytes of holders")
        return Holders(
            decode_units(data), answer.now / 1000, answer.epoch, answer.era, answer.moves,
            answer.claims / 1000,
        )  # fmt: skip


_Facts = dict[str, str | int | float | bool | None]


class ClusterOverview(NamedTuple):
    id: str
    now: float
    view: Membership
    facts: dict[str, _Facts]
    holders: Holders
    ended: bool
    fixed: dict[str, str]


async def list_crawls(url: str) -> list[str]:
    """Return the names of the crawls at *url*, sorted. Raises `RegistryError`, `ValueError`."""
    server = RedisServer(url, TIMEOUT)
    try:
        found = await server.names(RedisKeys.FIRST)
    finally:
        await server.close()
    return sorted(name for key in found if (name := RedisKeys.crawl_of(key)))


_SHOWN: Final = 10


async def find_crawl(redis: RedisUrl, name: str | None) -> str:
    """Return *name*, or the name of the only crawl at *redis*. Raises `ClusterError`."""
    if name:
        return name
    try:
        names = await list_crawls(redis.url)
    except ValueError as error:
        raise ClusterError(f"{redis}: {error}") from None
    if not names:
        raise ClusterError(f"Redis at {redis} holds no crawl of several agents")
    if len(names) > 1:
        some = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        raise ClusterError(f"Redis at {redis} holds {len(names)} crawls: give --crawl, of {some}")
    return names[0]


class ClusterAdmin(RegistryClient):
    """An operator's view of *crawl* at *url*. Methods raise `RegistryError`."""

    async def overview(self) -> ClusterOverview | None:
        """Return the crawl, or None."""
        answer, data = await self._ask("overview", {"facts": True})
        if answer.code != "ok":
            return None
        flat = answer.facts if isinstance(answer.facts, list) else []
        facts = {}
        for name, text in zip(flat[::2], flat[1::2], strict=False):
            with suppress(ValueError, RecursionError):
                facts[name] = msgspec.json.decode(text[:FACTS_MAX], type=_Facts)
        try:
            fixed = msgspec.json.decode(answer.fixed, type=dict[str, str])
        except ValueError as error:
            raise self._damaged(error) from error
        view, holders = answer.view() or Membership(answer.epoch, ()), self._holders(answer, data)
        now = answer.now / 1000
        return ClusterOverview(answer.id, now, view, facts, holders, answer.ended, fixed)

    async def remove(self, name: str, *, dead: bool = False) -> None:
        """Give the units of agent *name* to other owners when its lease is over, or at once if
        *dead*. Raises `ClusterError`: no such agent, or an endless lease.
        """
        code = await self._order("remove", target=name, dead=dead)
        if code == "unknown":
            raise ClusterError(f"no agent of the crawl has the name {name}")
        if code == "endless":
            raise ClusterError(
                f"the lease of {name} has no end: see that its process is gone, and say that it is"
            )

    async def release(self) -> None:
        """Let owners take free units after a loss of Redis. Raises `ClusterError`."""
        await self._order("release")

    async def forget(self) -> None:
        """Delete the crawl from Redis. Raises `ClusterError`: an agent of it runs."""
        answer, _ = await self._ask("order", {"order": "forget"})
        if answer.code == "busy":
            raise ClusterError(f"{answer.name} is at work on the crawl: stop it first")

    async def _order(self, order: str, **given: Any) -> str:
        answer, _ = await self._ask("order", {"order": order, **given})
        if answer.code == "lost":
            raise ClusterError("there is no crawl of that name")
        return answer.code


CHUNK: Final = 4_096  # units of one call: some milliseconds of Redis's time


class MovedUnits(NamedTuple):
    units: Units
    why: str  # why there are none: ``epoch`` or ``target``; otherwise empty


class AgentRegistry(RegistryClient):
    """One process of an agent in the registry. Calls wait for each other.

    Methods raise `RegistryError`: the call may have run. Those of a member raise `FencedError` when
    another process is the member.
    """

    def __init__(
        self, url: str, crawl: str, lease: AgentLease, *, incarnation: int | None = None,
        clock: Callable[[], float] = boottime, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        super().__init__(url, crawl)
        self.lease = lease
        self.view = Membership(0, ())  # as of the last answer
        self.answer = RegistryAnswer(code="", now=0)
        self.skew: ClockSkew | None = None
        self.lapses = 0  # leases granted after one had ended
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
        return self.view.row(self._who.get("name", ""))

    async def join(self, candidate: Candidate) -> RegistryAnswer:
        """Join, or join again. Raises `JoinRefusedError`."""
        if evicting := await self._server.evicting():
            raise JoinRefusedError(f"SUITE_REDIS_URL: {evicting}", "eviction")
        grace = 0 if candidate.grace is None else round(candidate.grace * 1000)
        given = msgspec.structs.asdict(candidate) | {
            "fresh": secrets.token_hex(8), "protocol": PROTOCOL, "fixed": candidate.terms(),
            "skew": round(candidate.skew * 1000),
        }  # fmt: skip
        async with self._one:
            self._grace, self._who = grace, {}
            wall = self._wall()
            answer, _ = await self._call("join", given | {"wall": round(wall * 1000)})
            skew = self.skew
            if answer.code == "clock" and skew and abs(skew.offset) - skew.bound <= candidate.skew:
                where = f"Redis at {self._server.where} is away"
                raise RegistryError(f"{where}: it answers too late to compare clocks", "away")
            if answer.code != "ok":
                try:
                    why = join_refusal(answer, candidate, wall)
                except ValueError as error:
                    raise self._damaged(error) from error
                raise JoinRefusedError(why, answer.code)
            self._who = {"name": candidate.name, "number": answer.number}
        return answer

    async def renew(self, post: Callable[[], Heartbeat]) -> RegistryAnswer:
        """Renew the lease with the report of *post*; updates `view` in a new epoch."""
        async with self._one:
            given = post()._asdict() | {"round": self.answer.round}
            facts = msgspec.json.encode(given.pop("facts"))
            return (await self._own("renew", given, facts if len(facts) <= FACTS_MAX else b"{}"))[0]

    async def leave(self) -> bool:
        """Give up ownership before a hand-over; False: there is no other agent."""
        return await self._go("leaving") != "alone"

    async def finish_leaving(self) -> bool:
        """End the membership after `leave`; False: units are left. Idempotent."""
        try:
            if await self._go("left") == "holds":
                return False
        except FencedError:
            if self.answer.code != MemberState.LEFT:
                raise
        self.lease.dropped()
        return True

    async def announce_stop(self, quiet: Callable[[], float] = lambda: 0.0) -> None:
        """Announce that this process stops, and the agent will be back; no fetch may start.

        *quiet*: seconds until all fetches and delays are over.
        """
        self.lease.dropped()
        await self._go("resting", quiet=round(max(0.0, quiet()) * 1000))

    async def holders(self) -> Holders:
        async with self._one:
            return self._holders(*await self._own("overview", {}))

    async def ask_addresses(self, asked: AddressQuestion) -> tuple[list[int], list[str]]:
        """Ask which addresses others fetch from: see `AddressBook`, ``meet.lua``."""
        async with self._one:
            answer, _ = await self._own("meet", asked._asdict())
        states, news = [int(each) for each in answer.states], list(answer.news)
        if len(states) != len(asked.new):
            questions = counted(len(asked.new), "question")
            raise self._damaged(f"{counted(len(states), 'answer')} to {questions}")
        return states, news

    async def give(self, units: Units, to: int, epoch: int) -> MovedUnits:
        return await self._move(units, {"how": "give", "to": to, "epoch": epoch})

    async def seize(self, units: Units, epoch: int) -> MovedUnits:
        """Hold owned *units* of a dead holder."""
        return await self._move(units, {"how": "seize", "epoch": epoch})

    async def claim(self, units: Units, at: float) -> MovedUnits:
        """Hold *units* again, held *at* that time in another era.

        After a lapse of the lease it gets none before `Holders.claims`.
        """
        return await self._move(units, {"how": "claim", "at": round(at * 1000)}, at)

    async def _move(self, units: Units, given: dict[str, Any], at: float = 0) -> MovedUnits:
        numbers, found, why = np.unique(units), [], ""
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
        if not self._who:
            raise FencedError("this process has not joined", again=True)
        answer, data = await self._call(script, given | self._who, more)
        if answer.code in GONE:
            why, again = GONE[answer.code]
            if not again:
                self.lease.dropped()
            raise FencedError(f"{why}, says Redis at {self._server.where}", again=again)
        return answer, data

    async def _call(
        self, script: str, given: dict[str, Any], more: bytes = b""
    ) -> tuple[RegistryAnswer, bytes]:
        self._calls += 1
        era, version = self._version
        given |= {
            "incarnation": self._incarnation, "call": self._calls, "grace": self._grace,
            "era": era, "version": version,
        }  # fmt: skip
        sent, wall = self._clock(), self._wall()
        answer, data = await self._ask(script, given, more)
        half = (self._clock() - sent) / 2  # Redis answered at some time of the call
        self.skew = ClockSkew(answer.now / 1000 - wall - half, half)
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
