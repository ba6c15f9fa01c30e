"""Which links a crawl may follow: by domain, depth and length.

The limits are Scrapy's: ``allowed_domains`` (a domain and all below it), ``DEPTH_LIMIT`` and
``URLLENGTH_LIMIT``, with 0 for no limit.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from scrapy_spider_suite.urls.normalize import host_of, normalize


class OutOfScope(StrEnum):
    """Why a link is out of scope; the last word of the stat that counts it."""

    OFF_SITE = "off_site"
    TOO_DEEP = "too_deep"
    TOO_DEEP_ON_HOST = "too_deep_on_host"
    TOO_LONG = "too_long"


_REMEMBERED: Final = 50_000
"""Hosts whose decision is kept; when there are more, all are forgotten and decided anew."""


class Scope:
    """The limits of one crawl; None, empty or 0 for none.

    A domain allows itself and every host below it. An entry that is a URL or has a port allows
    nothing, as in Scrapy.
    """

    __slots__ = ("_anywhere", "_decided", "_depth_limit", "_domains", "_url_length_limit")

    def __init__(
        self,
        allowed_domains: Collection[str] | None = None,
        depth_limit: int = 0,
        url_length_limit: int = 0,
    ) -> None:
        self._anywhere: Final = not allowed_domains
        self._domains: Final = frozenset(_as_host(name) for name in allowed_domains or () if name)
        self._depth_limit: Final = depth_limit
        self._url_length_limit: Final = url_length_limit
        self._decided: dict[str, bool] = {}

    def everywhere(self, depth: int) -> bool:
        """Whether links at *depth* may lead anywhere, so that only their length counts."""
        return self._anywhere and not 0 < self._depth_limit < depth

    def refuses(self, url: str, host: str, depth: int) -> OutOfScope | None:
        """Why the normal *url* on *host* may not be followed at *depth*; None if it may."""
        if 0 < self._depth_limit < depth:
            return OutOfScope.TOO_DEEP
        if 0 < self._url_length_limit < len(url):
            return OutOfScope.TOO_LONG
        if not self.allows(host):
            return OutOfScope.OFF_SITE
        return None

    def allows(self, host: str) -> bool:
        if self._anywhere:
            return True
        decided = self._decided.get(host)
        if decided is None:
            if len(self._decided) >= _REMEMBERED:
                self._decided.clear()
            domain = host
            while domain and domain not in self._domains:
                domain = domain.partition(".")[2]
            decided = self._decided[host] = bool(domain)
        return decided


def _as_host(domain: str) -> str:
    if any(sign in domain for sign in "/?#@\\"):
        return domain
    literal = domain.count(":") > 1 and not domain.startswith("[")
    url = normalize(f"http://[{domain}]/" if literal else f"http://{domain}/")
    has_port = ":" in domain.rpartition("]")[2] and not literal
    return domain if url is None or has_port else host_of(url)
