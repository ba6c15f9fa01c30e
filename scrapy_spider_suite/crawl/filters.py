"""The five filters of a crawl, their files, and its scope.

An unusable filter refuses the start. While the crawl runs it is logged once, and the filter before
it stays in force. A URL at which a filter fails, as an atom of a project may, is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

from scrapy.crawler import Crawler
from scrapy.http import TextResponse
from scrapy.statscollectors import StatsCollector

from scrapy_spider_suite.crawl.crawl_policy import FileStamp, WatchedFile, file_stamp
from scrapy_spider_suite.crawl.queue.leases import Lease
from scrapy_spider_suite.errors import FilterError, SettingsError
from scrapy_spider_suite.exceptions import FilterRefused
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.settings.declarations import setting_name
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.urls.filters import (
    Countries,
    Fact,
    Filter,
    FilterInputs,
    FilterPage,
    LinkFacts,
    Stage,
)
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.scope import Scope

logger = logging.getLogger(__name__)

FILTER_SETTINGS = {stage: f"{stage.value}_filter" for stage in Stage}
"""The setting of each stage, by its name without the prefix."""
_LONGEST = 400_000
"""Bytes of a file."""
_EXEMPT = int(Flag.START | Flag.DONT_FILTER)

_kept: WeakKeyDictionary[Crawler, CrawlFilters] = WeakKeyDictionary()


def get_filters(crawler: Crawler) -> CrawlFilters:
    """The filters of *crawler*, made at the first call. Raises `SettingsError`."""
    found = _kept.get(crawler)
    if found is None:
        found = _kept[crawler] = CrawlFilters(suite_settings(crawler), crawler.stats)
    return found


@dataclass(frozen=True)
class FilterSet:
    by_stage: Mapping[Stage, Filter] = field(default_factory=dict)
    paths: Mapping[Stage, Path] = field(default_factory=dict)
    stamps: Mapping[Stage, FileStamp] = field(default_factory=dict)
    given: FilterInputs = field(default_factory=FilterInputs)

    @classmethod
    def read(cls, values: Mapping[Stage, str], given: FilterInputs) -> FilterSet:
        """The filters of *values*: an expression each, or ``@`` and the path of a file.

        Raises `SettingsError`, which names the setting, the file, the line and the column.
        """
        paths = {stage: Path(text[1:]) for stage, text in values.items() if text[:1] == "@"}
        stamps = {stage: file_stamp(path) for stage, path in paths.items()}
        filters = {stage: _read(stage, text, given) for stage, text in values.items() if text}
        return cls(filters, paths, stamps, given)


def read_filter_context(path: Path | None) -> FilterInputs:
    """The countries for filters. Raises `SettingsError`, with file and line."""
    if path is None:
        return FilterInputs()
    try:
        with path.open(encoding="utf-8-sig") as lines:
            return FilterInputs(Countries.parse(lines, str(path)).of)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"SUITE_COUNTRIES: {path} cannot be read: {error}") from error


def _read(stage: Stage, value: str, given: FilterInputs) -> Filter:
    name, place, text = setting_name(FILTER_SETTINGS[stage]), "", value
    if value.startswith("@"):
        place = f"{value[1:]}, "
        try:
            with Path(value[1:]).open("rb") as file:
                data = file.read(_LONGEST + 1)
            text = data.decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{name}: {value[1:]} cannot be read: {error}") from error
    try:
        return Filter(text, stage, given)
    except FilterError as error:
        raise SettingsError(f"{name}: {place}{error}") from error


class CrawlFilters:
    """Asks the filters of a crawl, and counts what they refuse.

    Stats: ``suite/filter/STAGE/refused`` (links, requests, pages), ``suite/filter/STAGE/errors``
    (refused because the filter failed), ``suite/filter/store/items``.
    """

    def __init__(self, settings: SuiteSettings, stats: StatsCollector) -> None:
        self._stats = stats
        self._failed: set[Filter] = set()
        self._files: list[WatchedFile[Filter]] = []
        self._scope = Scope()
        self._scoped = False
        self.stages: Collection[Stage] = ()
        """The stages that have a filter."""
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
        self._set, self.stages = filters, filters.by_stage.keys()
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

    def out(self, entry: Entry) -> int:
        """How many links in a row have led outside at the page of *entry*.

        A page that is fetched again has no such count: it is 1 if the page lies outside.
        """
        return entry.hops_outside or self.beyond(normalize(entry.url) or entry.url, 0)

    def links_wanted(
        self, stage: Stage, links: list[str], lease: Lease, page: Exchange | None = None
    ) -> list[str]:
        """The links of the page of *lease* that the filter of *stage* wants.

        A filter of links that are followed sees their *page*, too.
        """
        if not links or stage not in self.stages:
            return links
        entry, seen = lease.entry, None if page is None else filtered_page(page)
        via = normalize(entry.url) or ""
        within = LinkFacts(via, entry.depth + 1, 0, "", seen)
        if not self.opens_scope:
            return self._wanted(stage, links, within)
        without = LinkFacts(via, entry.depth + 1, self.out(entry) + 1, "", seen)
        far = {url for url in links if self.beyond(url, 0)}
        kept = {*self._wanted(stage, [url for url in links if url not in far], within)}
        kept.update(self._wanted(stage, [url for url in links if url in far], without))
        return [url for url in links if url in kept]

    def admits(self, entry: Entry, parent: Lease | None) -> bool:
        """Whether *entry*, of the page of *parent*, may enter the queue.

        Seeds and requests with ``dont_filter`` may, as in Scrapy's OffsiteMiddleware.
        """
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

    def refuse_fetch(self, requested: str, entry: Entry, address: str) -> None:
        """Raise `FilterRefused` if the fetch filter refuses the URL *requested*, at *address*."""
        if Stage.FETCH not in self._set.by_stage:
            return
        url = normalize(requested) or requested
        if not self.wants(Stage.FETCH, url, _subject(entry, address, None)):
            name = setting_name(FILTER_SETTINGS[Stage.FETCH])
            raise FilterRefused(f"{name} does not want {requested}")

    def wants_page(self, stage: Stage, page: Exchange, entry: Entry) -> bool:
        if stage not in self._set.by_stage:
            return True
        url = normalize(page.url) or page.url
        return self.wants(stage, url, _subject(entry, page.address, filtered_page(page)))


def _subject(entry: Entry, address: str, page: FilterPage | None) -> LinkFacts:
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
        text=text if issubclass(page.response_class, TextResponse) else None,
    )
