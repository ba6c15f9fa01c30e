"""Hosts that may be at private addresses because the operator named them, and no page did.

The spider profile only: an existing project may crawl its own intranet. A job remembers them, and
those that were trusted until they were found outside: their name servers are somebody else's, who
could move the names inside later (DNS rebinding).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.httpobj import urlparse_cached

from scrapy_spider_suite.crawl.requests import hostname
from scrapy_spider_suite.errors import PrivateAddressError
from scrapy_spider_suite.fetch.resolver import Resolver
from scrapy_spider_suite.store.interface import KV

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore

logger = logging.getLogger(__name__)

_MOST = 10_000
_NO_MORE = b"no more"


class TrustedHosts:
    """One per crawl, kept in *kv*: tells *resolver* whom to trust, and is told whom no more."""

    def __init__(self, resolver: Resolver, kv: KV) -> None:
        self._resolver = resolver
        self._kv = kv
        self._number = 0
        resolver.listener = self._trust_no_more
        for name, word in kv.items():
            if word == _NO_MORE:
                resolver.withdraw(name.decode())
            elif resolver.trust(name.decode()):
                self._number += 1

    def add(self, host: str) -> None:
        """Let *host* be at a private address; not beyond 10,000 of them."""
        if self._number < _MOST and self._resolver.trust(host):
            self._number += 1
            self._kv.put(host.encode(), b"")

    def _trust_no_more(self, host: str) -> None:
        self._kv.put(host.encode(), _NO_MORE)

    def stop(self) -> None:
        """Remember nothing more: the store is about to be closed."""
        self._resolver.listener = None


def trust_start(core: CrawlCore, request: Request) -> None:
    """Trust the host of *request*, which ``start()`` has yielded, unless the scheduler sees to it.

    Not where the spider is one of scrapy-redis: its requests were pushed, maybe by somebody else.
    """
    if not (core.schedules or core.broad or hasattr(core.crawler.spider, "redis_key")):
        core.trusted.add(hostname(request))


def tell_of_refusal(request: Request, error: BaseException) -> None:
    """Say that *request* ended with *error* if that is a private address, and no errback hears it.

    Not of a robots.txt: the page that it was fetched for ends with the same error.
    """
    if not isinstance(error, PrivateAddressError) or request.errback is not None:
        return
    if request.callback is not NO_CALLBACK or urlparse_cached(request).path != "/robots.txt":
        what = "Answer thrown away" if getattr(error, "answered", False) else "Not fetched"
        said = "%s: %s: %s (SUITE_ALLOW_PRIVATE_ADDRESSES)"
        logger.warning(said, what, request, error)
