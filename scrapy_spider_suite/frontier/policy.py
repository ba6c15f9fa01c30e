"""How fast, how much and whether a host may be visited: rules by host or address, hours, phases."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.outcomes import BackOff, Event, Pace
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind, PatternTable
from scrapy_spider_suite.urls.hosts import phase_of
from scrapy_spider_suite.urls.traps import TrapLimits

DAY = 86_400.0
_RANGE = re.compile(r"(\d{1,2})(?::(\d\d))?-(\d{1,2})(?::(\d\d))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hours:
    """Times of day as written (``22-6,8:30-12``), and sorted *spans* of a UTC day, in seconds."""

    text: str
    spans: tuple[tuple[float, float], ...]

    @classmethod
    def parse(cls, text: str) -> Hours:
        """Read ranges separated by commas; they may cross midnight. Raises `ValueError`."""
        parts: list[tuple[float, float]] = []
        for word in text.split(","):
            begin, end = _range(word)
            # 22-6 is 0-6 and 22-24.
            parts += [(begin, end)] if begin < end else [(0.0, end), (begin, DAY)]
        spans: list[tuple[float, float]] = []
        for begin, end in sorted(part for part in parts if part[0] < part[1]):
            if spans and begin <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(end, spans[-1][1])
            else:
                spans.append((begin, end))
        return cls(text, tuple(spans))

    def opens(self, wall: float) -> float:
        """When a visit may begin next (seconds since the epoch): *wall* itself, if now."""
        midnight = wall // DAY * DAY
        clock = wall - midnight
        for begin, end in self.spans:
            if clock < end:
                return max(wall, midnight + begin)
        return midnight + DAY + self.spans[0][0]


def _range(word: str) -> tuple[float, float]:
    match = _RANGE.fullmatch(word.strip())
    if match is None:
        raise ValueError(f"{word!r} is no range of hours")
    begin, end = (
        3600.0 * int(match[group]) + 60.0 * int(match[group + 1] or 0) for group in (1, 3)
    )
    if begin == end or max(begin, end) > DAY or any(int(match[m] or 0) > 59 for m in (2, 4)):
        raise ValueError(f"{word!r} is no range of hours")
    return begin, end


@dataclass(frozen=True, slots=True)
class Rule:
    """The *source* of a rule (file with line, or a command), and its pattern."""

    subject: str
    source: str

    def __str__(self) -> str:
        return f"{self.subject}, {self.source}"


@dataclass(frozen=True, slots=True)
class Override:
    delay: float | None = None
    concurrency: int | None = None
    requests_per_visit: int | None = None
    max_pages: int | None = None
    robots: bool | None = None
    user_agent: str | None = None
    blocked: bool | None = None
    reason: str | None = None
    hours: Hours | None = None
    pipelining: bool | None = None


@dataclass(frozen=True, slots=True)
class OverrideLine:
    rule: Rule
    override: Override


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def _words(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(text)
    return text


def _ascii_words(text: str) -> str:
    if not text.isascii():
        raise ValueError(text)
    return _words(text)


_FIELDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "delay": (_seconds, "a number of seconds, 0 or more"),
    "concurrency": (_whole(1, 1000), "a whole number from 1 to 1000"),
    "requests_per_visit": (_whole(1, 20), "a whole number from 1 to 20"),
    "pipelining": ({"yes": True, "no": False}.__getitem__, "yes or no"),
    "max_pages": (_whole(0, 2**31 - 1), "a whole number, 0 for no limit"),
    "robots": ({"obey": True, "ignore": False}.__getitem__, "obey or ignore"),
    "user_agent": (_ascii_words, "printable ASCII characters, quoted if there are spaces"),
    "blocked": ({"yes": True, "no": False}.__getitem__, "yes or no"),
    "reason": (_words, "some words, quoted if there are spaces"),
    "hours": (Hours.parse, "ranges of hours such as 22-6 or 8:30-12,13-17 (UTC)"),
}
"""The parser of each field, which raises `KeyError` or `ValueError`, and the values it allows."""


class Overrides:
    def __init__(self) -> None:
        self.lines: PatternTable[OverrideLine] = PatternTable()
        self.excludes = False
        """Whether any rule keeps a host from being visited, for some hours or at all."""
        self.longest_delay = 0.0  # seconds; the longest that a rule sets

    @classmethod
    def parse(cls, lines: Iterable[str], source: str) -> Overrides:
        """Read rules; *source* names the file. Raises `SettingsError` with the line's number."""
        rules = cls()
        for number, line in enumerate(lines, 1):
            where = f"{source}, line {number}"
            try:
                if '"' in line or "'" in line or "\\" in line:
                    words = shlex.split(line, comments=True)
                else:
                    words = line.partition("#")[0].split()
                if words:
                    rules._add(HostPattern.parse(words[0]), _parse_fields(words[1:]), where)
            except ValueError as error:
                raise SettingsError(f"SUITE_OVERRIDES: {where}: {error}") from None
        return rules

    def _add(self, subject: HostPattern, override: Override, where: str) -> None:
        if subject.kind is PatternKind.PREFIX:
            raise ValueError(f"{str(subject)!r} is no host, .domain or address range")
        for name in ("requests_per_visit", "pipelining"):
            if subject.kind is PatternKind.RANGE and getattr(override, name) is not None:
                raise ValueError(f"{name} belongs to hosts, not to address ranges")
        earlier = self.lines.get(subject)
        if earlier is not None:
            number = earlier.rule.source.rpartition(" ")[2]
            raise ValueError(f"{subject} has a rule already, on line {number}")
        self.lines.put(subject, OverrideLine(Rule(str(subject), where), override))
        self.longest_delay = max(self.longest_delay, override.delay or 0.0)
        self.excludes = self.excludes or bool(override.blocked) or override.hours is not None

    def __len__(self) -> int:
        return len(self.lines)

    def for_host(self, host: str) -> Override | None:
        return _merged(self.lines.for_host(host))

    def for_address(self, address: str) -> Override | None:
        """The override of a numeric *address*: each field by the narrowest range that names it."""
        return _merged(self.lines.for_address(address))


def _merged(lines: Iterator[OverrideLine]) -> Override | None:
    first = next(lines, None)
    if first is None:
        return None
    found = first.override
    for line in lines:
        values = {}
        for name in _FIELDS:
            mine = getattr(found, name)
            values[name] = getattr(line.override, name) if mine is None else mine
        found = Override(**values)
    return found


def _parse_fields(words: list[str]) -> Override:
    if not words:
        raise ValueError("nothing to change: expected e.g. delay=10")
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in _FIELDS:
            raise ValueError(f"{word!r}: expected one of {', '.join(_FIELDS)} and a value")
        if name in values:
            raise ValueError(f"{word!r}: {name} stands twice on the line")
        parse, allowed = _FIELDS[name]
        try:
            values[name] = parse(text)
        except (KeyError, ValueError):
            raise ValueError(f"{word!r}: expected {allowed}") from None
    if "reason" in values and not values.get("blocked"):
        raise ValueError("reason belongs to blocked=yes")
    return Override(**values)


@dataclass(frozen=True, slots=True)
class Phases:
    """*count* phases of *seconds*; in the last *guard* no fetch begins. Raises `ValueError`."""

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
    """The pace of hosts and addresses (seconds), and limits of hosts and job; 0: no limit."""

    host: Pace = field(default_factory=lambda: Pace(4.0))
    address: Pace = field(default_factory=lambda: Pace(0.5))  # concurrency 0: sets none
    host_max_pages: int = 0
    host_max_depth: int = 0
    domain_max_pages: int = 0
    domain_max_hosts: int = 0
    job_max_pages: int = 0
    retry_times: int = 5
    retry_failed_after: float = 0.0  # until a link makes a URL pending again that failed ...
    retry_failed: frozenset[Event] = frozenset()  # ... for one of these reasons
    back_off: BackOff = field(default_factory=BackOff)
    overrides: Overrides = field(default_factory=Overrides)
    slots: dict[str, Pace] = field(default_factory=dict)  # by pacing key: ``DOWNLOAD_SLOTS``
    start_delay: float = 0.0  # the least first delay, where something measures it
    traps: TrapLimits = field(default_factory=TrapLimits)
    blocks: PatternTable[Block] = field(default_factory=PatternTable)  # an operator's
    phases: Phases | None = None
    node: int = 0
    shared: bool = False  # other processes fetch from the same hosts: one request at a time
    revision: int = 0  # another one once a rule or a block was put in or taken out

    def update(self, **values: Any) -> None:
        """Set fields by name. Raises `AttributeError` for a name that is none."""
        for name, value in values.items():
            setattr(self, name, value)
        if self.phases is not None:
            self.phases = replace(self.phases, node=self.node % self.phases.count)
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

    def pipelines(self, host: str) -> bool:
        """Whether the requests of one visit to *host* are sent together."""
        rule = self.overrides.for_host(host)
        return rule is not None and bool(rule.pipelining)

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
        """Every rule for *host*, then for *address*: field, value, rule; the closest first."""
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
