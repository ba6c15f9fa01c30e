"""The head of an HTTP message as a record holds it, and the payload behind it.

Faithful: a head is stored as it was on the wire. Where the body is not (its chunks were joined, or
it was decompressed), the head says so in the way of Common Crawl's records: fields that no longer
fit get the prefix ``X-Crawler-``, and ``Content-Length`` is that of the stored body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from scrapy_spider_suite.errors import PackDamagedError

PREFIX: Final = b"X-Crawler-"

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/(\d(?:\.\d)?) +(\d{3})(?: +([^\r\n]*))?")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(rb"\r?\n(?![ \t])")
_FOLD = re.compile(rb"\r?\n[ \t]+")
_CODINGS: Final = (b"transfer-encoding", b"content-encoding")
_NO_BODY: Final = frozenset({204, 304})


class Form(IntEnum):
    """How much of what was on the wire a body still is."""

    WIRE = 0
    """All: with chunks, if it came in chunks, and compressed, if it was."""
    JOINED = 1
    """Its chunks are joined (``Transfer-Encoding`` is undone)."""
    DECODED = 2
    """It is decompressed, too (``Content-Encoding`` is undone)."""


class Head(NamedTuple):
    """The first line and the fields of an HTTP response, or of anything with such fields."""

    version: str
    status: int
    reason: str
    fields: tuple[tuple[str, str], ...]

    def get(self, name: str, default: str = "") -> str:
        """The first field of that *name*, in any case."""
        lower = name.lower()
        for field, value in self.fields:
            if field == name or field.lower() == lower:
                return value
        return default

    def all(self, name: str) -> list[str]:
        """All values of that *name*, lists taken apart, in lower case."""
        name = name.lower()
        joined = ",".join(value for field, value in self.fields if field.lower() == name)
        return [word.strip().lower() for word in joined.split(",") if word.strip()]


def fit(
    head: bytes, length: int, form: Form = Form.WIRE, *, method: str = "GET", cut: bool = False
) -> bytes:
    """Return *head* as it is stored before a body of *length* bytes that has that *form*.

    It is changed only where it would be wrong: *cut* bodies of ``Form.WIRE`` keep their head, and
    so do answers that have no body (to HEAD, 1xx, 204, 304).
    """
    head = _closed(head)
    if _fits(head.lower(), length, form):
        return head
    status = _STATUS.match(head)
    number = int(status[2]) if status else 0
    if method == "HEAD" or number in _NO_BODY or 100 <= number < 200:
        return head
    lines = _LINE.split(head[: -len(b"\r\n\r\n")])
    names = [line.partition(b":")[0].strip().lower() for line in lines]
    gone = _gone(form)
    chunked = b"transfer-encoding" in names and b"transfer-encoding" not in gone
    right = b"%d" % length
    lengths = [line.partition(b":")[2].strip() for line, name in zip(lines, names, strict=True)
               if name == b"content-length"]  # fmt: skip
    wrong = not chunked and not (cut and form is Form.WIRE) and lengths not in ([], [right])
    if wrong:
        gone.add(b"content-length")
    if gone.isdisjoint(names):
        return head
    lines = [PREFIX + line if name in gone else line
             for line, name in zip(lines, names, strict=True)]  # fmt: skip
    if not chunked and (wrong or not lengths):
        lines.append(b"Content-Length: " + right)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _fits(head: bytes, length: int, form: Form) -> bool:
    """Whether *head*, in lower case, is surely right: most are, so it is asked first."""
    return (
        b"\r\ncontent-length: %d\r\n" % length in head
        and head.count(b"content-length") == 1
        and not any(name in head for name in _CODINGS[:form])
    )


def _gone(form: Form) -> set[bytes]:
    """The fields that say what was undone."""
    return set(_CODINGS[:form])


def _closed(head: bytes) -> bytes:
    """Return *head* with one empty line, at its end: what follows an earlier one is no head."""
    if head.find(b"\n\r\n") == len(head) - 3 and b"\n\n" not in head and head[-4:-3] == b"\r":
        return head
    found = _HEAD_END.search(head)
    return (head[: found.start()] if found else head.rstrip(b"\r\n")) + b"\r\n\r\n"


def build(
    status: int,
    fields: Iterable[tuple[bytes, bytes]] | Mapping[bytes, Iterable[bytes]],
    reason: str = "",
    version: str = "1.1",
) -> bytes:
    """Return a head for a response of which no head was kept.

    Line breaks in a value become spaces; fields whose name is no token are left out.
    """
    pairs = (
        ((name, value) for name, values in fields.items() for value in values)
        if isinstance(fields, Mapping)
        else fields
    )
    phrase = re.sub(rb"[^\t\x20-\x7e\x80-\xff]", b" ", reason.encode("latin-1", "replace"))
    lines = [b"HTTP/%b %03d %b" % (version.encode(), status, phrase)]
    for name, value in pairs:
        if _TOKEN.fullmatch(name):
            lines.append(name + b": " + re.sub(rb"[\r\n\0]", b" ", value))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def split(block: bytes) -> tuple[bytes, bytes]:
    """Return the head of an HTTP message, with the empty line, and its body as it is stored."""
    found = _HEAD_END.search(block)
    end = found.end() if found else len(block)
    return block[:end], block[end:]


def parse(head: bytes) -> Head:
    """Take the head of a response apart.

    Raises `PackDamagedError`: it does not begin as one does.
    """
    first, *lines = _LINE.split(head.rstrip(b"\r\n"))
    status = _STATUS.match(first)
    if status is None:
        raise PackDamagedError(f"no HTTP response: {first[:80]!r}")
    fields = []
    for line in lines:
        if b"\n" in line:
            line = _FOLD.sub(b" ", line)
        name, _, value = line.partition(b":")
        fields.append((name.strip().decode("latin-1"), value.strip().decode("latin-1")))
    reason = (status[3] or b"").decode("latin-1")
    return Head(status[1].decode(), int(status[2]), reason, tuple(fields))
