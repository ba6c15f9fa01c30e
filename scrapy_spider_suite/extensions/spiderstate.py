"""``spider.state`` kept over restarts without pickle.

Replaces Scrapy's ``SpiderState``, whose file runs what it finds. A spider uses it as ever: a dict
that is there from ``spider_opened`` on. It may hold what requests may hold (see
``scrapy_spider_suite.store.request_codec``). It is saved when the spider closes and, if it changed,
every 30 seconds, as one row of the job: a crash leaves one of these moments, whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Spider, signals
from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.runtime.tasks import Ticker
from scrapy_spider_suite.settings.project import uses_job
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.signals import settings_changed
from scrapy_spider_suite.store.request_codec import RequestCodec

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler

    from scrapy_spider_suite.store.interface import KV
    from scrapy_spider_suite.store.value_codec import ValueCodec

logger = logging.getLogger(__name__)

PERIOD = 30.0
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
        period: float = PERIOD,
        modules: Iterable[str] = (),
    ) -> None:
        self._open_kv = open_kv
        self._storable = tuple(storable)
        self._modules = tuple(modules)
        self._pickle = pickle
        self._period = period
        self._kv: KV | None = None
        self._ticker: Ticker | None = None
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
            partial(_job_kv, crawler), settings.storable, pickle,
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
            self._ticker = Ticker(self._period, partial(self.save, spider))
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


def _job_kv(crawler: Crawler) -> KV | None:
    # The job is opened by the scheduler, where a job that cannot be used is refused in one line.
    from scrapy_spider_suite.store.job_directory import job_kv

    return job_kv(crawler, "spiderstate")
