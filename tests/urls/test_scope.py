"""Which links may be followed, with Scrapy's own middlewares as the measure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.urls import hosts
from scrapy_spider_suite.urls.hosts import OutOfScope, Scope
from scrapy_spider_suite.urls.normalize import host_of, normalize

LABELS = st.sampled_from(["a", "b", "aa", "example", "com"])
DOMAINS = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
STATS = get_crawler().stats
URL = "http://a.example/x"


def test_no_limits() -> None:
    """By default every link is in scope."""
    for scope in (Scope(), Scope([]), Scope(None, 0, 0)):
        assert scope.refuses(URL, "a.example", 10_000) is None


@settings(deadline=None)
@given(st.lists(DOMAINS, max_size=3), DOMAINS)
def test_same_as_the_off_site_middleware(allowed: list[str], host: str) -> None:
    """A domain allows itself and what is below it, exactly as in Scrapy."""
    spider = Spider("s", allowed_domains=allowed)
    middleware = OffsiteMiddleware(STATS)
    middleware.spider_opened(spider)
    url = f"http://{host}/"
    expected = None if middleware.should_follow(Request(url), spider) else OutOfScope.OFF_SITE
    scope = Scope(allowed)
    assert scope.refuses(url, host, 1) is expected
    assert scope.refuses(url, host, 1) is expected, "the remembered decision differs"


@pytest.mark.parametrize(
    ("domain", "url"),
    [
        ("Example.COM", "http://www.example.com/"),
        ("example.com.", "http://example.com/"),
        ("münchen.example", "http://www.xn--mnchen-3ya.example/"),
        ("xn--mnchen-3ya.example", "http://münchen.example/"),
        ("127.0.0.1", "http://127.0.0.1:8000/"),
        ("::1", "http://[::1]/"),
        ("[::1]", "http://[::1]/"),
        ("localhost", "http://localhost:6800/"),
    ],
)
def test_spellings_of_a_domain(domain: str, url: str) -> None:
    """A domain may be written as people write it; hosts are compared in their normal form."""
    normal = normalize(url)
    assert normal is not None
    assert Scope([domain]).refuses(normal, host_of(normal), 1) is None


@pytest.mark.parametrize("domain", ["http://a.example/", "a.example:80", "a.example/x", "", "a b"])
def test_what_is_no_domain_allows_nothing(domain: str) -> None:
    """An entry that is no host name neither matches nor opens the crawl to every host."""
    assert Scope([domain]).refuses(URL, "a.example", 1) is OutOfScope.OFF_SITE


def test_depth() -> None:
    """The depth limit is the largest depth that is followed."""
    scope = Scope(depth_limit=2)
    assert scope.refuses(URL, "a.example", 2) is None
    assert scope.refuses(URL, "a.example", 3) is OutOfScope.TOO_DEEP


def test_length() -> None:
    """The length limit is the most characters that a URL may have."""
    assert Scope(url_length_limit=len(URL)).refuses(URL, "a.example", 1) is None
    assert Scope(url_length_limit=len(URL) - 1).refuses(URL, "a.example", 1) is OutOfScope.TOO_LONG


def test_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many hosts are seen, only so many decisions are kept, and all stay right."""
    monkeypatch.setattr(hosts, "_REMEMBERED", 10)
    scope = Scope(["a.example"])
    for number in range(100):
        assert scope.refuses(URL, f"h{number}.a.example", 1) is None
        assert scope.refuses(URL, f"h{number}.b.example", 1) is OutOfScope.OFF_SITE
        assert len(scope._decided) <= 10
