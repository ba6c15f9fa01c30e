"""The parts of a setting's declaration; how values are parsed and shown."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.settings.project import ProjectSettings
from scrapy_spider_suite.settings.values import ValueDetailError, ValueType

PREFIX = "SUITE_"
Profile = Literal["spider", "broad"]
KEY = "setting"  # where a dataclass field's metadata holds its SettingDeclaration


class SettingKind(Enum):
    """What a resumed job does with a setting that has another value than before."""

    FREE = "free"  # taken as it is
    FROM_NOW_ON = "from now on"  # holds for what is fetched or found from then on
    FIXED = "fixed"  # refused: what is on disk was written under the old value


FREE, FROM_NOW_ON, FIXED = SettingKind.FREE, SettingKind.FROM_NOW_ON, SettingKind.FIXED


@dataclass(frozen=True, slots=True)
class Derived:
    """A default that follows from other settings; *words* name them for the documentation.

    *rule* returns it from Scrapy's settings and the suite's settings that were set.
    """

    words: str
    rule: Callable[[ProjectSettings, Mapping[str, Any]], object]


class SettingGroup(NamedTuple):
    """A group of settings, and the page of the documentation that explains most of them."""

    title: str
    page: str


@dataclass(frozen=True, slots=True)
class SettingDeclaration:
    """The declaration of one setting; *spider* and *broad* are its defaults by profile."""

    group: SettingGroup
    type: ValueType
    spider: object
    broad: object
    kind: SettingKind
    meaning: str
    live: bool  # ``scrapy frontier set`` changes it in a running crawl
    page: str  # of the documentation

    def default(
        self, profile: Profile, project: ProjectSettings, given: Mapping[str, Any]
    ) -> object:
        """Return the default in *profile* of a crawl whose other settings are *given*."""
        default = self.broad if profile == "broad" else self.spider
        return default.rule(project, given) if isinstance(default, Derived) else default


class SettingChange(NamedTuple):
    """One setting that has another value than when the job was begun."""

    name: str
    old: object
    new: object
    kind: SettingKind


_SAME: Any = object()


def setting(
    group: SettingGroup, type_: ValueType, default: object, kind: SettingKind, meaning: str, *,
    broad: object = _SAME, live: bool = False, page: str = "",
) -> Any:
    """Declare a dataclass field as a setting.

    *default* holds in both profiles without *broad*; *page* is the group's by default.
    """
    wide = default if broad is _SAME else broad
    page = page or group.page
    declared = SettingDeclaration(group, type_, default, wide, kind, meaning, live, page)
    return field(metadata={KEY: declared})  # fmt: skip


def live_setting(*declaration: Any, **more: Any) -> Any:
    """Declare a `setting` that ``scrapy frontier set`` changes in a running crawl."""
    return setting(*declaration, live=True, **more)


def setting_name(name: str) -> str:
    """Return the setting's name as a user writes it: ``SUITE_HOST_DELAY`` for ``host_delay``."""
    return PREFIX + name.upper()


FORMER_NAMES: Mapping[str, str] = {
    "SUITE_BURST": "is SUITE_REQUESTS_PER_VISIT now",
    "SUITE_DUPLICATES": "is SUITE_COMPARE_PAGES now",
    "SUITE_EXTRACT": "is SUITE_READ_LINKS now",
    "SUITE_IDLE": "is SUITE_WHEN_DONE now",
    "SUITE_LEDGER": "is SUITE_RATE_LEDGER now",
    "SUITE_MINE": "is SUITE_GUESS_URLS now",
    "SUITE_SEEN": "is SUITE_SEEN_STORE now",
    "SUITE_SYNC": "is SUITE_COMMIT_SURVIVES now",
    "SUITE_WORKBENCH_MEMORY": "is SUITE_MEMORY now",
    **dict.fromkeys(
        (
            "SUITE_COOKIES_MAX_BYTES", "SUITE_COOKIES_MAX_HOSTS", "SUITE_DNS_CACHE_SIZE",
            "SUITE_DNS_NEGATIVE_TTL", "SUITE_DNS_TTL_MIN", "SUITE_FETCH_LOG_SIZE",
            "SUITE_IDLE_CONNECTIONS", "SUITE_IPV6_PREFIX", "SUITE_MINE_MAX", "SUITE_OUTBOX_ROWS",
            "SUITE_ROBOTS_CACHE_SIZE", "SUITE_ROBOTS_TTL",
        ),
        "is a constant now",
    ),
    **dict.fromkeys(
        ("SUITE_NEAR_MEMORY", "SUITE_SEEN_CACHE", "SUITE_SIEVE_WAITING"),
        "is a share of SUITE_MEMORY now",
    ),
    **{
        f"SUITE_TRAP_{name.upper()}": f"is a detector of SUITE_TRAPS now: {name}"
        for name in (
            "length", "segments", "repeats", "calendar", "permuted", "query", "sessions", "same",
            "numbers", "hosts", "prefix",
        )
    },
    "SUITE_DNS_TIMEOUT": "is 10 s now, or DNS_TIMEOUT if that is less",
    "SUITE_ITEMS_FORMAT": "is a constant now: gz",
    "SUITE_SCORES": "is SUITE_SCORE now, which takes a file, too",
    "SUITE_REVISIT_PRIOR": "is a third of SUITE_REVISIT_MOST now",
}  # fmt: skip
"""Names that settings had, with the rest of the sentence that refuses a project's use of one."""


def read_given(
    declarations: Mapping[str, SettingDeclaration], raw: Mapping[str, Any]
) -> dict[str, Any]:
    """Parse every ``SUITE_`` entry of *raw* that is not None; return values by field name.

    Raises `SettingsError` for a bad value, and for an unknown or former name.
    """
    known = {setting_name(name): name for name in declarations}
    given: dict[str, Any] = {}
    for key in raw:
        if not str(key).startswith(PREFIX):
            continue
        if key in FORMER_NAMES:
            raise SettingsError(f"{key} {FORMER_NAMES[key]}")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise SettingsError(f"{key} is not a setting of the suite; did you mean {near}?")
        if raw[key] is not None:
            type_ = declarations[known[key]].type
            try:
                given[known[key]] = type_.parse(raw[key])
            except ValueDetailError as error:
                raise SettingsError(f"{key}: {error}") from None
            except (ValueError, OverflowError):
                raise SettingsError.of(key, raw[key], type_.allowed) from None
    return given


def plain_value(value: object) -> object:
    """Return *value* as it survives msgpack or JSON: paths as text, tuples as lists."""
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


_SUFFIXES: Mapping[str, Mapping[str, int]] = {
    "bytes": {"G": 1 << 30, "M": 1 << 20, "K": 1 << 10},
    "seconds": {"d": 86_400, "h": 3_600, "m": 60},
}


def shown_value(value: object, unit: str = "") -> str:
    """Return *value*, of so many *unit*, as a person would write it into a settings file."""
    if isinstance(value, Derived):
        return value.words
    if isinstance(value, int | float) and not isinstance(value, bool):
        for suffix, size in _SUFFIXES.get(unit, {}).items():
            if value >= size and not value % size:
                return f"{value / size:.0f}{suffix}"
    if isinstance(value, float):
        return f"{value:g}" if value < 1e6 else f"{value:.0f}"
    if isinstance(value, str):
        return repr(value)
    return str(plain_value(value))
