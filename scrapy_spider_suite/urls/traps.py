"""Traps: endless spaces of URLs, and the evidence for them (BUbiNG's 4.8); neighbours of a URL.

Judged are the URL alone (`trap_of_url`), the share of a folder in its host, and the pages of a
space: those that say nothing new make it suspect, one that does makes up for
`NEW_PAGE_WEIGHT` of them. Folders and siblings are mined (Tarantula's §1 and §5.1).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import combinations
from operator import methodcaller
from typing import Final, NamedTuple, TypeVar

import xxhash

RUNS_MAX: Final = 3  # numbers of a path, from its end, of which siblings are made
DIGITS_MAX: Final = 6  # digits of a number beyond which it is no page's: it is an id, or a time

# No digit of an escape: "%20" is no page 20.
_NUMBER: Final = re.compile(r"(?<![%0-9])(?<!%[0-9A-F])[0-9]+")


def ancestors(url: str) -> list[str]:
    """The folders above the normal *url*, the closest first (bottom-up)."""
    path = url.partition("?")[0]
    root = path.index("/", 8) + 1
    found = []
    while len(path) > root:
        path = path[: path.rfind("/", 0, -1) + 1]
        found.append(path)
    return found


def siblings(url: str) -> list[str]:
    """The URLs with one number in the path of *url* one more or less; none if it has a query."""
    if "?" in url:
        return []
    root = url.index("/", 8)
    found = []
    for run in [*_NUMBER.finditer(url, root)][: -RUNS_MAX - 1 : -1]:
        digits = run[0]
        if len(digits) > DIGITS_MAX:
            continue
        width = len(digits) if digits.startswith("0") else 0
        for number in (int(digits) + 1, int(digits) - 1):
            if number > 0:
                found.append(f"{url[: run.start()]}{number:0{width}}{url[run.end() :]}")
    return found


def guess_folder(url: str) -> str:
    """The folder of a mined *url*, with all numbers replaced: misses count for it."""
    path = url[url.index("/", 8) :]
    kind = "folders" if path.endswith("/") else "pages"
    return f"{kind} in {_NUMBER.sub('0', path[: path.rfind('/', 0, -1) + 1])}"


class QueryOrders:
    """Remembers the orders of parameters of some 260,000 queries, in 2 MiB."""

    def __init__(self, slots: int = 1 << 18) -> None:
        self._slots = slots
        self._table: array[int] | None = None

    def note(self, url: str) -> None:
        if "&" not in url:
            return
        if self._table is None:
            self._table = array("Q", bytes(8 * self._slots))
        whole, order = _numbers(url)
        if self._table[whole % self._slots] & ~0xFFFF != whole & ~0xFFFF:
            self._table[whole % self._slots] = whole & ~0xFFFF | order

    def has_other_order(self, url: str) -> bool:
        if self._table is None or "&" not in url:
            return False
        whole, order = _numbers(url)
        known = self._table[whole % self._slots]
        return known & ~0xFFFF == whole & ~0xFFFF and known & 0xFFFF != order


def sorted_query(url: str) -> str:
    path, _, query = url.partition("?")
    return f"{path}?{'&'.join(sorted(query.split('&')))}"


def _numbers(url: str) -> tuple[int, int]:
    """A number of the URL in any order, and one of 16 bits of its order."""
    query = url.partition("?")[2]
    whole = xxhash.xxh3_64_intdigest(sorted_query(url).encode())
    return whole, xxhash.xxh3_64_intdigest(query.encode()) & 0xFFFF


VARIABLE: Final = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}|[0-9]+")
"""Numbers, and tokens that are no words: they differ from page to page."""
_TOKEN: Final = r"(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}"
_SESSION: Final = re.compile(
    rf"(?P<semicolon>;jsessionid)=(?P<java>[^/?&;]+)"
    rf"|[?&](?P<name>[a-z]*sess(?:ion)?_?(?:id)?|(?:osc|p)?sid|cftoken|zenid)=(?P<value>{_TOKEN})"
    rf"(?=&|$)|(?<=/)(?P<bracket>\([A-Z])\((?P<net>{_TOKEN})\)\)/",
    re.I,
)


def spaces(url: str) -> Iterator[str]:
    """Pattern, queries of the path, two folders, the host of *url*; the narrowest first."""
    path, question, query = path_and_query(url).partition("?")
    path = VARIABLE.sub("0", path)
    found = []
    if question:
        names = sorted({pair.partition("=")[0] for pair in query.split("&")})
        found.append(f"{path}?{VARIABLE.sub('0', '&'.join(names))}")
    found.append(path + question)
    found += [folder + question for folder in folders(path)]
    found.append(f"/{question}")
    yield from dict.fromkeys(found)


def folders(path: str) -> Iterator[str]:
    first = path.find("/", 1) + 1
    if first:
        second = path.find("/", first) + 1
        if second:
            yield path[:second]
        yield path[:first]


def path_and_query(url: str) -> str:
    return url[url.index("/", 8) :]


def split_query(url: str) -> tuple[str, list[str]]:
    path, _, query = path_and_query(url).partition("?")
    return path, query.split("&") if query else []


def sorted_names(parameters: list[str]) -> tuple[str, ...]:
    return tuple(sorted({each.partition("=")[0] for each in parameters}))


class Session(NamedTuple):
    page: str
    name: str
    token: str


def session_of(url: str) -> Session | None:
    if "=" not in url and "(" not in url:
        return None
    path = path_and_query(url)
    found = _SESSION.search(path)
    if found is None:
        return None
    before, after = path[: found.start()], path[found.end() :]
    if found[0].startswith("?") and after:
        after = f"?{after[1:]}"
    name = found["semicolon"] or found["name"] or found["bracket"]
    return Session(before + after, name.lower(), found["java"] or found["value"] or found["net"])


_Name = TypeVar("_Name", bound=str)


class Trap(StrEnum):
    """Why a URL is refused; *threshold*: beyond how much the detector does so (`TrapLimits`)."""

    threshold: int
    words: str

    def __new__(cls, value: str, threshold: int = 0, words: str = "") -> Trap:
        trap = str.__new__(cls, value)
        trap._value_, trap.threshold, trap.words = value, threshold, words
        return trap

    LENGTH = "length", 1024, "longer than pages' URLs are"
    SEGMENTS = "segments", 24, "its path has more segments than pages' have"
    REPEATS = "repeats", 4, "a segment comes again and again in its path"
    CALENDAR = "calendar", 10, "a date in it is years ahead"
    PERMUTED = "permuted", 1, "{} has the same parameters in another order"
    QUERY = "query", 64, "the queries of {} combine what was there, and lead to nothing new"
    SESSIONS = "sessions", 8, "{} comes with ever new session ids"
    SAME = "same", 24, "the pages of {} all said the same"
    NUMBERS = "numbers", 1, "the pages of {} differ in numbers alone"
    """Refused with ``numbers=fail`` in SUITE_TRAPS; else the pages come last, as with `PREFIX`."""
    HOSTS = "hosts", 24, "the hosts of {} all said the same"
    PREFIX = "prefix", 50, "{} has had its share of the host: it comes after the others"
    """Not refused: what lies below a folder that has had its share comes last."""


DETECTORS: Final = tuple(f"{trap}={'last' if trap is Trap.PREFIX else 'fail'}" for trap in Trap)
"""The values of SUITE_TRAPS: each detector, and what becomes of the URLs that it finds."""


@dataclass(frozen=True)
class TrapLimits:
    """The limit of each detector; 0 is no limit. docs/traps.md explains them."""

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

    @classmethod
    def from_detectors(cls, detectors: Collection[str]) -> TrapLimits:
        traps = [Trap(each.partition("=")[0]) for each in detectors]
        return cls(**{trap.value: trap.threshold for trap in traps})

    @cached_property  # every link asks
    def any(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))


class TrapRefusal(NamedTuple):
    """Why a URL is refused; *space* is the closed space, "" where the URL alone decides."""

    trap: Trap
    space: str = ""

    def __str__(self) -> str:
        return self.trap.words.format(self.space)


def format_counts(met: Mapping[_Name, int]) -> str:
    most_first = sorted(met.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count}" for name, count in most_first)


# The URL alone

# Between slashes, or the whole value of a parameter: numbers of things look like years, too, and
# `/t/topic/2101/12` is the twelfth answer. So a month has a zero before it, or a day behind it.
_DATE: Final = re.compile(
    r"[/=]([12][0-9]{3})[/-](?:0[1-9](?:[/-][0-9]{1,2})?|(?:[1-9]|1[0-2])[/-][0-9]{1,2})(?=[/&?]|$)"
    r"|[?&](?:year|yr)=([12][0-9]{3})(?=&|$)"
)
_CENTURIES: Final = 300  # years ahead beyond which a number is none
_SCHEME_AND_HOST: Final = 3  # slashes before the path
_NO_LIMIT: Final = 1 << 30
_slashes_of = methodcaller("count", "/")


class QuickTest:
    """Finds URLs in which `trap_of_url` finds nothing in the *year* (AD)."""

    def __init__(self, limits: TrapLimits, year: int) -> None:
        least = min(limits.segments or _NO_LIMIT, limits.repeats or _NO_LIMIT)
        decade = str(year + limits.calendar + 1).zfill(4)[:3]
        self._longest = limits.length or _NO_LIMIT
        self._slashes = least + _SCHEME_AND_HOST - 1
        self._dates = bool(limits.calendar)
        # It begins with a literal: so it is searched for in a ninth of the time.
        ahead = rf"2(?<=[/=]2)(?:{decade[1]}[{decade[2]}-9]|[1-9][0-9])[0-9](?![0-9])"
        self._ahead = re.compile(ahead).search

    def passes(self, urls: list[str]) -> bool:
        """Whether nothing is found in any of *urls*."""
        if not urls:
            return True
        if max(map(len, urls)) > self._longest or max(map(_slashes_of, urls)) > self._slashes:
            return False
        if not self._dates:
            return True
        text = " ".join(urls)
        return not (("/2" in text or "=2" in text) and self._ahead(text))


def trap_of_url(url: str, limits: TrapLimits, year: int) -> Trap | None:
    """The trap that the normal *url* alone betrays in the *year* (AD), or None."""
    if 0 < limits.length < len(url):
        return Trap.LENGTH
    slashes = url.count("/")
    deep = 0 < limits.segments <= slashes - _SCHEME_AND_HOST
    if deep and sum(map(bool, _path(url))) > limits.segments:
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


def _repeats(url: str, limit: int) -> bool:
    parts = url.split("/")
    if len(parts) - len(set(parts)) < limit:
        return False  # what comes n times leaves n - 1 over
    return max(Counter(filter(None, _path(url))).values(), default=0) > limit


MAX_COUNTS: Final = 128  # remembered spaces of each kind, by host
NEW_PAGE_WEIGHT: Final = 4  # pages that say the same for which a page with something new makes up
NEW_LINK_WEIGHT: Final = 16  # queries in vain for which a query makes up that leads to a new page
PAGES_TO_JUDGE: Final = 2  # pages by which an unknown set of names is judged
_NAMES: Final = 8  # names of a query that are compared in pairs
_HOST: Final = ("/", "/?")
_WHOLE_HOST: Final = 4  # factor of the limit for a whole host
_FIRST_SAMPLE: Final = 16
"""Refusals after which one is let through as a sample, and again whenever they have doubled."""
_EVIDENCE: Final = (
    "same", "numbers", "sent", "query", "credit", "judged", "session", "refused", "sample",
)  # fmt: skip
"""Kinds of counts by which spaces are closed."""


def space_key(kind: str, text: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{kind} {text}".encode())


_ALL: Final = space_key("all", "")


@lru_cache(256)  # they may be long
def _keys_of_folders(narrowest: str) -> tuple[int, ...]:
    return tuple(space_key("below", VARIABLE.sub("0", each)) for each in folders(narrowest))


class HostTrapStats:
    """The evidence about one host; `MAX_COUNTS` entries a kind."""

    __slots__ = ("closed", "counts", "mined")

    def __init__(self) -> None:
        self.counts: dict[str, dict[int, int]] = {}  # pages in a row, URLs: by kind and space
        self.closed: dict[int, Trap] = {}  # spaces that are traps
        self.mined = 0  # mined URLs that were tried

    def __len__(self) -> int:
        return sum(map(len, self.counts.values())) + len(self.closed) + self.mined

    def suspects(self, url: str) -> bool:
        """Whether pages in the spaces of the normal *url* have said or led to the same."""
        kinds = [kind for kind in ("same", "numbers", "sent") if self.counts.get(kind)]
        return any(self.count(kind, space) for kind in kinds for space in spaces(url))

    def same_space(self, url: str, trap: Trap = Trap.SAME) -> str | None:
        """The space of the normal *url* that is closed as *trap*, SAME or NUMBERS, or None."""
        for space in spaces(url):
            if space_key(trap, space) in self.closed:
                return space
        return None

    def combines_in_vain(self, path: str, names: tuple[str, ...]) -> bool:
        """Whether queries of *path* with *names*, or with some of them, are known to be in vain."""
        if space_key("query", path) not in self.closed or self._credit(path, names):
            return False
        if self._is_poor(path, names):
            return True
        if len(names) == 2:
            return False
        smaller = {*combinations(names[:_NAMES], 2), *combinations(names, len(names) - 1)}
        return any(self._is_poor(path, each) for each in smaller)

    def _credit(self, path: str, names: tuple[str, ...]) -> int:
        return self.count("credit", _set_of(path, names))

    def _is_poor(self, path: str, names: tuple[str, ...]) -> bool:
        judged = self.count("judged", _set_of(path, names))
        return judged >= PAGES_TO_JUDGE and not self._credit(path, names)

    def crowded(self, url: str, share: int, room: int) -> int:
        """Count *url*; how many of its folders have more than *share* percent, and than *room*."""
        room = max(room, self._add("all", _ALL, 1) * share // 100)
        narrowest = next(folders(path_and_query(url).partition("?")[0]), "")
        return sum(self._add("below", key, 1) > room for key in _keys_of_folders(narrowest))

    def count_page(
        self, url: str, limit: int, *, same: bool, exactly: bool | None = None
    ) -> TrapRefusal | None:  # fmt: skip
        """Count a page that says the *same* as an earlier one (*exactly*: numbers, too)."""
        if not same and self.counts.get("sent"):
            for space in spaces(url):
                self.add("sent", space, -NEW_PAGE_WEIGHT)
        exactly = same if exactly is None else exactly
        like, equal = (1 if is_ else -NEW_PAGE_WEIGHT for is_ in (same, exactly))
        numbers = self._count_in_spaces("numbers", Trap.NUMBERS, url, limit, like)
        return self._count_in_spaces("same", Trap.SAME, url, limit, equal) or numbers

    def count_redirect(self, url: str, limit: int, *, same: bool) -> TrapRefusal | None:
        """Count a redirect of *url* to the *same* page as an earlier one, or to another."""
        change = 1 if same else -NEW_PAGE_WEIGHT
        return self._count_in_spaces("sent", Trap.SAME, url, limit, change)

    def _count_in_spaces(
        self, kind: str, trap: Trap, url: str, limit: int, change: int
    ) -> TrapRefusal | None:
        around = list(spaces(url))
        for at, space in enumerate(around):
            if space_key(trap, space) in self.closed:
                break  # it was on its way when that was closed
            most = limit * _WHOLE_HOST if space in _HOST else limit
            if self.add(kind, space, change) >= most:
                self.counts[kind].pop(space_key(kind, space), None)
                self._close(trap, space, trap)
                # What the wider ones saw there is dealt with.
                for wider in around[at + 1 :]:
                    self.add(kind, wider, 1 - limit)
                return TrapRefusal(trap, space)
        return None

    def combined(
        self, path: str, names: tuple[str, ...], limit: int, worth: int, *, onward: bool = True
    ) -> bool:
        """Count a page at *path* whose query, of these *names*, combines known values.

        *worth*: how many vain ones it makes up for. *onward*: it led to more queries of the path.
        Returns whether the combinations are closed now: *limit* more were in vain.
        """
        own = _set_of(path, names)
        self.add("judged", own, 1)
        credit = self.add("credit", own, worth or -1)
        if credit > limit:
            self.add("credit", own, limit - credit)
        return onward and self._weigh("query", path, Trap.QUERY, limit, worth)

    def repeated(self, name: str, limit: int, *, vain: bool) -> bool:
        """Count a page with another session id, in *vain* or not; True: all are closed now."""
        return self._weigh("session", name, Trap.SESSIONS, limit, 0 if vain else NEW_PAGE_WEIGHT)

    def _weigh(self, kind: str, text: str, trap: Trap, limit: int, worth: int) -> bool:
        weight = self.add(kind, text, -worth or 1)
        key = space_key(kind, text)
        if key in self.closed:
            if not weight:
                del self.closed[key]
            elif weight > limit:
                self.add(kind, text, -1)
            return False
        if weight < limit:
            return False
        self._close(kind, text, trap)
        return True

    def sample(self, url: str, trap: Trap, space: str) -> bool:
        """Count a refusal of the normal *url* for *trap*; True for every 16th: let it through."""
        refused = self.add("refused", f"{trap} {space}", 1)
        if refused < _FIRST_SAMPLE or refused & (refused - 1):
            return False
        self.add("sample", url, 1)
        return True

    def reopen(self) -> None:
        for kind in _EVIDENCE:
            self.counts.pop(kind, None)
        self.closed = {}

    def _close(self, kind: str, space: str, trap: Trap) -> None:
        self.closed[space_key(kind, space)] = trap
        if len(self.closed) > MAX_COUNTS:
            self.closed = dict(list(self.closed.items())[MAX_COUNTS // 2 :])

    def count(self, kind: str, space: str) -> int:
        return self.counts.get(kind, {}).get(space_key(kind, space), 0)

    def add(self, kind: str, space: str, change: int) -> int:
        return self._add(kind, space_key(kind, space), change)

    def _add(self, kind: str, key: int, change: int) -> int:
        counts = self.counts.setdefault(kind, {})
        count = counts.get(key, 0) + change
        if count <= 0:
            counts.pop(key, None)
            return 0
        counts[key] = count
        if len(counts) > MAX_COUNTS:
            largest = sorted(counts.items(), key=lambda item: item[1], reverse=True)
            self.counts[kind] = dict(largest[: MAX_COUNTS // 2])
        return count


def _set_of(path: str, names: tuple[str, ...]) -> str:
    return f"{path}?{'&'.join(names)}"
