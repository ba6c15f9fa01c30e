"""What is kept of a page that is to be visited again: one row of the job's store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.revisit_rules import History, Validators
from scrapy_spider_suite.storage.records import pack_row, unpack_row

_KEPT = int(Flag.USER | Flag.PROXIED | Flag.NO_ROBOTS)


class Packed(NamedTuple):
    """The record that holds a page's body, to which a revisit record refers (WARC 1.1 §6.7).

    *when* in seconds (wall), as its ``WARC-Date`` says it; *digest*: its
    ``WARC-Payload-Digest``.
    """

    url: str
    when: float
    digest: str


UNPACKED: Final = Packed("", 0.0, "")
"""In place of one: the body was not to be packed (a filter, a dropped item, no item of it). Else a
page without one is asked for whole, to be packed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """When a page is visited again, and what its visits found. Times are wall times.

    Attributes:
        due: when its next visit is due, or was when it was taken.
        history: what its visits found.
        rate: changes a second, as the page is counted.
        validators: what its server may be asked by.
        digest: of the body of the last visit, in which a change shows.
        misses: how many visits in a row have found no page.
        claimed: a sitemap says that it has changed since.
        packed: the record with its body; `UNPACKED`, or None if there is none.
        host: its pacing key.
        row: how it stood in the queue.
    """

    due: float
    history: History
    rate: float
    validators: Validators
    digest: bytes
    misses: int = 0
    claimed: bool = False
    packed: Packed | None = None
    host: str = ""
    row: bytes = b""

    def to_bytes(self) -> bytes:
        """As a row holds it."""
        data: bytes = msgpack.packb((
            self.due, self.history.to_bytes(), self.rate, self.validators.to_bytes(), self.digest,
            self.misses, self.claimed, self.packed, self.host, self.row,
        ))  # fmt: skip
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Read it back. Raises `JobDamagedError`."""
        try:
            (
                due, history, rate, validators, digest, misses, claimed, packed, host, row,
            ) = msgpack.unpackb(data)  # fmt: skip
            return cls(
                float(due), History.from_bytes(history), float(rate),
                Validators.from_bytes(validators), bytes(digest), int(misses), bool(claimed),
                None if packed is None else Packed(*packed), str(host), bytes(row),
            )  # fmt: skip
        except (ValueError, TypeError) as error:
            raise JobDamagedError(f"a row of the revisits is damaged ({error!r})") from error

    def without(self, gone: Callable[[str], bool]) -> Plan:
        """The plan as it is if the URLs that are *gone* have never been: one may have led to the
        page, one may be that under which its body is packed. Raises `JobDamagedError`.
        """
        packed, row = self.packed, self.row
        if packed is not None and gone(packed.url):
            packed = None
        if row and gone((entry := unpack_row(self.host, b"", row)).referrer):
            entry.referrer = ""
            row = pack_row(entry)
        same = packed is self.packed and row is self.row
        return self if same else replace(self, packed=packed, row=row)

    def entry(self) -> Entry:
        """The page as it is queued once more. Raises `JobDamagedError`."""
        entry = unpack_row(self.host, b"", self.row)
        entry.attempts = 0
        entry.flags &= _KEPT
        return entry


def row_of(entry: Entry) -> bytes:
    """How *entry*, which can be stored, is kept in its plan."""
    return pack_row(entry)
