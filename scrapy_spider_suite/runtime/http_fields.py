"""Header fields of HTTP messages as text."""

from __future__ import annotations

from typing import Protocol


class Headers(Protocol):
    """Scrapy's ``Headers``, or an object like it."""

    def get(self, key: str, /) -> bytes | None:
        ...


def field_text(headers: Headers, name: str) -> str:
    """The last value of the field *name*, decoded as latin-1; "" without one."""
    return (headers.get(name) or b"").decode("latin-1")


def media_type(content_type: str) -> str:
    """The type in a ``Content-Type``, in lower case, without parameters (RFC 9110 §8.3.1)."""
    return content_type.partition(";")[0].strip().lower()
