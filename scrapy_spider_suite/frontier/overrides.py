"""Rules for hosts, domains and address ranges: parsed, merged and looked up; hours of the day."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.urls.host_patterns import HostPattern, PatternKind, PatternTable

DAY = 86_400.0
_RANGE = re.compile(r"(\d{1,2})(?::(\d\d))?-(\d{1,2})(?::(\d\d))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hours:
    """Times of day as written (``22-6``, ``8:30-12,13-17:15``), and as seconds of a UTC day.

    Invariant: *spans* are sorted, none of them is empty, and no two touch.
    """

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
    """What one line changes; None leaves the general setting alone."""

    delay: float | None = None
    concurrency: int | None = None
    requests_per_visit: int | None = None
    max_pages: int | None = None
    robots: bool | None = None
    user_agent: str | None = None
    blocked: bool | None = None
    reason: str | None = None
    hours: Hours | None = None


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
    "max_pages": (_whole(0, 2**31 - 1), "a whole number, 0 for no limit"),
    "robots": ({"obey": True, "ignore": False}.__getitem__, "obey or ignore"),
    "user_agent": (_ascii_words, "printable ASCII characters, quoted if there are spaces"),
    "blocked": ({"yes": True, "no": False}.__getitem__, "yes or no"),
    "reason": (_words, "some words, quoted if there are spaces"),
    "hours": (Hours.parse, "ranges of hours such as 22-6 or 8:30-12,13-17 (UTC)"),
}
"""The parser of each field, which raises `KeyError` or `ValueError`, and the values it allows."""


class Overrides:
    """The rules of one file, looked up by host or by address."""

    def __init__(self) -> None:
        self.lines: PatternTable[OverrideLine] = PatternTable()
        self.excludes = False
        """Whether any rule keeps a host from being visited, for some hours or at all."""
        self.longest_delay = 0.0
        """Seconds; the longest that a rule sets."""

    @classmethod
    def parse(cls, lines: Iterable[str], source: str) -> Overrides:
        """Read rules; *source* names the file in errors. Raises `SettingsError` with the line's
        number.
        """
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
        if subject.kind is PatternKind.RANGE and override.requests_per_visit is not None:
            raise ValueError("requests_per_visit belongs to hosts, not to address ranges")
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
