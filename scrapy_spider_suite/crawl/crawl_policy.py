"""What settings and files of an operator decide in a crawl: policy, filters, order, normaliser.

An unusable file refuses the start. While the crawl runs it is logged once, and the rules before it
stay in force. A URL at which a filter fails, as an atom of a project may, is refused.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TextIO, TypeVar

from scrapy.http import TextResponse
from scrapy.statscollectors import StatsCollector
from scrapy.utils.misc import load_object

from scrapy_spider_suite.analysis.ranks import ScoreTable
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.errors import FilterError, SettingsError
from scrapy_spider_suite.exceptions import FilterRefused, HostExcluded
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.frontier import entries
from scrapy_spider_suite.frontier.outcomes import BackOff, Event, Pace
from scrapy_spider_suite.frontier.policy import Overrides, Phases, Policy
from scrapy_spider_suite.frontier.robots_rules import origin_of
from scrapy_spider_suite.frontier.windows import Window
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.declarations import setting_name
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.urls import normalizer
from scrapy_spider_suite.urls.filters import Fact, FilterInputs, FilterPage, LinkFacts, Stage
from scrapy_spider_suite.urls.filters.language import Filter
from scrapy_spider_suite.urls.host_patterns import Countries
from scrapy_spider_suite.urls.hosts import Scope
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.traps import TrapLimits
from scrapy_spider_suite.urls.twins import Twins

logger = logging.getLogger(__name__)

T = TypeVar("T")

TWINS_TABLE: Final = "twins"  # the family in which a job keeps the evidence of twins


CountStat = Callable[[str], object]


@dataclass
class GuardedNormalizer:
    """Calls a project's normaliser; if it fails, the URL stays as it was."""

    _own: normalizer.Plugin
    _name: str
    _count: CountStat
    _told: set[str] = field(default_factory=set)

    def __call__(self, url: str) -> str | None:
        """The URL made of *url*; None drops it."""
        try:
            found = self._own(url)
        except Exception:  # whatever a project's code does, the crawl goes on
            self._count("suite/normalizer/errors")
            self._warn("raised", url, trace=True)
            return url
        if found is None:
            self._count("suite/normalizer/dropped")
            return None
        normal = normalize(found) if isinstance(found, str) else None
        if normal is None:
            self._count("suite/normalizer/invalid")
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
    settings: SuiteSettings, kv: KV | None, domains: Collection[str] | None = None,
    count: CountStat = lambda stat: None,
) -> normalizer.Normalizer:  # fmt: skip
    """The normaliser for *settings*; *kv*: of twins. Raises `SettingsError`."""
    if settings.profile != "broad":
        return normalizer.Normalizer()
    general = normalizer.SpellingOptions.from_words(settings.normal_form, settings.drop_parameters)
    plugin = None
    if settings.normalizer:
        own = _load("SUITE_NORMALIZER", settings.normalizer)
        plugin = GuardedNormalizer(own, settings.normalizer, count)
    rules = normalizer.RewriterTable(general, normalizer.SpellingRules(settings.url_rules))
    twins = Twins(kv) if settings.prefer_https and kv is not None else None
    made = normalizer.Normalizer(rules, plugin, twins)
    made.scope = Scope(domains) if domains else None
    return made


def _load(setting: str, path: str) -> Any:
    try:
        own = load_object(path)
        own = own() if isinstance(own, type) else own
    except Exception as error:  # importing a project's module may raise anything
        raise SettingsError(f"{setting} = {path!r}: {error}") from error
    if not callable(own):
        raise SettingsError(f"{setting} = {path!r}: expected a callable, or a class of such")
    return own


ScoreOfUrl = Callable[[str, int, str], float]


def make_order(settings: SuiteSettings, stats: StatsCollector) -> entries.Order:
    if settings.order == "bottom-up":
        return entries.BottomUp(alternating=settings.window == "leaf")
    if settings.order == "best-first":
        return entries.BestFirst(UserScore(_load_score(settings.score), stats))
    return entries.BREADTH_FIRST


def make_window(settings: SuiteSettings, store: Store) -> Window | None:
    """The window of SUITE_WINDOW. Raises `SettingsError` without a durable store."""
    if settings.window != "none" and not store.durable:
        allowed = "'none' in the spider profile without JOBDIR, where all hosts are in memory"
        raise SettingsError.of("SUITE_WINDOW", settings.window, allowed)
    return Window.from_settings(settings.window, settings.window_size)


@dataclass
class UserScore:
    """Calls the project's score function; a score that fails is 0.0."""

    _score: ScoreOfUrl
    _stats: StatsCollector

    def __call__(self, entry: entries.Entry) -> float:
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
    if not isinstance(score, Path):
        found: ScoreOfUrl = _load("SUITE_SCORE", score)
        return found
    try:
        return ScoreTable.read(score).of_link
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise SettingsError(f"SUITE_SCORE = {str(score)!r} cannot be read: {error}") from None


FileStamp = tuple[int, int, int]
_REFUSED = 1.0  # seconds; the first pause after a refused connection in the spider profile
_NEVER = 1 << 30
_AWAY: FileStamp = (0, 0, 0)
_NO_FILE: FileStamp = (0, 0, 1)


class WatchedFile(Generic[T]):
    """A file that is read again when it has changed and was equal at two polls.

    *read* runs in a thread, *use* gets its result; `SettingsError` is logged: *kept* "in force".
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


class PolicyFile:
    """The policy of a crawl; reads its overrides file again when that changes."""

    def __init__(self, settings: SuiteSettings) -> None:
        path = settings.overrides
        read = partial(read_overrides, path)
        self._file = WatchedFile(path, read, self._use, "the rules of before stay")
        self.policy = Policy(overrides=read(), **policy_fields(settings))
        self.poll = self._file.poll
        self.stop()

    def stop(self) -> None:
        self._file.stop()
        self.changed: Callable[[], None] = lambda: None
        self.address_of: Callable[[str], str] = lambda host: ""  # not known

    def _use(self, rules: Overrides) -> None:
        self.policy.update(overrides=rules)
        number = counted(len(rules), "rule")
        logger.info("now in force: %s of %s", number, self._file.path or "no file")
        self.changed()

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
        """Raise `HostExcluded` if *url* may not be asked for of *host*, at *address* or ""."""
        policy = self.policy
        if not policy.may_exclude:
            return
        wall = time.time()
        exclusion = policy.exclusion(host, address, wall)
        if exclusion is None and policy.blocks:
            exclusion = policy.exclusion_of_url(normalize(url) or url, host, wall)
        if exclusion is not None:
            raise HostExcluded(str(exclusion), exclusion.until)


def read_overrides(path: Path | None) -> Overrides:
    """The rules of a file. Raises `SettingsError`, which names file and line."""
    return Overrides() if path is None else _read_lines("SUITE_OVERRIDES", path, Overrides.parse)


def _read_lines(name: str, path: Path, parse: Callable[[TextIO, str], T]) -> T:
    try:
        with path.open(encoding="utf-8-sig") as lines:
            return parse(lines, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name}: {path} cannot be read: {error}") from error


def policy_fields(settings: SuiteSettings) -> dict[str, Any]:
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


FILTER_SETTINGS = {stage: f"{stage.value}_filter" for stage in Stage}
"""The setting of each stage, by its name without the prefix."""
_LONGEST = 400_000  # characters of a file
_EXEMPT = entries.Flag.START | entries.Flag.DONT_FILTER


@dataclass(frozen=True)
class FilterSet:
    by_stage: Mapping[Stage, Filter] = field(default_factory=dict)
    paths: Mapping[Stage, Path] = field(default_factory=dict)
    stamps: Mapping[Stage, FileStamp] = field(default_factory=dict)
    given: FilterInputs = field(default_factory=FilterInputs)

    @classmethod
    def read(cls, values: Mapping[Stage, str], given: FilterInputs) -> FilterSet:
        """The filters of *values*: an expression or ``@`` and a file. Raises `SettingsError`."""
        paths = {stage: Path(text[1:]) for stage, text in values.items() if text[:1] == "@"}
        stamps = {stage: file_stamp(path) for stage, path in paths.items()}
        filters = {stage: _read(stage, text, given) for stage, text in values.items() if text}
        return cls(filters, paths, stamps, given)


def read_filter_context(path: Path | None) -> FilterInputs:
    """The countries for filters. Raises `SettingsError`, with file and line."""
    if path is None:
        return FilterInputs()
    return FilterInputs(_read_lines("SUITE_COUNTRIES", path, Countries.parse).of)


def _read(stage: Stage, value: str, given: FilterInputs) -> Filter:
    name, place, text = setting_name(FILTER_SETTINGS[stage]), "", value
    if value.startswith("@"):
        place = f"{value[1:]}, "
        text = _read_lines(name, Path(value[1:]), lambda file, _: file.read(_LONGEST))
    try:
        return Filter(text, stage, given)
    except FilterError as error:
        raise SettingsError(f"{name}: {place}{error}") from error


class CrawlFilters:
    """Asks the filters of a crawl, and counts what they refuse."""

    def __init__(self, settings: SuiteSettings, stats: StatsCollector) -> None:
        self._stats = stats
        self._failed: set[Filter] = set()
        self._files: list[WatchedFile[Filter]] = []
        self._scope = Scope()
        self._scoped = False
        self.opens_scope = False
        """Whether the schedule filter decides how far links may lead out of the scope."""
        self.adopt(self.prepare(settings, anew=True))

    def prepare(self, settings: SuiteSettings, *, anew: bool = False) -> FilterSet:
        """The filters of *settings*; *anew* with their countries. Raises `SettingsError`."""
        given = read_filter_context(settings.countries) if anew else self._set.given
        texts = {stage: str(getattr(settings, name)) for stage, name in FILTER_SETTINGS.items()}
        return FilterSet.read(texts, given)

    def adopt(self, filters: FilterSet) -> None:
        self.stop()
        self._use(filters)
        self._files = [self._watch(stage) for stage in filters.paths]

    def _watch(self, stage: Stage) -> WatchedFile[Filter]:
        path = self._set.paths[stage]

        def use(found: Filter) -> None:
            self._use(replace(self._set, by_stage={**self._set.by_stage, stage: found}))
            logger.info("the %s filter of %s is in force", stage.value, path)

        read = partial(_read, stage, f"@{path}", self._set.given)
        return WatchedFile(
            path, read, use, "the filter of before stays", stamp=self._set.stamps[stage]
        )

    def _use(self, filters: FilterSet) -> None:
        self._set = filters
        self.in_force = bool(filters.by_stage)
        schedule = filters.by_stage.get(Stage.SCHEDULE)
        self.opens_scope = self._scoped and schedule is not None and schedule.needs(Fact.BEYOND)

    def poll(self) -> None:
        for file in self._files:
            file.poll()

    def stop(self) -> None:
        for file in self._files:
            file.stop()

    def for_stage(self, stage: Stage) -> Filter | None:
        return self._set.by_stage.get(stage)

    def _wanted(self, stage: Stage, links: list[str], subject: LinkFacts) -> list[str]:
        wants = self._set.by_stage[stage].wants
        try:
            kept = [url for url in links if wants(url, subject)]
        except Exception:  # an atom of the project's own: link by link, then
            return [url for url in links if self.wants(stage, url, subject)]
        if len(kept) < len(links):
            self._stats.inc_value(f"suite/filter/{stage.value}/refused", len(links) - len(kept))
        return kept

    def wants(self, stage: Stage, url: str, subject: LinkFacts) -> bool:
        found = self.for_stage(stage)
        if found is None:
            return True
        try:
            wanted = found.wants(url, subject)
        except Exception:  # an atom of the project's own
            wanted = False
            self._stats.inc_value(f"suite/filter/{stage.value}/errors")
            if found not in self._failed:
                self._failed.add(found)
                logger.exception(
                    "the %s filter failed at %s, which is not wanted then (further ones are only "
                    "counted: suite/filter/%s/errors)", stage.value, url, stage.value,
                )  # fmt: skip
        if not wanted:
            self._stats.inc_value(f"suite/filter/{stage.value}/refused")
        return wanted

    def use_scope(self, domains: Iterable[str] | None) -> None:
        """Count hops outside of *domains*; without any, everything is inside."""
        allowed = list(domains or ())
        self._scoped, self._scope = bool(allowed), Scope(allowed)
        self._use(self._set)

    def beyond(self, url: str, before: int) -> int:
        """How many links in a row have led outside at *url*, after *before* at its page."""
        if not self._scoped or self._scope.refuses(url, host_of(url), 0) is None:
            return 0
        return before + 1

    def out(self, entry: entries.Entry) -> int:
        """Links in a row that led outside at the page of *entry*; 1 if that is fetched again."""
        return entry.hops_outside or self.beyond(normalize(entry.url) or entry.url, 0)

    def links_wanted(
        self, stage: Stage, links: list[str], fetch: Fetch, page: Exchange | None = None
    ) -> list[str]:
        """The links of the page of *fetch* that the filter of *stage*, which sees *page*, wants."""
        if not links or stage not in self._set.by_stage:
            return links
        entry, seen = fetch.entry, None if page is None else filtered_page(page)
        via = normalize(entry.url) or ""
        within = LinkFacts(via, entry.depth + 1, 0, "", seen)
        if not self.opens_scope:
            return self._wanted(stage, links, within)
        without = LinkFacts(via, entry.depth + 1, self.out(entry) + 1, "", seen)
        far = {url for url in links if self.beyond(url, 0)}
        kept = {*self._wanted(stage, [url for url in links if url not in far], within)}
        kept.update(self._wanted(stage, [url for url in links if url in far], without))
        return [url for url in links if url in kept]

    def admits(self, entry: entries.Entry, parent: Fetch | None) -> bool:
        """Whether *entry*, of the page of *parent*, may enter the queue; seeds always may."""
        found = self.for_stage(Stage.SCHEDULE)
        if found is None or entry.flags & _EXEMPT:
            return True
        url = normalize(entry.url)
        if url is None:  # no web address
            return True
        via, before = "", 0
        if parent is not None:
            via = normalize(parent.entry.url) or ""
            # A redirect leads no further than the link to it did.
            before = self.out(parent.entry) - (parent.event is Event.REPLACED)
        if found.needs(Fact.BEYOND):
            entry.hops_outside = self.beyond(url, max(0, before))
        return self.wants(Stage.SCHEDULE, url, LinkFacts(via, entry.depth, entry.hops_outside))

    def refuse_fetch(self, requested: str, entry: entries.Entry, address: str) -> None:
        """Raise `FilterRefused` if the fetch filter refuses the URL *requested*, at *address*."""
        if Stage.FETCH not in self._set.by_stage:
            return
        url = normalize(requested) or requested
        if not self.wants(Stage.FETCH, url, _subject(entry, address, None)):
            name = setting_name(FILTER_SETTINGS[Stage.FETCH])
            raise FilterRefused(f"{name} does not want {requested}")

    def wants_page(self, stage: Stage, page: Exchange, entry: entries.Entry) -> bool:
        if stage not in self._set.by_stage:
            return True
        url = normalize(page.url) or page.url
        return self.wants(stage, url, _subject(entry, page.address, filtered_page(page)))


def _subject(entry: entries.Entry, address: str, page: FilterPage | None) -> LinkFacts:
    referrer = normalize(entry.referrer) or ""
    return LinkFacts(referrer, entry.depth, entry.hops_outside, address, page)


def filtered_page(page: Exchange) -> FilterPage:
    def text() -> str:
        response = page.response
        return response.text if isinstance(response, TextResponse) else ""

    return FilterPage(
        page.status,
        page.body,
        page.field(b"Content-Type"),
        b",".join(page.fields.get(b"Content-Language", ())).decode("latin-1"),
        http=page.url.startswith(("http://", "https://")),
        text_of=text if issubclass(page.response_class, TextResponse) else None,
    )
