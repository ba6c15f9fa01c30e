"""A page as a reader sees it: what was fetched, what it says, where it leads."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_spider_suite.errors import PackDamagedError, PackError
from scrapy_spider_suite.packs import heads, pages
from scrapy_spider_suite.packs.container import Place
from scrapy_spider_suite.packs.heads import Head
from scrapy_spider_suite.packs.outlinks import links_in
from scrapy_spider_suite.packs.pages import Link
from scrapy_spider_suite.packs.payload import decode
from scrapy_spider_suite.packs.warc import IDENTICAL, Record
from scrapy_spider_suite.runtime.http_fields import media_type

if TYPE_CHECKING:
    from scrapy_spider_suite.packs.reader import Packs


class Page:
    """A response, a revisit, or a resource.

    Attributes:
        record: its WARC record.
        metadata: the record with its links; None if there is none.
        path: the pack that it is in (without ``.open``).
        place: and where in it.
    """

    def __init__(
        self, packs: Packs, path: Path, place: Place, record: Record, metadata: Record | None
    ) -> None:
        self._packs = packs
        self.path = path
        self.place = place
        self.record = record
        self.metadata = metadata

    def __repr__(self) -> str:
        """Which page, and from when."""
        return f"<Page {self.url} {self.record.get('WARC-Date')}>"

    @property
    def url(self) -> str:
        """What was asked for."""
        return self.record.url

    @property
    def time(self) -> datetime | None:
        """When, in UTC; None if the record has no date."""
        return self.record.time

    @cached_property
    def head(self) -> Head:
        """The head of the response; of status 0 where there is none that is one."""
        if self.record.get("Content-Type").startswith("application/http"):
            try:
                return heads.parse(heads.split(self.record.block)[0])
            except PackDamagedError:  # it was stored as it came
                return Head("", 0, "", ())
        return Head("", 0, "", (("Content-Type", self.record.get("Content-Type")),))

    @property
    def status(self) -> int:
        """The HTTP status; 0 for what did not come by HTTP."""
        return self.head.status

    @property
    def headers(self) -> dict[str, str]:
        """The fields of the response by their names in lower case; several values are joined."""
        found: dict[str, str] = {}
        for name, value in self.head.fields:
            name = name.lower()
            found[name] = f"{found[name]}, {value}" if name in found else value
        return found

    @property
    def mime(self) -> str:
        """The media type, without parameters; "" if the server did not say."""
        return media_type(self.head.get("Content-Type"))

    @property
    def is_revisit(self) -> bool:
        """Whether the page's body is in an earlier record."""
        return self.record.kind == "revisit"

    @cached_property
    def original(self) -> Page | None:
        """The page that a revisit says it is the same as; None if that is not in the packs.

        Or one of either URL with the same digest: what was not written for lack of room was
        fetched again, and is in the packs as of then.
        """
        if not self.is_revisit:
            return None
        url, date = map(self.record.get, ("WARC-Refers-To-Target-URI", "WARC-Refers-To-Date"))
        found = self._packs.exact(url, date)
        if found is None and url and self.digest:
            found = self._packs.alike(url, self.digest) or self._packs.alike(self.url, self.digest)
        return found

    @cached_property
    def body(self) -> bytes:
        """What the server sent, without chunks and decompressed; of a revisit the original's.

        Raises `PackDamagedError` (it is not encoded as the head says, or is too large) and
        `PackError` (the original is not here; a compression that is not known).
        """
        if self.is_revisit:
            if self.original is None or self.original.is_revisit:
                raise PackError(f"the page that {self.url} is the same as is not in these packs")
            return self.original.body
        if not self.head.status:
            return self.record.block
        return decode(self.head, heads.split(self.record.block)[1], self._packs.limit)

    @property
    def digest(self) -> str:
        """``WARC-Payload-Digest``: equal for equal bodies."""
        return self.record.get("WARC-Payload-Digest")

    @property
    def unchanged(self) -> bool:
        """Whether it is a revisit because the body was the same, not because the server said so."""
        return self.record.get("WARC-Profile") == IDENTICAL

    @property
    def links(self) -> list[Link]:
        """What it leads to, as the crawl found it, or would find it if it read it later."""
        later = self._note(pages.LATER)
        if later:
            return links_in(self, later.partition(" ")[2])
        return [] if self.metadata is None else pages.links(self.metadata)

    @property
    def via(self) -> str:
        """The page that led here; "" for a seed."""
        return self._note("via")

    @property
    def hops(self) -> str:
        """How the crawl came here from a seed, a letter for each hop."""
        return self._note("hopsFromSeed")

    def _note(self, name: str) -> str:
        found = () if self.metadata is None else pages.lines(self.metadata)
        return next((value for field, value in found if field == name), "")
