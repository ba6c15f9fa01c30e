"""Phases: a part of the hosts at a time, by the clock on the wall alone (KSpider, §2.2; K4-K8).

The paper does not print when which phase is active, only that on each node exactly one is, that no
two nodes have the same one, and that nodes do not speak when they swap (K6, K7). Here node *n* has
phase ``(n + t // T) mod N`` at time *t*. Nor does it say what becomes of fetches that are under way
at a swap: a guard at the end of each turn, in which none begins, leaves them time to end.

Who may be visited, how often and as whom: the general settings, and what comes before them.

One policy is shared by all that decide. It changes while a crawl runs (`Policy.change`); what
keeps an answer of it keeps its *revision*, too, and asks again when that has moved on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
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

    Nodes are numbered from 0, the clocks of all are those of the wall (seconds since 1970). Raises
    `ValueError` for numbers that make no phases; there are at least as many as nodes (K5).
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

    def of(self, host: str) -> int:
        """The phase of *host* (K4)."""
        return phase_of(host, self.count)

    def active(self, wall: float) -> int:
        """The phase that is active here at *wall* (K6)."""
        return (self.node + int(wall // self.seconds)) % self.count

    def opens(self, host: str, wall: float) -> float:
        """When a fetch of *host* may begin next: *wall* itself, if now."""
        turn = int(wall // self.seconds)
        ahead = (self.of(host) - self.node - turn) % self.count
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
    """Of whom the rule was by which a host waits for *words*; None if it is no one's."""
    why, parenthesis, rest = words.partition(" (")
    if not parenthesis or why not in (_BLOCKED, _OUTSIDE):
        return None
    try:
        return HostPattern.parse(rest.partition(",")[0])
    except ValueError:
        return None


@dataclass(slots=True)
class Policy:
    """The pace of hosts and addresses (seconds), and how much is asked of a host.

    *host_max_pages*, *host_max_depth*, *domain_max_pages*, *domain_max_hosts* (of a registered
    domain) and *job_max_pages* 0 mean no limit. *address* concurrency 0: addresses set none.
    *slots* are a project's own paces by pacing key (Scrapy's ``DOWNLOAD_SLOTS``). *start_delay* is
    the least delay that a host begins with, where something measures and changes it afterwards.
    *retry_failed_after* 0 means that what failed is never tried again, otherwise it is so for the
    reasons *retry_failed*, so many seconds later, when a link leads there.
    *traps* say what is taken for one. *blocks* are an operator's, beside those of the file.
    With *phases* a part of the hosts is visited at a time, which of them as on the *node* of that
    number, modulo them. *shared* are hosts and addresses that
    others fetch from, too: one request at a time, whatever the paces say.
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

    # Changing it

    def change(self, **values: Any) -> None:
        """Set fields by name. Raises `AttributeError` for a name that is none."""
        for name, value in values.items():
            setattr(self, name, value)
        if self.phases is not None:
            self.phases = replace(self.phases, node=self.node % self.phases.count)
        self.changed()

    def changed(self) -> None:
        """Say that a rule or a block was put in or taken out."""
        self.revision += 1

    # Pace

    def of_host(self, host: str) -> Pace:
        """The pace of *host*: an override's fields, else the project's slot, else the general."""
        pace = self.slots.get(host, self.host)
        rule = self.overrides.for_host(host)
        if rule is not None:
            pace = Pace(
                pace.delay if rule.delay is None else rule.delay,
                rule.concurrency or pace.concurrency,
                rule.burst or pace.burst,
            )
        return Pace(pace.delay) if self.shared else pace

    def of_address(self, address: str) -> Pace:
        """The pace of a numeric *address*."""
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
        found = self._closest("max_pages", host, address) if self.overrides else None
        return self.host_max_pages if found is None else int(found)

    def obeys_robots(self, host: str, address: str = "") -> bool | None:
        """Whether robots.txt of *host* is obeyed; None where no rule says so."""
        found = self._closest("robots", host, address)
        return None if found is None else bool(found)

    def user_agent(self, host: str, address: str = "") -> str | None:
        """The User-Agent for *host*; None where no rule names one."""
        found = self._closest("user_agent", host, address)
        return None if found is None else str(found)

    def _closest(self, name: str, host: str, address: str) -> Any:
        for line in self._lines(host, address):
            value = getattr(line.override, name)
            if value is not None:
                return value
        return None

    def _lines(self, host: str, address: str) -> Iterator[OverrideLine]:
        yield from self.overrides.lines_for_host(host)
        yield from self.overrides.lines_for_address(address)

    # Bars: those of a host and those of its address hold together

    def exclusion(self, host: str, address: str, wall: float) -> Exclusion | None:
        """Why *host*, at *address* ("" while it is not known), may not be visited at *wall*.

        The exclusion that ends last, if there are several.
        """
        overrides, blocks = self.overrides, self.blocks
        exclusions: list[Exclusion] = []
        if overrides.excludes:
            exclusions += _exclusions_of_lines(overrides.lines_for_host(host), wall)
            exclusions += _exclusions_of_lines(overrides.lines_for_address(address), wall)
        if blocks:
            exclusions += _exclusions_of_blocks(blocks.of_host(host), wall)
            exclusions += _exclusions_of_blocks(blocks.of_address(address), wall)
        return max(exclusions, key=_until, default=None) if exclusions else None

    def exclusion_of_visit(self, host: str, address: str, wall: float) -> Exclusion | None:
        """`exclusion`, or that *host* is not in its phase (images and robots.txt need no phase)."""
        exclusion, phases = self.exclusion(host, address, wall), self.phases
        if phases is None or (opens := phases.opens(host, wall)) <= wall:
            return exclusion
        other = _exclusion(_PHASE, opens, _PHASES, f"{phases.of(host) + 1} of {phases.count}")
        return other if exclusion is None else max(exclusion, other, key=_until)

    def exclusion_of_url(self, url: str, host: str, wall: float) -> Exclusion | None:
        """Why the normal *url* on *host* may not be fetched, where its host may be visited."""
        exclusions = _exclusions_of_blocks(self.blocks.of_url(url, host), wall)
        return max(exclusions, key=_until, default=None)

    def exclusion_of_rule(self, subject: HostPattern, wall: float) -> Exclusion | None:
        """What the rule and the block for *subject* itself keep from being visited at *wall*."""
        line, block = self.overrides.line(subject), self.blocks.get(subject)
        exclusions = list(_exclusions_of_lines(iter(() if line is None else (line,)), wall))
        exclusions += _exclusions_of_blocks(iter(() if block is None else (block,)), wall)
        return max(exclusions, key=_until, default=None)

    # Saying why

    def explain(self, host: str, address: str = "") -> list[tuple[str, object, Rule]]:
        """Every rule that holds for *host* at *address*: what it sets, to what, and who said so.

        The closest first; of the two for one field, one of the host and one of its address, both
        are given, since delays, hours and blocks hold for each by itself.
        """
        found: list[tuple[str, object, Rule]] = []
        overrides = self.overrides
        for lines in (overrides.lines_for_host(host), overrides.lines_for_address(address)):
            named: set[str] = set()
            for line in lines:
                for name, value in line.override.given():
                    if name not in named:
                        named.add(name)
                        found.append((name, value, line.rule))
        for block in (*self.blocks.of_host(host), *self.blocks.of_address(address)):
            found.append((_BLOCKED, block.reason or True, block.rule))
        return found


@lru_cache(maxsize=1_024)
def _exclusion(why: str, until: float, rule: Rule, reason: str) -> Exclusion:
    """A exclusion; one for all the hosts that one rule holds."""
    return Exclusion(why, until, rule, reason)


def _until(exclusion: Exclusion) -> float:
    return exclusion.until


def _exclusions_of_lines(lines: Iterator[OverrideLine], wall: float) -> Iterator[Exclusion]:
    """The exclusions of rules that lie within one another, the closest first: it decides."""
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
