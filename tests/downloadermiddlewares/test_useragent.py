"""The User-Agent that a rule names for a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.downloadermiddlewares.useragent import HostUserAgentMiddleware


@pytest.fixture
def middleware(tmp_path: Path) -> HostUserAgentMiddleware:
    """One with rules for two hosts."""
    path = tmp_path / "rules"
    path.write_text("a.t user_agent='a bot/1.0 (+http://x.t/)'\n.b.t user_agent=b\n")
    crawler = get_crawler(Spider, {"SUITE_OVERRIDES": str(path)})
    return HostUserAgentMiddleware.from_crawler(crawler)


def sent(middleware: HostUserAgentMiddleware, request: Request) -> bytes | None:
    """The header with which *request* is sent."""
    middleware.process_request(request)
    return request.headers.get("User-Agent")


def test_a_rule_wins(middleware: HostUserAgentMiddleware) -> None:
    """Over none, over a spider's own; other hosts keep theirs."""
    assert sent(middleware, Request("http://a.t/")) == b"a bot/1.0 (+http://x.t/)"
    assert sent(middleware, Request("https://w.b.t/", headers={"User-Agent": "own"})) == b"b"
    assert sent(middleware, Request("http://c.t/", headers={"User-Agent": "own"})) == b"own"
    assert sent(middleware, Request("http://c.t/")) is None
    assert sent(middleware, Request("data:,x")) is None


@pytest.mark.parametrize("own", [None, b"own"])
def test_a_redirect_takes_it_along_no_further(
    middleware: HostUserAgentMiddleware, own: bytes | None
) -> None:
    """To another host with a rule, to one without, and on a retry."""
    request = Request("http://a.t/", headers={} if own is None else {"User-Agent": own})
    sent(middleware, request)
    assert sent(middleware, request.copy()) == b"a bot/1.0 (+http://x.t/)"
    request = request.replace(url="http://b.t/")
    assert sent(middleware, request) == b"b"
    request = request.replace(url="http://c.t/")
    assert sent(middleware, request) == own
    assert "suite_user_agent" not in request.meta


def test_without_a_file_nothing_changes() -> None:
    """A crawl without rules sends what it would."""
    middleware = HostUserAgentMiddleware.from_crawler(get_crawler(Spider))
    assert sent(middleware, Request("http://a.t/", headers={"User-Agent": "own"})) == b"own"
