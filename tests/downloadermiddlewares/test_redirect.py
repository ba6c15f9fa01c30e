"""Tests of redirects that become links."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Spider
from scrapy.exceptions import IgnoreRequest, NotConfigured
from scrapy.http import Request, Response
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.requests import redirect_target
from scrapy_spider_suite.downloadermiddlewares.redirect import (
    HOPS_MAX,
    LinkRedirectMiddleware,
)
from scrapy_spider_suite.exceptions import RedirectLoop, TooManyHops

A, B = "http://a.example/", "http://b.example/"


class Handler(Spider):
    """A spider that wants to see 302 itself."""

    name = "handler"
    handle_httpstatus_list = (302,)


def middleware(spider: type[Spider] = Spider, **settings: Any) -> LinkRedirectMiddleware:
    """Build the middleware as Scrapy does, for a crawler with a spider."""
    crawler = get_crawler(spider, settings)
    crawler.spider = crawler._create_spider("x")
    return LinkRedirectMiddleware.from_crawler(crawler)


def bulk(url: str = A, **kwargs: Any) -> Request:
    """Return a request as the frontier makes it."""
    meta = {"suite_bulk": True, "depth": 3, **kwargs.pop("meta", {})}
    return Request(url, meta=meta, **kwargs)


def to(location: str | bytes, status: int = 302, url: str = A) -> Response:
    """Return a redirect."""
    return Response(url, status, headers={"Location": location})


def stats(tested: LinkRedirectMiddleware) -> dict[str, Any]:
    """Return what was counted, without the common prefix."""
    return {k.removeprefix("suite/redirect/"): v for k, v in tested._stats.get_stats().items()}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_link_of_the_same_depth(status: int) -> None:
    """The target is a GET of its own, one hop further, with the page that linked to it."""
    request = bulk(
        priority=7,
        cb_kwargs={"k": 1},
        dont_filter=True,
        headers={"Referer": "http://page.example/", "Cookie": "s=1", "Authorization": "x"},
    )
    tested = middleware()
    found = tested.process_response(request, to(B, status))
    assert isinstance(found, Request)
    assert (found.url, found.method, found.dont_filter) == (B, "GET", False)
    assert found.meta == {"suite_bulk": True, "depth": 3, "suite_hops": 1}
    assert found.headers.to_string() == b"Referer: http://page.example/"
    assert (found.priority, found.cb_kwargs) == (7, {"k": 1})
    assert stats(tested) == {"count": 1}


def test_what_belongs_to_the_fetch_is_left_behind() -> None:
    """The address that was booked for one host is not the next one's."""
    request = bulk(
        meta={
            "suite_address": "192.0.2.1", "download_slot": "a.example", "download_latency": 0.1,
            "proxy": "http://p.example", "_scheme_proxy": True, "_auth_proxy": "p", "mine": 1,
        }
    )  # fmt: skip
    found = middleware().process_response(request, to(B))
    assert found.meta == {"suite_bulk": True, "depth": 3, "mine": 1, "suite_hops": 1}


def test_a_proxy_that_the_request_asked_for_stays() -> None:
    """Only one that was chosen by the scheme is chosen again."""
    found = middleware().process_response(bulk(meta={"proxy": "http://p.example"}), to(B))
    assert found.meta["proxy"] == "http://p.example"


def test_a_secure_page_is_not_named_to_plain_http() -> None:
    """The Referer is dropped where the default referrer policy drops it."""
    request = bulk("https://a.example/", headers={"Referer": "https://page.example/"})
    down = middleware().process_response(request, to(B))
    assert b"Referer" not in down.headers
    kept = middleware().process_response(request, to("https://b.example/"))
    assert kept.headers[b"Referer"] == b"https://page.example/"


def test_callbacks_are_taken_over() -> None:
    """The spider's methods receive what the target answers."""
    method: Any = Spider("x").parse
    request = bulk(callback=method, errback=method)
    found = middleware().process_response(request, to(B))
    assert isinstance(found, Request)
    assert found.callback == method
    assert found.errback == method


def test_a_page_that_redirects_to_itself_is_fetched_once_more() -> None:
    """It may only have wanted to set a cookie; the second time it is a loop."""
    tested = middleware()
    again = tested.process_response(bulk(), to("HTTP://A.example:80/#x"))
    assert isinstance(again, Request)
    assert again.dont_filter
    assert again.meta["suite_self_redirect"] is True
    with pytest.raises(RedirectLoop):
        tested.process_response(again, to("/"))
    assert stats(tested) == {"count": 1, "loop": 1}


def test_after_fetching_itself_a_page_may_redirect_elsewhere() -> None:
    """And the next page may redirect to itself in turn."""
    tested = middleware()
    again = tested.process_response(bulk(), to(A))
    assert isinstance(again, Request)
    there = tested.process_response(again, to(B))
    assert isinstance(there, Request)
    assert "suite_self_redirect" not in there.meta
    assert not there.dont_filter
    assert isinstance(tested.process_response(there, to(B, url=B)), Request)


def test_a_chain_ends_after_ten() -> None:
    """The eleventh redirect in a row is refused."""
    tested, request = middleware(), bulk()
    for n in range(HOPS_MAX):
        found = tested.process_response(request, to(f"/{n}"))
        assert isinstance(found, Request)
        request = found
    assert request.meta["suite_hops"] == HOPS_MAX
    with pytest.raises(TooManyHops) as refused:
        tested.process_response(request, to("/more"))
    assert isinstance(refused.value, IgnoreRequest)
    assert stats(tested) == {"count": HOPS_MAX, "too_many": 1}


@pytest.mark.parametrize(
    "location", ["http://", "http://[::1", "mailto:me@a.example", "javascript:1", "ftp://b.example"]
)
def test_a_redirect_to_nowhere_goes_to_the_spider(location: str) -> None:
    """And Scrapy's middleware is kept from trying it."""
    tested, request, response = middleware(), bulk(), to(location)
    assert tested.process_response(request, response) is response
    assert request.meta["dont_redirect"] is True
    assert stats(tested) == {"invalid": 1}


def test_a_target_longer_than_the_limit_is_invalid() -> None:
    """URLLENGTH_LIMIT holds for redirects as for links; 0 is no limit."""
    response = to("/" + "x" * 3000)
    assert middleware().process_response(bulk(), response) is response
    found = middleware(URLLENGTH_LIMIT=0).process_response(bulk(), response)
    assert isinstance(found, Request)


@pytest.mark.parametrize(
    "response", [Response(A, 302), Response(A, 200, headers={"Location": B}), to(B, 300), to("")]
)
def test_what_is_no_redirect_passes(response: Response) -> None:
    """No Location, or a status that does not send on: as Scrapy has it."""
    assert middleware().process_response(bulk(), response) is response


@pytest.mark.parametrize(
    "meta",
    [
        {"dont_redirect": True},
        {"handle_httpstatus_all": True},
        {"handle_httpstatus_list": [302]},
    ],
)
def test_the_spider_may_ask_for_the_redirect_itself(meta: dict[str, Any]) -> None:
    """Scrapy's meta keys keep their meaning."""
    response = to(B)
    tested = middleware()
    assert tested.process_response(bulk(meta=meta), response) is response
    assert stats(tested) == {}


def test_the_spiders_list_of_statuses_counts_too() -> None:
    """handle_httpstatus_list of the class."""
    response = to(B)
    assert middleware(spider=Handler).process_response(bulk(), response) is response
    assert isinstance(middleware(spider=Handler).process_response(bulk(), to(B, 301)), Request)


def test_requests_of_a_spider_are_left_to_scrapy() -> None:
    response = to(B)
    assert middleware().process_response(Request(A), response) is response


def test_redirects_can_be_switched_off() -> None:
    """REDIRECT_ENABLED is obeyed."""
    with pytest.raises(NotConfigured):
        middleware(REDIRECT_ENABLED=False)


@pytest.mark.parametrize(
    ("location", "target"),
    [
        (b"/x y", "http://a.example/x%20y"),
        ("/\u00e9".encode(), "http://a.example/%C3%A9"),
        (b"/\xe9", "http://a.example/%E9"),
        ("http://b\u00fccher.example/".encode(), "http://xn--bcher-kva.example/"),
        (b"//b.example", "http://b.example/"),
        (b"?q=1", "http://a.example/p?q=1"),
        (b"  /x\t", "http://a.example/x"),
    ],
)
def test_locations_as_servers_write_them(location: bytes, target: str) -> None:
    """Raw bytes are escaped as they are, relative forms resolved."""
    assert redirect_target("http://a.example/p", to(location)) == target
