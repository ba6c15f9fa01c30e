"""What a server gave to ask it by whether a page changed (RFC 9110 §8.8 and §13.1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

LONGEST = 512
"""Characters of a validator that are kept; a longer one is none."""

_ETAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')


@dataclass(frozen=True, slots=True)
class Validators:
    """The entity tag and the date of a page, as its server wrote them; empty: none."""

    etag: str = ""
    last_modified: str = ""

    @classmethod
    def of(cls, etag: bytes | None, last_modified: bytes | None) -> Validators:
        """From the values of the headers ``ETag`` and ``Last-Modified``, without what is none."""
        tag = (etag or b"").decode("latin-1").strip()
        date = (last_modified or b"").decode("latin-1").strip()
        good = len(tag) <= LONGEST and _ETAG.fullmatch(tag) is not None
        return cls(tag if good else "", date if _seconds(date) is not None else "")

    def __bool__(self) -> bool:
        return bool(self.etag or self.last_modified)

    @property
    def modified(self) -> float | None:
        """When the page says that it last changed, in seconds (wall)."""
        return _seconds(self.last_modified)

    def headers(self) -> dict[bytes, bytes]:
        """Those of a request that is to be answered with 304 if the page did not change.

        Both, as RFC 9110 §13.1.3 has it: who knows entity tags passes over the date.
        """
        found = {}
        if self.etag:
            found[b"If-None-Match"] = self.etag.encode("latin-1")
        if self.last_modified:
            found[b"If-Modified-Since"] = self.last_modified.encode("latin-1")
        return found

    def renewed(self, answer: Validators) -> Validators:
        """With those of a 304, which may bring new ones (RFC 9110 §15.4.5)."""
        return Validators(answer.etag or self.etag, answer.last_modified or self.last_modified)

    def to_bytes(self) -> bytes:
        """As a row of the store holds them."""
        return f"{self.etag}\n{self.last_modified}".encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Validators:
        """Read them back. Raises `ValueError`."""
        etag, separator, date = data.decode().partition("\n")
        if not separator or "\n" in date:
            raise ValueError("no validators")
        return cls(etag, date)


def _seconds(date: str) -> float | None:
    if not date or len(date) > LONGEST or not date.isascii() or not date.isprintable():
        return None
    try:
        found = parsedate_to_datetime(date)
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        return found.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
