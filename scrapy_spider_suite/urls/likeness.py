"""Which pages say the same: numbers of what a page says, and tables of those met lately.

As BUbiNG's digest (its 4.8) it leaves out mark-up, scripts, styles, numbers and white space, and
keeps the addresses of what the page shows: two photographs without a word are two pages.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from typing import Final

import xxhash

# All of them linear in the page, whatever it holds. Letters are small, and in _TEXT there is no
# white space left; a pattern that begins with a letter is found by a search of the C library.
_TEXT: Final = re.compile(rb">([^<]+)")
_SOURCE: Final = re.compile(rb"""src(?:set)?\s*=\s*["']?([^"'\s>]+)""")
_POSTER: Final = re.compile(rb"""poster\s*=\s*["']?([^"'\s>]+)""")
_OBJECT: Final = re.compile(rb"""<object\b[^<>]*?\sdata\s*=\s*["']?([^"'\s>]+)""")
_ENDS: Final = re.compile(rb"[\0.;:!?|]+")
"""Between two things that a page says: mark-up, or the end of a sentence."""
_SPACE: Final = b" \t\r\n\f"
_DROPPED: Final = b"0123456789" + _SPACE
_UNSAID: Final = (b"<script", b"<style")
_LITTLE: Final = 32
"""Bytes of text below which there is nothing to go by: only equal pages say the same then."""
NEWS: Final = 64
"""Letters that a page has to say which none has said before, to be more than a new headline."""
_LEAST: Final = 4
"""Letters below which a piece of a page says nothing."""
_LONGEST: Final = 1 << 18
"""Bytes of a page that are looked at."""
_SLOTS: Final = 1 << 20


def likeness(body: bytes, host: str, *, numbers: bool = False) -> int:
    """What the HTML page *body* on *host* says, as a number of 64 bits, 0 if it is empty.

    The *numbers* in its text count only if asked for. The name of the host does not count: it is
    all that differs on a farm of hosts.
    """
    body = _plain(body, host)
    text = b"".join(_texts(body, _SPACE if numbers else _DROPPED))
    if len(text) < _LITTLE:
        text = body
    if not text.strip():
        return 0
    digest = xxhash.xxh3_64(text)
    for shown in _shown(body):
        digest.update(b"\0" + shown)
    return digest.intdigest()


def pieces(body: bytes, host: str) -> dict[int, int]:
    """The things that the HTML page *body* on *host* says, as numbers, and how much each is.

    Sentences and names are as much as they have letters, what it shows is as much as `NEWS`; for
    pages that put together anew what others say.
    """
    body = _plain(body, host)
    number = xxhash.xxh3_64_intdigest
    texts = set(_ENDS.split(b"\0".join(_texts(body))))
    said = {number(text): len(text) for text in texts if len(text) >= _LEAST}
    return said | {number(shown): NEWS for shown in _shown(body)}


def _plain(body: bytes, host: str) -> bytes:
    return body[:_LONGEST].lower().replace(host.encode(), b"")


def _texts(body: bytes, dropped: bytes = _DROPPED) -> list[bytes]:
    """What stands between the tags of *body*, without *dropped* characters, scripts and styles."""
    text = body.translate(None, dropped)
    for tag in _UNSAID:
        if tag in text:
            first, *others = text.split(tag)
            text = first + b"".join(map(_after, others))
    return _TEXT.findall(text)


def _after(script: bytes) -> bytes:
    """What follows a *script*, from the tag that ends it on."""
    end = script.find(b"<")
    return script[end:] if end >= 0 else b""


def _shown(body: bytes) -> Iterator[bytes]:
    yield from _SOURCE.findall(body)
    if b"poster" in body:
        yield from _POSTER.findall(body)
    if b"<object" in body:
        yield from _OBJECT.findall(body)


class Recent:
    """Remembers some million numbers in 8 MiB, each for about as many others as it holds."""

    def __init__(self, slots: int = _SLOTS) -> None:
        self._slots = slots
        self._table: array[int] | None = None

    def meets(self, whose: str, number: int) -> bool:
        """Whether *number* was met before with *whose*; it is from now on."""
        return not self.learns(whose, {number: 1})

    def learns(self, whose: str, numbers: Mapping[int, int]) -> int:
        """How much the *numbers* are that were not met before with *whose*; all are from now on."""
        if self._table is None:
            self._table = array("Q", bytes(8 * self._slots))
        table, slots, name = self._table, self._slots, whose.encode()
        mix, new = xxhash.xxh3_64_intdigest, 0
        for number, much in numbers.items():
            mixed = mix(name, number)
            slot = mixed % slots
            if table[slot] != mixed:
                table[slot] = mixed
                new += much
        return new

    def knows(self, whose: str, number: int) -> bool:
        """Whether *number* was met before with *whose*."""
        mixed = xxhash.xxh3_64_intdigest(whose.encode(), number)
        return self._table is not None and self._table[mixed % self._slots] == mixed
