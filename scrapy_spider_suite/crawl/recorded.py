"""Whether a response can be had again, as it is, from the record of its page."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from scrapy.http import Response

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs import http_records
from scrapy_spider_suite.packs.http_records import decode
from scrapy_spider_suite.packs.warc import URL_MAX

if TYPE_CHECKING:
    from scrapy_spider_suite.packs import Fetch

_OF_LINKS: Final = frozenset({"content-language", "content-type", "link", "x-robots-tag"})
"""Fields that say of a page which links it has, or whether filters want them."""


def can_wait(fetch: Fetch, response: Response) -> bool:
    """Whether *response* can be had again from the record of *fetch*."""
    if fetch.truncated or fetch.original is not None or fetch.url != response.url:
        return False
    if len(fetch.url) > URL_MAX:  # it is not packed
        return False
    try:
        head = http_records.parse(http_records.fit(fetch.head, len(fetch.body), fetch.form, method=fetch.method))
        # More than that is another body: a small one may decompress to a very large one.
        if decode(head, fetch.body, len(response.body)) != response.body:
            return False
    except PackError:
        return False
    return head.status == response.status and _fields(head.fields) == _fields(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, values in response.headers.items()
        for value in values
    )


def _fields(fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those of *fields* on which it depends which links are followed, by their names."""
    named = ((name.lower(), value) for name, value in fields)
    return sorted((field for field in named if field[0] in _OF_LINKS), key=itemgetter(0))
