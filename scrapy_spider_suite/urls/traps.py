"""Traps: spaces of URLs without end, told by the URLs themselves (G8; BUbiNG's 4.8).

Whatever looks like one is judged by three things, each cheap:

- the URL alone (`look`): its length, its segments, one that comes again and again, a date of a far
  year;
- the URLs of its host so far (`Ground.took`, `Ground.crowded`): how many session ids a page has,
  how much of the host lies below one folder;
- what the pages of its host said and led to (`Ground.saw`, `Ground.combined`): a space whose pages
  all say the same is a trap, however its URLs look. Endless calendars, mirrored paths and soft 404s
  end there, and facets where their combinations lead to nothing new.

A `Ground` is bounded: it forgets what matters least when it is full.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final, NamedTuple

import xxhash


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
    HOSTS = "hosts"
    PREFIX = "prefix"
    """Not refused: what lies below a folder that has had its share comes last."""


@dataclass(frozen=True, slots=True)
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
    hosts: int = 0
    prefix: int = 0

    @property
    def any(self) -> bool:
        """Whether there is any limit at all."""
        return any(getattr(self, name) for name in self.__slots__)

    @staticmethod
    def names() -> tuple[str, ...]:
        """Those of the fields."""
        return tuple(each.name for each in fields(Limits))


class Refusal(NamedTuple):
    """Why a URL is refused; *space* is what is closed, "" where the URL alone decides."""

    trap: Trap
    space: str = ""


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


# Spaces: what a URL is one of many of

_VARIABLE: Final = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}|[0-9]+")
"""What differs from page to page: numbers, and tokens that are no words."""
_TOKEN: Final = r"(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}"
_SESSION: Final = re.compile(
    rf"(?:;jsessionid=[^/?&;]+|[?&](?:[a-z]*sess(?:ion)?_?(?:id)?|(?:osc|p)?sid|cftoken|zenid)="
    rf"{_TOKEN}(?=&|$)|(?<=/)\([A-Z]\({_TOKEN}\)\)/)",
    re.I,
)


def spaces(url: str) -> Iterator[str]:
    """The spaces that the normal *url* lies in, each once, the narrowest first.

    Its pattern (numbers and tokens made alike, of the query the names), all queries of its path,
    two folders, the host. URLs with a query have spaces of their own: what is printed or sorted in
    ever new ways says nothing about the pages beside it.
    """
    yield from dict.fromkeys(_spaces(url))


def _spaces(url: str) -> Iterator[str]:
    path, question, query = _local(url).partition("?")
    path = _VARIABLE.sub("0", path)
    if question:
        names = sorted({pair.partition("=")[0] for pair in query.split("&")})
        yield f"{path}?{_VARIABLE.sub('0', '&'.join(names))}"
    yield path + question
    for folder in folders(path):
        yield folder + question
    yield f"/{question}"


def folders(path: str) -> Iterator[str]:
    """The second and the first folder of *path*, as far as it lies in any."""
    first = path.find("/", 1) + 1
    if first:
        second = path.find("/", first) + 1
        if second:
            yield path[:second]
        yield path[:first]


def _local(url: str) -> str:
    """Path and query of a normal *url*."""
    return url[url.index("/", 8) :]


def combination(url: str) -> tuple[str, list[str]]:
    """The path of the normal *url*, and the parameters of its query, each with its value."""
    path, _, query = _local(url).partition("?")
    return path, query.split("&") if query else []


def without_session(url: str) -> tuple[str, str] | None:
    """*url*, from its path on, without its session id, and that; None if it has none."""
    local = _local(url)
    if "=" not in local and "(" not in local:
        return None
    found = _SESSION.search(local)
    return None if found is None else (_SESSION.sub("", local, count=1), found[0])


# What a host has had

MOST: Final = 128
"""Spaces of each kind that a host is remembered by."""
FRESH: Final = 4
"""How many pages that say the same one makes up for that says something new."""
_HOST: Final = ("/", "/?")
_WHOLE_HOST: Final = 4
"""How many times as many it takes to give up a whole host."""
_BITS: Final = 512


def key_of(kind: str, text: str) -> int:
    """The number by which a ground knows a space."""
    return xxhash.xxh3_64_intdigest(f"{kind} {text}".encode())


class Ground:
    """What is known of one host (or, for its hosts, of one registered domain).

    *counts*: by kind, by space, how many pages in a row said the same there, or how many URLs lie
    there: a kind with many spaces drives out none of another. *kinds*: by page, a sketch of how
    many different session ids it had. *closed*: spaces that are traps. None has more than `MOST`
    entries for long. *mined*: how many URLs were tried that nobody linked to.
    """

    __slots__ = ("closed", "counts", "kinds", "mined")

    def __init__(self) -> None:
        self.counts: dict[str, dict[int, int]] = {}
        self.kinds: dict[int, int] = {}
        self.closed: dict[int, Trap] = {}
        self.mined = 0

    def __len__(self) -> int:
        """How much is known; 0 need not be kept."""
        counts = sum(map(len, self.counts.values()))
        return counts + len(self.kinds) + len(self.closed) + self.mined

    # Asking

    def refuses(self, url: str) -> Refusal | None:
        """Why the normal *url* is in a trap, by what is known; None: it is in none."""
        closed = self.closed
        if not closed:
            return None
        for space in spaces(url):
            if key_of("same", space) in closed:
                return Refusal(Trap.SAME, space)
        path, parameters = combination(url)
        if len(parameters) > 1 and key_of("query", path) in closed:
            return Refusal(Trap.QUERY, path)
        session = without_session(url)
        if session is not None and key_of("session", session[0]) in closed:
            return Refusal(Trap.SESSIONS, session[0])
        return None

    # Learning

    def took(self, url: str, limits: Limits) -> bool:
        """The normal *url* is new, and was queued; whether anything is learnt from that."""
        session = without_session(url) if limits.sessions else None
        if session is None:
            return False
        key, text = key_of("session", session[0]), session[1]
        old = self.kinds.get(key, 0)
        new = old | 1 << xxhash.xxh3_64_intdigest(text.encode()) % _BITS
        if new == old or key in self.closed:
            return False
        if _different(new) > limits.sessions:
            self.kinds.pop(key, None)
            self._close("session", session[0], Trap.SESSIONS)
            return True
        self.kinds[key] = new
        if len(self.kinds) > MOST:
            self.kinds = dict(list(self.kinds.items())[MOST // 2 :])
        return True

    def crowded(self, url: str, share: int, room: int) -> int:
        """Count the normal *url*, new and queued; in how many folders it comes after their share.

        That is *share* percent of what was counted, and at least *room* URLs.
        """
        room = max(room, self.add("all", "", 1) * share // 100)
        return sum(
            self.add("below", _VARIABLE.sub("0", folder), 1) > room
            for folder in folders(_local(url).partition("?")[0])
        )

    def saw(self, url: str, limit: int, *, same: bool) -> str | None:
        """A page was fetched at *url*, which says the *same* as an earlier one, or something new.

        Returns the space that is a trap from now on, if one is: when *limit* more pages there said
        the same than new ones make up for, `FRESH` each.
        """
        around = list(spaces(url))
        for at, space in enumerate(around):
            if key_of("same", space) in self.closed:
                break  # it was on its way when that was closed
            most = limit * _WHOLE_HOST if space in _HOST else limit
            if self.add("same", space, 1 if same else -FRESH) >= most:
                self._close("same", space, Trap.SAME)
                # What the wider ones saw there is dealt with.
                for wider in around[at + 1 :]:
                    self.add("same", wider, 1 - limit)
                return space
        return None

    def combined(self, path: str, limit: int, *, vain: bool) -> bool:
        """A page was fetched at *path* whose query combines values that others of it had.

        *vain*: it led to nothing new but more queries of that path. Whether that makes the
        combinations a trap: when *limit* more were in vain than others make up for, `FRESH` each.
        """
        if key_of("query", path) in self.closed:
            return False
        if self.add("query", path, 1 if vain else -FRESH) < limit:
            return False
        self._close("query", path, Trap.QUERY)
        return True

    def _close(self, kind: str, space: str, trap: Trap) -> None:
        key = key_of(kind, space)
        self.counts.get(kind, {}).pop(key, None)
        self.closed[key] = trap
        if len(self.closed) > MOST:
            self.closed = dict(list(self.closed.items())[MOST // 2 :])

    def count(self, kind: str, space: str) -> int:
        """A count of a *kind*; 0 if there is none."""
        return self.counts.get(kind, {}).get(key_of(kind, space), 0)

    def add(self, kind: str, space: str, change: int) -> int:
        """Change a count of a *kind*, and return it; one of 0 or less is none."""
        key, counts = key_of(kind, space), self.counts.setdefault(kind, {})
        count = counts.get(key, 0) + change
        if count <= 0:
            counts.pop(key, None)
            return 0
        counts[key] = count
        if len(counts) > MOST:
            largest = sorted(counts.items(), key=lambda item: item[1], reverse=True)
            self.counts[kind] = dict(largest[: MOST // 2])
        return count


def _different(sketch: int) -> int:
    """How many different things a *sketch* of 512 bits has seen (linear counting, Whang 1990)."""
    empty = _BITS - sketch.bit_count()
    return round(_BITS * math.log(_BITS / empty)) if empty else _NO_LIMIT
