"""Cookies kept over a restart.

Scrapy keeps its cookie jars in memory only, so a resumed crawl has to log in again. This extension
writes the jars of ``CookiesMiddleware`` (or of the suite's ``HostCookiesMiddleware``) to the job
every five seconds where they changed, and at the end, and fills them when the spider opens. Session
cookies are kept too: to the sites, a resumed crawl is the same session. Expired ones are not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from scrapy import signals
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.downloadermiddlewares.cookies import HostCookiesMiddleware
from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.runtime.tasks import Ticker
from scrapy_spider_suite.settings.project import uses_job
from scrapy_spider_suite.store.request_codec import pack_cookies, unpack_cookies
from scrapy_spider_suite.store.value_codec import ValueCodec

if TYPE_CHECKING:
    from http.cookiejar import Cookie
    from typing import Any, Self

    from scrapy.crawler import Crawler

    from scrapy_spider_suite.downloadermiddlewares.cookies import JarKey
    from scrapy_spider_suite.store.interface import KV

logger = logging.getLogger(__name__)

PERIOD = 5.0
SLICE = 0.02
"""Seconds of work at most in one period, so that many jars do not hold up the crawl; what is left
is done in the next periods, and all of it at the end."""


class CookieKeeper:
    """Keeps the cookies of *crawler* in what *open_kv* returns, asked when the spider opens."""

    def __init__(
        self, crawler: Crawler, open_kv: Callable[[], KV | None], period: float = PERIOD
    ) -> None:
        self._crawler = crawler
        self._open_kv = open_kv
        self._ticker = Ticker(period, self.save)
        self._jars: _Jars | None = None
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*.

        Raises:
            NotConfigured: cookies are off, or the crawl has no job directory.
        """
        if not crawler.settings.getbool("COOKIES_ENABLED") or not uses_job(crawler):
            raise NotConfigured
        return cls(crawler, partial(_job_kv, crawler))

    def spider_opened(self) -> None:
        """Fill the jars with what the last run kept."""
        middleware = self._crawler.get_downloader_middleware(CookiesMiddleware)
        kv = self._open_kv()
        if middleware is None or kv is None:
            return
        if isinstance(middleware, HostCookiesMiddleware):
            self._jars = _HostJars(middleware, kv)
        else:
            self._jars = _ScrapyJars(middleware, kv)
        self._jars.restore(time.time())
        self._ticker.start()

    def spider_closed(self) -> None:
        """Save for the last time."""
        self._ticker.stop()
        if self._jars is not None:
            self._jars.save(float("inf"))

    def save(self) -> None:
        """Save what changed, as far as a slice of time allows."""
        if self._jars is not None:
            self._jars.save(SLICE)


class _Jars(Protocol):
    """The jars of one middleware, and their rows."""

    def restore(self, now: float) -> None: ...

    def save(self, seconds: float) -> None: ...


class _Rows:
    """Packed cookies under keys that are values."""

    def __init__(self, kv: KV, prefix: bytes) -> None:
        self._kv = kv
        self._prefix = prefix
        self._values = ValueCodec()
        self._warned = False

    def read(self, now: float) -> list[tuple[Any, list[Cookie]]]:
        """Return each key and its cookies that have not expired at *now*, maybe none."""
        found: dict[Any, list[Cookie]] = {}
        for row, packed in self._kv.items(self._prefix):
            try:
                key = self._values.loads(row[len(self._prefix) :])
                found[key] = unpack_cookies(packed, now)
            except (CodecError, TypeError) as error:  # TypeError: no hash, so never a jar's key
                logger.error("a cookie jar of the job directory cannot be read: %s", error)
        return list(found.items())

    def write(self, key: Hashable, packed: bytes | None) -> None:
        """Keep *packed* under *key*; None forgets it."""
        try:
            row = self._prefix + self._values.dumps(key)
        except CodecError as error:
            self.give_up(key, error)
            return
        if packed is None:
            self._kv.delete(row)
        else:
            self._kv.put(row, packed)

    def give_up(self, key: Hashable, error: CodecError) -> None:
        """Say, for the first jar of which it is true, that it is not kept."""
        if not self._warned:
            self._warned = True
            logger.warning("cookie jar %r is not kept over a restart: %s", key, error)


class _ScrapyJars:
    """Scrapy's jars: live objects that do not say when they change."""

    def __init__(self, middleware: CookiesMiddleware, kv: KV) -> None:
        self._jars = middleware.jars
        self._rows = _Rows(kv, b"jar\0")
        self._written: dict[Hashable, int] = {}  # the hash of each row that there is
        self._round: list[Hashable] = []  # keys of the jars that are still to be looked at

    def restore(self, now: float) -> None:
        """Put the kept cookies into the jars."""
        for key, cookies in self._rows.read(now):
            self._written[key] = 0
            for cookie in cookies:
                self._jars[key].set_cookie(cookie)

    def save(self, seconds: float) -> None:
        """Look at the jars one after the other, for *seconds* at most."""
        end = time.monotonic() + seconds
        if not self._round or seconds == float("inf"):
            self._round = [*self._jars, *(key for key in self._written if key not in self._jars)]
        now = int(time.time())
        while self._round:
            self._save(self._round.pop(), now)
            if time.monotonic() > end:
                return

    def _save(self, key: Hashable, now: int) -> None:
        jar = self._jars.get(key)
        live = [] if jar is None else [cookie for cookie in jar if not cookie.is_expired(now)]
        if not live:
            if self._written.pop(key, None) is not None:
                self._rows.write(key, None)
            return
        try:
            packed = pack_cookies(live)
        except CodecError as error:
            self._rows.give_up(key, error)
            return
        if hash(packed) != self._written.get(key):
            self._rows.write(key, packed)
            self._written[key] = hash(packed)


class _HostJars:
    """The suite's jars: packed already, and known to have changed."""

    def __init__(self, middleware: HostCookiesMiddleware, kv: KV) -> None:
        self._middleware = middleware
        self._rows = _Rows(kv, b"host\0")
        # What is restored is written again once: some of it may have expired or have no room.
        self._changed: set[JarKey] = set()

    def restore(self, now: float) -> None:
        """Hand the kept cookies to the middleware, and have it note changes from now on."""
        self._middleware.changed = self._changed
        for key, cookies in self._rows.read(now):
            match key:
                case (jar, str(domain)):
                    self._changed.add(key)
                    self._middleware.restore((jar, domain), cookies)

    def save(self, seconds: float) -> None:
        """Write the rows that changed, for *seconds* at most."""
        end = time.monotonic() + seconds
        while self._changed:
            key = self._changed.pop()
            self._rows.write(key, self._middleware.row(key))
            if time.monotonic() > end:
                return


def _job_kv(crawler: Crawler) -> KV | None:
    # The job is opened by the scheduler, where a job that cannot be used is refused in one line.
    from scrapy_spider_suite.store.job_directory import job_kv

    return job_kv(crawler, "cookies")
