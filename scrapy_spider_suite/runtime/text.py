"""Numbers in sentences ("1 URL", "2,000 URLs"), foreign text on one line, header fields as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # whoever reads packs needs no Scrapy
    from scrapy.http import Headers


def counted(number: int, one: str, many: str = "") -> str:
    """Return *number* with *one*, or with *many* (by default *one* and an s) unless it is 1."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def listed(names: Iterable[str], most: int = 10) -> str:
    """The first *most* of *names* by the alphabet, and how many more there are."""
    known = sorted(names)
    more = len(known) - most
    return ", ".join(known[:most]) + (f" and {more:,} more" if more > 0 else "")


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def field_text(headers: Headers, name: str) -> str:
    """Return the last value of the field *name*, decoded as latin-1; "" without one."""
    return (headers.get(name) or b"").decode("latin-1")


def media_type(content_type: str) -> str:
    """Return the type in a ``Content-Type``: lower case, no parameters (RFC 9110 §8.3.1)."""
    return content_type.partition(";")[0].strip().lower()
