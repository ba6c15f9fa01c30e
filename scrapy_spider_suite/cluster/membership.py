"""Members of a crawl: leases, clocks, shared settings, and the units that an agent owns and holds.

Redis counts a lease from when it hears of the agent, the agent from before it spoke. Time is read
from ``CLOCK_BOOTTIME`` and the wall clock, since a frozen virtual machine may notice by one only;
the later one decides.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_hexdigest

from scrapy_spider_suite.cluster.assignment import (
    HEAVIEST,
    LIGHTEST,
    Assignment,
    Member,
    OwnerTable,
    Ring,
    Units,
    fingerprint,
)
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.runtime.clock import boot_id
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.declarations import SettingKind, setting_name, shown_value
from scrapy_spider_suite.settings.suite import DECLARATIONS, SuiteSettings
from scrapy_spider_suite.settings.values import RedisUrl
from scrapy_spider_suite.signals import settings_changing

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.context import Crawl

logger = logging.getLogger(__name__)

DRIFT: Final = 500e-6  # seconds a second that a clock errs at most: NTP slews it by adjtimex(2)
SLACK: Final = 1.0  # seconds between the check of a lease and the first byte on the wire
SPARE: Final = 30.0  # seconds of a lease beyond the longest fetch and delay
_RENEWAL: Final = SPARE / 2  # seconds within which it is renewed, if anything answers


class ClockSkew(NamedTuple):
    """Seconds by which this wall clock is behind Redis, within *bound*."""

    offset: float
    bound: float


class AgentLease:
    """The lease of a process; *timeout* is the longest fetch in seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._end = self._wall_end = -math.inf
        self._margin = 0.0
        self._length = 0.0  # of the longest that was granted

    def renewed(self, sent: float, wall: float, granted: float | None) -> None:
        """Extend by *granted* seconds (None: for ever) from a call at *sent* and *wall*."""
        seconds = math.inf if granted is None else granted
        self._margin = 0.0 if granted is None else SLACK + 2 * DRIFT * seconds
        self._length = max(self._length, seconds)
        self._end = max(self._end, sent + seconds)
        self._wall_end = max(self._wall_end, wall + seconds)

    def dropped(self) -> None:
        self._end = self._wall_end = -math.inf

    def live(self, now: float, wall: float) -> bool:
        """Whether no other agent can hold this agent's units."""
        return now < self._end - self._margin and wall < self._wall_end - self._margin

    def may_fetch(self, now: float, wall: float, delay: float = 0.0) -> bool:
        """Whether a fetch started now, and *delay* seconds after it, end before the lease.

        Of a delay longer than the lease counts what fits: otherwise no fetch would start there.
        """
        ahead = self._timeout + self._margin
        if delay:
            ahead += max(0.0, min(delay, self._length - ahead - _RENEWAL))
        return now < self._end - ahead and wall < self._wall_end - ahead

    def seconds(self, now: float, wall: float) -> float:
        """Seconds for which fetches may start without renewal; below 0: none may."""
        return min(self._end - now, self._wall_end - wall) - self._timeout - self._margin


PROTOCOL: Final = 1  # version of scripts, rows, messages and hand-over files; equal for all agents
HEARTBEAT: Final = 5.0  # seconds between two renewals of a lease
SILENCE: Final = 3 * HEARTBEAT  # seconds without a renewal after which an agent is missing
SKEW_MAX: Final = 60.0  # seconds by which the clocks of an agent and of Redis may differ
FACTS_MAX: Final = 4_096  # bytes of an agent's facts as JSON

_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**14)]  # Lua writes numbers of 14 digits
_Text = Annotated[str, msgspec.Meta(max_length=256)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Number = Annotated[int, msgspec.Meta(ge=1, lt=UNITS)]
_Weight = Annotated[float, msgspec.Meta(ge=LIGHTEST, le=HEAVIEST)]


class MemberState(StrEnum):
    """Whether a member owns units, and may hold some."""

    ACTIVE = "active"
    LEAVING = "leaving"  # owns nothing, and hands over
    LEFT = "left"
    DEAD = "dead"  # its lease ended: others may take its units
    REMOVED = "removed"  # by an operator; others may take its units when the lease is over


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A member as of its last heartbeat; times are Redis's, in milliseconds since 1970."""

    name: _Name
    number: _Number  # given once to a job; holders are known by it
    incarnation: Annotated[str, msgspec.Meta(max_length=16)]  # of the process; "": it stopped
    weight: _Weight
    address: _Text  # where it receives hand-over files
    state: MemberState
    ends: _Count  # of its lease; 0: never
    heard: _Count
    idle: bool
    sent: _Count
    received: _Count
    since: _Count = 0  # when it joined

    def missing(self, now: float) -> bool:
        """Whether it was silent too long at *now*, Redis's time in seconds."""
        return not self.incarnation or now - self.heard / 1000 > SILENCE


class Membership(NamedTuple):
    epoch: int
    rows: tuple[MemberRecord, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(Member(r.name, r.weight) for r in self.rows if r.state is MemberState.ACTIVE)

    @property
    def numbers(self) -> dict[int, MemberRecord]:
        return {row.number: row for row in self.rows}

    def row(self, name: str) -> MemberRecord | None:
        return next((row for row in self.rows if row.name == name), None)


class Holders(NamedTuple):
    holders: Units  # the number of each unit's holder; 0: nobody
    at: float  # Redis's time of this state in seconds
    epoch: int
    era: int
    moves: int
    claims: float  # until when free units are kept for their former holders


class RegistryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a script; times are milliseconds since 1970."""

    code: _Text
    now: _Count
    id: _Text = ""  # of the crawl: drawn at its beginning
    epoch: _Count = 0  # grows with each change of owners: the time of the change
    version: _Count = 0  # grows with each change of a member
    era: _Count = 0  # grows when Redis may have lost the holders: all claim them again
    moves: _Count = 0  # grows with each change of holders
    claims: _Count = 0  # until when free units are kept for their former holders
    round: _Count = 0
    ended: bool = False
    members: list[MemberRecord] | None = None  # all, if the caller knows another version
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
        if self.members is None:
            return None
        return Membership(self.epoch, tuple(sorted(self.members, key=lambda row: row.name)))


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    job: str  # drawn for the job directory
    folder: str  # see `folder_identity`: its lock proves that an earlier process is gone
    grace: float | None  # seconds of the lease, None: for ever; equal for all agents
    weight: float = 1.0
    address: str = ""
    fixed: Mapping[str, str] = {}  # shared settings by name, as text
    id: str = ""  # of the job's crawl; empty for a new job
    number: int = 0  # of the job in the crawl; 0 for a new job
    idle: bool = False  # nothing is left of the job
    most: int = 0  # most agents, this one included; 0: any number
    skew: float = SKEW_MAX  # seconds by which its clock may differ from Redis's

    def terms(self) -> str:
        """Return shared settings and lease in canonical form."""
        grace = "forever" if self.grace is None else f"{self.grace:g}"
        fixed = {**self.fixed, "SUITE_AGENT_GRACE": grace}
        return msgspec.json.encode(fixed, order="sorted").decode()


class Heartbeat(NamedTuple):
    """The report of an agent."""

    epoch: int
    idle: bool  # no work, and each sent row is acknowledged
    sent: int  # rows, to members of *epoch*
    received: int  # rows, from members of *epoch*
    activity: int  # grows when it stops being idle
    facts: Mapping[str, str | int | float | None] = {}  # shown by ``scrapy cluster ls``
    left: bool = False  # not idle, by its files


def encode_units(units: Units) -> bytes:
    """Return units for scripts: ascending, two bytes each, network order."""
    return np.unique(units).astype(">u2").tobytes()


def decode_units(data: bytes) -> Units:
    return np.frombuffer(data, ">u2").astype(np.uint16)


# Why an agent cannot join, by a script's code.
_REFUSALS: Final = {
    "name": (
        "an agent with the name {asked.name} runs already (heard {ago:.0f} s ago): give each its "
        f"own SUITE_AGENT_NAME, or wait {SILENCE:g} s if that one was killed"
    ),
    "fixed": "agents of one crawl need the same fixed settings: {differ}",
    "other-job": (
        "the name {asked.name} belongs to an agent with another job directory: resume that one by "
        "its JOBDIR, choose another SUITE_AGENT_NAME, or remove the agent first"
    ),
    "other-crawl": (
        "this job belongs to the crawl {asked.id}, and Redis holds {answer.id} under the same "
        "name: choose another SUITE_CRAWL_NAME, or a new JOBDIR"
    ),
    "protocol": (
        f"agents of one crawl need the same protocol: it is {PROTOCOL} here and "
        "{answer.protocol} there; upgrade the older release"
    ),
    "ending": (
        "the crawl is over and its agents are closing: it can begin again when they are gone"
    ),
    "most": (
        "SUITE_PHASES = {asked.most}: the crawl has so many agents already, and with this "
        "SUITE_ASSIGNMENT each needs a phase of its own"
    ),
    "full": f"the crawl has had {UNITS - 1:,} agents: no more fit",
}


def join_refusal(answer: RegistryAnswer, candidate: Candidate, wall: float) -> str:
    """Return one line on why *candidate*, with the wall clock *wall*, cannot join."""
    if answer.code == "clock":
        return clock_refusal(answer.now / 1000 - wall, candidate.skew)
    here, there = (
        msgspec.json.decode(text, type=dict[str, str])
        for text in (candidate.terms(), answer.fixed)
    )
    text = _REFUSALS.get(answer.code, "the crawl does not take {asked.name}: {answer.code}")
    return text.format(
        asked=candidate, answer=answer, ago=(answer.now - answer.heard) / 1000,
        differ=settings_difference(here, there),
    )  # fmt: skip


def clock_refusal(behind: float, most: float) -> str:
    """Return one line on a clock *behind* Redis by over *most* seconds; otherwise ""."""
    if abs(behind) <= most:
        return ""
    by = ", by SUITE_PHASE_GUARD" if most < SKEW_MAX else ""
    return (
        f"the clock of this machine is {abs(behind):,.3g} s "
        f"{'behind' if behind > 0 else 'ahead of'} that of Redis: expected {most:.3g} s at most"
        f"{by}; set it right (NTP)"
    )


def settings_difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return one line on the settings that differ, by name; "" if none does."""
    return "; ".join(
        f"{name} is {here.get(name, 'unset')} here and {there.get(name, 'unset')} there"
        for name in sorted(here.keys() | there.keys()) if here.get(name) != there.get(name)
    )  # fmt: skip


# Why a process may not write, by a script's code, and whether it may join again.
GONE: Final = {
    "lost": ("Redis does not know this agent as it was", True),
    "dead": ("the lease of this agent ended before it was renewed", True),
    "replaced": ("another process has taken the place of this agent", False),
    "left": ("this agent has left the crawl", False),
    "removed": ("this agent was removed from the crawl", False),
    "late": ("this call was overtaken by a later one", True),
}


def folder_identity(folder: Path) -> str:
    """Return the identity of *folder* on this running machine. Raises `OSError`."""
    status = folder.stat()
    try:
        boot = boot_id()
    except OSError:
        boot = secrets.token_hex(8)  # no proof: it is nobody else's
    return f"{boot}:{status.st_dev}:{status.st_ino}"


class AddressQuestion(NamedTuple):  # see ``meet.lua``
    new: list[str]
    gone: list[str]
    heard: list[str]
    mine: list[str]
    complete: bool
    known: int


def refuse_short_lease(s: SuiteSettings, delay: float) -> None:
    """Raise `SettingsError` if a fetch and *delay* seconds might outlast a lease."""
    fetch = s.project.longest_fetch
    least = fetch + delay + SPARE
    if s.agent_grace is not None and s.agent_grace < least:
        allowed = (
            f"{least:g} or more: {fetch:g} s for a fetch (DOWNLOAD_TIMEOUT), {delay:g} s for "
            f"the longest delay, and {SPARE:g} s"
        )
        raise SettingsError.of("SUITE_AGENT_GRACE", s.agent_grace, allowed)


_NOBODY: Final = 0


class Ownership:
    """Units of the agent *name*; at first it owns all and holds none.

    The owner follows from the members of an epoch; the holder, which may fetch, stands in Redis.
    Where they differ a hand-over is due.
    """

    def __init__(self, assignment: Assignment, name: str) -> None:
        self.assignment = assignment
        self.name = name
        self.epoch = 0
        self.number = _NOBODY  # of this agent among the holders
        self.table: OwnerTable | None = None  # the owners; None without members
        # Units in hand-over, which nobody fetches.
        self.in_transfer: npt.NDArray[np.bool_] = np.zeros(UNITS, np.bool_)
        self.records: dict[int, MemberRecord] = {}  # by the numbers of the members
        self._holders: Units = np.zeros(UNITS, np.uint16)
        self._names: list[str] = [name] * UNITS
        self._free = bytearray(UNITS)  # 1: it may be fetched here

    def table_of(self, members: Iterable[Member]) -> OwnerTable | None:
        """Return the owners for *members*; None without members.

        Takes up to 0.2 s; may run in a thread. Raises `SettingsError`.
        """
        members = tuple(members)
        return OwnerTable.of(self.assignment, members) if members else None

    def set_members(
        self, epoch: int, members: Iterable[Member], table: OwnerTable | None = None
    ) -> bool:  # fmt: skip
        """Set the *members* of *epoch*, or their *table*; return whether owners changed."""
        before, self.epoch = self._names, epoch
        self.table = table or self.table_of(members)
        if self.table is not None:
            names = [member.name for member in self.table.members]
            self._names = [names[index] for index in self.table.owners.tolist()]
        return self._names != before

    def set_membership(self, members: Membership, table: OwnerTable | None = None) -> bool:
        self.records = members.numbers
        return self.set_members(members.epoch, members.members, table)

    def set_number(self, number: int) -> None:
        if number != self.number:
            self._holders = np.zeros(UNITS, np.uint16)
        self.number = number
        self.refresh()

    def set_holders(self, holders: Holders) -> None:
        self._holders = holders.holders
        self.refresh()

    def hold_own(self) -> None:
        self.number = 1
        mine = np.array([name == self.name for name in self._names])
        self._holders = mine.astype(np.uint16)
        self.refresh()

    def refresh(self) -> None:
        self._free[:] = (self.mine & ~self.in_transfer).astype(np.uint8).tobytes()

    @property
    def mine(self) -> npt.NDArray[np.bool_]:
        if self.number == _NOBODY:
            return np.zeros(UNITS, np.bool_)
        return np.equal(self._holders, self.number)

    @property
    def own(self) -> npt.NDArray[np.bool_]:
        if self.table is None:
            return np.ones(UNITS, np.bool_)
        names = [member.name for member in self.table.members]
        if self.name not in names:
            return np.zeros(UNITS, np.bool_)
        return np.equal(self.table.owners, names.index(self.name))

    @property
    def settled(self) -> bool:
        return bool(np.array_equal(self.mine, self.own))

    @property
    def by_slot(self) -> Sequence[str] | None:
        """The owner of each slot; None if the slot of a host does not decide."""
        return self._names if isinstance(self.assignment, Ring) else None

    def owner(self, host: str, url: str) -> str:
        return self._names[self.assignment.unit(host, url)]

    def is_held_elsewhere(self, host: str, url: str) -> bool:
        return not self._free[self.assignment.unit(host, url)]

    def units_of_others(self) -> dict[int, npt.NDArray[np.bool_]]:
        """Return a mask of the units of each other owner, by its number."""
        if self.table is None:
            return {}
        numbers = {row.name: number for number, row in self.records.items()}
        return {
            numbers[member.name]: np.equal(self.table.owners, index)
            for index, member in enumerate(self.table.members)
            if member.name != self.name and member.name in numbers
        }

    def free(self) -> Units:
        gone = [_NOBODY] + [
            number for number, row in self.records.items()
            if row.state in (MemberState.DEAD, MemberState.LEFT, MemberState.REMOVED)
        ]  # fmt: skip
        lost = np.isin(self._holders, gone) | ~np.isin(self._holders, [_NOBODY, *self.records])
        return np.flatnonzero(self.own & lost).astype(np.uint16)


# What agents must agree on

_TELLS: Final = 0.5  # seconds by which clocks may always differ: the ledger keeps the delays
_LONGEST: Final = 300  # bytes of a value that are compared; of longer values the hash is


class AgentPhase:
    """The phase of an agent that has a part of every host (KSpider, §2.2).

    Of *n* phases the *i*-th agent has (i + t // T) mod n. A guard at the end of a phase covers a
    fetch, a delay and clock skew. The ledger keeps longer delays and back-offs.
    """

    def __init__(self, crawl: Crawl, ownership: Ownership) -> None:
        self._crawl, self._ownership, self._told = crawl, ownership, 0
        crawl.crawler.signals.connect(self._check_settings, settings_changing)

    def _longest_delay(self, settings: SuiteSettings) -> float:
        rules = self._crawl.policy_file.policy.overrides
        return max(settings.longest_delay, rules.longest_delay)

    @property
    def skew(self) -> float:
        """Seconds by which each of two clocks may be off within the guard."""
        settings = self._crawl.settings
        least = settings.project.longest_fetch + self._longest_delay(settings)
        return min(SKEW_MAX, max(_TELLS, (settings.phase_guard - least) / 2))

    def check(self, names: Iterable[str] = (), settings: SuiteSettings | None = None) -> None:
        """Raise `SettingsError` if this agent and *names* cannot keep a host's delay."""
        settings = settings or self._crawl.settings
        agents = len({*names, self._ownership.name})
        whose = f"with SUITE_ASSIGNMENT = {settings.assignment!r}"
        if settings.rate_ledger is None:
            raise SettingsError(
                f"SUITE_RATE_LEDGER is not set: {whose} every agent fetches from every host, and "
                "only in a ledger they know of each other's delays and back-offs"
            )
        if settings.phases < agents:
            raise SettingsError(
                f"SUITE_PHASES = {settings.phases}: expected {agents} or more {whose}, as many as "
                "there are agents"
            )
        fetch, delay = settings.project.longest_fetch, self._longest_delay(settings)
        if settings.phase_guard < fetch + delay:
            raise SettingsError(
                f"SUITE_PHASE_GUARD = {settings.phase_guard:g}: expected {fetch + delay:.4g} or "
                f"more {whose}: DOWNLOAD_TIMEOUT ({fetch:g}), the longest delay ({delay:g}), and "
                "twice by how much a clock may be off"
            )

    def changed(self) -> None:
        table, policy = self._ownership.table, self._crawl.policy_file.policy
        names = [] if table is None else [member.name for member in table.members]  # sorted
        if self._ownership.name not in names:
            return
        node = names.index(self._ownership.name)
        phases = self._crawl.settings.phases
        if len(names) > phases and len(names) != self._told:
            self._told = len(names)
            logger.error(
                "%s %s: some have the same, and take turns by the ledger (SUITE_PHASES)",
                counted(len(names), "agent has", "agents have"), counted(phases, "phase"),
            )  # fmt: skip
        if node != policy.node:
            policy.update(node=node)

    def _check_settings(self, old: SuiteSettings, new: SuiteSettings) -> None:
        self.check(settings=new)


def shared_settings(settings: SuiteSettings, assignment: Assignment) -> dict[str, str]:
    """Return the settings that must be equal for all agents, by name, as text."""
    shared = {name for name, each in DECLARATIONS.items() if each.kind is SettingKind.FIXED}
    shared.remove("agent_grace")  # which the registry compares
    if not assignment.by_host:
        shared |= {"phases", "phase_seconds"}
    fixed = {
        setting_name(name): shortened(shown_value(getattr(settings, name)), _LONGEST)
        for name in sorted(shared)
    }
    fixed["SUITE_ASSIGNMENT"] += f" ({fingerprint(assignment)})"
    fixed["SUITE_RATE_LEDGER"] = _ledger(settings.rate_ledger)
    return fixed


def _ledger(where: RedisUrl | Path | None) -> str:
    if not isinstance(where, Path):
        return shown_value(None if where is None else str(where))
    with suppress(OSError):  # a file serves one machine
        identity = folder_identity(where.absolute().parent).encode()
        return shown_value(f"{where} ({xxh3_64_hexdigest(identity)})")
    return shown_value(str(where))


def shortened(text: str, most: int) -> str:
    """Return *text* in *most* bytes or fewer; a hash stands for the rest."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return f"{data[: most - 24].decode('utf-8', 'ignore')}… ({xxh3_64_hexdigest(data)})"
