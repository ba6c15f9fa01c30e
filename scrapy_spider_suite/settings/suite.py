"""The settings of one crawl, read once; no other module of the core reads ``SUITE_`` settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.settings.declarations import (
    KEY,
    Profile,
    SettingChange,
    SettingDeclaration,
    plain_value,
    read_given,
    setting_name,
    shown_value,
)
from scrapy_spider_suite.settings.project import (
    LIVE_SCRAPY_SETTINGS,
    SUITE_EQUIVALENTS,
    ProjectSettings,
)
from scrapy_spider_suite.settings.table import SettingsTable


@dataclass(frozen=True, kw_only=True)
class SuiteSettings(SettingsTable):
    """All settings of one crawl. Durations are floats of seconds, sizes are ints of bytes."""

    project: ProjectSettings  # Scrapy's own settings that the suite takes as inputs

    @property
    def broad(self) -> bool:
        return self.profile == "broad"

    @property
    def longest_delay(self) -> float:
        """Seconds: the longest delay of hosts, of addresses, or in DOWNLOAD_SLOTS."""
        slots = (float(slot.get("delay", 0.0)) for slot in self.project.download_slots.values())
        return max(self.host_delay, self.ip_delay, *slots)

    @property
    def seen_cache(self) -> int:
        """Bytes for fingerprints of URLs that were seen a moment ago, 8 bytes each."""
        return self.memory // 4

    @property
    def sieve_waiting(self) -> int:
        """URLs that a sieve keeps in memory before it merges them with the URLs on disk."""
        return self.memory // 512

    @property
    def near_memory(self) -> int:
        """Bytes for pages that later pages may nearly repeat; the oldest are forgotten."""
        return self.memory // 4

    @classmethod
    def from_settings(
        cls, settings: BaseSettings, spidercls: type[Spider] | Spider | None = None
    ) -> SuiteSettings:
        """Read and check all settings for a crawl of *spidercls*. Raises `SettingsError`."""
        given = read_given(DECLARATIONS, settings)
        project = ProjectSettings.from_settings(settings, spidercls)
        given["profile"] = profile = _profile(given, spidercls)
        complete: dict[str, Any] = dict(given)
        for name, declared in DECLARATIONS.items():
            complete.setdefault(name, declared.default(profile, project, given))
        result = cls(project=project, **complete)
        result.check(spider_known=spidercls is not None)
        return result

    def check(self, *, spider_known: bool) -> None:
        """Raise `SettingsError` for values that are each allowed and make no sense together.

        A spider may set the other value of some: these are refused once the spider is known, and
        not to commands that start no crawl.
        """
        found = chain(_order_contradictions(self), _agent_contradictions(self))
        if spider_known:
            found = chain(found, _pack_contradictions(self))
        for field, expected in found:
            name, value = setting_name(field), plain_value(getattr(self, field))
            if expected.startswith("needs "):
                raise SettingsError(f"{name} = {value!r} {expected}")
            raise SettingsError.of(name, value, expected)

    def defaults(self) -> SuiteSettings:
        """Return the settings of a crawl in this profile that sets none of them."""
        values: dict[str, Any] = {
            name: declared.default(self.profile, self.project, {})
            for name, declared in DECLARATIONS.items()
        }
        return replace(self, **values | {"profile": self.profile})

    def with_value(self, field: str, raw: object) -> SuiteSettings:
        """Return these settings with another value for *field*. Raises `SettingsError`.

        The text ``default`` stands for the default of the profile.
        """
        if raw == "default":
            given = {each: getattr(self, each) for each in DECLARATIONS if each != field}
            value: Any = DECLARATIONS[field].default(self.profile, self.project, given)
        else:
            value = read_given(DECLARATIONS, {setting_name(field): raw})[field]
        result = replace(self, **{field: value})
        result.check(spider_known=True)
        return result

    def as_stored(self) -> dict[str, object]:
        """Return the settings as plain values, which a job keeps and `diff` compares."""
        return {name: plain_value(getattr(self, name)) for name in DECLARATIONS}

    def diff(self, stored: Mapping[str, object]) -> list[SettingChange]:
        """Return what differs from *stored*, which :meth:`as_stored` gave when the job was begun.

        A setting that is missing in *stored* is no difference.
        """
        return [
            SettingChange(setting_name(name), old, new, DECLARATIONS[name].kind)
            for name, new in self.as_stored().items()
            if name in stored and (old := plain_value(stored[name])) != new
        ]

    def as_table(self) -> list[dict[str, Any]]:
        """Return one row for each setting, in the order of declaration, with this crawl's value.

        Values and defaults are text, as a user would write them.
        """
        return [
            {
                "name": setting_name(name),
                "value": shown_value(getattr(self, name), declared.type.unit),
                "unit": declared.type.unit,
                "kind": declared.kind.value,
                "live": declared.live,
                "allowed": declared.type.allowed,
                "spider": shown_value(declared.spider, declared.type.unit),
                "broad": shown_value(declared.broad, declared.type.unit),
                "meaning": declared.meaning,
                "group": declared.group.title,
                "page": declared.page,
            }
            for name, declared in DECLARATIONS.items()
        ]


DECLARATIONS: Mapping[str, SettingDeclaration] = {
    field.name: field.metadata[KEY] for field in fields(SuiteSettings) if KEY in field.metadata
}
"""Every setting's declaration, by its name without the prefix, in lower case."""


_Contradictions = Iterator[tuple[str, str]]
"""A field whose value is refused, and the allowed values or ``needs …``."""


def _order_contradictions(s: SuiteSettings) -> _Contradictions:
    if s.follow and s.profile == "spider":
        yield "follow", "SUITE_PROFILE to be 'auto' or 'broad'"
    if s.ip_delay > 0 and not s.ip_concurrency:
        yield "ip_concurrency", "1 or more while SUITE_IP_DELAY is set"
    if s.order == "best-first" and not s.score:
        yield "score", "an import path or a file with SUITE_ORDER = 'best-first'"
    if s.order != "best-first" and s.score:
        yield "score", "'' but for SUITE_ORDER = 'best-first'"
    if s.window == "leaf" and s.order != "bottom-up":
        yield "order", "'bottom-up' with SUITE_WINDOW = 'leaf'"
    if s.revisit_least > s.revisit_most:
        yield "revisit_least", f"at most SUITE_REVISIT_MOST, which is {s.revisit_most:g}"
    if s.phase_guard >= s.phase_seconds:
        yield "phase_guard", f"less than SUITE_PHASE_SECONDS, which is {s.phase_seconds:g}"
    if s.phases > 1 and 0 < s.max_wait < s.phases * s.phase_seconds:
        # The crawl would end while hosts wait for their phase.
        least = f"{s.phases} SUITE_PHASES of {s.phase_seconds:g} s"
        yield "max_wait", f"0, or {least} at the least"
    if s.backoff_base > s.backoff_max:
        yield "backoff_base", f"at most SUITE_BACKOFF_MAX, which is {s.backoff_max:g}"
    # Index and links are read out of packs, which must stay here.
    if s.index and s.packs_upload and not s.packs_keep:
        yield "index", "False with SUITE_PACKS_KEEP = False"
    if s.read_links != "eager" and s.packs_upload and not s.packs_keep:
        here = "links are read out of packs that are here"
        yield "read_links", f"'eager' with SUITE_PACKS_KEEP = False: {here}"


def _agent_contradictions(s: SuiteSettings) -> _Contradictions:
    if s.cluster and s.seen_store == "sieve" and s.assignment != "ring":
        # A fingerprint has the slot of its host, and nothing else of the URL.
        others = f"SUITE_CLUSTER and SUITE_ASSIGNMENT = {s.assignment!r}"
        yield "seen_store", f"'trie' or 'plain' with {others}"
    if s.cluster in ("peers", "shared-queue") and s.redis_url is None:
        yield "cluster", "needs SUITE_REDIS_URL"
    if s.cluster == "shared-queue":
        if s.assignment != "ring":
            yield "assignment", "'ring' with SUITE_CLUSTER = 'shared-queue'"
        if s.read_links != "eager":
            yield "read_links", "'eager' with SUITE_CLUSTER = 'shared-queue'"
        if s.revisit != "off":
            yield "revisit", "'off' with SUITE_CLUSTER = 'shared-queue'"
    if s.cluster == "lan" and not (s.agents and s.cluster_key and s.agent_name):
        yield "cluster", "needs SUITE_AGENTS, SUITE_AGENT_NAME and SUITE_CLUSTER_KEY"
    if s.cluster == "lan" and s.rate_ledger is None and s.ip_concurrency > 0:
        # Nobody could keep the delay of an address that has hosts of two agents.
        instead = "0, and SUITE_IP_DELAY = 0, or SUITE_RATE_LEDGER"
        yield "ip_concurrency", f"{instead}, with SUITE_CLUSTER = 'lan'"


def _pack_contradictions(s: SuiteSettings) -> _Contradictions:
    if s.read_links != "eager" and s.profile == "spider":
        yield "read_links", "'eager' in the spider profile, whose spiders read links themselves"
    if s.packs_dir is None:
        if s.read_links != "eager":
            yield "read_links", "needs SUITE_PACKS_DIR"
        if s.index:
            yield "index", "needs SUITE_PACKS_DIR"
        if s.packs_upload:
            yield "packs_upload", "needs SUITE_PACKS_DIR"


_cache: WeakKeyDictionary[Crawler, SuiteSettings] = WeakKeyDictionary()


def suite_settings(crawler: Crawler) -> SuiteSettings:
    """Return the settings of *crawler*'s crawl, read once as soon as they can no longer change.

    Raises `SettingsError`.
    """
    if crawler not in _cache:
        spider = crawler.spider or crawler.spidercls
        read = SuiteSettings.from_settings(crawler.settings, spider)
        if not crawler.settings.frozen:
            return read
        _cache[crawler] = read
    return _cache[crawler]


def find_setting(name: str) -> str:
    """Return the field of `SuiteSettings` that ``SUITE_…`` *name* sets. Raises `SettingsError`."""
    field = next((each for each in DECLARATIONS if setting_name(each) == name), None)
    if field is None:
        read_given(DECLARATIONS, {name: None})  # knows which it could have been
        if name in SUITE_EQUIVALENTS:
            ours = SUITE_EQUIVALENTS[name]
            raise SettingsError(f"{name} cannot be set while a crawl runs: use {ours}")
        live = ", ".join(LIVE_SCRAPY_SETTINGS)
        raise SettingsError(f"{name} is no setting of the suite; of Scrapy's, {live} can be set")
    return field


def replace_settings(crawler: Crawler, settings: SuiteSettings) -> None:
    _cache[crawler] = settings


def suite_enabled(settings: BaseSettings) -> bool:
    """Return ``SUITE_ENABLED``; reads no other setting. Raises `SettingsError`."""
    name = setting_name("enabled")
    return bool(read_given(DECLARATIONS, {name: settings[name]}).get("enabled", True))


def _profile(given: Mapping[str, Any], spidercls: type[Spider] | Spider | None) -> Profile:
    broad = getattr(spidercls, "suite_profile", None) == "broad"
    asked = given.get("profile", "auto")
    if asked == "spider" and broad:
        raise SettingsError.of("SUITE_PROFILE", "spider", "'auto' or 'broad' for a BroadSpider")
    if asked == "auto":
        return "broad" if broad or given.get("follow") else "spider"
    return "broad" if asked == "broad" else "spider"
