"""Neighbours of a URL: folders, siblings, session ids, orders of parameters, spaces.

Folders and siblings are mined (Tarantula's §1 and §5.1); by spaces traps are judged.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

import xxhash

RUNS_MAX: Final = 3
"""Numbers of a path, from its end, of which siblings are made."""
DIGITS_MAX: Final = 6
"""Digits of a number beyond which it is no page's: it is an id, or a time."""

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
    """The URLs with one number in the path of the normal *url* one more or less, the last first.

    Leading zeros stay; there is no page 0 before page 1; a URL with a query has none.
    """
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
    """The spaces of the normal *url*, each once, the narrowest first.

    They are its pattern, all queries of its path, two folders, the host; for URLs with a query
    their own.
    """
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
    path = path_and_query(url)
    if "=" not in path and "(" not in path:
        return None
    found = _SESSION.search(path)
    if found is None:
        return None
    before, after = path[: found.start()], path[found.end() :]
    if found[0].startswith("?") and after:
        after = f"?{after[1:]}"
    name = found["semicolon"] or found["name"] or found["bracket"]
    return Session(before + after, name.lower(), found["java"] or found["value"] or found["net"])
