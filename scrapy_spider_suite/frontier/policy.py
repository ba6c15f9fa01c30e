"""How fast, how much and whether a host may be visited; phases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any

from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.overrides import OverrideLine, Overrides, Rule
from scrapy_spider_suite.frontier.politeness import BackOff, Pace
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternTable
from scrapy_spider_suite.urls.hosts import phase_of
from scrapy_spider_suite.urls.traps import TrapLimits


@dataclass(frozen=True, slots=True)
class Phases:
    """*count* phases, each active for *seconds*; in the last *guard* seconds no fetch begins.

    Nodes are numbered from 0; clocks are wall clocks. Raises `ValueError`: fewer phases than nodes.
    """

    count: int
    seconds: float
    guard: float = 0.0
    node: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.node < self.count:
            phases = counted(self.count, "phase")
            raise ValueError(f"{phases} for node {self.node}: expected one for each")
        if not 0 <= self.guard < self.seconds:
            raise ValueError(f"a guard of {self.guard:g} s: expected less than {self.seconds:g} s")

    def active(self, wall: float) -> int:
        """The phase that is active here at *wall*."""
        return (self.node + int(wall // self.seconds)) % self.count

    def opens(self, host: str, wall: float) -> float:
        """When a fetch of *host* may begin next: *wall* itself, if now."""
        turn = int(wall // self.seconds)
        ahead = (phase_of(host, self.count) - self.node - turn) % self.count
        if not ahead and wall < (turn + 1) * self.seconds - self.guard:
            return wall
        return (turn + (ahead or self.count)) * self.seconds


_BLOCKED = "blocked"
_OUTSIDE = "outside its hours"
_PHASE = "not in its phase"
_PHASES = Rule("every host", "SUITE_PHASES")


@dataclass(frozen=True, slots=True)
class Block:
    """A block that an operator set while the crawl ran, until *until* (wall seconds)."""

    rule: Rule
    reason: str = ""
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a host may not be visited, and until when (wall seconds; inf: until the rule goes)."""

    why: str
    until: float
    rule: Rule
    reason: str = ""

    @property
    def of_urls(self) -> bool:
        """Whether it is only some URLs of the host that may not be fetched."""
        return "://" in self.rule.subject

    def __str__(self) -> str:
        words = f"{self.why} ({self.rule}){': ' if self.reason else ''}{self.reason}"
        return " ".join(words.split())


def waits_for_rule(words: str) -> bool:
    """Whether a host that waits for *words* waits for a rule to let it go."""
    why, parenthesis, _ = words.partition(" (")
    return bool(parenthesis) and why in (_BLOCKED, _OUTSIDE, _PHASE)


def excluded_pattern(words: str) -> HostPattern | None:
    """The pattern of the rule in *words*, by which a host waits; None if there is none."""
    why, parenthesis, rest = words.partition(" (")
    if not parenthesis or why not in (_BLOCKED, _OUTSIDE):
        return None
    try:
        return HostPattern.parse(rest.partition(",")[0])
    except ValueError:
        return None


@dataclass(slots=True)
class Policy:
    """The pace of hosts and addresses (seconds), and the limits of hosts and of the job; 0: no
    limit.

    *address* concurrency 0: addresses set none. *slots* are a project's own paces by pacing key
    (Scrapy's ``DOWNLOAD_SLOTS``). *start_delay* is the least first delay, where something measures
    it. *retry_failed_after*: seconds after which a link makes a URL that failed for a reason in
    *retry_failed* pending again; 0: never. *blocks* are an operator's. With *phases*, *node* says
    which part of the hosts is visited now. *shared*: other processes fetch from the same hosts, so
    one request at a time.
    """

    host: Pace = field(default_factory=lambda: Pace(4.0))
    address: Pace = field(default_factory=lambda: Pace(0.5))
    host_max_pages: int = 0
    host_max_depth: int = 0
    domain_max_pages: int = 0
    domain_max_hosts: int = 0
    job_max_pages: int = 0
    retry_times: int = 5
    retry_failed_after: float = 0.0
    retry_failed: frozenset[Event] = frozenset()
    back_off: BackOff = field(default_factory=BackOff)
    overrides: Overrides = field(default_factory=Overrides)
    slots: dict[str, Pace] = field(default_factory=dict)
    start_delay: float = 0.0
    traps: TrapLimits = field(default_factory=TrapLimits)
    blocks: PatternTable[Block] = field(default_factory=PatternTable)
    phases: Phases | None = None
    node: int = 0
    shared: bool = False
    revision: int = 0

    def update(self, **values: Any) -> None:
        """Set fields by name. Raises `AttributeError` for a name that is none."""
        for name, value in values.items():
            setattr(self, name, value)
        if self.phases is not None:
            self.phases = replace(self.phases, node=self.node % self.phases.count)
        self.bump_revision()

    def bump_revision(self) -> None:
        """Say that a rule or a block was put in or taken out."""
        self.revision += 1

    def for_host(self, host: str) -> Pace:
        """The pace of *host*: an override's fields, else the project's slot, else the general."""
        pace = self.slots.get(host, self.host)
        rule = self.overrides.for_host(host)
        if rule is not None:
            pace = Pace(
                pace.delay if rule.delay is None else rule.delay,
                rule.concurrency or pace.concurrency,
                rule.requests_per_visit or pace.burst,
            )
        return Pace(pace.delay) if self.shared else pace

    def for_address(self, address: str) -> Pace:
        pace = self.address
        rule = self.overrides.for_address(address)
        if rule is not None:
            delay = pace.delay if rule.delay is None else rule.delay
            # A delay between the end of one fetch and the start of the next means one at a time.
            pace = Pace(delay, rule.concurrency or pace.concurrency or int(delay > 0))
        return Pace(pace.delay, min(1, pace.concurrency)) if self.shared else pace

    # What a host's rules say before those of its address ("" while it is not known)

    def max_pages(self, host: str, address: str = "") -> int:
        """The page budget of *host*; 0 for none."""
        found = self._closest("max_pages", host, address) if self.overrides.lines else None
        return self.host_max_pages if found is None else int(found)

    def obeys_robots(self, host: str, address: str = "") -> bool | None:
        """Whether robots.txt of *host* is obeyed; None where no rule says so."""
        found = self._closest("robots", host, address)
        return None if found is None else bool(found)

    def user_agent(self, host: str, address: str = "") -> str | None:
        found = self._closest("user_agent", host, address)
        return None if found is None else str(found)

    def _closest(self, name: str, host: str, address: str) -> Any:
        lines = self.overrides.lines
        for line in chain(lines.for_host(host), lines.for_address(address)):
            value = getattr(line.override, name)
            if value is not None:
                return value
        return None

    # Bars: those of a host and those of its address hold together

    @property
    def may_exclude(self) -> bool:
        """Whether any rule, block or phase keeps hosts from being visited."""
        return bool(self.overrides.excludes or self.blocks or self.phases is not None)

    def exclusion(self, host: str, address: str, wall: float) -> Exclusion | None:
        """Why *host*, at *address* ("": unknown), may not be visited at *wall*: what ends last."""
        overrides, blocks = self.overrides, self.blocks
        exclusions: list[Exclusion] = []
        if overrides.excludes:
            exclusions += _exclusions_of_lines(overrides.lines.for_host(host), wall)
            exclusions += _exclusions_of_lines(overrides.lines.for_address(address), wall)
        if blocks:
            exclusions += _exclusions_of_blocks(blocks.for_host(host), wall)
            exclusions += _exclusions_of_blocks(blocks.for_address(address), wall)
        return max(exclusions, key=_until, default=None) if exclusions else None

    def exclusion_of_visit(self, host: str, address: str, wall: float) -> Exclusion | None:
        """`exclusion`, or that *host* is not in its phase (images and robots.txt need no phase)."""
        exclusion, phases = self.exclusion(host, address, wall), self.phases
        if phases is None or (opens := phases.opens(host, wall)) <= wall:
            return exclusion
        words = f"{phase_of(host, phases.count) + 1} of {phases.count}"
        other = _exclusion(_PHASE, opens, _PHASES, words)
        return other if exclusion is None else max(exclusion, other, key=_until)

    def exclusion_of_url(self, url: str, host: str, wall: float) -> Exclusion | None:
        """Why the normal *url* on *host* may not be fetched, where its host may be visited."""
        exclusions = _exclusions_of_blocks(self.blocks.for_url(url, host), wall)
        return max(exclusions, key=_until, default=None)

    def exclusion_of_rule(self, subject: HostPattern, wall: float) -> Exclusion | None:
        """What the rule and the block for *subject* itself keep from being visited at *wall*."""
        line, block = self.overrides.lines.get(subject), self.blocks.get(subject)
        exclusions = list(_exclusions_of_lines(iter(() if line is None else (line,)), wall))
        exclusions += _exclusions_of_blocks(iter(() if block is None else (block,)), wall)
        return max(exclusions, key=_until, default=None)

    def explain(self, host: str, address: str = "") -> list[tuple[str, object, Rule]]:
        """Every rule for *host* at *address*: field, value, rule; the closest first.

        Rules of the host and of its address are both given: they hold for each by itself.
        """
        found: list[tuple[str, object, Rule]] = []
        rules = self.overrides.lines
        for lines in (rules.for_host(host), rules.for_address(address)):
            named: set[str] = set()
            for line in lines:
                for each in fields(line.override):
                    value = getattr(line.override, each.name)
                    if value is not None and each.name not in named:
                        named.add(each.name)
                        found.append((each.name, value, line.rule))
        for block in (*self.blocks.for_host(host), *self.blocks.for_address(address)):
            found.append((_BLOCKED, block.reason or True, block.rule))
        return found


_until = attrgetter("until")


@lru_cache(maxsize=1_024)
def _exclusion(why: str, until: float, rule: Rule, reason: str) -> Exclusion:
    return Exclusion(why, until, rule, reason)


def _exclusions_of_lines(lines: Iterator[OverrideLine], wall: float) -> Iterator[Exclusion]:
    blocked: OverrideLine | None = None
    hours: OverrideLine | None = None
    for line in lines:
        if blocked is None and line.override.blocked is not None:
            blocked = line
        if hours is None and line.override.hours is not None:
            hours = line
    if blocked is not None and blocked.override.blocked:
        yield _exclusion(_BLOCKED, math.inf, blocked.rule, blocked.override.reason or "")
    if hours is not None and hours.override.hours is not None:
        opens = hours.override.hours.opens(wall)
        if opens > wall:
            yield _exclusion(_OUTSIDE, opens, hours.rule, hours.override.hours.text)


def _exclusions_of_blocks(blocks: Iterator[Block], wall: float) -> list[Exclusion]:
    return [
        _exclusion(_BLOCKED, block.until, block.rule, block.reason)
        for block in blocks
        if block.until > wall
    ]
