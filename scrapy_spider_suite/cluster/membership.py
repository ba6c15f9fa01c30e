"""The lease of an agent: how long it may go on without a word from Redis, and by whose clock.

Redis counts a lease from when it hears of the agent, the agent from before it spoke: so the agent's
end is the earlier one. Nobody takes what an agent holds before the end that Redis knows; the agent
starts no fetch that may last longer, nor one whose host, or address, may be fetched from again only
after that: whoever takes it knows nothing of what was fetched, and begins at once.

Time is read twice, by a clock that goes on in sleep (``CLOCK_BOOTTIME``) and by the wall's, for a
virtual machine that was frozen knows of it by one of them, if at all; whichever is further decides.

Members of a crawl as Redis keeps them, what it answers, and what it refuses: the pure part.

All that comes from Redis was written by others: it is decoded into these types, with bounds, and
what does not fit is an error.

What tells a folder of a running machine from all others.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np

from scrapy_spider_suite.cluster.assignment import HEAVIEST, LIGHTEST, Member, Units
from scrapy_spider_suite.cluster.messages import encode_name
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.runtime.clock import boot_id
from scrapy_spider_suite.settings.suite import SuiteSettings

DRIFT: Final = 500e-6
"""Seconds by second that a clock errs at most: as far as adjtimex(2) lets NTP slew it."""

SLACK: Final = 1.0
"""Seconds between the check of a lease and the first byte on the wire."""


SPARE: Final = 30.0
"""Seconds that a lease lasts beyond the longest fetch and delay: it is renewed every five."""

_RENEWAL: Final = SPARE / 2
"""Seconds within which it is renewed, if anything answers."""


@dataclass(frozen=True, slots=True)
class ClockSkew:
    """How far this machine's wall clock is behind that of Redis, in seconds.

    The truth lies *bound* around *offset*: half of what the question took.
    """

    offset: float
    bound: float

    def __str__(self) -> str:
        return f"{self.offset:+.3f} s ± {self.bound:.3f} s"

    @classmethod
    def measured(cls, wall: float, took: float, server: float) -> ClockSkew:
        """Asked at *wall*, answered *took* seconds later with the time *server*."""
        return cls(server - wall - took / 2, took / 2)


class AgentLease:
    """What one process knows of its lease.

    Args:
        timeout: seconds that a fetch may last.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._end = self._wall_end = -math.inf
        self._margin = 0.0
        self._length = 0.0  # of the longest that was granted

    def renewed(self, sent: float, wall: float, granted: float | None) -> None:
        """It was granted for *granted* seconds, None for ever, to who asked at *sent* and *wall*.

        The end that is known never comes earlier by this.
        """
        seconds = math.inf if granted is None else granted
        self._margin = 0.0 if granted is None else SLACK + 2 * DRIFT * seconds
        self._length = max(self._length, seconds)
        self._end = max(self._end, sent + seconds)
        self._wall_end = max(self._wall_end, wall + seconds)

    def dropped(self) -> None:
        """It is over: another process has it, or nobody."""
        self._end = self._wall_end = -math.inf

    def live(self, now: float, wall: float) -> bool:
        """Nobody else can have been given what this agent holds."""
        return now < self._end - self._margin and wall < self._wall_end - self._margin

    def may_fetch(self, now: float, wall: float, delay: float = 0.0) -> bool:
        """A fetch that is started now ends before the lease does, also by the clock of Redis, and
        *delay* seconds after it are over.

        Of a delay for which a lease is too short counts as much as there is room for: otherwise
        nothing were ever fetched there.
        """
        ahead = self._timeout + self._margin
        if delay:
            ahead += max(0.0, min(delay, self._length - ahead - _RENEWAL))
        return now < self._end - ahead and wall < self._wall_end - ahead

    def seconds(self, now: float, wall: float) -> float:
        """How long fetches may still be started, unless it is renewed; below 0 when not at all."""
        return min(self._end - now, self._wall_end - wall) - self._timeout - self._margin


PROTOCOL: Final = 1
"""What agents of one crawl have to agree on: scripts, rows, messages, files of hand-over."""

HEARTBEAT: Final = 5.0
"""Seconds between two renewals of a lease."""

SILENCE: Final = 3 * HEARTBEAT
"""Seconds without a renewal after which an agent is missing."""

SKEW_MAX: Final = 60.0
"""Seconds by which the clocks of an agent and of Redis may differ."""

FACTS_MAX: Final = 4_096
"""Bytes of what an agent says of itself, as JSON."""

_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**14)]  # Lua writes numbers of 14 digits
_Text = Annotated[str, msgspec.Meta(max_length=256)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Number = Annotated[int, msgspec.Meta(ge=1, lt=UNITS)]
_Weight = Annotated[float, msgspec.Meta(ge=LIGHTEST, le=HEAVIEST)]


class MemberState(StrEnum):
    """Of a member: whether it owns units, and whether it may hold some."""

    ACTIVE = "active"
    LEAVING = "leaving"
    """It owns nothing any more, and hands over what it holds."""

    LEFT = "left"
    DEAD = "dead"
    """Its lease ended: others may take what it holds."""

    REMOVED = "removed"
    """An operator has sent it away; what it holds may be taken when its lease is over."""


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A member, as of its last heartbeat. Times are Redis's, in milliseconds since 1970."""

    name: _Name
    number: _Number
    """Given once to a job; by it `holders` knows the agent."""

    incarnation: Annotated[str, msgspec.Meta(max_length=16)]
    """16 hexadecimal digits drawn by each process; empty when it has said that it stops."""

    weight: _Weight
    address: _Text
    """Where its files of hand-over are to be had."""

    state: MemberState
    ends: _Count
    """Of its lease; 0 if it has no end."""

    heard: _Count
    idle: bool
    sent: _Count
    received: _Count

    def missing(self, now: float) -> bool:
        """No process of it has spoken of late, by Redis's time *now* in seconds."""
        return not self.incarnation or now - self.heard / 1000 > SILENCE


class Membership(NamedTuple):
    """The members of an epoch; the same for every agent that knows the epoch."""

    epoch: int
    rows: tuple[MemberRecord, ...]
    """Sorted by name."""

    @property
    def members(self) -> tuple[Member, ...]:
        """Those who own units, for `tables.Table.of`; also who is missing."""
        return tuple(Member(r.name, r.weight) for r in self.rows if r.state is MemberState.ACTIVE)

    @property
    def numbers(self) -> dict[int, MemberRecord]:
        """Each by its number."""
        return {row.number: row for row in self.rows}

    def row(self, name: str) -> MemberRecord | None:
        """The member of that name."""
        return next((row for row in self.rows if row.name == name), None)


class Holders(NamedTuple):
    """Who holds what."""

    holders: Units
    """The number of the holder of each unit; 0 if nobody holds it."""

    at: float
    """Redis's time in seconds: when this was so."""

    epoch: int
    era: int
    moves: int
    claims: float
    """Redis's time in seconds, until which what nobody holds is kept for who held it."""


class RegistryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a script answers. Times are in milliseconds since 1970."""

    code: _Text
    now: _Count
    id: _Text = ""
    """Of the crawl: drawn when it began."""

    epoch: _Count = 0
    """Grows whenever others own what they owned not before: the time when they began to."""

    version: _Count = 0
    """Grows whenever anything of a member changes that others have to know."""

    era: _Count = 0
    """Grows when Redis has lost, or may have lost, who holds what: all have to claim it again."""

    moves: _Count = 0
    """Grows whenever units change their holders."""

    claims: _Count = 0
    """Until when what nobody holds is kept for who held it before."""

    round: _Count = 0
    ended: bool = False
    members: list[MemberRecord] | None = None
    """All of them, if the caller knows another version."""

    ends: _Count = 0
    state: MemberState = MemberState.ACTIVE
    number: Annotated[int, msgspec.Meta(ge=0, lt=UNITS)] = 0
    kept: bool = False
    heard: _Count = 0
    protocol: int = 0
    fixed: Annotated[str, msgspec.Meta(max_length=1 << 16)] = "{}"
    name: _Text = ""
    facts: list[str] | dict[str, str] = []  # Lua has one kind of empty table
    states: list[Annotated[int, msgspec.Meta(ge=0, le=2)]] | dict[str, int] = []
    news: list[_Text] | dict[str, str] = []

    def view(self) -> Membership | None:
        """The members, if they are in it."""
        if self.members is None:
            return None
        return Membership(self.epoch, tuple(sorted(self.members, key=lambda row: row.name)))


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that wants to take part.

    Raises:
        ValueError: a name, weight or number that no agent can have.
    """

    name: str
    job: str
    """Drawn for its job directory, and kept in it."""

    folder: str
    """What is the same only for the same directory on the same running machine, whose lock then
    proves that an earlier process of the name is gone."""

    grace: float | None
    """Seconds of its lease, None for ever: the same for all agents."""

    weight: float = 1.0
    address: str = ""
    fixed: Mapping[str, str] = {}
    """Settings in which all agents have to agree, by name, as text."""

    id: str = ""
    """Of the crawl that the job is part of; empty for a new job."""

    number: int = 0
    """That the job had in it; 0 for a new job."""

    idle: bool = False
    """Nothing is left of the job that it could do: it may be that the crawl is over."""

    most: int = 0
    """Agents that there may be, this one included; 0: any number."""

    skew: float = SKEW_MAX
    """Seconds by which its clock may differ from that of Redis."""

    def __post_init__(self) -> None:
        encode_name(self.name)
        if not LIGHTEST <= self.weight <= HEAVIEST:
            raise ValueError(f"weight {self.weight}: expected {LIGHTEST} to {HEAVIEST}")
        if not 0 <= self.number < UNITS:
            raise ValueError(f"number {self.number}: expected 0 to {UNITS - 1:,}")
        if self.grace is not None and self.grace <= SILENCE:
            raise ValueError(f"a lease of {self.grace} s: expected more than {SILENCE:g} s")

    def terms(self) -> str:
        """The fixed settings, the length of the lease among them, in the only form there is."""
        grace = "forever" if self.grace is None else f"{self.grace:g}"
        fixed = {**self.fixed, "SUITE_AGENT_GRACE": grace}
        return msgspec.json.encode(fixed, order="sorted").decode()


class Heartbeat(NamedTuple):
    """What an agent says of itself with each heartbeat, all of it at one moment.

    It is idle when it has nothing to fetch, to send, to receive, to hand over or to take: nothing
    waits, and every row that it sent is acknowledged. *sent* and *received* are the rows exchanged
    with the members of *epoch*, each counted once. *activity* grows whenever it ceases to be idle.
    Something is *left* for one that is not idle when its files say so, and not only as it starts.
    """

    epoch: int
    idle: bool
    sent: int
    received: int
    activity: int
    facts: Mapping[str, str | int | float | None] = {}
    """For people: ``scrapy cluster ls`` shows them."""

    left: bool = False


def decode_answer(data: bytes) -> RegistryAnswer:
    """What a script answered. Raises `ValueError` (msgspec's) if it is not what scripts answer."""
    return msgspec.json.decode(data, type=RegistryAnswer)


def encode_units(units: Units) -> bytes:
    """Units as scripts take them: ascending, two bytes each, in network order."""
    return np.unique(units).astype(">u2").tobytes()


def decode_units(data: bytes) -> Units:
    """Units, or numbers of holders, as scripts give them."""
    return np.frombuffer(data, ">u2").astype(np.uint16)


def join_refusal(answer: RegistryAnswer, candidate: Candidate, wall: float) -> str:
    """One line on why *candidate*, whose wall clock said *wall*, cannot join."""
    return _REFUSALS.get(answer.code, _unknown)(answer, candidate, wall)


def _unknown(answer: RegistryAnswer, candidate: Candidate, wall: float) -> str:
    return f"the crawl does not take {candidate.name}: {answer.code}"


def clock_refusal(behind: float, most: float) -> str:
    """One line on a clock that is so many seconds *behind* that of Redis; empty if that is *most*,
    or less."""
    if abs(behind) <= most:
        return ""
    by = ", by SUITE_PHASE_GUARD" if most < SKEW_MAX else ""
    return (
        f"the clock of this machine is {abs(behind):,.3g} s "
        f"{'behind' if behind > 0 else 'ahead of'} that of Redis: expected {most:.3g} s at most"
        f"{by}; set it right (NTP)"
    )


def _clock(answer: RegistryAnswer, candidate: Candidate, wall: float) -> str:
    return clock_refusal(answer.now / 1000 - wall, candidate.skew)


def _name(answer: RegistryAnswer, candidate: Candidate, wall: float) -> str:
    ago = (answer.now - answer.heard) / 1000
    return (
        f"an agent with the name {candidate.name} runs already (heard {ago:.0f} s ago): give each "
        f"its own SUITE_AGENT_NAME, or wait {SILENCE:g} s if that one was killed"
    )


def _fixed(answer: RegistryAnswer, candidate: Candidate, wall: float) -> str:
    here, there = (
        msgspec.json.decode(text, type=dict[str, str]) for text in (candidate.terms(), answer.fixed)
    )
    differ = [
        f"{name} is {here.get(name, 'unset')} here and {there.get(name, 'unset')} there"
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    ]
    return f"agents of one crawl need the same fixed settings: {'; '.join(differ)}"


_REFUSALS: Final[dict[str, Callable[[RegistryAnswer, Candidate, float], str]]] = {
    "clock": _clock,
    "name": _name,
    "fixed": _fixed,
    "other-job": lambda answer, candidate, wall: (
        f"the name {candidate.name} belongs to an agent with another job directory: resume that "
        "one by its JOBDIR, choose another SUITE_AGENT_NAME, or remove the agent first"
    ),
    "other-crawl": lambda answer, candidate, wall: (
        f"this job belongs to the crawl {candidate.id}, and Redis holds {answer.id} under the same "
        "name: choose another SUITE_CRAWL_NAME, or a new JOBDIR"
    ),
    "protocol": lambda answer, candidate, wall: (
        f"agents of one crawl need the same protocol: it is {PROTOCOL} here and {answer.protocol} "
        f"there; upgrade the older release"
    ),
    "ending": lambda answer, candidate, wall: (
        "the crawl is over and its agents are closing: it can begin again when they are gone"
    ),
    "most": lambda answer, candidate, wall: (
        f"SUITE_PHASES = {candidate.most}: the crawl has so many agents already, and with this "
        "SUITE_ASSIGNMENT each needs a phase of its own"
    ),
    "full": lambda answer, candidate, wall: f"the crawl has had {UNITS - 1:,} agents: no more fit",
}  # fmt: skip


GONE: Final = {
    "lost": ("Redis does not know this agent as it was", True),
    "dead": ("the lease of this agent ended before it was renewed", True),
    "replaced": ("another process has taken the place of this agent", False),
    "left": ("this agent has left the crawl", False),
    "removed": ("this agent was removed from the crawl", False),
    "late": ("this call was overtaken by a later one", True),
}
"""Why a process may not write, by the code of a script, and whether it may join again."""


def folder_identity(folder: Path) -> str:
    """What only the same *folder* on the same running machine has. Raises `OSError`."""
    status = folder.stat()
    try:
        boot = boot_id()
    except OSError:
        boot = secrets.token_hex(8)  # no proof: it is nobody else's
    return f"{boot}:{status.st_dev}:{status.st_ino}"


class AddressQuestion(NamedTuple):
    """One call: see ``meet.lua``."""

    new: list[str]
    gone: list[str]
    heard: list[str]
    mine: list[str]
    complete: bool
    known: int
    """The era, as of the last answer."""


def refuse_short_lease(s: SuiteSettings, delay: float) -> None:
    """Raise `SettingsError` if a fetch, and *delay* seconds after it, might outlast the lease that
    the agent has when it begins: as the crawl begins, since a profile has a DOWNLOAD_TIMEOUT."""
    fetch = s.project.longest_fetch
    least = fetch + delay + SPARE
    if s.agent_grace is not None and s.agent_grace < least:
        allowed = (
            f"{least:g} or more: {fetch:g} s for a fetch (DOWNLOAD_TIMEOUT), {delay:g} s for "
            f"the longest delay, and {SPARE:g} s"
        )
        raise SettingsError.of("SUITE_AGENT_GRACE", s.agent_grace, allowed)
