"""Numbers in sentences: "1 URL", "2,000 URLs"; and text of others on a line."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """Return *number* with *one*, or with *many* (by default *one* and an s) unless it is 1."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def printable(text: str) -> str:
    """*text* on one line, whatever a page put into it."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
