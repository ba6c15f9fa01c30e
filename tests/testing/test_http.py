"""Heads of requests, and answers."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.testing.http import Request, make_reply, parse_head


def test_a_head_is_read() -> None:
    """Method, target, path, host without port, what else matters."""
    head = b"GET /a?b=1 HTTP/1.1\r\nHost: H1.Fake.Test.:8080\r\nAccept: */*"
    assert parse_head(head) == Request("GET", "/a?b=1", "/a", "h1.fake.test", True, 0)


@pytest.mark.parametrize(
    ("version", "connection", "keep"),
    [
        (b"HTTP/1.1", b"", True),
        (b"HTTP/1.1", b"\r\nConnection: close", False),
        (b"HTTP/1.1", b"\r\nconnection: Close, x", False),
        (b"HTTP/1.0", b"", False),
        (b"HTTP/1.0", b"\r\nConnection: keep-alive", True),
    ],
)
def test_who_wants_to_keep_the_connection(version: bytes, connection: bytes, keep: bool) -> None:
    """By version and field."""
    assert parse_head(b"GET / " + version + b"\r\nHost: a" + connection).keep is keep


def test_a_proxy_request_names_its_host() -> None:
    """The absolute form counts before the Host field (RFC 9112, 3.2.2)."""
    request = parse_head(b"GET http://a.test:80/x?y HTTP/1.1\r\nHost: b.test")
    assert (request.host, request.path, request.target) == ("a.test", "/x", "/x?y")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET /",
        b"GET  / HTTP/1.1",
        b"GET / HTTP/2.0",
        b"\x16\x03\x01",
        b"POST / HTTP/1.1\r\nContent-Length: x",
        b"POST / HTTP/1.1\r\nContent-Length: -1",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked",
    ],
)
def test_what_is_no_request_is_refused(head: bytes) -> None:
    """TLS, other versions, bodies without a length."""
    with pytest.raises(ValueError, match=r"request line|length"):
        parse_head(head)


def test_an_answer_is_framed() -> None:
    """Status line, type, length, further fields, body."""
    answer = make_reply(301, "moved\n", "text/plain", "Location: /x", delay=0.5)
    assert (answer.status, answer.delay, answer.keep) == (301, 0.5, True)
    assert answer.data == (
        b"HTTP/1.1 301 Moved Permanently\r\nServer: fakeweb\r\nContent-Type: text/plain\r\n"
        b"Content-Length: 6\r\nLocation: /x\r\n\r\nmoved\n"
    )
