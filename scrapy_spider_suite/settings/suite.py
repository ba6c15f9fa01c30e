"""The settings of one crawl, read once from Scrapy's settings, complete and checked.

`SettingsTable` declares them; no other module of the core reads ``SUITE_`` settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

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

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings


@dataclass(frozen=True, kw_only=True)
class SuiteSettings(SettingsTable):
    """All settings of one crawl. Durations are floats of seconds, sizes are ints of bytes."""

    project: ProjectSettings
    """Scrapy's own settings that the suite takes as inputs."""

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
        """Bytes for fingerprints of URLs that were seen a moment ago, 16 bytes each."""
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
        """Read and check all settings for a crawl of *spidercls*, a spider class or spider.

        Raises:
            SettingsError: a value is not allowed, or a ``SUITE_`` name is unknown; in one line.
        """
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
        """Raise `SettingsError` for the first of `CONTRADICTIONS` that these settings have."""
        for each in CONTRADICTIONS:
            if (spider_known or not each.of_crawl) and each.holds(self):
                raise each.error(self)

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
        """Return the settings as plain values, to be kept with the job and compared by `diff`."""
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


@dataclass(frozen=True)
class Contradiction:
    """Values that are each allowed and make no sense together.

    Attributes:
        setting: the field whose value is refused.
        expected: the allowed value, or ``needs …``; may name fields, as in ``{s.phases}``.
        of_crawl: checked once the spider is known, which may set the other value. Commands
            that start no crawl are not checked.
    """

    setting: str
    holds: Callable[[SuiteSettings], bool]
    expected: str
    of_crawl: bool = False

    def error(self, settings: SuiteSettings) -> SettingsError:
        """Return the error for *settings*: one line that names the setting and what it needs."""
        name, value = setting_name(self.setting), plain_value(getattr(settings, self.setting))
        expected = self.expected.format(s=settings)
        if expected.startswith("needs "):
            return SettingsError(f"{name} = {value!r} {expected}")
        return SettingsError.of(name, value, expected)


CONTRADICTIONS = (
    Contradiction(
        "follow",
        lambda s: s.follow and s.profile == "spider", "SUITE_PROFILE to be 'auto' or 'broad'",
    ),
    Contradiction(
        "ip_concurrency",
        lambda s: s.ip_delay > 0 and not s.ip_concurrency, "1 or more while SUITE_IP_DELAY is set",
    ),
    Contradiction(
        "score", lambda s: s.order == "best-first" and not s.score,
        "an import path or a file with SUITE_ORDER = 'best-first'",
    ),
    Contradiction(
        "score", lambda s: s.order != "best-first" and bool(s.score),
        "'' but for SUITE_ORDER = 'best-first'",
    ),
    Contradiction(  # the leaves of a trie stand in no other order
        "order", lambda s: s.window == "leaf" and s.order != "bottom-up",
        "'bottom-up' with SUITE_WINDOW = 'leaf'",
    ),
    Contradiction(
        "revisit_least", lambda s: s.revisit_least > s.revisit_most,
        "at most SUITE_REVISIT_MOST, which is {s.revisit_most:g}",
    ),
    Contradiction(
        "index", lambda s: s.index and s.packs_dir is None, "needs SUITE_PACKS_DIR", of_crawl=True,
    ),
    Contradiction(  # a pack might be gone before it is read
        "index", lambda s: s.index and bool(s.packs_upload) and not s.packs_keep,
        "False with SUITE_PACKS_KEEP = False",
    ),
    Contradiction(
        "phase_guard", lambda s: s.phase_guard >= s.phase_seconds,
        "less than SUITE_PHASE_SECONDS, which is {s.phase_seconds:g}",
    ),
    Contradiction(  # the crawl would end while hosts wait for their phase
        "max_wait", lambda s: s.phases > 1 and 0 < s.max_wait < s.phases * s.phase_seconds,
        "0, or {s.phases} SUITE_PHASES of {s.phase_seconds:g} s at the least",
    ),
    Contradiction(  # a fingerprint says in which slot its host is, and no more
        "seen_store",
        lambda s: s.cluster != "" and s.seen_store == "sieve" and s.assignment != "ring",
        "'trie' or 'plain' with SUITE_CLUSTER and SUITE_ASSIGNMENT = {s.assignment!r}",
    ),
    Contradiction(
        "cluster", lambda s: s.cluster == "peers" and s.redis_url is None, "needs SUITE_REDIS_URL",
    ),
    Contradiction(
        "cluster",
        lambda s: s.cluster == "lan" and not (s.agents and s.cluster_key and s.agent_name),
        "needs SUITE_AGENTS, SUITE_AGENT_NAME and SUITE_CLUSTER_KEY",
    ),
    Contradiction(  # nobody could keep the delay of an address that has hosts of two agents
        "ip_concurrency",
        lambda s: s.cluster == "lan" and s.rate_ledger is None and s.ip_concurrency > 0,
        "0, and SUITE_IP_DELAY = 0, or SUITE_RATE_LEDGER, with SUITE_CLUSTER = 'lan'",
    ),
    Contradiction(
        "backoff_base", lambda s: s.backoff_base > s.backoff_max,
        "at most SUITE_BACKOFF_MAX, which is {s.backoff_max:g}",
    ),
    Contradiction(
        "read_links", lambda s: s.read_links != "eager" and s.profile == "spider",
        "'eager' in the spider profile, whose spiders read links themselves", of_crawl=True,
    ),
    Contradiction(
        "read_links",
        lambda s: s.read_links != "eager" and s.packs_dir is None, "needs SUITE_PACKS_DIR",
        of_crawl=True,
    ),
    Contradiction(
        "read_links",
        lambda s: s.read_links != "eager" and bool(s.packs_upload) and not s.packs_keep,
        "'eager' with SUITE_PACKS_KEEP = False: links are read out of packs that are here",
    ),
    Contradiction(  # `scrapy packs upload` has packs of other crawls
        "packs_upload",
        lambda s: bool(s.packs_upload) and s.packs_dir is None, "needs SUITE_PACKS_DIR",
        of_crawl=True,
    ),
)  # fmt: skip
"""All contradictions, in the order in which they are refused."""

_cache: WeakKeyDictionary[Crawler, SuiteSettings] = WeakKeyDictionary()


def suite_settings(crawler: Crawler) -> SuiteSettings:
    """Return the settings of *crawler*'s crawl, read once as soon as they can no longer change.

    Raises:
        SettingsError: as :meth:`SuiteSettings.from_settings`.
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
    """Let *crawler* have other *settings* from now on."""
    _cache[crawler] = settings


def suite_enabled(settings: BaseSettings) -> bool:
    """Return whether the add-on is to do anything; reads ``SUITE_ENABLED`` alone.

    Raises:
        SettingsError: its value is not allowed.
    """
    name = setting_name("enabled")
    return bool(read_given(DECLARATIONS, {name: settings[name]}).get("enabled", True))


def _profile(given: Mapping[str, Any], spidercls: type[Spider] | Spider | None) -> Profile:
    """Resolve ``auto``: a spider class says by its ``suite_profile`` what it is made for."""
    broad = getattr(spidercls, "suite_profile", None) == "broad"
    asked = given.get("profile", "auto")
    if asked == "spider" and broad:
        raise SettingsError.of("SUITE_PROFILE", "spider", "'auto' or 'broad' for a BroadSpider")
    if asked == "auto":
        return "broad" if broad or given.get("follow") else "spider"
    return "broad" if asked == "broad" else "spider"
