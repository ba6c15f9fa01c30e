"""Traps: spaces of URLs without end: which there are, and what a URL betrays by itself (G8).

Whatever looks like one is judged by three things, each cheap:

- the URL alone (`look`): its length, its segments, one that comes again and again, a date of a far
  year;
- the URLs of its host so far (`ground.Ground.crowded`): how much of it lies below one folder;
- what the pages of its host said and led to (the rest of `ground.Ground`): a space whose pages all
  say the same is a trap, however its URLs look. Endless calendars, mirrored paths and soft 404s end
  there, facets where their combinations say and lead to nothing new, session ids where a page says
  the same with each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

_Name = TypeVar("_Name", bound=str)


class Trap(StrEnum):
    """What a URL is refused for: the last word of the stat that counts it, and of its setting."""

    LENGTH = "length"
    SEGMENTS = "segments"
    REPEATS = "repeats"
    CALENDAR = "calendar"
    PERMUTED = "permuted"
    QUERY = "query"
    SESSIONS = "sessions"
    SAME = "same"
    NUMBERS = "numbers"
    """Refused with SUITE_TRAP_NUMBERS; else the pages come last, as with `PREFIX`."""
    HOSTS = "hosts"
    PREFIX = "prefix"
    """Not refused: what lies below a folder that has had its share comes last."""


@dataclass(frozen=True)
class Limits:
    """How much of each is allowed; 0 is no limit. `docs/traps.md` says what each means."""

    length: int = 0
    segments: int = 0
    repeats: int = 0
    calendar: int = 0
    permuted: int = 0
    query: int = 0
    sessions: int = 0
    same: int = 0
    numbers: int = 0
    hosts: int = 0
    prefix: int = 0

    @cached_property  # every link asks
    def any(self) -> bool:
        """Whether there is any limit at all."""
        return any(getattr(self, name) for name in self.names())

    @staticmethod
    def names() -> tuple[str, ...]:
        """Those of the fields."""
        return tuple(each.name for each in fields(Limits))


class Refusal(NamedTuple):
    """Why a URL is refused; *space* is what is closed, "" where the URL alone decides."""

    trap: Trap
    space: str = ""

    def __str__(self) -> str:
        return _WORDS[self.trap].format(self.space)


_WORDS: Final = {
    Trap.LENGTH: "longer than pages' URLs are",
    Trap.SEGMENTS: "its path has more segments than pages' have",
    Trap.REPEATS: "a segment comes again and again in its path",
    Trap.CALENDAR: "a date in it is years ahead",
    Trap.PERMUTED: "{} has the same parameters in another order",
    Trap.QUERY: "the queries of {} combine what was there, and lead to nothing new",
    Trap.SESSIONS: "{} comes with ever new session ids",
    Trap.SAME: "the pages of {} all said the same",
    Trap.NUMBERS: "the pages of {} differ in numbers alone",
    Trap.HOSTS: "the hosts of {} all said the same",
    Trap.PREFIX: "{} has had its share of the host: it comes after the others",
}

def counts_of(met: Mapping[_Name, int]) -> str:
    """How many URLs were *met* in traps, on a line, the most first."""
    most_first = sorted(met.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count}" for name, count in most_first)


# The URL alone

# Between slashes, or the whole value of a parameter: numbers of things look like years, too, and
# `/t/topic/2101/12` is the twelfth answer. So a month has a zero before it, or a day behind it.
_DATE: Final = re.compile(
    r"[/=]([12][0-9]{3})[/-](?:0[1-9](?:[/-][0-9]{1,2})?|(?:[1-9]|1[0-2])[/-][0-9]{1,2})(?=[/&?]|$)"
    r"|[?&](?:year|yr)=([12][0-9]{3})(?=&|$)"
)
_CENTURIES: Final = 300
"""Years ahead beyond which a number is none."""
_SCHEME_AND_HOST: Final = 3  # slashes before the path
_NO_LIMIT: Final = 1 << 30


def harmless(limits: Limits, year: int) -> Callable[[str], bool]:
    """A quick look in the *year* (AD): of which URLs `look` need not be asked, as most of them."""
    longest = limits.length or _NO_LIMIT
    least = min(limits.segments or _NO_LIMIT, limits.repeats or _NO_LIMIT)
    slashes = least + _SCHEME_AND_HOST - 1
    decade = str(year + limits.calendar + 1).zfill(4)[:3]
    ahead = re.compile(rf"[/=](?:{decade[:2]}[{decade[2]}-9]|2[1-9])[0-9](?![0-9])").search
    dates = bool(limits.calendar)

    def is_harmless(url: str) -> bool:
        if len(url) > longest or url.count("/") > slashes:
            return False
        return not (dates and ("/2" in url or "=2" in url) and ahead(url))

    return is_harmless


def look(url: str, limits: Limits, year: int) -> Trap | None:
    """Which trap the normal *url* betrays by itself, in the *year* (AD); None: none."""
    if 0 < limits.length < len(url):
        return Trap.LENGTH
    slashes = url.count("/")
    if 0 < limits.segments <= slashes - _SCHEME_AND_HOST and _segments(url) > limits.segments:
        return Trap.SEGMENTS
    if 0 < limits.repeats <= slashes - _SCHEME_AND_HOST and _repeats(url, limits.repeats):
        return Trap.REPEATS
    if limits.calendar and ("/2" in url or "=2" in url):
        for found in _DATE.finditer(url):
            ahead = int(found[1] or found[2]) - year
            if limits.calendar < ahead < _CENTURIES:
                return Trap.CALENDAR
    return None


def _path(url: str) -> list[str]:
    return url.partition("?")[0].split("/")[_SCHEME_AND_HOST:]


def _segments(url: str) -> int:
    """How many segments the path of *url* has."""
    return len([segment for segment in _path(url) if segment])


def _repeats(url: str, limit: int) -> bool:
    """Whether any segment comes more often than *limit* times in the path of *url*."""
    parts = url.split("/")
    if len(parts) - len(set(parts)) < limit:
        return False  # what comes n times leaves n - 1 over
    return max(Counter(filter(None, _path(url))).values(), default=0) > limit
