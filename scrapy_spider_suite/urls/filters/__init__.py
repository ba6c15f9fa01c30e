"""Filters: which links, requests and answers a crawl wants, in BUbiNG's boolean language (§4).

Here are the declarations of atoms, the facts they use, and the readers of their arguments. A reader
raises `ValueError` with what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum

from scrapy_spider_suite.runtime.text import media_type
from scrapy_spider_suite.urls.normalize import host_of, normalize


def read_nothing(argument: str) -> None:
    if argument:
        raise ValueError("no argument")


def read_text(argument: str) -> str:
    found = quote_word(argument)
    if not found:
        raise ValueError("a text")
    return found


def read_texts(argument: str) -> tuple[str, ...]:
    found = tuple(filter(None, split_arguments(argument)))
    if not found:
        raise ValueError("one text or more, with commas between them")
    return found


def read_lowered(argument: str) -> tuple[str, ...]:
    return tuple(each.lower() for each in read_texts(argument))


def read_number(argument: str, low: int) -> int:
    if not (argument.isascii() and argument.isdigit()) or int(argument) < low:
        raise ValueError(f"a whole number >= {low}")
    return int(argument)


def read_host(name: str) -> str:
    dot = "." * name.startswith(".")
    literal = f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name[len(dot) :]
    url = None
    if literal and not any(sign in literal.strip("[]") for sign in "/?#@\\"):
        url = normalize(f"http://{literal}/")
    # The end of a host, such as ".1", may be no host.
    if url is None or not literal.isascii():
        found = None if url is None else host_of(url)
    else:
        found = host_of(url) if literal.startswith("[") else literal.lower().rstrip(".")
    if not found:
        raise ValueError(f"a host such as example.com, not {name!r}")
    return dot + found


def read_hosts(argument: str) -> tuple[str, ...]:
    return tuple(map(read_host, read_texts(argument)))


def ends_with_one_of(suffixes: tuple[str, ...]) -> Callable[[str], bool]:
    """A test for ends in *suffixes*, in a time that hardly grows with their number."""
    among = frozenset(suffixes)
    lengths = sorted({len(suffix) for suffix in suffixes})
    return lambda text: any(text[-length:] in among for length in lengths)


class Fact(Enum):
    VIA = "the page that led there"
    DEPTH = "its depth"
    BEYOND = "how far it is from the scope"
    ADDRESS = "the address of its host"
    PAGE = "a response"


class Stage(StrEnum):
    """When a filter is asked; the manual says what is refused at each."""

    SCHEDULE = "schedule"
    FETCH = "fetch"
    PARSE = "parse"
    FOLLOW = "follow"
    STORE = "store"


_OF_LINK = frozenset({Fact.VIA, Fact.DEPTH, Fact.BEYOND})
KNOWN: dict[Stage, frozenset[Fact]] = {
    Stage.SCHEDULE: _OF_LINK,
    Stage.FETCH: _OF_LINK | {Fact.ADDRESS},
    Stage.PARSE: frozenset(Fact),
    # The page is there, but the link's own host has not been looked up.
    Stage.FOLLOW: _OF_LINK | {Fact.PAGE},
    Stage.STORE: frozenset(Fact),
}
"""What is known at each stage."""

_LANG = re.compile(rb"<html\b[^>]{0,1000}?\blang\s*=\s*[\"']?([A-Za-z0-9-]{1,35})", re.IGNORECASE)
_HEAD = 4_096  # bytes of a body in which its ``html`` element is looked for


@dataclass(slots=True)
class FilterPage:
    """A response, as filters see it; *http*: whether it came over HTTP."""

    status: int
    body: bytes
    content_type: str = ""
    content_language: str = ""
    http: bool = True
    text_of: Callable[[], str] | None = None
    _text: str | None = None

    @property
    def media_type(self) -> str:
        return media_type(self.content_type)

    @property
    def languages(self) -> list[str]:
        said = self.content_language
        if not said:
            found = _LANG.search(self.body, 0, _HEAD)
            said = found[1].decode() if found else ""
        return [tag.strip().lower() for tag in said.split(",") if tag.strip()]

    @property
    def folded_text(self) -> str:
        if self._text is None:
            text = self.body.decode("latin-1") if self.text_of is None else self.text_of()
            self._text = text.lower()
        return self._text


@dataclass(slots=True)
class LinkFacts:
    """The facts about a URL, one object for all links of a page; *page*: the answer, or theirs."""

    via: str = ""
    depth: int = 0
    beyond: int = 0
    address: str = ""
    page: FilterPage | None = None


Test = Callable[[str, LinkFacts], bool]  # whether a normal URL with these facts is wanted


@dataclass(frozen=True, slots=True)
class FilterInputs:
    country_of: Callable[[str], str] | None = None


Make = Callable[[str, FilterInputs], Test]
"""From an argument to the test; raises `ValueError` that says what was expected."""


@dataclass(frozen=True, slots=True)
class AtomKind:
    """``Name(argument)`` as *usage*, an *example*, the *meaning*, and the facts that it *needs*."""

    usage: str
    example: str
    meaning: str
    needs: frozenset[Fact]
    make: Make

    @property
    def name(self) -> str:
        return self.usage.partition("(")[0]

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(stage for stage, known in KNOWN.items() if self.needs <= known)


ATOMS: dict[str, AtomKind] = {}  # every kind of atom by its name


def register(kind: AtomKind) -> None:
    """Register *kind*, as a project may; of one name the last counts."""
    ATOMS[kind.name] = kind


def atom(usage: str, example: str, meaning: str, *needs: Fact) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        register(AtomKind(usage, example, meaning, frozenset(needs), make))
        return make

    return add


def quote_word(argument: str) -> str:
    """The single text in *argument*, without its quotes. Raises `ValueError`."""
    if argument.startswith('"'):
        if len(argument) < 2 or argument.find('"', 1) < 0:
            raise ValueError("a text without quotes or within them")
        pieces = split_arguments(argument)
        if len(pieces) != 1:
            raise ValueError("one text")
        return pieces[0]
    if '"' in argument:
        raise ValueError("a text without quotes or within them")
    return argument


def split_arguments(argument: str) -> list[str]:
    """The texts between commas, without empty ones. Raises `ValueError`."""
    pieces, rest = [], argument
    while rest := rest.lstrip(", \t\r\n"):
        if rest.startswith('"'):
            end = 1
            while rest[end] != '"':
                end += 2 if rest[end] == "\\" else 1
            pieces.append(rest[1:end].replace('\\"', '"'))
            rest = rest[end + 1 :].lstrip()
            if rest and not rest.startswith(","):
                raise ValueError("a comma after a quoted text")
        else:
            piece, _, rest = rest.partition(",")
            if '"' in piece:
                raise ValueError("quotes around the whole of a text")
            pieces.append(piece.strip())
    return pieces


import scrapy_spider_suite.urls.filters.atoms  # noqa: E402, F401 - registers the suite's own
