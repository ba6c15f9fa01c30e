"""The first page with each digest: an exact table in rows of the store."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.revisit_plans import PackedBody
from scrapy_spider_suite.urls.normalize import host_of

PAYLOADS: Final = "payloads"
STRUCTURES: Final = "structures"
"""Store mappings of the originals by either digest."""
NEAR: Final = "near"


class Original(NamedTuple):
    """The first page with a digest (WARC 1.1 §6.7.2). *when*: seconds, wall."""

    url: str
    when: float


@dataclass(slots=True)
class Likeness:
    """The digests of a page that came, and what they match. *when*: seconds, wall. *payload*,
    *structure*: digests; empty: it is to be no original.
    """

    url: str
    when: float
    payload: bytes = b""
    structure: bytes = b""
    packed: PackedBody | None = None  # the record that has its body already
    lost: bool = False  # its original is in no pack any more; it takes its place
    settled: bool = False  # it is being packed, whole
    repeats: bool = False  # it is a duplicate
    of_host: bool = False  # of a page of its own host


class Originals:
    """Digests and their originals in *rows*, written with the batch that completes a page."""

    def __init__(self, rows: KV) -> None:
        self._rows = rows

    def find(self, digest: bytes) -> Original | None:
        """Return the original with *digest*, or None. Raises `JobDamagedError`."""
        data = self._rows.get(digest) if digest else None
        return None if data is None else _original(data)

    def add_original(self, digest: bytes, page: Original) -> None:
        """With the store's next batch, let *page* be the original unless there is one already."""
        if digest and self._rows.get(digest) is None:
            self.replace(digest, page)

    def replace(self, digest: bytes, page: Original) -> None:
        """Make *page* the original: the old one was redacted."""
        if digest:
            self._rows.put(digest, msgspec.msgpack.encode(page))

    def for_host(self, host: str, after: bytes, rows: int) -> tuple[list[bytes], bytes]:
        """Return digests, of the next *rows* behind *after*, whose original is on *host*, and the
        last digest read (empty at the end). Raises `JobDamagedError`.
        """
        portion = list(islice(self._rows.items(since=after + b"\0"), rows))
        found = [key for key, data in portion if host_of(_original(data).url) == host]
        return found, portion[-1][0] if len(portion) == rows else b""

    def forget(self, digest: bytes) -> None:
        if digest:
            self._rows.delete(digest)


def _original(data: bytes) -> Original:
    try:
        return msgspec.msgpack.decode(data, type=Original)
    except ValueError as error:
        raise JobDamagedError(f"a row of the digests is damaged ({error!r})") from error
