"""Bounded cookies: what is sent is what Scrapy's middleware sends, within the bounds."""

from __future__ import annotations

import logging
import timeit
from typing import Any

import pytest
import scrapy.downloadermiddlewares.cookies
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.downloadermiddlewares.cookies import (
    COOKIES_PER_DOMAIN,
    HostCookiesMiddleware,
)
from scrapy_spider_suite.store.request_codec import unpack_cookies
from scrapy_spider_suite.urls import hosts as domains
from scrapy_spider_suite.urls.hosts import registered_domain


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy's middleware would fetch the list of public suffixes."""
    monkeypatch.setattr(scrapy.downloadermiddlewares.cookies, "_split_domain", domains._suffixes())


def visit(middleware: CookiesMiddleware, url: str, *set_cookies: str, **request: Any) -> list[str]:
    """Fetch *url*, which sets cookies; return the cookies that were sent, sorted."""
    sent = Request(url, **request)
    middleware.process_request(sent)
    headers = {"Set-Cookie": list(set_cookies)} if set_cookies else {}
    middleware.process_response(sent, Response(url, headers=headers))
    return sorted((sent.headers.get("Cookie") or b"").decode().split("; "))


def deletes_another_sites(host: str, domain: str, rest: str) -> bool:
    """Whether a cookie would delete one of another site: the standard library's jar lets it."""
    target = domain.partition("=")[2].lstrip(".")
    expires = "Max-Age=0" in rest or "1970" in rest
    return expires and bool(target) and registered_domain(target) != registered_domain(host)


def counted(**bounds: Any) -> tuple[HostCookiesMiddleware, MemoryStatsCollector]:
    """A middleware with *bounds*, and its stats."""
    stats = MemoryStatsCollector(get_crawler())
    middleware = HostCookiesMiddleware(stats=stats)
    vars(middleware).update(bounds)
    return middleware, stats


class TestLikeScrapys:
    """Within the bounds, both middlewares send the same."""

    hosts = st.sampled_from(
        ["a.example.com", "b.example.com", "example.com", "other.org", "x.github.io",
         "y.github.io", "a.co.uk", "127.0.0.1", "localhost",
         "[::1]", "a.x.test", "x.test"]
    )  # fmt: skip
    domains = st.sampled_from(
        ["", "; Domain=example.com", "; Domain=.example.com", "; Domain=github.io",
         "; Domain=co.uk", "; Domain=uk", "; Domain=other.org", "; Domain=a.example.com",
         "; Domain=x.test"]
    )  # fmt: skip
    rests = st.sampled_from(
        ["", "; Path=/p", "; Secure", "; Max-Age=0", "; Max-Age=999", "; HttpOnly; SameSite=Lax",
         "; Expires=Thu, 01 Jan 1970 00:00:00 GMT"]
    )  # fmt: skip
    visits = st.tuples(
        st.sampled_from(["http", "https"]),
        hosts,
        st.sampled_from(["/", "/p/q"]),
        st.lists(
            st.tuples(st.sampled_from("ab"), st.sampled_from("12"), domains, rests), max_size=3
        ),
        st.fixed_dictionaries(
            {},
            optional={
                "meta": st.sampled_from([{"cookiejar": 1}, {"dont_merge_cookies": True}]),
                "cookies": st.sampled_from(
                    [{"c": "3"}, [{"name": "d", "value": "4", "domain": "example.com"}]]
                ),
                "headers": st.just({"Cookie": "mine=1"}),
            },
        ),
    )

    @given(st.lists(visits, max_size=8))
    def test_any_visits(self, visits: list[Any]) -> None:
        """Hosts of one domain, public suffixes, addresses, deletions, jars, own cookies."""
        with pytest.MonkeyPatch.context() as patch:
            split = domains._suffixes()
            patch.setattr(scrapy.downloadermiddlewares.cookies, "_split_domain", split)
            ours, theirs = HostCookiesMiddleware(), CookiesMiddleware()
            for scheme, host, path, cookies, request in visits:
                lines = [
                    f"{name}={value}{domain}{rest}"
                    for name, value, domain, rest in cookies
                    if not deletes_another_sites(host, domain, rest)
                ]
                url = f"{scheme}://{host}{path}"
                sent = visit(ours, url, *lines, **request)
                assert sent == visit(theirs, url, *lines, **request)
        assert not ours.jars

    def test_a_site_cannot_delete_anothers_cookies(self) -> None:
        """The standard library's jar deletes before it looks at the policy; here jars are apart."""
        ours, theirs = HostCookiesMiddleware(), CookiesMiddleware()
        for middleware, left in ((ours, ["a=1"]), (theirs, [""])):
            visit(middleware, "http://other.org/", "a=1; Domain=other.org")
            visit(middleware, "http://evil.example/", "a=1; Domain=other.org; Max-Age=0")
            assert visit(middleware, "http://other.org/") == left

    def test_a_public_suffix_keeps_its_cookies_to_itself(self) -> None:
        """A host that is a public suffix may have cookies; names under it never see them."""
        middleware = HostCookiesMiddleware()
        visit(middleware, "http://github.io/", "a=1; Domain=github.io", "b=2")
        assert visit(middleware, "http://github.io/") == ["a=1", "b=2"]
        assert visit(middleware, "http://x.github.io/") == [""]

    def test_settings(self) -> None:
        """COOKIES_ENABLED and COOKIES_DEBUG are Scrapy's."""
        with pytest.raises(NotConfigured):
            HostCookiesMiddleware.from_crawler(
                get_crawler(settings_dict={"COOKIES_ENABLED": False})
            )
        crawler = get_crawler(settings_dict={"COOKIES_DEBUG": True})
        assert HostCookiesMiddleware.from_crawler(crawler).debug

    def test_debug(self, caplog: pytest.LogCaptureFixture) -> None:
        """COOKIES_DEBUG logs what is sent and received."""
        crawler = get_crawler(settings_dict={"COOKIES_DEBUG": True})
        middleware = HostCookiesMiddleware.from_crawler(crawler)
        with caplog.at_level(logging.DEBUG):
            visit(middleware, "http://a.example/", "a=1")
            visit(middleware, "http://a.example/")
        assert "Received cookies" in caplog.text
        assert "Sending cookies" in caplog.text


class TestBounds:
    """What one site, and all sites together, can take."""

    def test_cookies_per_domain(self) -> None:
        """The cookies set last are kept, over all hosts of the domain."""
        middleware, stats = counted()
        for number in range(60):
            visit(middleware, f"http://h{number % 3}.a.example/", f"c{number}=1; Domain=a.example")
        names = visit(middleware, "http://h0.a.example/")
        assert names == sorted(f"c{n}=1" for n in range(60 - COOKIES_PER_DOMAIN, 60))
        assert stats.get_value("suite/cookies/dropped") == 10

    def test_bytes_per_domain(self) -> None:
        """A domain's packed cookies never take more than the bound."""
        middleware, _ = counted(max_bytes=500)
        for number in range(40):
            visit(middleware, "http://a.example/", f"c{number}={'x' * (number % 7 * 20)}")
            row = middleware.row((None, "a.example"))
            assert row is not None
            assert len(row) <= 500
        assert visit(middleware, "http://a.example/")[0].startswith("c3")

    def test_a_flood(self) -> None:
        """A thousand cookies in one response leave fifty."""
        middleware, stats = counted()
        visit(middleware, "http://a.example/", *(f"c{number}=1" for number in range(1000)))
        assert len(visit(middleware, "http://a.example/")) == COOKIES_PER_DOMAIN
        assert stats.get_value("suite/cookies/dropped") == 1000 - COOKIES_PER_DOMAIN

    def test_one_that_is_too_big(self) -> None:
        """A cookie that alone is too big is dropped; the others stay."""
        middleware, _ = counted(max_bytes=200)
        visit(middleware, "http://a.example/", "a=1", "big=" + "x" * 200, "b=2")
        assert visit(middleware, "http://a.example/") == ["a=1", "b=2"]
        visit(middleware, "http://b.example/", "big=" + "x" * 200)
        assert middleware.row((None, "b.example")) is None

    def test_domains(self) -> None:
        """The domains that were not used for longest lose their cookies."""
        middleware, stats = counted(max_hosts=3)
        for host in "abc":
            visit(middleware, f"http://{host}.example/", "k=1")
        visit(middleware, "http://a.example/")
        visit(middleware, "http://d.example/", "k=1")
        assert len(middleware) == 3
        assert [visit(middleware, f"http://{host}.example/") for host in "ab"] == [["k=1"], [""]]
        assert stats.get_value("suite/cookies/domains_forgotten") == 1

    def test_deleted_cookies_leave_no_row(self) -> None:
        """A domain whose last cookie was deleted takes no place."""
        middleware, _ = counted()
        visit(middleware, "http://a.example/", "a=1")
        visit(middleware, "http://a.example/", "a=1; Max-Age=0")
        assert len(middleware) == 0

    def test_changes_are_noted_only_on_request(self) -> None:
        """Without a keeper nothing is noted, so that nothing grows."""
        middleware, _ = counted(max_hosts=1)
        visit(middleware, "http://a.example/", "a=1")
        assert middleware.changed is None
        middleware.changed = set()
        visit(middleware, "http://a.example/", "a=1")
        assert not middleware.changed
        visit(middleware, "http://b.example/", "a=1", meta={"cookiejar": "j"})
        assert middleware.changed == {(None, "a.example"), ("j", "b.example")}

    def test_restore_obeys_the_bounds(self) -> None:
        """Cookies of a former run with wider bounds are cut to those of this one."""
        wide, _ = counted()
        visit(wide, "http://a.example/", *(f"c{n}=1" for n in range(30)))
        row = wide.row((None, "a.example")) or b""
        narrow, _ = counted(max_bytes=200)
        narrow.restore((None, "a.example"), unpack_cookies(row, now=0))
        assert 0 < len(narrow.row((None, "a.example")) or b"") <= 200


def test_a_page_without_cookies_is_cheap() -> None:
    """Both hooks together take a few microseconds, with ten thousand other domains kept."""
    middleware, _ = counted()
    for number in range(2000):
        middleware.rows[None, f"h{number}.example"] = b"\x90"
    request, response = Request("http://a.example/"), Response("http://a.example/")

    def both() -> None:
        middleware.process_request(request)
        middleware.process_response(request, response)

    assert min(timeit.repeat(both, number=1000, repeat=5)) / 1000 < 50e-6
