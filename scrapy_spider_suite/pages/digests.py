"""Digests of pages: of their bytes, and of what is left when mark-up and numbers are gone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Final

import xxhash

# Both are linear in the page, whatever it holds: neither goes past a "<".
_TEXT_OF_SCRIPTS: Final = re.compile(rb"(<(?:script|style)\b[^<>]*>)[^<]*", re.I)
_ATTRIBUTES: Final = re.compile(rb"(<[/!]?[a-zA-Z-][^\s/<>]*)[^<>]*>?")
_FRAMES: Final = re.compile(rb"""<i?frame\b[^<>]*?\bsrc\s*=\s*["']?([^"'\s<>]+)""", re.I)
_PLAIN: Final = bytes.maketrans(
    b"0123456789\t\n\v\f\rABCDEFGHIJKLMNOPQRSTUVWXYZ", b" " * 15 + b"abcdefghijklmnopqrstuvwxyz"
)
_LONGEST: Final = 1 << 18
"""Bytes of a page whose structure is looked at: some 10 ms."""
_REDIRECTS: Final = range(300, 400)
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


def payload_digest(body: bytes) -> bytes:
    """SHA-1 of *body*, 20 bytes: WARC's ``WARC-Payload-Digest`` once written by `labelled`."""
    return hashlib.sha1(body, usedforsecurity=False).digest()


def labelled(digest: bytes) -> str:
    """*digest* as WARC 1.1 has it in its examples (§5.8): ``sha1:`` and Base32."""
    number = int.from_bytes(digest, "big")
    for upper, distance, lower in _HALVINGS:
        number = (number & upper) << distance | number & lower
    return f"sha1:{number.to_bytes(32, 'big').translate(_LETTERS).decode()}"


def structural_digest(body: bytes, host: str = "", status: int = 200, location: str = "") -> bytes:
    """What an HTML page says, whatever its attributes and numbers; 16 bytes, none of an empty page.

    As BUbiNG's (Boldi, Marino, Santini, Vigna: "BUbiNG: Massive Crawling for the Masses", 2018,
    and its HTMLParser): names of tags without attributes, but for the ``src`` of frames; text, of
    which every run of digits and white space is one space, without that of scripts and styles; for
    a redirect its *location*. Pages of different *host* differ, unless it is left out. Unlike
    there, upper and lower case are one, and of a page of more than 256 KiB what is behind them
    counts byte by byte.
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
    if status in _REDIRECTS:
        digest.update(b"\0\0" + location.encode("utf-8", "surrogatepass"))
    return digest.digest()
