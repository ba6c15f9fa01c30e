"""Every setting of the suite, declared once and read in one place.

A setting is a field of :class:`SuiteSettings`, declared in ``table``: ``host_delay`` is the
setting ``SUITE_HOST_DELAY``. Its declaration says what is allowed, the default in either profile,
the kind and the meaning; the documentation's table is made from the same declarations. Values are
read by :meth:`SuiteSettings.from_settings`; no other module of the core reads Scrapy's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.settings.declarations import (
    KEY,
    Change,
    Derived,
    Profile,
    Row,
    Setting,
    full_name,
    plain,
    read_given,
    words,
)
from scrapy_spider_suite.settings.project import LIVE, OURS, ProjectSettings
from scrapy_spider_suite.settings.table import SettingsTable

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings


@dataclass(frozen=True, kw_only=True)
class SuiteSettings(SettingsTable):
    """All settings of one crawl, read, checked and complete.

    Durations are floats of seconds, sizes ints of bytes. Frozen; two crawls in one process have
    one each.
    """

    project: ProjectSettings
    """Those of Scrapy's own settings that the suite takes as inputs."""

    @property
    def longest_delay(self) -> float:
        """Seconds: the longest that is set for hosts, addresses, or one of DOWNLOAD_SLOTS."""
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
        known = spidercls is not None or given.get("profile", "auto") != "auto"
        given["profile"] = profile = _profile(given, spidercls)
        complete: dict[str, Any] = dict(given)
        for name, declared in DECLARATIONS.items():
            default = declared.default(profile)
            if isinstance(default, Derived):
                default = default.rule(project, given)
            complete.setdefault(name, default)
        result = cls(project=project, **complete)
        _refuse_contradictions(result, _is_broad(spidercls))
        _refuse_on_demand(result, spider_known=known)
        if spidercls is not None:
            _refuse_nothing_to_upload(result)
        return result

    def changed(self, field: str, raw: object) -> SuiteSettings:
        """These settings with another value for *field*. Raises `SettingsError`.

        The text ``default`` gives it the default of the profile.
        """
        value: Any = DECLARATIONS[field].default(self.profile)
        if raw != "default":
            value = read_given(DECLARATIONS, {full_name(field): raw})[field]
        elif isinstance(value, Derived):
            given = {each: getattr(self, each) for each in DECLARATIONS if each != field}
            value = value.rule(self.project, given)
        others = _INSTEAD.get(field, {}) if value else {}
        result = replace(self, **{field: value}, **others)
        _refuse_contradictions(result, broad_spider=False)
        _refuse_on_demand(result, spider_known=True)
        _refuse_nothing_to_upload(result)
        return result

    def as_stored(self) -> dict[str, object]:
        """Return the settings as plain values, to be kept with the job and compared by `diff`."""
        return {name: plain(getattr(self, name)) for name in DECLARATIONS}

    def diff(self, stored: Mapping[str, object]) -> list[Change]:
        """Compare with what :meth:`as_stored` gave when the job was begun.

        A setting that only one release of the two knows is no difference, unless what the older
        one wrote has one of its values.
        """
        stored = _IMPLIED | dict(stored)
        return [
            Change(full_name(name), plain(stored[name]), new, DECLARATIONS[name].kind)
            for name, new in self.as_stored().items()
            if name in stored and plain(stored[name]) != new
        ]

    def as_table(self) -> list[Row]:
        """Return one row for each setting, in the order of declaration, with this crawl's value."""
        return [
            Row(
                full_name(name),
                words(getattr(self, name)),
                declared.type.unit,
                declared.kind.value,
                declared.type.allowed,
                words(declared.spider),
                words(declared.broad),
                declared.meaning,
            )
            for name, declared in DECLARATIONS.items()
        ]


DECLARATIONS: Mapping[str, Setting] = {
    field.name: field.metadata[KEY] for field in fields(SuiteSettings) if KEY in field.metadata
}
"""Every setting's declaration, by its name without the prefix, in lower case."""

_IMPLIED: dict[str, object] = {
    "order": "breadth-first", "normal_form": (), "drop_parameters": (), "url_rules": (),
    "normalizer": "",
}  # fmt: skip
"""What the releases that had no such setting did."""

_INSTEAD: dict[str, dict[str, Any]] = {"score": {"scores": None}, "scores": {"score": ""}}
"""Settings of which one is enough, and what the other one is when it is set in a running crawl."""

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
    """The field of `SuiteSettings` that ``SUITE_…`` *name* sets. Raises `SettingsError`."""
    field = next((each for each in DECLARATIONS if full_name(each) == name), None)
    if field is None:
        read_given(DECLARATIONS, {name: None})  # knows which it could have been
        if name in OURS:
            raise SettingsError(f"{name} cannot be set while a crawl runs: use {OURS[name]}")
        live = ", ".join(LIVE)
        raise SettingsError(f"{name} is no setting of the suite; of Scrapy's, {live} can be set")
    return field


def replace_settings(crawler: Crawler, settings: SuiteSettings) -> None:
    """Let *crawler* have other *settings* from now on."""
    _cache[crawler] = settings


def suite_enabled(settings: BaseSettings) -> bool:
    """Return whether the add-on is to do anything; reads nothing but ``SUITE_ENABLED``.

    Raises:
        SettingsError: its value is not allowed.
    """
    name = full_name("enabled")
    return bool(read_given(DECLARATIONS, {name: settings[name]}).get("enabled", True))


def _profile(given: Mapping[str, Any], spidercls: type[Spider] | Spider | None) -> Profile:
    """Resolve ``auto``: a spider class says by its ``suite_profile`` what it is made for."""
    broad = given.get("follow") or _is_broad(spidercls)
    asked = given.get("profile", "auto")
    return "broad" if asked == "broad" or (asked == "auto" and broad) else "spider"


def _is_broad(spidercls: type[Spider] | Spider | None) -> bool:
    return getattr(spidercls, "suite_profile", None) == "broad"


def _refuse_contradictions(s: SuiteSettings, broad_spider: bool) -> None:
    """Refuse values that are each allowed but make no sense together."""
    if broad_spider and s.profile == "spider":
        raise SettingsError.of("SUITE_PROFILE", "spider", "'auto' or 'broad' for a BroadSpider")
    if s.follow and s.profile == "spider":
        raise SettingsError("SUITE_FOLLOW = True: expected SUITE_PROFILE to be 'auto' or 'broad'")
    if s.ip_delay and not s.ip_concurrency:
        raise SettingsError.of("SUITE_IP_CONCURRENCY", 0, "1 or more while SUITE_IP_DELAY is set")
    if (s.order == "best-first") is not bool(s.score or s.scores):
        expected = "an import path with" if s.order == "best-first" else "'' but for"
        name, value = ("SUITE_SCORES", str(s.scores)) if s.scores else ("SUITE_SCORE", s.score)
        raise SettingsError.of(name, value, f"{expected} SUITE_ORDER = 'best-first'")
    if s.score and s.scores:
        raise SettingsError.of("SUITE_SCORES", str(s.scores), "'' beside SUITE_SCORE")
    if s.window == "leaf" and s.order != "bottom-up":
        # The leaves of a trie stand in no other order.
        raise SettingsError.of("SUITE_ORDER", s.order, "'bottom-up' with SUITE_WINDOW = 'leaf'")
    if s.revisit_least > s.revisit_most:
        allowed = f"at most SUITE_REVISIT_MOST, which is {s.revisit_most:g}"
        raise SettingsError.of("SUITE_REVISIT_LEAST", s.revisit_least, allowed)
    if s.index and s.packs_dir is None:
        raise SettingsError("SUITE_INDEX = True needs SUITE_PACKS_DIR")
    if s.index and s.packs_upload and not s.packs_keep:
        # A pack might be gone before it is read.
        raise SettingsError.of("SUITE_INDEX", True, "False with SUITE_PACKS_KEEP = False")
    if s.phase_guard >= s.phase_seconds:
        allowed = f"less than SUITE_PHASE_SECONDS, which is {s.phase_seconds:g}"
        raise SettingsError.of("SUITE_PHASE_GUARD", s.phase_guard, allowed)
    if s.phases > 1 and 0 < s.max_wait < s.phases * s.phase_seconds:
        # The crawl would end while hosts wait for their phase.
        allowed = f"0, or the {s.phases * s.phase_seconds:g} s of all SUITE_PHASES at the least"
        raise SettingsError.of("SUITE_MAX_WAIT", s.max_wait, allowed)
    _refuse_lonely_agents(s)
    if s.backoff_base > s.backoff_max:
        allowed = f"at most SUITE_BACKOFF_MAX, which is {s.backoff_max:g}"
        raise SettingsError.of("SUITE_BACKOFF_BASE", s.backoff_base, allowed)


def _refuse_lonely_agents(s: SuiteSettings) -> None:
    """Refuse an agent that could not meet the others."""
    if not s.cluster:
        return
    if s.seen_store == "sieve" and s.assignment != "ring":
        # A fingerprint says in which slot its host is, and no more.
        allowed = f"'trie' or 'plain' with SUITE_CLUSTER and SUITE_ASSIGNMENT = {s.assignment!r}"
        raise SettingsError.of("SUITE_SEEN_STORE", s.seen_store, allowed)
    if s.cluster == "peers" and s.redis_url is None:
        raise SettingsError("SUITE_CLUSTER = 'peers' needs SUITE_REDIS_URL")
    if s.cluster == "lan" and not (s.agents and s.cluster_key and s.agent_name):
        needed = "SUITE_AGENTS, SUITE_AGENT_NAME and SUITE_CLUSTER_KEY"
        raise SettingsError(f"SUITE_CLUSTER = 'lan' needs {needed}")
    if s.cluster == "lan" and s.rate_ledger is None and s.ip_concurrency:
        # Nobody could keep the delay of an address that has hosts of two of them.
        allowed = "0, and SUITE_IP_DELAY = 0, or SUITE_RATE_LEDGER, with SUITE_CLUSTER = 'lan'"
        raise SettingsError.of("SUITE_IP_CONCURRENCY", s.ip_concurrency, allowed)


def _refuse_nothing_to_upload(s: SuiteSettings) -> None:
    """Refuse a crawl that is to upload packs and writes none; `scrapy packs upload` has others."""
    if s.packs_upload and s.packs_dir is None:
        raise SettingsError(f"SUITE_PACKS_UPLOAD = {s.packs_upload!r} needs SUITE_PACKS_DIR")


def _refuse_on_demand(s: SuiteSettings, *, spider_known: bool) -> None:
    """Refuse to read links on demand where they cannot be; *spider_known*: the profile is final."""
    if s.read_links == "eager":
        return
    allowed = ""
    if spider_known and s.profile == "spider":
        allowed = "'eager' in the spider profile, whose spiders read links themselves"
    elif s.packs_dir is None:
        raise SettingsError(f"SUITE_READ_LINKS = {s.read_links!r} needs SUITE_PACKS_DIR")
    elif s.packs_upload and not s.packs_keep:
        allowed = "'eager' with SUITE_PACKS_KEEP = False: links are read out of packs that are here"
    if allowed:
        raise SettingsError.of("SUITE_READ_LINKS", s.read_links, allowed)
