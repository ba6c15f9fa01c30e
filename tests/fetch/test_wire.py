"""Requests as bytes."""

from __future__ import annotations

import pytest
from scrapy.exceptions import UnsupportedURLSchemeError
from scrapy.http import Headers

from scrapy_spider_suite.fetch.http_messages import UnsendableRequestError, request_bytes, split_url


@pytest.mark.parametrize(
    ("url", "host", "port", "header", "target"),
    [
        ("http://a.test", "a.test", 80, b"a.test", b"/"),
        ("http://a.test?q", "a.test", 80, b"a.test", b"/?q"),
        ("http://a.test/?", "a.test", 80, b"a.test", b"/?"),
        ("http://a.test/b;c?d/e#f?g", "a.test", 80, b"a.test", b"/b;c?d/e"),
        ("http://a.test//b", "a.test", 80, b"a.test", b"//b"),
        ("https://a.test:443/", "a.test", 443, b"a.test", b"/"),
        ("https://a.test:80/", "a.test", 80, b"a.test:80", b"/"),
        ("HTTP://A.Test:8080/B", "a.test", 8080, b"A.Test:8080", b"/B"),
        ("http://a.test:/", "a.test", 80, b"a.test", b"/"),
        ("http://user:p@ss@a.test/", "a.test", 80, b"a.test", b"/"),
        ("http://[2001:db8::1]:81/", "2001:db8::1", 81, b"[2001:db8::1]:81", b"/"),
        ("http://[::1]/", "::1", 80, b"[::1]", b"/"),
        ("http://a_b.test./", "a_b.test.", 80, b"a_b.test.", b"/"),
        ("http://b\u00fccher.test/", "xn--bcher-kva.test", 80, b"xn--bcher-kva.test", b"/"),
    ],
)
def test_split_url(url: str, host: str, port: int, header: bytes, target: bytes) -> None:
    """Where a URL points to, and what is asked for there."""
    origin, asked = split_url(url)
    assert (origin.host, origin.port, origin.header, asked) == (host, port, header, target)


@pytest.mark.parametrize("url", ["ftp://a.test/", "file:///etc/passwd", "a.test", "//a.test/", ""])
def test_other_schemes(url: str) -> None:
    """Only http and https are spoken."""
    with pytest.raises(UnsupportedURLSchemeError):
        split_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http:///path",
        "http://@/",
        "http://a.test:port/",
        "http://a.test:0/",
        "http://a.test:65536/",
        "http://a.test:" + "9" * 5000 + "/",
        "http://a b.test/",
        "http://a.test\\@b.test/",
        "http://[::1/",
        "http://[not:an]/",
        "http://a.test/b c",
        "http://a.test/b\r\nX-Evil: 1",
        "http://a.test/\u00fc",
        "http://a.test\r\n/",
        f"http://{'a' * 2044}.test/",
        f"http://{'u' * 2048}@a.test/",
    ],
)
def test_urls_that_cannot_be_sent(url: str) -> None:
    """What would be read otherwise by a server than by us is not sent."""
    with pytest.raises(UnsendableRequestError):
        split_url(url)


def test_a_request_with_everything() -> None:
    """Host first, fields in order, framing last."""
    headers = Headers({"User-Agent": "me", "X-A": ["1", "2"], "Empty": ""})
    assert request_bytes("PUT", b"/a?b", b"a.test:81", headers, b"body") == (
        b"PUT /a?b HTTP/1.1\r\nHost: a.test:81\r\nUser-Agent: me\r\nX-A: 1\r\nX-A: 2\r\n"
        b"Empty: \r\nContent-Length: 4\r\n\r\nbody"
    )


def test_a_host_of_the_users_own() -> None:
    """A Host field in the request is sent instead of the URL's."""
    sent = request_bytes("GET", b"/", b"a.test", Headers({"Host": "b.test"}), b"")
    assert sent == b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n"


def test_framing_is_ours() -> None:
    """Fields that contradict the body, or are for a proxy, do not reach the server."""
    headers = Headers({"Content-Length": "99", "Transfer-Encoding": "chunked"})
    headers["Proxy-Authorization"] = "Basic c2VjcmV0"
    sent = request_bytes("POST", b"/", b"a.test", headers, b"abc")
    assert sent == b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc"


def test_nothing_can_be_smuggled() -> None:
    """Line breaks in values become spaces; names and methods with them are refused."""
    sent = request_bytes("GET", b"/", b"a.test", {b"A": [b"1\r\nB: 2\n\n3"]}, b"")
    assert sent.count(b"\r\n") == 4
    for name in (b"A\r\nB", b"A b", b"A:", b""):
        with pytest.raises(UnsendableRequestError):
            request_bytes("GET", b"/", b"a.test", {name: [b"1"]}, b"")
    for method in ("GET /", "GET\r\n", "", "G\u00cbT"):
        with pytest.raises(UnsendableRequestError):
            request_bytes(method, b"/", b"a.test", {}, b"")
