"""Each profile changes exactly what it says, and never what the project decided."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.settings import SETTINGS_PRIORITIES, Settings, default_settings

from scrapy_spider_suite import profiles
from scrapy_spider_suite.settings.declarations import Profile

THEIR_ROBOTS = "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware"
OUR_ROBOTS = "scrapy_spider_suite.downloadermiddlewares.robotstxt.RobotsMiddleware"
OUR_AGENT = "scrapy_spider_suite.downloadermiddlewares.useragent.HostUserAgentMiddleware"
OUR_COOKIES = "scrapy_spider_suite.downloadermiddlewares.cookies.HostCookiesMiddleware"


class OwnRobots(RobotsTxtMiddleware):
    """A project's own middleware."""


def applied(
    profile: Profile, values: dict[str, Any] | None = None
) -> tuple[Settings, list[tuple[str, str]]]:
    """Apply *profile* to a project's settings; return them and what was kept of the project's."""
    settings = Settings(values)
    return settings, list(profiles.apply(settings, profile))


@pytest.mark.parametrize("profile", ["spider", "broad"])
def test_a_bare_project_gets_everything(profile: Profile) -> None:
    """All components are listed, and nothing of the project's is in the way."""
    settings, kept = applied(profile)
    assert kept == []
    for name, path in profiles.CLASSES.items():
        assert settings[name] == path
    for component in profiles.COMPONENTS[profile]:
        assert settings.getdict(component.setting)[component.path] is not None
    assert settings.getdict("DOWNLOAD_HANDLERS") == dict.fromkeys(
        ("http", "https"), profiles.HANDLER
    )


def test_what_is_replaced_is_switched_off_and_its_place_taken() -> None:
    """The replacement runs at the order of what it replaces."""
    middlewares = applied("broad")[0].getdict("DOWNLOADER_MIDDLEWARES")
    base = default_settings.DOWNLOADER_MIDDLEWARES_BASE
    assert middlewares[THEIR_ROBOTS] is None
    assert middlewares[OUR_ROBOTS] == base[THEIR_ROBOTS]
    assert OUR_COOKIES in middlewares


def test_everything_that_is_replaced_exists() -> None:
    """A name that Scrapy does not know would be replaced by nothing, without a word."""
    for profile in ("spider", "broad"):
        for component in profiles.COMPONENTS[profile]:
            if component.replaces is not None:
                base = getattr(default_settings, component.setting + "_BASE")
                assert base[component.replaces] is not None


def test_the_spider_profile_leaves_scrapys_ways_alone() -> None:
    """Cookies, retries, redirects, concurrency and logging stay as the project has them."""
    settings = applied("spider")[0]
    assert OUR_COOKIES not in settings.getdict("DOWNLOADER_MIDDLEWARES")
    for name in set(profiles.LEAN) & set(vars(default_settings)):
        assert settings.getpriority(name) == SETTINGS_PRIORITIES["default"], name


def test_the_lean_settings_yield_to_the_project() -> None:
    """Each is a setting that Scrapy knows, and setting it in the project is its off switch."""
    newer = {"REMOTE_CONTROL_ENABLED"}  # since Scrapy 2.18
    assert set(profiles.LEAN) <= set(vars(default_settings)) | newer
    settings = applied("broad", {"DOWNLOAD_TIMEOUT": 7})[0]
    assert settings["DOWNLOAD_TIMEOUT"] == 7
    assert settings["LOG_LEVEL"] == "INFO"


@pytest.mark.parametrize("order", [100, None])
@pytest.mark.parametrize("key", [THEIR_ROBOTS, RobotsTxtMiddleware])
def test_a_middleware_that_the_project_decided_about_is_kept(key: Any, order: Any) -> None:
    """Put back or switched off, by path or class: the suite's own stays away and it is said."""
    settings, kept = applied("spider", {"DOWNLOADER_MIDDLEWARES": {key: order}})
    assert kept == [("DOWNLOADER_MIDDLEWARES", OUR_ROBOTS)]
    assert settings.getdict("DOWNLOADER_MIDDLEWARES") == {key: order, OUR_AGENT: 90}


def test_a_place_that_the_project_chose_for_a_part_of_the_suite_is_kept() -> None:
    """It is not listed twice, and the part that it replaces is the project's affair."""
    chosen = {OUR_ROBOTS: 77, OwnRobots: 78}
    settings, kept = applied("spider", {"DOWNLOADER_MIDDLEWARES": dict(chosen)})
    assert kept == []
    assert settings.getdict("DOWNLOADER_MIDDLEWARES") == chosen | {OUR_AGENT: 90}


def test_names_of_nothing_do_no_harm() -> None:
    """Old projects switch off by None what newer releases of Scrapy no longer have."""
    chosen = {"scrapy.downloadermiddlewares.gone.Gone": None}
    settings, kept = applied("spider", {"DOWNLOADER_MIDDLEWARES": dict(chosen)})
    assert kept == []
    assert settings.getdict("DOWNLOADER_MIDDLEWARES").keys() > chosen.keys()


def test_scheduler_downloader_and_handlers_of_the_project_are_kept() -> None:
    """Each is said once, with the part of the suite that does not run."""
    own = {
        "SCHEDULER": "scrapy.core.scheduler.Scheduler",
        "DOWNLOAD_HANDLERS": {"https": "project.handlers.Browser"},
    }
    settings, kept = applied("spider", own)
    assert kept == [
        ("SCHEDULER", profiles.CLASSES["SCHEDULER"]),
        ("DOWNLOAD_HANDLERS['https']", profiles.HANDLER),
    ]
    assert settings["SCHEDULER"] == own["SCHEDULER"]
    assert settings.getdict("DOWNLOAD_HANDLERS") == {
        "http": profiles.HANDLER,
        "https": "project.handlers.Browser",
    }
