"""Cookies for crawls of very many hosts: a bounded jar for each registered domain, as bytes.

A domain has at most `COOKIES_PER_DOMAIN` cookies (RFC 6265 §6.1) in at most 4 KiB, and only
the 10,000 domains used last have any. A site cannot delete cookies of another one by an
expired cookie of its domain, as it can in one jar for all.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from http.cookiejar import Cookie
from typing import Self

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from scrapy.http.cookies import CookieJar
from scrapy.statscollectors import StatsCollector
from scrapy.utils.httpobj import urlparse_cached

from scrapy_spider_suite.store.request_codec import pack_cookies, unpack_cookies, without_host
from scrapy_spider_suite.urls.hosts import is_public_suffix, registered_domain

COOKIES_PER_DOMAIN = 50

JarKey = tuple[Hashable, str]
"""A request's ``cookiejar`` (None without one) and the registered domain of its host."""


class HostCookiesMiddleware(CookiesMiddleware):
    """Scrapy's cookies middleware with bounded jars; its settings and meta keys hold."""

    max_bytes = 4096
    """Bytes of cookies that are kept of one domain."""
    max_hosts = 10_000
    """Domains that have cookies."""

    def __init__(self, debug: bool = False, *, stats: StatsCollector | None = None) -> None:
        super().__init__(debug)
        self.changed: set[JarKey] | None = None
        self.rows: OrderedDict[JarKey, bytes] = OrderedDict()  # used last, last
        self._stats = stats

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not crawler.settings.getbool("COOKIES_ENABLED"):
            raise NotConfigured
        middleware = cls(crawler.settings.getbool("COOKIES_DEBUG"), stats=crawler.stats)
        middleware.crawler = crawler
        return middleware

    def __len__(self) -> int:
        """The number of domains with cookies, over all jars."""
        return len(self.rows)

    def process_request(self, request: Request, spider: Spider | None = None) -> None:
        """Add the request's own cookies to its jar, and the jar's to the request."""
        if request.meta.get("dont_merge_cookies", False):
            return
        own = bool(request.cookies)
        key = self._key(request) if own or self.rows else None
        if key is None or not (own or key in self.rows):
            request.headers.pop("Cookie", None)  # as Scrapy does: the jar has the last word
            return
        before = self._open(key)
        super().process_request(request)
        self._close(key, before, changed=own)

    def process_response(
        self, request: Request, response: Response, spider: Spider | None = None
    ) -> Request | Response:
        if b"Set-Cookie" not in response.headers or request.meta.get("dont_merge_cookies", False):
            return response
        key = self._key(request)
        before = self._open(key)
        super().process_response(request, response)
        self._close(key, before, changed=True)
        return response

    def knows(self, host: str) -> bool:
        """Whether any host of the registered domain of *host* has set cookies."""
        return (None, registered_domain(host)) in self.rows

    def row(self, key: JarKey) -> bytes | None:
        return self.rows.get(key)

    def restore(self, key: JarKey, cookies: Iterable[Cookie]) -> None:
        """Store the *cookies* of a former run, within the bounds."""
        self._store(key, list(cookies))

    def forget(self, host: str) -> int:
        """Delete the cookies that *host* set for itself; return how many."""
        gone = 0
        for key in [key for key in self.rows if key[1] == registered_domain(host)]:
            cookies = unpack_cookies(self.rows[key], time.time())
            kept = without_host(cookies, host)
            gone += len(cookies) - len(kept)
            self._store(key, kept)
        return gone

    def _key(self, request: Request) -> JarKey:
        host = urlparse_cached(request).hostname or ""
        return request.meta.get("cookiejar"), registered_domain(host.rstrip("."))

    def _open(self, key: JarKey) -> list[Cookie]:
        row = self.rows.get(key)
        cookies = [] if row is None else unpack_cookies(row, time.time())
        jar = self.jars[key[0]] = CookieJar()
        for cookie in cookies:
            jar.set_cookie(cookie)
        return cookies

    def _close(self, key: JarKey, before: list[Cookie], *, changed: bool) -> None:
        jar = self.jars.pop(key[0])
        if not changed:
            self.rows.move_to_end(key)
            return
        old = {id(cookie) for cookie in before}
        now = {id(cookie): cookie for cookie in jar}
        kept = [cookie for cookie in before if id(cookie) in now]
        fresh = [cookie for number, cookie in now.items() if number not in old]
        self._store(key, kept + fresh)

    def _store(self, key: JarKey, cookies: list[Cookie]) -> None:
        packed = pack_cookies(cookies) if cookies else None
        if packed and (len(packed) > self.max_bytes or len(cookies) > COOKIES_PER_DOMAIN):
            fitting = self._fitting(cookies)
            self._count("dropped", len(cookies) - len(fitting))
            packed = pack_cookies(fitting) if fitting else None
        if packed != self.rows.pop(key, None):
            self._note(key)
        if packed is not None:
            self.rows[key] = packed
        if len(self.rows) > self.max_hosts:
            self._note(self.rows.popitem(last=False)[0])
            self._count("domains_forgotten", 1)

    def _fitting(self, cookies: list[Cookie]) -> list[Cookie]:
        left = self.max_bytes - 3  # the longest header that an array of so few can have
        fitting: list[Cookie] = []
        for cookie in reversed(cookies):
            size = len(pack_cookies([cookie])) - 1
            if size <= left and len(fitting) < COOKIES_PER_DOMAIN:
                fitting.append(cookie)
                left -= size
        return fitting[::-1]

    def _note(self, key: JarKey) -> None:
        if self.changed is not None:
            self.changed.add(key)

    def _process_cookies(
        self, cookies: Iterable[Cookie], *, jar: CookieJar, request: Request
    ) -> None:
        # Scrapy's rule for public suffixes, by the list of our package. Were this private method
        # renamed, Scrapy's own would run and fetch its list.
        host = (urlparse_cached(request).hostname or "").lower()
        for cookie in cookies:
            domain = cookie.domain.removeprefix(".")
            if domain and is_public_suffix(domain):
                if domain != host:
                    continue
                cookie.domain = host
            if host:
                jar.set_cookie_if_ok(cookie, request)

    def _count(self, what: str, number: int) -> None:
        if number and self._stats is not None:
            self._stats.inc_value(f"suite/cookies/{what}", number)
