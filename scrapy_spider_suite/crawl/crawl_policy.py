"""Policy, overrides file, order, window and normaliser of a crawl, made from its settings.

An unusable file refuses the start. While the crawl runs it is logged once, and the rules before it
stay in force.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import zlib
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from scrapy.crawler import Crawler
from scrapy.statscollectors import StatsCollector
from scrapy.utils.misc import load_object

from scrapy_spider_suite.analysis.ranks import ScoreTable
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.exceptions import HostExcluded
from scrapy_spider_suite.frontier.entries import BREADTH_FIRST, BestFirst, BottomUp, Entry, Order
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.overrides import Overrides
from scrapy_spider_suite.frontier.policy import Phases, Policy
from scrapy_spider_suite.frontier.politeness import BackOff, Pace
from scrapy_spider_suite.frontier.robots_rules import origin_of
from scrapy_spider_suite.frontier.windows import Window
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.store.interface import KV, Store
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.normalizer import (
    Normalizer,
    Plugin,
    RewriterTable,
    SpellingOptions,
    SpellingRules,
)
from scrapy_spider_suite.urls.scope import Scope
from scrapy_spider_suite.urls.traps import TrapLimits
from scrapy_spider_suite.urls.twins import Twins

logger = logging.getLogger(__name__)

T = TypeVar("T")

TWINS_TABLE: Final = "twins"
"""The family in which a job keeps the evidence of twins."""
_TRIED: Final = 1_000
"""Results of the project's normaliser that are handed to it once more, to see if they stay."""


class StatsCounter(Protocol):
    def inc_value(self, key: str, count: int = 1) -> None: ...


class NoStats:
    def inc_value(self, key: str, count: int = 1) -> None:
        ...


class GuardedNormalizer:
    """Calls a project's normaliser *own*; its failures do not stop the crawl.

    Its URLs are brought into plain normal form. If it raises, or returns no web address, the URL
    stays as it was.

    Stats: ``suite/normalizer/errors``, ``suite/normalizer/invalid``, ``suite/normalizer/dropped``,
    ``suite/normalizer/unstable``.
    """

    def __init__(self, own: Plugin, name: str, stats: StatsCounter) -> None:
        self._own = own
        self._name = name
        self._stats = stats
        self._told: set[str] = set()
        self._tried = 0

    def __call__(self, url: str) -> str | None:
        """The URL made of *url*; None drops it."""
        found = self._ask(url)
        if found is None:
            self._stats.inc_value("suite/normalizer/dropped")
        elif found != url and self._tried < _TRIED:
            self._tried += 1
            if self._ask(found) != found:
                self._stats.inc_value("suite/normalizer/unstable")
                self._warn("makes yet another URL of its own result", url)
        return found

    def _ask(self, url: str) -> str | None:
        try:
            found = self._own(url)
        except Exception:  # whatever a project's code does, the crawl goes on
            self._stats.inc_value("suite/normalizer/errors")
            self._warn("raised", url, trace=True)
            return url
        if found is None:
            return None
        normal = normalize(found) if isinstance(found, str) else None
        if normal is None:
            self._stats.inc_value("suite/normalizer/invalid")
            self._warn("returned no web address", url)
            return url
        return normal

    def _warn(self, what: str, url: str, *, trace: bool = False) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.warning(
                "SUITE_NORMALIZER = %r %s, given %s (if it does so again, that is only counted: "
                "suite/normalizer/…)", self._name, what, url, exc_info=trace,
            )  # fmt: skip


def make_normalizer(
    settings: SuiteSettings, kv: KV | None, stats: StatsCounter,
    domains: Collection[str] | None = None,
) -> Normalizer:
    """The normaliser for *settings*; the plain one outside of the broad profile.

    *kv* holds the evidence of twins, *domains* are the spider's. Raises `SettingsError`.
    """
    if settings.profile != "broad":
        return Normalizer()
    general = SpellingOptions.from_words(settings.normal_form, settings.drop_parameters)
    plugin = None
    if settings.normalizer:
        plugin = GuardedNormalizer(_load(settings.normalizer), settings.normalizer, stats)
    rules = RewriterTable(general, SpellingRules(settings.url_rules))
    twins = Twins(kv) if settings.prefer_https and kv is not None else None
    made = Normalizer(rules, plugin, twins)
    made.scope = Scope(domains) if domains else None
    return made


def _load(path: str) -> Plugin:
    try:
        own = load_object(path)
        if isinstance(own, type):
            own = own()
    except Exception as error:  # importing a project's module may raise anything
        raise SettingsError(f"SUITE_NORMALIZER = {path!r}: {error}") from error
    if not callable(own):
        raise SettingsError(f"SUITE_NORMALIZER = {path!r}: expected a callable, or a class of such")
    found: Plugin = own
    return found


ScoreOfUrl = Callable[[str, int, str], float]


def make_order(settings: SuiteSettings, stats: StatsCollector) -> Order:
    """The order of SUITE_ORDER. Raises `SettingsError` for an unusable SUITE_SCORE."""
    if settings.order == "bottom-up":
        return BottomUp(alternating=settings.window == "leaf")
    if settings.order == "best-first":
        return BestFirst(UserScore(_load_score(settings.score), stats))
    return BREADTH_FIRST


def make_window(settings: SuiteSettings, store: Store) -> Window | None:
    """The window of SUITE_WINDOW. Raises `SettingsError` without a durable store."""
    if settings.window != "none" and not store.durable:
        allowed = "'none' in the spider profile without JOBDIR, where all hosts are in memory"
        raise SettingsError.of("SUITE_WINDOW", settings.window, allowed)
    return Window.from_settings(settings.window, settings.window_size)


class UserScore:
    """Calls the project's score function; counts its failures, whose score is 0.0.

    Stats: ``suite/order/bad_scores``.
    """

    def __init__(self, score: ScoreOfUrl, stats: StatsCollector) -> None:
        self._score = score
        self._stats = stats

    def __call__(self, entry: Entry) -> float:
        try:
            return float(self._score(entry.url, entry.depth, entry.referrer))
        except Exception:  # the project's code, which may raise anything: no URL is lost for it
            if not self._stats.get_value("suite/order/bad_scores"):
                logger.exception(
                    "SUITE_SCORE failed for %s, whose score is 0 (others are only counted: "
                    "suite/order/bad_scores)", entry.url,
                )  # fmt: skip
            self._stats.inc_value("suite/order/bad_scores")
            return 0.0


def _load_score(score: str | Path) -> ScoreOfUrl:
    if isinstance(score, Path):
        try:
            return ScoreTable.read(score).of_link
        except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
            why = f"SUITE_SCORE = {str(score)!r} cannot be read: {error}"
            raise SettingsError(why) from None
    try:
        found: ScoreOfUrl = load_object(score)
    except (ImportError, NameError) as error:
        raise SettingsError(f"SUITE_SCORE = {score!r} cannot be imported: {error}") from None
    if not callable(found):
        raise SettingsError.of("SUITE_SCORE", score, "the import path of a function")
    return found


FileStamp = tuple[int, int, int]
_REFUSED = 1.0
"""Seconds; the first pause after a refused connection in the spider profile."""
_NEVER = 1 << 30
_AWAY: FileStamp = (0, 0, 0)
_NO_FILE: FileStamp = (0, 0, 1)


class WatchedFile(Generic[T]):
    """A file that is read again when it has changed and was equal at two polls.

    *read* runs in a thread: 100,000 rules take seconds; *use* gets its result. If it raises
    `SettingsError`, that is logged: *kept* "in force". *stamp*: see `file_stamp`.
    """

    def __init__(
        self, path: Path | None, read: Callable[[], T], use: Callable[[T], None],
        kept: str, *, stamp: FileStamp | None = None,
    ) -> None:  # fmt: skip
        self.path = path
        self._read, self._use, self._kept = read, use, kept
        # Of the contents in force, or of those that were refused.
        self._stamp = self._seen = stamp or file_stamp(path)
        self._reading: asyncio.Task[None] | None = None

    def poll(self) -> None:
        if self._reading is not None:
            return
        stamp = file_stamp(self.path)
        if stamp != self._stamp and stamp == self._seen:
            self._reading = asyncio.ensure_future(self._read_again(stamp))
        self._seen = stamp

    def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read_again(self, stamp: FileStamp) -> None:
        try:
            found = await asyncio.to_thread(self._read)
        except SettingsError as error:
            self._stamp = stamp
            logger.error("%s: %s in force", error, self._kept)
        else:
            if file_stamp(self.path) == stamp:  # else a later poll reads it
                self._stamp = stamp
                self._use(found)
        finally:
            self._reading = None


_kept: WeakKeyDictionary[Crawler, PolicyFile] = WeakKeyDictionary()


def get_policy_file(crawler: Crawler) -> PolicyFile:
    """The policy file of *crawler*, made at the first call. Raises `SettingsError`."""
    found = _kept.get(crawler)
    if found is None:
        found = _kept[crawler] = PolicyFile(suite_settings(crawler))
    return found


class PolicyFile:
    """The policy of a crawl; reads its overrides file again when that changes.

    Attributes:
        changed: is called after each change.
        address_of: the address of a host; "" if it is unknown.
    """

    def __init__(self, settings: SuiteSettings) -> None:
        path = settings.overrides
        read = partial(read_overrides, path)
        self._file = WatchedFile(path, read, self._use, "the rules of before stay")
        self.policy = Policy(overrides=read(), **policy_fields(settings))
        self.changed: Callable[[], None] = _do_nothing
        self.address_of: Callable[[str], str] = _unknown_address
        self.poll = self._file.poll

    def stop(self) -> None:
        self._file.stop()
        self.changed, self.address_of = _do_nothing, _unknown_address

    def _use(self, rules: Overrides) -> None:
        self.policy.update(overrides=rules)
        number = counted(len(rules), "rule")
        logger.info("now in force: %s of %s", number, self._file.path or "no file")
        self.changed()

    # What holds for a request

    def obeys_robots(self, url: str) -> bool | None:
        lines = self.policy.overrides.lines
        return self.policy.obeys_robots(*self._place_of(url)) if lines else None

    def user_agent(self, url: str) -> str | None:
        return self.policy.user_agent(*self._place_of(url)) if self.policy.overrides.lines else None

    def _place_of(self, url: str) -> tuple[str, str]:
        origin = origin_of(url)
        host = host_of(origin) if origin else ""
        return host, self.address_of(host)

    def refuse_excluded(self, host: str, url: str, address: str = "") -> None:
        """Raise `HostExcluded` if *url* may not be asked for of *host*, at *address*, now.

        *address* is "" while it is not known.
        """
        policy, wall = self.policy, time.time()
        exclusion = policy.exclusion(host, address, wall)
        if exclusion is None and policy.blocks:
            exclusion = policy.exclusion_of_url(normalize(url) or url, host, wall)
        if exclusion is not None:
            raise HostExcluded(str(exclusion), exclusion.until)


def read_overrides(path: Path | None) -> Overrides:
    """The rules of a file. Raises `SettingsError`, which names file and line."""
    if path is None:
        return Overrides()
    try:
        with path.open(encoding="utf-8-sig") as lines:
            return Overrides.parse(lines, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"SUITE_OVERRIDES: {path} cannot be read: {error}") from error


def policy_fields(settings: SuiteSettings) -> dict[str, Any]:
    """The fields of `Policy` by *settings*."""
    project = settings.project
    general = Pace(settings.host_delay, settings.host_concurrency, settings.requests_per_visit)
    return {
        "host": general,
        "address": Pace(settings.ip_delay, settings.ip_concurrency),
        "host_max_pages": settings.host_max_pages,
        "host_max_depth": settings.host_max_depth,
        "domain_max_pages": settings.domain_max_pages,
        "domain_max_hosts": settings.domain_max_hosts,
        "job_max_pages": settings.max_pages,
        "retry_times": settings.retry_times,
        "retry_failed_after": settings.retry_failed_after,
        "retry_failed": frozenset(map(Event, settings.retry_failed)),
        "back_off": BackOff(
            settings.backoff_base,
            settings.backoff_max,
            # A project's own requests are not given up before its RetryMiddleware does.
            settings.dead_host_failures if settings.profile == "broad" else _NEVER,
            # Somebody looks on, who may have mistyped a port.
            math.inf if settings.profile == "broad" else _REFUSED,
        ),
        "slots": {
            name: Pace(
                float(slot.get("delay", general.delay)),
                int(slot.get("concurrency", general.concurrency)),
                general.burst,
            )
            for name, slot in project.download_slots.items()
        },
        "start_delay": project.autothrottle_start_delay if project.autothrottle_enabled else 0.0,
        # One phase: all hosts are visited at any time.
        "phases": None if settings.phases == 1 else Phases(
            settings.phases, settings.phase_seconds, settings.phase_guard
        ),
        "shared": settings.rate_ledger is not None,
        "traps": TrapLimits.from_detectors(settings.traps),
    }


def file_stamp(path: Path | None) -> FileStamp:
    """A value that changes with the file at *path*, and when another file replaces it."""
    if path is None:
        return _NO_FILE
    try:
        found = path.stat()
    except OSError:
        return _AWAY
    return found.st_mtime_ns, found.st_size, found.st_ino


def _do_nothing() -> None:
    pass


def _unknown_address(host: str) -> str:
    return ""
