"""State kept over restarts and kills: cookies, items of feeds, ``spider.state``."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Hashable, Iterable
from contextlib import suppress
from functools import partial
from http.cookiejar import Cookie
from pathlib import Path
from typing import Any, Self

from pydispatch.robustapply import robustApply  # type: ignore[import-untyped]
from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.extensions import feedexport
from twisted.python.failure import Failure

from scrapy_spider_suite.downloadermiddlewares.cookies import HostCookiesMiddleware, JarKey
from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.runtime.tasks import PeriodicTask
from scrapy_spider_suite.settings.project import uses_job
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.signals import item_not_exported
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.job_directory import job_kv, job_of
from scrapy_spider_suite.store.request_codec import (
    RequestCodec,
    merge_cookies,
    pack_cookies,
    unpack_cookies,
)
from scrapy_spider_suite.store.value_codec import ValueCodec
from scrapy_spider_suite.urls.hosts import registered_domain

logger = logging.getLogger(__name__)

COOKIES_PERIOD = 5.0
SLICE = 0.02  # most seconds of work in one period, so that many jars do not hold up the crawl


class SavedCookies:
    """Keeps cookie jars over a restart, in the job's store.

    Changed jars of ``CookiesMiddleware`` or `HostCookiesMiddleware` are written every
    `COOKIES_PERIOD` seconds and at the end, session cookies included.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._ticker = PeriodicTask(COOKIES_PERIOD, self.save)
        self._jars: _ScrapyJars | _HostJars | None = None
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not crawler.settings.getbool("COOKIES_ENABLED") or not uses_job(crawler):
            raise NotConfigured
        return cls(crawler)

    def spider_opened(self) -> None:
        middleware = self._crawler.get_downloader_middleware(CookiesMiddleware)
        job = job_of(self._crawler)
        if middleware is None or job is None:
            return
        kv = job.store.kv("cookies")
        if isinstance(middleware, HostCookiesMiddleware):
            self._jars = _HostJars(middleware, kv)
        else:
            self._jars = _ScrapyJars(middleware, kv)
        job.cookies = self._jars
        self._jars.restore(time.time())
        self._ticker.start()

    def spider_closed(self) -> None:
        self._ticker.stop()
        self.save(float("inf"))

    def save(self, seconds: float | None = None) -> None:
        """Save changed jars for at most *seconds*, by default `SLICE`."""
        if self._jars is not None:
            self._jars.save(SLICE if seconds is None else seconds)


_values = ValueCodec()


class _JarRows:
    def __init__(self, kv: KV, prefix: bytes) -> None:
        self._kv = kv
        self._prefix = prefix
        self._warned = False

    def read(self, now: float) -> dict[Any, list[Cookie]]:
        found: dict[Any, list[Cookie]] = {}
        for row, packed in self._kv.items(self._prefix):
            try:
                key = _values.loads(row[len(self._prefix) :])
                found[key] = unpack_cookies(packed, now)
            except (CodecError, TypeError) as error:  # a list, for one, is no key
                logger.error("a cookie jar of the job directory cannot be read: %s", error)
        return found

    def write(self, key: Hashable, packed: bytes | None) -> None:
        try:
            row = self._prefix + _values.dumps(key)
        except CodecError as error:
            self.give_up(key, error)
            return
        if packed is None:
            self._kv.delete(row)
        else:
            self._kv.put(row, packed)

    def give_up(self, key: Hashable, error: CodecError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("cookie jar %r is not kept over a restart: %s", key, error)


class _JarTimes:
    """When the jar of each domain changed last, as far as that was looked at."""

    def __init__(self) -> None:
        self._known: dict[JarKey, tuple[int, float]] = {}

    def note(self, key: JarKey, packed: bytes | None, now: float) -> float:
        """When the jar, *packed* now, has changed."""
        if packed is None:
            self._known.pop(key, None)
            return now
        known = self._known.get(key)
        if known is None or known[0] != hash(packed):
            known = self._known[key] = hash(packed), now
        return known[1]

    def changed(self, since: float) -> set[str]:
        return {domain for (_, domain), (_, when) in self._known.items() if when > since}


class _ScrapyJars:
    def __init__(self, middleware: CookiesMiddleware, kv: KV) -> None:
        self._jars = middleware.jars
        self._rows = _JarRows(kv, b"jar\0")
        self._written: dict[Hashable, int] = {}  # the hash of each row that there is
        self._round: list[Hashable] = []  # keys of the jars that are still to be looked at
        self._times = _JarTimes()
        self._found: dict[JarKey, list[Cookie]] = {}  # by the last `by_domain`
        # What other agents sent before the spider was open.
        self._sent = _JarRows(kv, b"host\0")

    def restore(self, now: float) -> None:
        for key, cookies in self._rows.read(now).items():
            self._written[key] = 0
            for cookie in cookies:
                self._jars[key].set_cookie(cookie)
            self._note_times(key, cookies, 0.0)
        for pair, cookies in self._sent.read(now).items():
            self.take(pair, 0.0, pack_cookies(cookies))
            self._sent.write(pair, None)

    def by_domain(self) -> dict[str, list[JarKey]]:
        self._found, keys = {}, dict[str, list[JarKey]]()
        for name, jar in self._jars.items():
            for domain, cookies in _grouped(jar).items():
                self._found[name, domain] = cookies
                keys.setdefault(domain, []).append((name, domain))
        return keys

    def row(self, key: JarKey) -> tuple[float, bytes] | None:
        packed = _pack(self._found.get(key, ()))
        return None if packed is None else (self._times.note(key, packed, time.time()), packed)

    def take(self, key: JarKey, when: float, packed: bytes) -> None:
        now, (name, domain) = time.time(), key
        jar = self._jars[name]
        mine = _pack(_grouped(jar).get(domain, ()))
        if mine is not None and (own := self._times.note(key, mine, now)) > when:
            packed, when = merge_cookies(packed, mine), own
        for cookie in unpack_cookies(packed, now):
            if _domain_of(cookie) == domain:  # nobody says what another site has set
                jar.set_cookie(cookie)
        self._times.note(key, _pack(_grouped(jar).get(domain, ())), when)
        self._save(name, now)

    def changed(self, since: float) -> set[str]:
        return self._times.changed(since)

    def _note_times(self, name: Hashable, cookies: Iterable[Cookie], now: float) -> None:
        for domain, some in _grouped(cookies).items():
            self._times.note((name, domain), _pack(some), now)

    def save(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        if not self._round or seconds == float("inf"):
            self._round = [*self._jars, *(key for key in self._written if key not in self._jars)]
        now = time.time()
        while self._round:
            self._save(self._round.pop(), now)
            if time.monotonic() > end:
                return

    def _save(self, key: Hashable, now: float) -> None:
        jar = self._jars.get(key)
        live = [] if jar is None else [cookie for cookie in jar if not cookie.is_expired(int(now))]
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
            self._note_times(key, live, now)


def _domain_of(cookie: Cookie) -> str:
    return registered_domain(cookie.domain.removeprefix("."))


def _grouped(cookies: Iterable[Cookie]) -> dict[str, list[Cookie]]:
    """The *cookies* of each domain."""
    found: dict[str, list[Cookie]] = {}
    for cookie in cookies:
        found.setdefault(_domain_of(cookie), []).append(cookie)
    return found


def _pack(cookies: Collection[Cookie]) -> bytes | None:
    with suppress(CodecError):  # they are not kept over a restart, either
        return pack_cookies(cookies) if cookies else None
    return None


class _HostJars:
    def __init__(self, middleware: HostCookiesMiddleware, kv: KV) -> None:
        self._middleware = middleware
        self._rows = _JarRows(kv, b"host\0")
        # What is restored is written again once: some of it may have expired or have no room.
        self._unwritten: set[JarKey] = set()
        self._times = _JarTimes()

    def restore(self, now: float) -> None:
        self._middleware.changed = self._unwritten
        for key, cookies in self._rows.read(now).items():
            self._unwritten.add(key)
            self._middleware.restore(key, cookies)
            self._times.note(key, self._middleware.row(key), 0.0)

    def by_domain(self) -> dict[str, list[JarKey]]:
        found: dict[str, list[JarKey]] = {}
        for key in self._middleware.rows:
            found.setdefault(key[1], []).append(key)
        return found

    def row(self, key: JarKey) -> tuple[float, bytes] | None:
        packed = self._middleware.row(key)
        return None if packed is None else (self._times.note(key, packed, time.time()), packed)

    def take(self, key: JarKey, when: float, packed: bytes) -> None:
        now, mine = time.time(), self._middleware.row(key)
        if mine is not None and (own := self._times.note(key, mine, now)) > when:
            packed, when = merge_cookies(packed, mine), own
        else:
            packed = merge_cookies(mine, packed)
        self._middleware.restore(key, unpack_cookies(packed, now))
        row = self._middleware.row(key)
        self._times.note(key, row, when)
        self._rows.write(key, row)
        self._unwritten.discard(key)

    def changed(self, since: float) -> set[str]:
        return self._times.changed(since)

    def save(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._unwritten:
            key = self._unwritten.pop()
            row = self._middleware.row(key)
            self._times.note(key, row, time.time())
            self._rows.write(key, row)
            if time.monotonic() > end:
                return


class DurableFeeds:
    """Hands each item of a feed to the system before its page is done.

    Scrapy buffers: a ``kill -9`` would take items of pages that are not fetched again. An item that
    a feed cannot take is a fault of its page: with a full disk the page stays pending.

    A run without items leaves earlier feeds alone. Remote and post-processed feeds are stored when
    the spider closes or a batch is full: a kill takes the items since then.
    """

    def __init__(self, crawler: Crawler) -> None:
        # Scrapy's FeedExporter is made first, and so called first.
        self._crawler = crawler
        self._exporter: feedexport.FeedExporter | None = None
        self._exports = False
        self._kept: list[feedexport.FeedSlot] = []
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.item_scraped, signals.item_scraped)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not uses_job(crawler):
            raise NotConfigured
        return cls(crawler)

    def spider_opened(self) -> None:
        """Replace the exporter's signal handler, whose errors would only be logged."""
        exporter = self._exporter = self._crawler.get_extension(feedexport.FeedExporter)
        if exporter is not None:
            # One of the project's own may not be connected: then it is called by somebody else.
            with suppress(KeyError):
                self._crawler.signals.disconnect(exporter.item_scraped, signals.item_scraped)
                self._exports = True
            job = job_of(self._crawler)
            if job is not None and job.resumed:
                self._kept = [slot for slot in exporter.slots if _may_hold_items(slot)]
                for slot in self._kept:
                    slot.store_empty = False

    def spider_closed(self) -> None:
        for slot in self._kept:
            if not slot.itemcount:
                logger.warning("the feed %s is kept: this run of the job has no item", slot.uri)

    def item_scraped(self, item: Any, response: Any, spider: Any) -> Any:
        exporter, given = self._exporter, {"item": item, "response": response, "spider": spider}
        if exporter is None:
            return None
        result = None
        try:
            if self._exports:
                result = robustApply(exporter.item_scraped, **given)
            for slot in exporter.slots:
                if slot.file is not None:
                    slot.file.flush()
        except Exception:  # whatever an exporter fails with, the item is not in the feed
            failure = Failure()  # type: ignore[no-untyped-call]
            self._crawler.signals.send_catch_log(item_not_exported, failure=failure, **given)
            raise
        return result


def _may_hold_items(slot: feedexport.FeedSlot) -> bool:
    storage = slot.storage
    if isinstance(storage, feedexport.FileFeedStorage):
        path = Path(storage.path)
        return path.is_file() and path.stat().st_size > 0
    return not isinstance(storage, feedexport.StdoutFeedStorage)


STATE_PERIOD = 30.0
_ROW = b"state"
_UNREADABLE = b"state.unreadable"


class SpiderState:
    """Keeps ``spider.state`` over restarts, without pickle, in the job's store.

    ``state`` may hold any value that requests may (`store.request_codec`). It is saved at the end
    and, if changed, every `STATE_PERIOD` seconds.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._kv: KV | None = None
        self._ticker: PeriodicTask | None = None
        self._saved: int | None = None  # the hash of what was written last
        self._reported: set[str] = set()
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not uses_job(crawler):
            raise NotConfigured
        return cls(crawler)

    def spider_opened(self, spider: Spider) -> None:
        settings = suite_settings(self._crawler)
        pickle = Path(str(settings.project.jobdir), "spider.state")
        if pickle.exists():
            logger.warning("%s: a pickle, which may run anything: it is not read", pickle)
        vars(spider)["state"] = {}
        self._kv = job_kv(self._crawler, "spiderstate")
        if self._kv is not None:
            modules = self._crawler.settings.getlist("SPIDER_MODULES")
            self._values = RequestCodec.from_spider(spider, modules, settings.storable).values
            vars(spider)["state"] = self._load(self._kv)
            self._ticker = PeriodicTask(STATE_PERIOD, partial(self.save, spider))
            self._ticker.start()

    def spider_closed(self, spider: Spider) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        self.save(spider)

    def save(self, spider: Spider) -> None:
        state: Any = getattr(spider, "state", None)
        if self._kv is None:
            return
        try:
            if type(state) is not dict:
                raise CodecError(f"it is a {type(state).__name__}, not a dict")
            data = self._pack(state)
        except CodecError as error:
            self._report("", "what was saved before stays", error)
            return
        if hash(data) != self._saved:
            self._kv.put(_ROW, data)
            self._saved = hash(data)

    def _load(self, kv: KV) -> dict[Any, Any]:
        data = kv.get(_ROW)
        if data is None:
            return {}
        try:
            state: dict[Any, Any] = self._values.loads(data)
        except CodecError as error:
            kv.put(_UNREADABLE, data)
            logger.error("spider.state cannot be read and begins empty: %s", error)
            return {}
        self._saved = hash(data)
        return state

    def _pack(self, state: dict[Any, Any]) -> bytes:
        try:
            return self._values.dumps(state)
        except CodecError:
            fitting = {key: value for key, value in state.items() if self._fits(key, value)}
            if len(fitting) == len(state):
                raise
            return self._pack(fitting)

    def _fits(self, key: Any, value: Any) -> bool:
        try:
            self._values.dumps({key: value})
        except CodecError as error:
            self._report(f"[{key!r}]", "the other keys are", error)
            return False
        return True

    def _report(self, where: str, what: str, reason: CodecError) -> None:
        if where not in self._reported:
            self._reported.add(where)
            logger.error("spider.state%s is not saved (%s): %s", where, what, reason)
