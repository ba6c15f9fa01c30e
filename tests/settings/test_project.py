"""Scrapy's own settings arrive typed, and only crawls use the job directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import FunctionType
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.settings.project import ProjectSettings, uses_job


class Slow(Spider):
    """A spider with Scrapy's deprecated attributes."""

    name = "slow"
    download_delay = 7
    max_concurrent_requests = 2
    user_agent = "slow (+https://example.org)"


def test_command_line_texts_are_typed() -> None:
    """What ``-s NAME=VALUE`` gives is text; what the core gets is numbers and truth."""
    settings = Settings()
    texts = {
        "AUTOTHROTTLE_ENABLED": "1",
        "CONCURRENT_REQUESTS": "32",
        "DOWNLOAD_DELAY": "0.25",
        "DOWNLOAD_MAXSIZE": 1e6,
        "DOWNLOAD_SLOTS": '{"example.org": {"delay": 3}}',
        "JOBDIR": "",
    }
    settings.setdict(texts, priority="cmdline")
    project = ProjectSettings.from_settings(settings)
    assert project.autothrottle_enabled is True
    assert (project.concurrent_requests, project.download_delay) == (32, 0.25)
    assert project.download_maxsize == 1_000_000
    assert project.download_slots == {"example.org": {"delay": 3}}
    assert project.jobdir is None
    assert project.user_agent.startswith("Scrapy/")


@pytest.mark.parametrize("slots", [{"a": {"delay": "x"}}, {"a": {"concurrency": None}}, {"a": 5}])
def test_nonsense_in_download_slots_is_refused(slots: Any) -> None:
    """In one line, before the crawl begins; Scrapy would stumble over it at the first request."""
    with pytest.raises(SettingsError, match=r"DOWNLOAD_SLOTS = {.*: expected slots"):
        ProjectSettings.from_settings(Settings({"DOWNLOAD_SLOTS": slots}))


@pytest.mark.parametrize("spider", [Slow, Slow()])
def test_a_spiders_attributes_win_over_the_project(spider: Any) -> None:
    """As in Scrapy: over the project's settings, but not over the spider's own or the command's."""
    settings = Settings({"DOWNLOAD_DELAY": 1})
    project = ProjectSettings.from_settings(settings, spider)
    assert (project.download_delay, project.concurrent_requests_per_domain) == (7.0, 2)
    assert project.concurrency_was_set
    assert project.user_agent == "slow (+https://example.org)"
    settings.set("DOWNLOAD_DELAY", 3, priority="cmdline")
    assert ProjectSettings.from_settings(settings, spider).download_delay == 3.0


@pytest.mark.parametrize(
    ("priority", "chosen"), [("default", False), ("addon", False), ("project", True)]
)
def test_it_is_known_who_chose_the_concurrency(priority: str, chosen: bool) -> None:
    """Only what a project or someone above it sets counts as a wish."""
    settings = Settings()
    settings.set("CONCURRENT_REQUESTS_PER_DOMAIN", 4, priority=priority)
    assert ProjectSettings.from_settings(settings).concurrency_was_set is chosen


@pytest.mark.parametrize(
    "values",
    [{"DEPTH_LIMIT": "deep"}, {"CONCURRENT_REQUESTS": -1}, {"AUTOTHROTTLE_ENABLED": "no?"}],
)
def test_bad_values_are_named(values: dict[str, Any]) -> None:
    """Scrapy would fail on them later and less clearly."""
    with pytest.raises(SettingsError, match=next(iter(values))):
        ProjectSettings.from_settings(Settings(values))


def crawler_of(start_module: str, *, jobdir: str = "job", crawling: bool = True) -> Crawler:
    """Build a crawler whose spider's ``start()`` was defined in *start_module*."""

    async def start(self: Spider) -> AsyncIterator[Any]:
        yield None

    named = FunctionType(start.__code__, {"__name__": start_module})
    crawler = Crawler(type("Own", (Spider,), {"name": "own", "start": named}), {"JOBDIR": jobdir})
    crawler.crawling = crawling
    return crawler


def test_a_crawl_uses_the_job_directory() -> None:
    """If there is one."""
    assert uses_job(crawler_of("project.spiders"))
    assert not uses_job(crawler_of("project.spiders", jobdir=""))


@pytest.mark.parametrize("command", ["fetch", "parse", "check"])
def test_a_command_that_replaces_start_does_not(command: str) -> None:
    """``view`` is ``fetch``; each of these gives the spider a ``start()`` of its own."""
    assert not uses_job(crawler_of(f"scrapy.commands.{command}"))


def test_the_shell_does_not() -> None:
    """It builds an engine for a crawler that never crawls."""
    assert not uses_job(crawler_of("project.spiders", crawling=False))
