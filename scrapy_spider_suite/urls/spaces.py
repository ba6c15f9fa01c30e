"""Spaces: what a URL is one of many of, and what it has in its query (G8; BUbiNG's 4.8)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

VARIABLE: Final = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}|[0-9]+")
"""What differs from page to page: numbers, and tokens that are no words."""
_TOKEN: Final = r"(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}"
_SESSION: Final = re.compile(
    rf"(?P<semicolon>;jsessionid)=(?P<java>[^/?&;]+)"
    rf"|[?&](?P<name>[a-z]*sess(?:ion)?_?(?:id)?|(?:osc|p)?sid|cftoken|zenid)=(?P<value>{_TOKEN})"
    rf"(?=&|$)|(?<=/)(?P<bracket>\([A-Z])\((?P<net>{_TOKEN})\)\)/",
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
    path, question, query = local(url).partition("?")
    path = VARIABLE.sub("0", path)
    if question:
        names = sorted({pair.partition("=")[0] for pair in query.split("&")})
        yield f"{path}?{VARIABLE.sub('0', '&'.join(names))}"
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


def local(url: str) -> str:
    """Path and query of a normal *url*."""
    return url[url.index("/", 8) :]


def combination(url: str) -> tuple[str, list[str]]:
    """The path of the normal *url*, and the parameters of its query, each with its value."""
    path, _, query = local(url).partition("?")
    return path, query.split("&") if query else []


def names_of(parameters: list[str]) -> tuple[str, ...]:
    """The names of *parameters*, each once, in their order by letters."""
    return tuple(sorted({each.partition("=")[0] for each in parameters}))


class Session(NamedTuple):
    """A session id in a URL: the *page* that it is of (path and query without it), the *name* of
    the parameter, and the *token* itself."""

    page: str
    name: str
    token: str


def session_of(url: str) -> Session | None:
    """The session id in the normal *url*; None if there is none."""
    path = local(url)
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
