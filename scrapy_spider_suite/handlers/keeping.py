"""How many connections a crawl keeps open, and for how long each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from scrapy_spider_suite.handlers.files import raise_file_limit
from scrapy_spider_suite.handlers.pool import Pool

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.handlers.exchange import Exchange

IDLE_SECONDS: Final = 15.0
"""How long an idle connection is kept to a server that does not say how long it does."""
SERVER_IDLE_SECONDS: Final = 5.0
"""How long such a server is believed to keep it (Apache's and Node's default)."""
MAX_IDLE_SECONDS: Final = 120.0
"""Longest that any is kept, whatever the server says."""
_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
"""The list is Twisted's."""

_pools: WeakKeyDictionary[Crawler, Pool] = WeakKeyDictionary()


def crawler_pool(crawler: Crawler) -> Pool:
    """Return the connections of *crawler*: one pool for both schemes, so that its bound is one."""
    if crawler not in _pools:
        files = raise_file_limit()
        _pools[crawler] = Pool(idle_limit(crawler, files), capacity=files - files // 4)
    return _pools[crawler]


def idle_limit(crawler: Crawler, files: int) -> int:
    """Return how many idle connections a crawl may keep in a process of so many *files*."""
    from scrapy_spider_suite.settings.suite import suite_settings

    return suite_settings(crawler).idle_connections or max(1, files // 4)


def seconds_to_keep(request: Request, exchange: Exchange) -> float:
    """Return how long the connection may idle after *exchange*; 0 closes it.

    It is closed if the server would close it before the next fetch from this host anyway: an open
    file less, and no race with the server's own closing.
    """
    if not exchange.leaves_connection_usable or _asks_to_close(request):
        return 0.0
    promised = exchange.reader.keep_alive_timeout
    next_fetch = request.meta.get("suite_keep_alive")
    if next_fetch is not None:
        kept = SERVER_IDLE_SECONDS if promised is None else promised
        if next_fetch > kept:
            return 0.0
    return IDLE_SECONDS if promised is None else min(promised, MAX_IDLE_SECONDS)


def may_be_sent_again(request: Request) -> bool:
    """Whether *request* may be sent twice, when a kept connection turns out to be dead."""
    return request.method in _IDEMPOTENT and not request.body


def _asks_to_close(request: Request) -> bool:
    values: list[bytes] | None = dict.get(request.headers, b"Connection")
    return values is not None and b"close" in b",".join(values).lower()
