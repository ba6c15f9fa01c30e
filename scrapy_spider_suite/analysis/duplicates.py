"""The first page with each digest: an exact table of rows in the store, none of it in memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.revisit_plans import PackedBody
from scrapy_spider_suite.urls.normalize import host_of

PAYLOADS: Final = "payloads"
STRUCTURES: Final = "structures"
"""The mappings of a job's store that hold the originals by either digest."""
NEAR: Final = "near"
"""The one that holds what pages said, which `near` reads: that needs an extra."""


@dataclass(frozen=True, slots=True)
class Original:
    """A page that others repeat, as a WARC revisit record refers to it (WARC 1.1 §6.7.2)."""

    url: str
    when: float
    """Seconds, wall: ``WARC-Refers-To-Date``."""
    record: str = ""
    """``WARC-Refers-To``: the id of the record, if it is known."""


@dataclass(slots=True)
class Likeness:
    """What is known of a page that came: its digests, and whether it was there before.

    Attributes:
        url: what was asked for.
        when: when it came (wall, seconds).
        payload: the digest of its bytes; empty: it is to be nobody's original.
        structure: that of its structure; likewise.
        packed: the record that has its body already.
        lost: its original is in the packs no more, and it takes its place.
        settled: it is being packed, whole.
        repeats: it is a duplicate of another page.
        of_host: one of its own host.
    """

    url: str
    when: float
    payload: bytes = b""
    structure: bytes = b""
    packed: PackedBody | None = None
    lost: bool = False
    settled: bool = False
    repeats: bool = False
    of_host: bool = False


class Originals:
    """Digests and their originals in *rows*, a mapping of the job's store that nothing else uses.

    One table for each kind of digest. Its rows are part of the batch that makes a page done, so an
    original is one only when its page is on disk: a page that is fetched again after a kill is no
    duplicate of itself. Two equal pages in flight at once are both stored.
    """

    def __init__(self, rows: KV) -> None:
        self._rows = rows

    def find(self, digest: bytes) -> Original | None:
        """The original with *digest*; of an empty one (of a page that says nothing) there is none.

        Raises `JobDamagedError`.
        """
        data = self._rows.get(digest) if digest else None
        return None if data is None else _original(data)

    def settle(self, digest: bytes, page: Original) -> None:
        """With the store's next batch, let *page* be the original unless there is one already."""
        if digest and self._rows.get(digest) is None:
            self.replace(digest, page)

    def replace(self, digest: bytes, page: Original) -> None:
        """Let *page* be the original: the one that was is gone (a host was redacted)."""
        if digest:
            self._rows.put(digest, msgpack.packb((page.url, page.when, page.record)))

    def of_host(self, host: str, after: bytes, rows: int) -> tuple[list[bytes], bytes]:
        """Of the next *rows* digests behind *after* those whose original lies on *host*.

        And the last one that was looked at, to go on behind; empty: there are no more. Raises
        `JobDamagedError`.
        """
        portion = list(islice(self._rows.items(since=after + b"\0"), rows))
        found = [key for key, data in portion if host_of(_original(data).url) == host]
        return found, portion[-1][0] if len(portion) == rows else b""

    def forget(self, digest: bytes) -> None:
        """Let the next page with *digest* be an original."""
        if digest:
            self._rows.delete(digest)


def _original(data: bytes) -> Original:
    """What a row holds. Raises `JobDamagedError`."""
    try:
        url, when, record = msgpack.unpackb(data)
        return Original(str(url), float(when), str(record))
    except (ValueError, TypeError) as error:
        raise JobDamagedError(f"a row of the digests is damaged ({error!r})") from error
