"""Digests of pages: of bytes, of structure, of content; and tables of recent numbers."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterator, Mapping
from typing import Final

import xxhash

# Both are linear in the page, whatever it holds: neither goes past a "<".
_TEXT_OF_SCRIPTS: Final = re.compile(rb"(<(?:script|style)\b[^<>]*>)[^<]*", re.I)
_ATTRIBUTES: Final = re.compile(rb"(<[/!]?[a-zA-Z-][^\s/<>]*)[^<>]*>?")
_FRAMES: Final = re.compile(rb"""<i?frame\b[^<>]*?\bsrc\s*=\s*["']?([^"'\s<>]+)""", re.I)
_PLAIN: Final = bytes.maketrans(
    b"0123456789\t\n\v\f\rABCDEFGHIJKLMNOPQRSTUVWXYZ", b" " * 15 + b"abcdefghijklmnopqrstuvwxyz"
)
_LONGEST: Final = 1 << 18  # bytes of a page whose structure is looked at: some 10 ms
# Base 32 (RFC 4648 §6): `base64.b32encode` takes four times as long. A number of 160 bits is drawn
# apart, half by half, until each five bits have a byte of their own: the masks of the upper halves,
# how far these move, and the masks of the lower halves.
_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" * 8


def _halvings() -> Iterator[tuple[int, int, int]]:
    for step in range(5):
        half, place = 80 >> step, 256 >> step
        lower = sum((1 << half) - 1 << place * part for part in range(1 << step))
        yield lower << half, place // 2 - half, lower


_HALVINGS: Final = tuple(_halvings())


def sha1_of(body: bytes) -> bytes:
    """20 bytes; `warc_digest` makes them a ``WARC-Payload-Digest``."""
    return hashlib.sha1(body, usedforsecurity=False).digest()


def warc_digest(digest: bytes) -> str:
    """*digest* as WARC 1.1 writes it (§5.8): ``sha1:`` and Base32."""
    number = int.from_bytes(digest, "big")
    for upper, distance, lower in _HALVINGS:
        number = (number & upper) << distance | number & lower
    return f"sha1:{number.to_bytes(32, 'big').translate(_LETTERS).decode()}"


def structural_digest(body: bytes, host: str = "") -> bytes:
    """16 bytes for an HTML page, whatever its attributes and numbers; b"" for an empty page.

    As BUbiNG's (§4.8): tags without attributes but the ``src`` of frames; text without scripts and
    styles, digits and white space as one space; *host*, unless left out.
    Unlike there, case does not matter, and behind 256 KiB bytes count as they are.
    """
    if not body:
        return b""
    body, rest = body[:_LONGEST], memoryview(body)[_LONGEST:]
    plain = b"".join(_ATTRIBUTES.split(_TEXT_OF_SCRIPTS.sub(rb"\1", body)))
    digest = xxhash.xxh3_128(host.encode() + b"\0")
    digest.update(b" ".join(plain.translate(_PLAIN).split()))
    for source in _FRAMES.findall(body):
        digest.update(b"\0" + source)
    if rest:
        digest.update(b"\0\0\0" + xxhash.xxh3_128_digest(rest))
    return digest.digest()


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
_START: Final = 64  # letters
_WINDOWS: Final = 512, 8_192  # bytes in which they are looked for
_LITTLE: Final = 32
"""Bytes of text below which there is nothing to go by: only equal pages say the same then."""
NEWS: Final = 64
"""Letters that a page has to say which none has said before, to be more than a new headline."""
_LEAST: Final = 4  # letters below which a piece of a page says nothing
_SLOTS: Final = 1 << 20


def content_hash(body: bytes, host: str, *, numbers: bool = False) -> int:
    """A number of 64 bits for the content of the HTML page *body* on *host*, 0 if it is empty.

    As BUbiNG's digest (its 4.8) it leaves out markup, scripts, styles, white space, and unless
    asked for *numbers*; addresses of images count, the host's name does not.
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


def content_start(body: bytes, host: str) -> int:
    """A number for the first `_START` letters of a page's text, 0 if they cannot be had quickly.

    Pages with another number have another `content_hash`.
    """
    for size in _WINDOWS:
        window = _plain(body[:size], host)
        if len(body) > size:
            window = window[: window.rfind(b"<")]  # the rest may be cut off
        text = b"".join(_texts(window))
        if len(text) >= _START:
            return xxhash.xxh3_64_intdigest(text[:_START])
    return 0


def content_pieces(body: bytes, host: str) -> dict[int, int]:
    """Sentences, names and images of a page, as numbers with their letters (an image: `NEWS`)."""
    body = _plain(body, host)
    number = xxhash.xxh3_64_intdigest
    texts = set(_ENDS.split(b"\0".join(_texts(body))))
    said = {number(text): len(text) for text in texts if len(text) >= _LEAST}
    return said | {number(shown): NEWS for shown in _shown(body)}


def _plain(body: bytes, host: str) -> bytes:
    return body[:_LONGEST].lower().replace(host.encode(), b"")


def _texts(body: bytes, dropped: bytes = _DROPPED) -> list[bytes]:
    text = body.translate(None, dropped)
    for tag in _UNSAID:
        if tag in text:
            first, *others = text.split(tag)
            text = first + b"".join(map(_after, others))
    return _TEXT.findall(text)


def _after(script: bytes) -> bytes:
    end = script.find(b"<")
    return script[end:] if end >= 0 else b""


def _shown(body: bytes) -> Iterator[bytes]:
    if b"src" in body:
        yield from _SOURCE.findall(body)
    if b"poster" in body:
        yield from _POSTER.findall(body)
    if b"<object" in body:
        yield from _OBJECT.findall(body)


class RecentNumbers:
    def __init__(self, slots: int = _SLOTS) -> None:
        self._slots = slots
        self._table: array[int] | None = None

    def meets(self, whose: str, number: int) -> bool:
        """Whether *number* was met before with *whose*; notes it."""
        return not self.learns(whose, {number: 1})

    def learns(self, whose: str, numbers: Mapping[int, int]) -> int:
        """Note *numbers* of *whose*; the weight of those that were not met before."""
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
        mixed = xxhash.xxh3_64_intdigest(whose.encode(), number)
        return self._table is not None and self._table[mixed % self._slots] == mixed
