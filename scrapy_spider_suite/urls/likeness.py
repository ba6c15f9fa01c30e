"""Which pages say the same: a number of what a page says, and a table of those met lately.

As BUbiNG's digest (its 4.8) it leaves out mark-up, scripts, styles, numbers and white space, and
keeps the addresses of what the page shows: two photographs without a word are two pages.
"""

from __future__ import annotations

import re
from array import array
from typing import Final

import xxhash

# Linear in the page, whatever it holds: nothing is searched for across a "<".
_TEXT: Final = re.compile(rb"<(?:script|style)\b[^<>]*>[^<]*|>([^<]+)", re.I)
_SHOWN: Final = re.compile(
    rb"""(?:\b(?:src(?:set)?|poster)|<object\b[^<>]*?\sdata)\s*=\s*["']?([^"'\s>]+)""", re.I
)
_DROPPED: Final = b"0123456789 \t\r\n\f"
_LITTLE: Final = 32
"""Bytes of text below which there is nothing to go by: only equal pages say the same then."""
_LONGEST: Final = 1 << 18
"""Bytes of a page that are looked at."""
_SLOTS: Final = 1 << 20


def likeness(body: bytes, host: str) -> int:
    """What the HTML page *body* on *host* says, as a number of 64 bits, 0 if it is empty.

    The name of the host does not count: it is all that differs on a farm of hosts.
    """
    body = body[:_LONGEST].replace(host.encode(), b"")
    text = b"".join(_TEXT.findall(body)).translate(None, _DROPPED)
    if len(text) < _LITTLE:
        text = body
    if not text.strip():
        return 0
    digest = xxhash.xxh3_64(text)
    for shown in _SHOWN.findall(body):
        digest.update(b"\0" + shown)
    return digest.intdigest()


class Recent:
    """Remembers some million numbers in 8 MiB, each for about as many others as it holds."""

    def __init__(self, slots: int = _SLOTS) -> None:
        self._slots = slots
        self._table: array[int] | None = None

    def meets(self, whose: str, number: int) -> bool:
        """Whether *number* was met before with *whose*; it is from now on."""
        if self._table is None:
            self._table = array("Q", bytes(8 * self._slots))
        mixed = xxhash.xxh3_64_intdigest(whose.encode(), number)
        slot = mixed % self._slots
        known = self._table[slot] == mixed
        self._table[slot] = mixed
        return known
