"""The settings are read once, checked, complete, and comparable with those of an earlier run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from scrapy_spider_suite.cluster.membership import refuse_short_lease
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.outcomes import BackOff
from scrapy_spider_suite.settings.declarations import (
    FORMER_NAMES,
    Derived,
    SettingChange,
    SettingKind,
)
from scrapy_spider_suite.settings.suite import (
    DECLARATIONS,
    SuiteSettings,
    find_setting,
    suite_enabled,
    suite_settings,
)


def read(values: dict[str, Any] | None = None, spidercls: Any = None) -> SuiteSettings:
    """Read settings that a project would hold."""
    return SuiteSettings.from_settings(Settings(values), spidercls)


class Marked(Spider):
    """A spider class that says that it is made for broad crawls."""

    name = "marked"
    suite_profile = "broad"


@pytest.mark.parametrize(("name", "declared"), DECLARATIONS.items())
def test_every_declaration_is_whole(name: str, declared: Any) -> None:
    """Each has a sentence for its meaning, and its defaults are values that it allows itself."""
    assert declared.meaning.endswith(".")
    assert isinstance(declared.kind, SettingKind)
    for default in (declared.spider, declared.broad):
        if default is not None and not isinstance(default, Derived):
            assert declared.type.parse(default) == default, name


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"SUITE_HOST_DELAY": "abc"},
            "SUITE_HOST_DELAY = 'abc': expected a number of seconds >= 0, or one like 10m, 2h, 7d",
        ),
        (
            {"SUITE_REQUESTS_PER_VISIT": 21},
            "SUITE_REQUESTS_PER_VISIT = 21: expected a whole number from 1 to 20",
        ),
        ({"SUITE_WHEN_DONE": "stop"}, "SUITE_WHEN_DONE = 'stop': expected 'finish' or 'wait'"),
        (
            {"SUITE_HOST_DELY": 1},
            "SUITE_HOST_DELY is not a setting of the suite; did you mean SUITE_HOST_DELAY?",
        ),
        (
            {"SUITE_BACKOFF_BASE": "2h"},
            "SUITE_BACKOFF_BASE = 7200.0: expected at most SUITE_BACKOFF_MAX, which is 3600",
        ),
        (
            {"SUITE_IP_DELAY": 1, "SUITE_IP_CONCURRENCY": 0},
            "SUITE_IP_CONCURRENCY = 0: expected 1 or more while SUITE_IP_DELAY is set",
        ),
        (
            {"SUITE_FOLLOW": True, "SUITE_PROFILE": "spider"},
            "SUITE_FOLLOW = True: expected SUITE_PROFILE to be 'auto' or 'broad'",
        ),
        (
            {"SUITE_CLUSTER": "lan", "SUITE_SEEN_STORE": "sieve", "SUITE_ASSIGNMENT": "url-sum"},
            "SUITE_SEEN_STORE = 'sieve': expected 'trie' or 'plain' with SUITE_CLUSTER and "
            "SUITE_ASSIGNMENT = 'url-sum'",
        ),
        (
            {"DOWNLOAD_DELAY": "x"},
            "DOWNLOAD_DELAY = 'x': expected a number of seconds >= 0, or one like 10m, 2h, 7d",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(values: dict[str, Any], line: str) -> None:
    """The line names the setting, its value and what is allowed, or the nearest known name."""
    with pytest.raises(SettingsError) as caught:
        read(values)
    assert str(caught.value) == line


def test_a_broad_spider_needs_the_broad_profile() -> None:
    """In the other one it would find no link, without a word."""
    with pytest.raises(SettingsError, match="expected 'auto' or 'broad' for a BroadSpider"):
        read({"SUITE_PROFILE": "spider"}, Marked)


def test_none_stands_for_the_default() -> None:
    """A project can take a setting back by setting it to None, as it can with Scrapy's."""
    assert read({"SUITE_REQUESTS_PER_VISIT": None}).requests_per_visit == 1


@pytest.mark.parametrize(
    ("values", "spidercls", "profile"),
    [
        ({}, Spider, "spider"),
        ({}, Marked, "broad"),
        ({"SUITE_FOLLOW": True}, Spider, "broad"),
        ({"SUITE_PROFILE": "broad"}, Spider, "broad"),
        ({"SUITE_PROFILE": "spider"}, Spider, "spider"),
    ],
)
def test_the_profile_is_resolved(values: dict[str, Any], spidercls: Any, profile: str) -> None:
    """``auto`` goes by the spider class and SUITE_FOLLOW; a profile that was asked for wins."""
    assert read(values, spidercls).profile == profile


def test_the_broad_profile_has_its_own_pace() -> None:
    """Four seconds a host and half a second an address, one request at a time, as documented."""
    broad = read({"SUITE_PROFILE": "broad", "DOWNLOAD_DELAY": 1})
    assert (broad.host_delay, broad.ip_delay) == (4.0, 0.5)
    assert (broad.host_concurrency, broad.ip_concurrency) == (1, 1)


def test_a_project_may_be_more_polite_than_the_broad_profile() -> None:
    """A longer DOWNLOAD_DELAY counts, unless SUITE_HOST_DELAY says otherwise."""
    slow = {"SUITE_PROFILE": "broad", "DOWNLOAD_DELAY": 30}
    assert read(slow).host_delay == 30.0
    assert read({**slow, "SUITE_HOST_DELAY": 2}).host_delay == 2.0


@pytest.mark.parametrize(
    ("values", "delay", "concurrency"),
    [
        ({}, 0.0, 8),
        ({"DOWNLOAD_DELAY": 2}, 2.0, 1),
        ({"DOWNLOAD_DELAY": 1, "CONCURRENT_REQUESTS_PER_DOMAIN": 3}, 1.0, 3),
        ({"SUITE_HOST_DELAY": 5}, 5.0, 1),
        ({"SUITE_HOST_DELAY": 0, "DOWNLOAD_DELAY": 2}, 0.0, 8),
        ({"SUITE_HOST_CONCURRENCY": 2}, 0.0, 2),
    ],
)
def test_the_spider_profile_takes_the_projects_pace(
    values: dict[str, Any], delay: float, concurrency: int
) -> None:
    """Several requests at a time only where the project asked for them or for no pause at all."""
    spider = read(values)
    assert (spider.host_delay, spider.host_concurrency) == (delay, concurrency)
    assert (spider.ip_delay, spider.ip_concurrency) == (0.0, 0)


def test_a_delay_by_address_brings_its_concurrency() -> None:
    """One request at a time to an address as soon as there is a pause to keep for it."""
    assert read({"SUITE_IP_DELAY": 1}).ip_concurrency == 1


def test_counting_by_address_is_folded_in() -> None:
    """CONCURRENT_REQUESTS_PER_IP makes Scrapy keep its delay by address; so does the suite."""
    spider = read({"CONCURRENT_REQUESTS_PER_IP": 2, "DOWNLOAD_DELAY": 3})
    assert (spider.ip_delay, spider.ip_concurrency) == (3.0, 2)


def test_what_is_stored_compares_equal_when_it_comes_back() -> None:
    """The stored form survives JSON, and the settings that it came from show no difference."""
    values = {"SUITE_DNS_SERVERS": ["127.0.0.1:53"], "SUITE_OVERRIDES": str(Path(__file__))}
    settings = read(values)
    stored = json.loads(json.dumps(settings.as_stored()))
    assert settings.diff(stored) == []
    assert settings.diff({"gone_in_this_release": 1}) == []


def test_a_resume_sees_each_difference_with_its_kind() -> None:
    """A changed setting comes with both values and what may be done about it."""
    begun = read({"SUITE_HOST_DELAY": 4, "SUITE_FOLLOW": False}).as_stored()
    now = read({"SUITE_HOST_DELAY": 2, "SUITE_FOLLOW": True, "SUITE_HOST_CONCURRENCY": 1})
    assert now.diff(begun | {"host_concurrency": 1}) == [
        SettingChange("SUITE_PROFILE", "spider", "broad", SettingKind.FIXED),
        SettingChange("SUITE_FOLLOW", False, True, SettingKind.FROM_NOW_ON),
        SettingChange("SUITE_FROM_HEADER", False, True, SettingKind.FREE),
        SettingChange("SUITE_HOST_DELAY", 4.0, 2.0, SettingKind.FREE),
        SettingChange("SUITE_IP_DELAY", 0.0, 0.5, SettingKind.FREE),
        SettingChange("SUITE_IP_CONCURRENCY", 0, 1, SettingKind.FREE),
        SettingChange("SUITE_MIN_FREE", 64 << 20, 256 << 20, SettingKind.FREE),
        SettingChange("SUITE_STALL_TIMEOUT", 0.0, 900.0, SettingKind.FREE),
        SettingChange("SUITE_EXIT_CODES", False, True, SettingKind.FREE),
        SettingChange("SUITE_TRAPS", [], list(now.traps), SettingKind.FROM_NOW_ON),
        SettingChange("SUITE_QUIET_LOG", False, True, SettingKind.FREE),
    ]


@pytest.mark.parametrize(("name", "became"), FORMER_NAMES.items())
def test_a_former_name_is_refused_with_what_became_of_it(name: str, became: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"{name} {became}")):
        read({name: None})
    with pytest.raises(SettingsError, match=re.escape(became)):
        find_setting(name)
    new = re.search(r"SUITE_\w+", became)
    assert new is None or find_setting(new[0])


def test_the_table_has_a_row_for_each_setting() -> None:
    """Every column is text to print: values as one would write them, defaults in words."""
    rows = {row["name"]: row for row in read({"SUITE_REQUESTS_PER_VISIT": 3}).as_table()}
    assert len(rows) == len(DECLARATIONS)
    assert rows["SUITE_REQUESTS_PER_VISIT"]["value"] == "3"
    assert tuple(rows["SUITE_HOST_DELAY"].values())[2:8] == (
        "seconds", "free", True, "a number of seconds >= 0, or one like 10m, 2h, 7d",
        "DOWNLOAD_DELAY", "4, or DOWNLOAD_DELAY if that is longer",
    )  # fmt: skip
    assert rows["SUITE_DNS_TTL_MAX"]["broad"] == "1d"
    assert rows["SUITE_OVERRIDES"]["value"] == "None"


@pytest.mark.parametrize(("value", "enabled"), [(None, True), ("0", False), (False, False)])
def test_enabled_is_read_alone(value: object, enabled: bool) -> None:
    """A suite that is switched off does not look at its other settings."""
    settings = Settings({"SUITE_ENABLED": value, "SUITE_REQUESTS_PER_VISIT": "bad"})
    assert suite_enabled(settings) is enabled


def test_a_crawlers_settings_are_read_once_they_are_frozen() -> None:
    """Until then another add-on may change them, and what was read would be out of date."""
    crawler = Crawler(Spider, {"SUITE_REQUESTS_PER_VISIT": 2})
    assert suite_settings(crawler).requests_per_visit == 2
    crawler.settings.set("SUITE_REQUESTS_PER_VISIT", 3)
    crawler.settings.freeze()
    assert suite_settings(crawler).requests_per_visit == 3
    assert suite_settings(crawler) is suite_settings(crawler)


def test_by_default_a_crawl_ends_before_the_longest_back_off() -> None:
    """A host that never answers is given up before that; one that is overloaded ends the crawl."""
    broad = read({"SUITE_PROFILE": "broad"})
    rules = BackOff(broad.backoff_base, broad.backoff_max)
    last = broad.dead_host_failures - 1
    assert rules.after(last) <= broad.max_wait < rules.after(last + 1) <= broad.backoff_max


@pytest.mark.parametrize(
    ("delay", "timeout", "words"),
    [
        (0, 0, "expected 210 or more: 180 s for a fetch"),
        (20, 60, r"expected 110 or more: 60 s for a fetch \(DOWNLOAD_TIMEOUT\), 20 s for the"),
    ],
)
def test_a_lease_that_a_fetch_may_outlast(delay: float, timeout: int, words: str) -> None:
    """Looked at as the crawl begins, and at each change."""
    given = {
        "SUITE_CLUSTER": "peers", "SUITE_REDIS_URL": "redis://a.test", "SUITE_AGENT_GRACE": 100,
        "SUITE_HOST_DELAY": 1, "DOWNLOAD_TIMEOUT": timeout,
    }  # fmt: skip
    settings = SuiteSettings.from_settings(Settings(given))
    with pytest.raises(SettingsError, match=words):
        refuse_short_lease(settings, delay)
