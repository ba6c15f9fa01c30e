"""Answers as what packs keep of them: from what the gate's witness has seen, or from a page item.
"""

from __future__ import annotations

from scrapy.http import Response

from scrapy_spider_suite.crawl.witness import Fetched
from scrapy_spider_suite.downloader import ADDRESS
from scrapy_spider_suite.downloadermiddlewares.redirect import redirect_target
from scrapy_spider_suite.exceptions import UnwantedMediaType
from scrapy_spider_suite.fetch.exchange import TRUNCATED
from scrapy_spider_suite.fetch.http_messages import WIRE, Sent
from scrapy_spider_suite.items import PageItem, link_of
from scrapy_spider_suite.packs import Fetch, Form, Link
from scrapy_spider_suite.packs.http_records import build
from scrapy_spider_suite.storage.leases import Lease


def fetch_of(fetched: Fetched) -> Fetch | None:
    """What came, as it was on the wire as far as the handler kept that; None: no answer did."""
    sent: Sent | None = fetched.request.meta.pop(WIRE, None)
    response, unwanted = fetched.response, isinstance(fetched.error, UnwantedMediaType)
    if isinstance(fetched.error, UnwantedMediaType):
        response = fetched.error.response  # its head, as far as it was read
    return None if response is None else _fetch(fetched, response, sent, cut=unwanted)


def fetch_of_item(item: PageItem, lease: Lease | None) -> Fetch:
    """The page of *item*, as Scrapy's middlewares have left it.

    They take a Content-Encoding that they have undone out of the head, so one that is there holds
    for the body. Where the handler has kept the head of the wire, that is taken. Raises `TypeError`
    and the like: the item holds what no page has.
    """
    source, (via, hops) = item.source, _way(lease)
    request = None if source is None else source.request
    sent: Sent | None = None if request is None else request.meta.pop(WIRE, None)
    protocols = () if source is None else _protocols(source)
    fields = [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
              for name, values in item.headers.items() for value in values]  # fmt: skip
    return Fetch(
        url=item.url,
        time=item.time.timestamp(),
        head=build(item.status, fields) if sent is None else sent.head,
        body=bytes(item.body),
        form=Form.JOINED if "Content-Encoding" in item.headers else Form.DECODED,
        method="GET" if request is None else request.method,
        request=b"" if sent is None else sent.request,
        address="" if source is None else _address(source),
        truncated="" if source is None else _truncated(source),
        protocols=protocols if sent is None else sent.protocols,
        links=[link_of(each) for each in item.links or ()],
        via=via,
        hops=hops,
    )


def _fetch(fetched: Fetched, response: Response, sent: Sent | None, *, cut: bool) -> Fetch:
    request, (via, hops) = fetched.request, _way(fetched.lease)
    target = redirect_target(request.url, response)
    return Fetch(
        url=request.url,
        time=fetched.ended - fetched.seconds,
        head=_head(response) if sent is None else sent.head,
        body=response.body,
        form=Form.JOINED,
        method=request.method,
        request=b"" if sent is None else sent.request,
        address=_address(response) or request.meta.get(ADDRESS, ""),
        truncated="length" if cut else _truncated(response),
        protocols=_protocols(response) if sent is None else sent.protocols,
        links=() if target is None else (Link(target, "redirect"),),
        via=via,
        hops=hops,
    )


def _address(response: Response) -> str:
    return str(response.ip_address or "")


def _truncated(response: Response) -> str:
    if "dataloss" in response.flags:
        return "disconnect"
    return "length" if TRUNCATED in response.flags else ""


def _protocols(response: Response) -> tuple[str, ...]:
    return (response.protocol.lower(),) if response.protocol else ()


def _way(lease: Lease | None) -> tuple[str, str]:
    """From which page the crawl came to that of *lease*, and by which hops from a seed."""
    if lease is None:
        return "", ""
    entry = lease.entry
    return entry.referrer, "L" * entry.depth + "R" * entry.hops


def _head(response: Response) -> bytes:
    """What can be said of a head that a foreign handler has not kept."""
    fields: dict[bytes, list[bytes]] = dict(response.headers)
    return build(response.status, fields)
