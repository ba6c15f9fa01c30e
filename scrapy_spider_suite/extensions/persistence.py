"""Cookies kept over a restart.

Scrapy keeps its cookie jars in memory only, so a resumed crawl has to log in again. This extension
writes the jars of ``CookiesMiddleware`` (or of the suite's ``HostCookiesMiddleware``) to the job
every five seconds where they changed, and at the end, and fills them when the spider opens. Session
cookies are kept too: to the sites, a resumed crawl is the same session. Expired ones are not.

Feeds that lose nothing to a kill.

Scrapy's feed export writes to a file that Python buffers, 8 KiB of it: after a ``kill -9`` the last
items of pages that are done would be missing, and no later run would fetch these pages again. With
a job this extension hands each item to the system before its page is done. That is what a job's own
commits do (``SUITE_COMMIT_SURVIVES = "process"``). What a feed cannot take is a fault of its page,
as if a pipeline had failed: with a full disk the page stays pending, and the crawl pauses.

A run of a job that makes no item leaves feeds of earlier runs as they are: Scrapy would replace
them by empty ones, or append the frame of an empty one.

Feeds that are no local files, and those with post-processing (compression), are stored by Scrapy
when the spider closes or a batch is full: of these a kill takes what was not stored.

``spider.state`` kept over restarts without pickle.

Replaces Scrapy's ``SpiderState``, whose file runs what it finds. A spider uses it as ever: a dict
that is there from ``spider_opened`` on. It may hold what requests may hold (see
``scrapy_spider_suite.store.request_codec``). It is saved when the spider closes and, if it changed,
every 30 seconds, as one row of the job: a crash leaves one of these moments, whole.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from scrapy import Spider, signals
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import (
    FeedExporter,
    FeedSlot,
    FileFeedStorage,
    StdoutFeedStorage,
)
from twisted.python.failure import Failure

from scrapy_spider_suite.downloadermiddlewares.cookies import HostCookiesMiddleware
from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.runtime.tasks import PeriodicTask
from scrapy_spider_suite.settings.project import uses_job
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.signals import item_not_exported, settings_changed
from scrapy_spider_suite.store.job_directory import job_of
from scrapy_spider_suite.store.request_codec import RequestCodec, pack_cookies, unpack_cookies
from scrapy_spider_suite.store.value_codec import ValueCodec

if TYPE_CHECKING:
    from http.cookiejar import Cookie
    from typing import Self

    from scrapy.crawler import Crawler

    from scrapy_spider_suite.downloadermiddlewares.cookies import JarKey
    from scrapy_spider_suite.store.interface import KV

logger = logging.getLogger(__name__)

COOKIES_PERIOD = 5.0
SLICE = 0.02
"""Seconds of work at most in one period, so that many jars do not hold up the crawl; what is left
is done in the next periods, and all of it at the end."""


class SavedCookies:
    """Keeps the cookies of *crawler* in what *open_kv* returns, asked when the spider opens."""

    def __init__(
        self, crawler: Crawler, open_kv: Callable[[], KV | None], period: float = COOKIES_PERIOD
    ) -> None:
        self._crawler = crawler
        self._open_kv = open_kv
        self._ticker = PeriodicTask(period, self.save)
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
        return cls(crawler, partial(_cookies_kv, crawler))

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


class _JarRows:
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
        self._rows = _JarRows(kv, b"jar\0")
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
        self._rows = _JarRows(kv, b"host\0")
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


def _cookies_kv(crawler: Crawler) -> KV | None:
    # The job is opened by the scheduler, where a job that cannot be used is refused in one line.
    from scrapy_spider_suite.store.job_directory import job_kv

    return job_kv(crawler, "cookies")


class DurableFeeds:
    """Flushes the feeds of *crawler* after each item."""

    def __init__(self, crawler: Crawler) -> None:
        """Connect after Scrapy's FeedExporter, which is made first: it is called first, too."""
        self._crawler = crawler
        self._exporter: FeedExporter | None = None
        self._exports = False
        self._kept: list[FeedSlot] = []
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.item_scraped, signals.item_scraped)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*. Raises `NotConfigured` without a job."""
        if not uses_job(crawler):
            raise NotConfigured
        return cls(crawler)

    def spider_opened(self) -> None:
        """Take the items in the exporter's place: what it raises in a handler only gets logged."""
        exporter = self._exporter = self._crawler.get_extension(FeedExporter)
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
        """Say which feeds were left alone."""
        for slot in self._kept:
            if not slot.itemcount:
                logger.warning(
                    "the feed %s is kept as earlier runs of the job left it: this run has no item "
                    "for it", slot.uri,
                )  # fmt: skip

    def item_scraped(self, item: Any, response: Any, spider: Any) -> Any:
        """Export *item*, and hand what was written to the system."""
        exporter, given = self._exporter, {"item": item, "response": response, "spider": spider}
        if exporter is None:
            return None
        result = None
        try:
            if self._exports:
                export: Callable[..., Any] = exporter.item_scraped
                result = export(**_expected(export, given))
            for slot in exporter.slots:
                if slot.file is not None:
                    slot.file.flush()
        except Exception:  # whatever an exporter fails with, the item is not in the feed
            failure = Failure()  # type: ignore[no-untyped-call]
            self._crawler.signals.send_catch_log(item_not_exported, failure=failure, **given)
            raise
        return result


def _may_hold_items(slot: FeedSlot) -> bool:
    storage = slot.storage
    if isinstance(storage, FileFeedStorage):
        path = Path(storage.path)
        return path.is_file() and path.stat().st_size > 0
    return not isinstance(storage, StdoutFeedStorage)


def _expected(receiver: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Those of *given* that *receiver* has arguments for, as of any signal."""
    arguments = inspect.signature(receiver).parameters
    if any(each.kind is each.VAR_KEYWORD for each in arguments.values()):
        return given
    return {name: value for name, value in given.items() if name in arguments}


STATE_PERIOD = 30.0
_ROW = b"state"
_UNREADABLE = b"state.unreadable"


class SpiderState:
    """Keeps ``spider.state`` in what *open_kv* returns, which is asked when the spider opens.

    *storable* are prefixes of classes, beside the project's own, that the state may hold; *pickle*
    is where Scrapy would keep it. *period* is in seconds. *modules* are SPIDER_MODULES.
    """

    def __init__(
        self,
        open_kv: Callable[[], KV | None],
        storable: Iterable[str] = (),
        pickle: Path | None = None,
        period: float = STATE_PERIOD,
        modules: Iterable[str] = (),
    ) -> None:
        self._open_kv = open_kv
        self._storable = tuple(storable)
        self._modules = tuple(modules)
        self._pickle = pickle
        self._period = period
        self._kv: KV | None = None
        self._ticker: PeriodicTask | None = None
        self._saved: int | None = None  # the hash of what was written last
        self._reported: set[str] = set()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*. Raises `NotConfigured` if the crawl has no job directory."""
        if not uses_job(crawler):
            raise NotConfigured
        settings = suite_settings(crawler)
        pickle = Path(str(settings.project.jobdir), "spider.state")
        extension = cls(
            partial(_state_kv, crawler), settings.storable, pickle,
            modules=crawler.settings.getlist("SPIDER_MODULES"),
        )  # fmt: skip
        crawler.signals.connect(extension.spider_opened, signals.spider_opened)
        crawler.signals.connect(extension.spider_closed, signals.spider_closed)
        crawler.signals.connect(extension.settings_changed, settings_changed)
        return extension

    def spider_opened(self, spider: Spider) -> None:
        """Give *spider* the state of the last run."""
        if self._pickle is not None and self._pickle.exists():
            logger.warning(
                "%s was written by Scrapy as a pickle, which may run anything: it is not read. "
                "spider.state begins with what this extension kept; delete the file when it is of "
                "no use.",
                self._pickle,
            )
        state: dict[Any, Any] = {}
        self._kv = self._open_kv()
        if self._kv is not None:
            self._values = self._codec(spider)
            state = self._load(self._kv)
            self._ticker = PeriodicTask(self._period, partial(self.save, spider))
            self._ticker.start()
        vars(spider)["state"] = state

    def _codec(self, spider: Spider) -> ValueCodec:
        return RequestCodec.from_spider(spider, self._modules, self._storable).values

    def settings_changed(
        self, old: SuiteSettings, new: SuiteSettings, spider: Spider | None = None
    ) -> None:
        """Let the state hold what ``SUITE_STORABLE`` says now."""
        self._storable = tuple(new.storable)
        if spider is not None and self._kv is not None:
            self._values = self._codec(spider)

    def spider_closed(self, spider: Spider) -> None:
        """Save for the last time."""
        if self._ticker is not None:
            self._ticker.stop()
        self.save(spider)

    def save(self, spider: Spider) -> None:
        """Write ``spider.state`` if it is not what was written last."""
        state = getattr(spider, "state", None)
        if self._kv is None:
            return
        if type(state) is not dict:
            self._report("", f"it is a {type(state).__name__}, not a dict")
            return
        data = self._pack(state)
        if data is not None and hash(data) != self._saved:
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

    def _pack(self, state: dict[Any, Any]) -> bytes | None:
        """Return *state* without the keys that cannot be stored; None if even that is too much."""
        try:
            return self._values.dumps(state)
        except CodecError as error:
            fitting = {key: value for key, value in state.items() if self._fits(key, value)}
            if len(fitting) < len(state):
                return self._pack(fitting)
            self._report("", str(error))
            return None

    def _fits(self, key: Any, value: Any) -> bool:
        try:
            self._values.dumps({key: value})
        except CodecError as error:
            self._report(f"[{key!r}]", str(error))
            return False
        return True

    def _report(self, where: str, reason: str) -> None:
        """Say once for each key that it is not saved."""
        if where not in self._reported:
            self._reported.add(where)
            what = "the other keys are" if where else "what was saved before stays"
            logger.error("spider.state%s is not saved (%s): %s", where, what, reason)


def _state_kv(crawler: Crawler) -> KV | None:
    # The job is opened by the scheduler, where a job that cannot be used is refused in one line.
    from scrapy_spider_suite.store.job_directory import job_kv

    return job_kv(crawler, "spiderstate")
