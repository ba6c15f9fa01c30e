"""Answers as what packs keep of them: from what the gate's witness has seen."""

from __future__ import annotations

from scrapy.http import Response

from scrapy_spider_suite.crawl.witness import Fetched
from scrapy_spider_suite.downloader import ADDRESS
from scrapy_spider_suite.exceptions import UnwantedMediaType
from scrapy_spider_suite.handlers.exchange import TRUNCATED
from scrapy_spider_suite.handlers.wire import WIRE, Sent
from scrapy_spider_suite.packs import Fetch, Form
from scrapy_spider_suite.packs.heads import build


def fetch_of(fetched: Fetched) -> Fetch | None:
    """What came, as it was on the wire as far as the handler kept that; None: no answer did."""
    sent: Sent | None = fetched.request.meta.pop(WIRE, None)
    response, unwanted = fetched.response, isinstance(fetched.error, UnwantedMediaType)
    if isinstance(fetched.error, UnwantedMediaType):
        response = fetched.error.response  # its head, as far as it was read
    return None if response is None else _fetch(fetched, response, sent, cut=unwanted)


def _fetch(fetched: Fetched, response: Response, sent: Sent | None, *, cut: bool) -> Fetch:
    request, lease = fetched.request, fetched.lease
    truncated = "length" if cut or TRUNCATED in response.flags else ""
    if "dataloss" in response.flags:
        truncated = "disconnect"
    protocols = (response.protocol.lower(),) if response.protocol else ()
    return Fetch(
        url=request.url,
        time=fetched.ended - fetched.seconds,
        head=_head(response) if sent is None else sent.head,
        body=response.body,
        form=Form.JOINED,
        method=request.method,
        request=b"" if sent is None else sent.request,
        address=str(response.ip_address or request.meta.get(ADDRESS) or ""),
        truncated=truncated,
        protocols=protocols if sent is None else sent.protocols,
        via="" if lease is None else lease.entry.referrer,
        hops="" if lease is None else "L" * lease.entry.depth + "R" * lease.entry.hops,
    )


def _head(response: Response) -> bytes:
    """What can be said of a head that a foreign handler has not kept."""
    fields: dict[bytes, list[bytes]] = dict(response.headers)
    return build(response.status, fields)
