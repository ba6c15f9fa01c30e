"""`PageItem`, a page as an item; items as lines of JSON."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from scrapy.exporters import JsonLinesItemExporter
from scrapy.http import Response

from scrapy_spider_suite.packs import Link


def _text(body: bytes) -> str:
    return base64.b64encode(body).decode()


@dataclass(eq=False, kw_only=True)
class PageItem:
    """A fetched page.

    A feed or an item pack has its *body* in base 64, and *time* in ISO 8601.

    Attributes:
        time: when the item was made, in UTC.
        status: of HTTP.
        headers: all values of each name, as Scrapy spells names, without headers that its
            middlewares have removed.
        body: decompressed, as the callback gets it.
        links: of the page; None if they were not read.

    Beside these fields: ``source``, the response that it was made from, and ``owner``, the request
    whose callback has yielded it; None if unknown.
    """

    url: str
    time: datetime = field(
        default_factory=lambda: datetime.now(UTC), metadata={"serializer": datetime.isoformat}
    )
    status: int = 200
    headers: dict[str, list[str]] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False, metadata={"serializer": _text})
    links: list[Link] | None = field(default=None, repr=False)
    response: InitVar[Response | None] = None

    def __post_init__(self, response: Response | None) -> None:
        # By the response the suite finds the bytes on the wire.
        self.source = response
        self.owner = None if response is None else response.request

    @classmethod
    def from_response(cls, response: Response, links: Iterable[Any] | None = None) -> Self:
        """Make an item of *response*, from within its callback. *links* of the page, absolute:
        URLs, `Link`s, or Scrapy's ``Link``.
        """
        fields: dict[bytes, list[bytes]] = dict(response.headers)
        return cls(
            url=response.url,
            status=response.status,
            headers={
                name.decode("latin-1"): [value.decode("latin-1") for value in values]
                for name, values in fields.items()
            },
            body=response.body,
            links=None if links is None else [link_of(each) for each in links],
            response=response,
        )


def link_of(link: Any) -> Link:
    """Return *link*, a URL or like Scrapy's ``Link``, as packs have it."""
    if isinstance(link, str):
        return Link(link)
    return Link(link.url, getattr(link, "kind", "a"), bool(getattr(link, "nofollow", False)))


class ItemLines:
    """Writes items as Scrapy's feeds of JSON lines do."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._readable = JsonLinesItemExporter(self._out, encoding="utf-8")
        # UTF-8 has no halves of surrogate pairs, which pages do have, escaped.
        self._escaped = JsonLinesItemExporter(self._out)

    def line(self, item: Any) -> bytes:
        """Return *item* as a line. Raises errors of its serialisers, or `TypeError`."""
        try:
            return self._export(self._readable, item)
        except UnicodeEncodeError:
            return self._export(self._escaped, item)

    def _export(self, exporter: JsonLinesItemExporter, item: Any) -> bytes:
        self._out.seek(0)
        self._out.truncate()
        exporter.export_item(item)
        return self._out.getvalue()
