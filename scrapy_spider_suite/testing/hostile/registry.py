"""The table of hostile behaviours, and what they are written with.

A behaviour is a coroutine that answers one request through a
:class:`~scrapy_spider_suite.testing.wire.Wire`, byte by byte if it likes. Its name, with
dashes, is its path on ``hostile.test`` and its label below it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from scrapy_spider_suite.testing.wire import Wire

PAGE = b"<html><head><title>hostile</title></head><body><p>text</p></body></html>\n"


class Scene(NamedTuple):
    """Where a behaviour plays.

    ``base`` is the URL that it answers, without a slash at the end; ``rest`` what came after it
    in the request; ``pace`` the pause in seconds between the pieces of a slow answer; ``seconds``
    how long an answer that never ends goes on.
    """

    base: str
    rest: str = ""
    pace: float = 1.0
    seconds: float = 600.0


Play = Callable[[Wire, Scene], Awaitable[None]]


class Behaviour(NamedTuple):
    """One way of being hostile; ``deep`` if it also answers what lies below its own URL."""

    name: str
    about: str
    play: Play
    deep: bool


BEHAVIOURS: dict[str, Behaviour] = {}
"""All behaviours by name, filled by the modules beside this one."""


def behaviour(about: str, *, deep: bool = False) -> Callable[[Play], Play]:
    """Register the decorated coroutine function under its name; *about* is a line for people."""

    def register(play: Play) -> Play:
        name = getattr(play, "__name__", "").replace("_", "-")
        BEHAVIOURS[name] = Behaviour(name, about, play, deep)
        return play

    return register


def fixed(name: str, about: str, data: bytes, *, keep: bool = False) -> None:
    """Register an answer that is always *data*; *keep* leaves the connection open after it."""

    async def play(wire: Wire, scene: Scene) -> None:
        await wire.send(data)
        wire.keep = keep

    BEHAVIOURS[name] = Behaviour(name, about, play, deep=False)


def head(*lines: str, status: str = "200 OK") -> bytes:
    """A head of the given header lines, HTML unless one of them gives a type."""
    kind = () if any(line.startswith("Content-Type") for line in lines) else _HTML
    return "\r\n".join((f"HTTP/1.1 {status}", *kind, *lines, "", "")).encode("latin-1")


def sized(body: bytes, *lines: str, status: str = "200 OK") -> bytes:
    """An answer whose framing is correct."""
    return head(*lines, f"Content-Length: {len(body)}", status=status) + body


def page(body: str, *lines: str) -> bytes:
    """A correct answer with *body* as the content of an HTML page."""
    text = f"<html><head><title>hostile</title></head><body>{body}</body></html>\n"
    return sized(text.encode("utf-8"), *lines)


async def in_bulk(wire: Wire, line: bytes, count: int, front: bytes, kind: str) -> None:
    """Send *front* and then *line* % n for n below *count*, with a length, in many pieces.

    Piece by piece, because a page of 10 MB made at once stops the server for 0.06 s. All
    lines must be of the same length.
    """
    length = len(front) + count * len(line % 0)
    await wire.send(head(f"Content-Type: {kind}", f"Content-Length: {length}") + front)
    for first in range(0, count, 1000):
        await wire.send(b"".join([line % n for n in range(first, min(first + 1000, count))]))


async def endlessly(wire: Wire, scene: Scene, piece: bytes, pause: float = 0.01) -> None:
    """Send *piece* again and again, with *pause* seconds between, for ``scene.seconds``."""
    loop = asyncio.get_running_loop()
    end = loop.time() + scene.seconds
    while loop.time() < end:
        await wire.send(piece)
        await wire.rest(pause)


async def slowly(wire: Wire, scene: Scene, data: bytes) -> None:
    """Send *data* one byte at a time, ``scene.pace`` seconds apart."""
    loop = asyncio.get_running_loop()
    end = loop.time() + scene.seconds
    for at in range(len(data)):
        if loop.time() > end:
            return
        await wire.send(data[at : at + 1])
        await wire.rest(scene.pace)


_HTML = ("Content-Type: text/html; charset=utf-8",)
