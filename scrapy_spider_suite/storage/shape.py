"""A look at the shape of msgpack bytes before anything is built from them.

A msgpack decoder nests as deep as the bytes say (1,024 levels in msgpack-python) and believes a
container's announced length. Both are cheap to bound beforehand: each level costs one header byte,
so bytes that hold no more header-like bytes than levels allowed cannot be too deep. Only the others
(non-ASCII text, binary bodies, big structures) are walked, token by token, jumping over strings.

Source of the byte values: the msgpack specification, section "Formats".
"""

from __future__ import annotations

from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.wording import counted

_CONTAINERS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])

# For first bytes from 0xC0 on: how many bytes follow at least, and how many of them are a length.
# By rows: nil false true; bin; ext; float; unsigned; signed; fixext; str; array and map.
_AFTER = bytes.fromhex("00000000 010204 020305 0408 01020408 01020408 0203050911 010204 02040204")
_WIDTH = bytes.fromhex("00000000 010204 010204 0000 00000000 00000000 0000000000 010204 02040204")


def check_shape(data: bytes, max_depth: int) -> None:
    """Raise CodecError if *data* nests deeper than *max_depth* or announces more than it can hold.

    Bytes that are no msgpack at all may pass: the decoder refuses those by itself.
    """
    if len(data) - len(data.translate(None, _CONTAINERS)) <= max_depth:
        return
    wanted: list[int] = []  # for each open container, outermost first, the values still to come
    at, end = 0, len(data)
    while at < end:
        first = data[at]
        after, length = _step(data, at)
        is_map = first & 0xF0 == 0x80 or first in (0xDE, 0xDF)
        if is_map or first & 0xF0 == 0x90 or first in (0xDC, 0xDD):
            length = length * 2 if is_map else length
            if length > end - after:
                raise CodecError("a stored container announces more than was stored")
            wanted.append(length)
            if len(wanted) > max_depth:
                raise CodecError(f"stored bytes nest deeper than {counted(max_depth, 'level')}")
            at = after
        else:
            at = after + length
            _count_down(wanted)
        while wanted and wanted[-1] == 0:
            wanted.pop()
            _count_down(wanted)


def _count_down(wanted: list[int]) -> None:
    if wanted:
        wanted[-1] -= 1


def _step(data: bytes, at: int) -> tuple[int, int]:
    """Return where the header at *at* ends and the length (bytes or values) that it announces."""
    first = data[at]
    if first < 0x80 or first >= 0xE0:
        return at + 1, 0
    if first < 0xA0:
        return at + 1, first & 0x0F
    if first < 0xC0:
        return at + 1, first & 0x1F
    width = _WIDTH[first - 0xC0]
    length = int.from_bytes(data[at + 1 : at + 1 + width], "big") if width else 0
    return at + 1 + _AFTER[first - 0xC0], length
