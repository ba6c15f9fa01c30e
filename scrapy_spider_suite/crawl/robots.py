"""robots.txt in a crawl: fetched with its redirects, stored by origin, asked for each URL."""

from __future__ import annotations

import asyncio
import logging
import math
import struct
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from scrapy.exceptions import CannotResolveHostError, IgnoreRequest
from scrapy.http import Request, Response
from scrapy.http.request import NO_CALLBACK

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.requests import StoppedError, redirect_target
from scrapy_spider_suite.errors import SuiteError
from scrapy_spider_suite.exceptions import HostExcluded, RedirectRefused, RobotsUnavailable
from scrapy_spider_suite.frontier import robots_rules
from scrapy_spider_suite.frontier.robots_rules import TTL, RobotsRules, RobotsVerdict, origin_of
from scrapy_spider_suite.settings.project import uses_suite_scheduler
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.store import job_directory

if TYPE_CHECKING:
    from scrapy.core.engine import ExecutionEngine
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.crawl.crawl_policy import PolicyFile
    from scrapy_spider_suite.store.interface import KV

logger = logging.getLogger(__name__)

DOWNLOAD_MAX: Final = 8 << 20
"""Bytes after which a download handler that cannot cut a body gives up, and what decompression
may come to. A robots.txt beyond it counts as unreachable."""
DOWNLOAD_PRIORITY: Final = 1000
"""The priority of requests for robots.txt, as in Scrapy's middleware."""
_MEANING = {
    RobotsVerdict.RULES: "its last rules go on to hold",
    RobotsVerdict.ALLOW_ALL: "everything is allowed",
    RobotsVerdict.DISALLOW_FOR_NOW: "nothing is allowed",
}
_NO_RULES = RobotsRules("", RobotsVerdict.ALLOW_ALL, None, 0.0, 0.0, math.inf)


class RobotsService:
    """The robots.txt of all hosts of one crawl; questions about an origin share a fetch.

    Stats as of Scrapy's middleware, a robots.txt with its redirects counting once. *listener* is
    called after each fetch, *announce* awaited after each answer.
    """

    def __init__(self, crawler: Crawler) -> None:
        if crawler.stats is None:
            raise RuntimeError("the crawler has no stats collector yet")
        self._crawler = crawler
        self._clock: Callable[[], float] = time.time
        project = suite_settings(crawler).project
        self._obeys = crawler.settings.getbool("ROBOTSTXT_OBEY")
        self._own_agent = project.robotstxt_user_agent
        self.user_agent = self._own_agent or project.user_agent
        # Another scheduler has a failure retried first: a refused request does not come back.
        self._has_frontier = uses_suite_scheduler(crawler)
        self._meta = {
            "allow_offsite": True,
            "dont_obey_robotstxt": True,
            "dont_redirect": True,
            "download_maxsize": min(project.download_maxsize or DOWNLOAD_MAX, DOWNLOAD_MAX),
            "download_warnsize": 0,
            "suite_truncate": robots_rules.BODY_MAX,
        }
        if self._has_frontier:
            self._meta["dont_retry"] = True
        self._fetches: dict[str, asyncio.Task[RobotsRules]] = {}
        self.listener: Callable[[RobotsRules], None] | None = None
        self.announce: Callable[[RobotsRules, Request], Awaitable[None]] | None = None

    @cached_property
    def _policy_file(self) -> PolicyFile:
        return get_crawl(self._crawler).policy_file

    @cached_property
    def store(self) -> RobotsStore:
        """Opened at the first question, since the job opens after middlewares."""
        kv = job_directory.job_kv(self._crawler, "robots")
        return RobotsStore(kv, user_agent=self.user_agent or "*")

    def peek(self, url: str) -> RobotsRules | None:
        """The stored rules for *url*; None if they have to be fetched first."""
        origin = origin_of(url)
        return self.store.get(origin, self._clock()) if origin else _NO_RULES

    def obeys(self, url: str) -> bool:
        """Whether robots.txt counts for *url*: by the rule of its host, or the project's."""
        own = self._policy_file.obeys_robots(url)
        return self._obeys if own is None else own

    def crawl_delay(self, url: str) -> float | None:
        """The Crawl-delay for *url* in seconds; None if there is none, or it is not known."""
        rules = self.peek(url)
        return None if rules is None else rules.crawl_delay(self.agent_for(url))

    def agent_for(self, url: str, header: str | None = None) -> str:
        """The user agent that *url* is asked for by, which may send *header*."""
        header = None if self._own_agent else header
        return self._policy_file.user_agent(url) or header or self.user_agent

    async def rules_for(self, url: str, cause: Request | None = None) -> RobotsRules:
        """The rules for the origin of *url*; fetched if need be, because of *cause*."""
        return self.peek(url) or await self.fetch(origin_of(url), cause)

    async def fetch(self, origin: str, cause: Request | None = None) -> RobotsRules:
        """Fetch the robots.txt of *origin* now, because of *cause*.

        Raises `SuiteError`, `CannotResolveHostError`: no usable address, or no file is left, so
        nothing is stored; `RobotsUnavailable`: the crawl is not running.
        """
        task = self._fetches.get(origin)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(origin, cause))
            self._fetches[origin] = task
            task.add_done_callback(lambda done: self._fetched(origin, done))
        return await asyncio.shield(task)

    def _fetched(self, origin: str, task: asyncio.Task[RobotsRules]) -> None:
        del self._fetches[origin]
        if not task.cancelled():
            task.exception()  # the caller may be gone: it is not unhandled for that

    async def _fetch(self, origin: str, cause: Request | None) -> RobotsRules:
        engine = self._crawler.engine
        if engine is None or engine.spider is None:
            raise RobotsUnavailable("The crawl is not running", self._clock())
        stats, request = self._crawler.stats, self._request(f"{origin}/robots.txt")
        status, body, age = None, b"", None
        why: object = None
        try:
            response = await self._download(engine, request)
        except Exception as error:
            if not isinstance(error, IgnoreRequest):
                stats.inc_value(f"robotstxt/exception_count/{type(error)}")
            if isinstance(error, SuiteError | CannotResolveHostError | HostExcluded | StoppedError):
                raise  # these say nothing of the host
            why = error  # of any download handler or middleware: all mean no answer
        else:
            status, body, why = response.status, response.body, f"status {response.status}"
            said = b",".join(response.headers.getlist(b"Cache-Control")).decode("latin-1")
            age = robots_rules.max_age(said)
            stats.inc_value("robotstxt/response_count")
            stats.inc_value(f"robotstxt/response_status_count/{status}")
        finally:
            stats.inc_value("robotstxt/request_count")
        rules = robots_rules.judge_robots(
            origin, status, body, now=self._clock(), max_age=age,
            previous=self.store.last(origin), ttl=TTL,
        )  # fmt: skip
        self.store.put(rules)
        if self.listener is not None:
            self.listener(rules)
        self._log_failure(rules, why)
        if status is not None and self.announce is not None:
            await self.announce(rules, cause or request)
        return rules

    def _request(self, url: str) -> Request:
        return Request(url, NO_CALLBACK, priority=DOWNLOAD_PRIORITY, meta=dict(self._meta))

    async def _download(self, engine: ExecutionEngine, request: Request) -> Response:
        # The answer to the last redirect. Every hop goes through the downloader, so it is paced
        # like any other request.
        response = await engine.download_async(request)
        for _ in range(robots_rules.REDIRECTS_MAX):
            location = response.headers.get(b"Location")
            target = redirect_target(request.url, response.status, location)
            if target is None:
                break
            request = self._request(target)
            try:
                response = await engine.download_async(request)
            except (SuiteError, CannotResolveHostError, HostExcluded) as exc:
                raise RedirectRefused(f"redirected to {target}: {exc}") from exc
        return response

    def _log_failure(self, rules: RobotsRules, why: object) -> None:
        # A warning where pages may fail for it without a word.
        if rules.unreachable_since is None:
            return
        first = rules.unreachable_since == rules.checked_at
        spider = suite_settings(self._crawler).profile == "spider"
        told = (spider and first) or not self._has_frontier
        loud = rules.verdict is RobotsVerdict.DISALLOW_FOR_NOW and told
        logger.log(
            logging.WARNING if loud else logging.DEBUG,
            "robots.txt of %s cannot be had (%s): %s for %d s",
            rules.origin, why, _MEANING[rules.verdict], rules.expires_at - rules.checked_at,
        )  # fmt: skip


KEEP_AFTER_EXPIRY = robots_rules.UNREACHABLE_MAX + TTL
"""Seconds that an outdated row stays: as long as its body or its failures may still count."""

_ROW = struct.Struct(">BBHIdddd")
_FORMAT = 1
BUCKETS = 256  # groups of rows by origin: those of one host lie in any of them
_PUTS_PER_PURGE = 1000  # so a purge of one bucket looks at some rows per verdict put


class RobotsStore:
    """`RobotsRules` by origin: all on disk in *kv*, at most *memory* bytes of them in memory."""

    def __init__(self, kv: KV | None, user_agent: str = "*", memory: int = 32 << 20) -> None:
        """The rules for *user_agent* are parsed as they enter, for their size to be known."""
        self._kv = kv
        self._most = memory
        self._user_agent = user_agent
        self._memory: OrderedDict[str, tuple[RobotsRules, int]] = OrderedDict()
        self._bytes = 0
        self._puts = 0

    def __len__(self) -> int:
        return len(self._memory)

    def get(self, origin: str, now: float) -> RobotsRules | None:
        rules = self.last(origin)
        return None if rules is None or rules.expired(now) else rules

    def last(self, origin: str) -> RobotsRules | None:
        known = self._memory.get(origin)
        rules = known[0] if known else None
        if rules is None and self._kv is not None:
            row = self._kv.get(row_key(origin))
            rules = None if row is None else _from_row(origin, row)
        if rules is not None:
            self._remember(rules)
        return rules

    def put(self, rules: RobotsRules) -> None:
        if self._kv is not None:
            since = math.nan if rules.unreachable_since is None else rules.unreachable_since
            head = _ROW.pack(
                _FORMAT, rules.verdict, min(rules.status or 0, 0xFFFF), rules.failures,
                rules.fetched_at, rules.checked_at, rules.expires_at, since,
            )  # fmt: skip
            self._kv.put(row_key(rules.origin), head + rules.packed)
            self._puts += 1
            if self._puts % _PUTS_PER_PURGE == 0:
                bucket = self._puts // _PUTS_PER_PURGE % BUCKETS
                _purge(self._kv, bucket, rules.checked_at - KEEP_AFTER_EXPIRY)
        self._remember(rules)

    def forget(self, origin: str) -> bool:
        """Delete the rules for *origin*; return whether there were any."""
        known, weight = self._memory.pop(origin, (None, 0))
        self._bytes -= weight
        if self._kv is None:
            return known is not None
        stored = self._kv.get(row_key(origin)) is not None
        self._kv.delete(row_key(origin))
        return stored

    def origins(self, host: str, buckets: range = range(BUCKETS)) -> list[str]:
        """The stored origins of *host*, of any scheme and port, in some *buckets*."""
        if self._kv is None:
            return [each for each in self._memory if _is_of(each, host)]
        heads = (f"{scheme}://{host}".encode() for scheme in ("http", "https"))
        keys = [bytes([bucket]) + head for head in heads for bucket in buckets]
        found = (key[1:].decode() for begin in keys for key, _ in self._kv.items(begin))
        return [origin for origin in found if _is_of(origin, host)]

    def _remember(self, rules: RobotsRules) -> None:
        _, weight = self._memory.pop(rules.origin, (None, 0))
        self._bytes -= weight
        rules.crawl_delay(self._user_agent)
        self._memory[rules.origin] = rules, rules.weight
        self._bytes += rules.weight
        while len(self._memory) > 1 and self._bytes > self._most:
            self._bytes -= self._memory.popitem(last=False)[1][1]


def _purge(kv: KV, bucket: int, before: float) -> None:
    for key, row in kv.items(bytes([bucket])):
        # Their bodies are left packed: a bucket of a large crawl holds thousands.
        if len(row) < _ROW.size or not _ROW.unpack_from(row)[6] >= before:
            kv.delete(key)


def _is_of(origin: str, host: str) -> bool:
    rest = origin.partition("://")[2].removeprefix(host)
    return not rest or (rest.startswith(":") and rest[1:].isdigit())


def row_key(origin: str) -> bytes:
    name = origin.encode()
    return bytes([zlib.crc32(name) % BUCKETS]) + name


def is_row(row: bytes) -> bool:
    return _from_row("", row) is not None


def later_row(row: bytes, other: bytes) -> bool:
    """Whether *row* was checked later than *other*, which need not be a row."""
    return len(other) < _ROW.size or _ROW.unpack_from(row)[5] > _ROW.unpack_from(other)[5]


def _from_row(origin: str, row: bytes) -> RobotsRules | None:
    """The rules of *row*; None if it is damaged: robots.txt is asked for again."""
    try:
        form, verdict, status, failures, fetched, checked, expires, since = _ROW.unpack_from(row)
        packed, unpacking = row[_ROW.size :], zlib.decompressobj()
        size = len(unpacking.decompress(packed, robots_rules.BODY_MAX))
        whole = not packed or size >= robots_rules.BODY_MAX or unpacking.eof
        if form != _FORMAT or not whole or not all(map(math.isfinite, (fetched, checked, expires))):
            return None
        return RobotsRules(
            origin, RobotsVerdict(verdict), status or None, fetched, checked, expires,
            None if math.isnan(since) else since, failures, packed,
        )  # fmt: skip
    except (struct.error, ValueError, zlib.error):
        return None
