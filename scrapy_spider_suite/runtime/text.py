"""Numbers in sentences ("1 URL", "2,000 URLs"), and foreign text on one line."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """*number* with *one*, or with *many* (by default *one* and an s) unless it is 1."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
