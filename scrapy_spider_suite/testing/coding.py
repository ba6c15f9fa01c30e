"""Answers in the ways in which servers send them: compressed, in chunks, or both."""

from __future__ import annotations

import gzip
import importlib
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Final
from zlib import crc32

from scrapy_spider_suite.testing.http import Reply, Request

PIECES: Final = (1, 1000, 8192)
"""Bytes in a chunk: the first, the second, each further one."""

_LENGTH = re.compile(rb"\r\nContent-Length: \d+")
_FAST = 4  # of 11: a server has no time for more


def coded(answer: Reply, request: Request, share: float) -> Reply:
    """Return *answer* in one of the ways that *request* accepts, for a *share* of the URLs.

    One URL always comes in the same way: in chunks, gzip, br (where Brotli is installed), or
    compressed and in chunks. What is no 200, has no body, or is a script's stays as it is.
    """
    draw = crc32(f"{request.host}{request.target}".encode("latin-1", "replace"))
    head, _, body = answer.data.partition(b"\r\n\r\n")
    if answer.status != 200 or not body or draw >= share * (1 << 32) or not _LENGTH.search(head):
        return answer
    accepted = {each.partition(";")[0].strip().lower() for each in request.codings.split(",")}
    names = ["", *sorted(accepted & _encoders().keys())]
    name, chunked = names[draw % len(names)], bool(draw & 64)
    fields = b""
    if name:
        body = _encoders()[name](body)
        fields = b"\r\nContent-Encoding: " + name.encode()
    if chunked or not name:
        fields += b"\r\nTransfer-Encoding: chunked"
        body = _chunks(body)
    else:
        fields += b"\r\nContent-Length: %d" % len(body)
    head = _LENGTH.sub(fields, head, count=1)
    return answer._replace(data=head + b"\r\n\r\n" + body)


@cache
def _encoders() -> dict[str, Callable[[bytes], bytes]]:
    found: dict[str, Callable[[bytes], bytes]] = {"gzip": lambda body: gzip.compress(body, _FAST)}
    if find_spec("brotli"):  # an optional dependency of Scrapy
        brotli = importlib.import_module("brotli")
        found["br"] = lambda body: bytes(brotli.compress(body, quality=_FAST))
    return found


def _chunks(body: bytes) -> bytes:
    """The chunked transfer coding of *body* (RFC 9112 §7.1)."""
    parts: list[bytes] = []
    place = 0
    while place < len(body):
        piece = body[place : place + PIECES[min(len(parts), 2)]]
        parts.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        place += len(piece)
    return b"".join(parts) + b"0\r\n\r\n"
