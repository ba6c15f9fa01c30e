"""Pages that come compressed and in chunks, as the client accepts them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import brotli
import pytest

from scrapy_spider_suite.testing import FakeWeb, FakeWebConfig

UNDO = {"": bytes, "gzip": gzip.decompress, "br": brotli.decompress}


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [("gzip;q=0.9, br", {"", "gzip", "br"}), ("GZIP", {"", "gzip"}), ("identity", {""})],
)
def test_pages_are_what_they_are(
    accepted: str, expected: set[str], small: FakeWeb, ask: Callable[..., Any]
) -> None:
    """In whichever way they come; whoever accepts no compression has chunks."""
    ways = set()
    with FakeWeb(FakeWebConfig(hosts=6, pages=12, addresses=3, page_size=2000, coded=0.8)) as web:
        for host in range(6):
            for page in range(12):
                name, path = web.web.host_name(host), web.web.path(page)
                plain = ask(small, small.url(name, path)).body
                answer = ask(web, web.url(name, path), **{"Accept-Encoding": accepted})
                coding = answer.fields.get("content-encoding", "")
                way = "chunks" if "transfer-encoding" in answer.fields else "whole"
                assert ("content-length" in answer.fields) is (way == "whole")
                ways.add((coding, way))
                body = UNDO[coding](answer.body)
                # Its links name the port.
                port, other = (f":{each.ready.http_port}".encode() for each in (web, small))
                assert body.replace(port, other) == plain
        assert ask(web, web.url("h000000.fake.test", "/none")).body == b"no such page\n"
    assert {coding for coding, _ in ways} == expected
    assert {(coding, way) for coding in expected for way in ("chunks", "whole")} == ways


def test_cookies(ask: Callable[..., Any]) -> None:
    """A share of the pages sets one, always the same pages; other answers set none."""
    with FakeWeb(FakeWebConfig(hosts=6, pages=12, addresses=3, cookies=0.5)) as web:
        urls = [
            web.url(web.web.host_name(host), web.web.path(page))
            for host in range(6)
            for page in range(12)
        ]
        twice = [[ask(web, url).fields.get("set-cookie") for url in urls] for _ in range(2)]
        assert ask(web, web.url("h000000.fake.test", "/none")).fields.get("set-cookie") is None
    assert twice[0] == twice[1]
    assert 20 < sum(cookie is not None for cookie in twice[0]) < 52
    assert {cookie.partition("=")[0] for cookie in twice[0] if cookie} <= {
        f"visit{number}" for number in range(4)
    }
