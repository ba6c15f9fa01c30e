"""The add-on works in every way that a crawl is started, or refuses it with one line."""

from __future__ import annotations

import json
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from support import forks
from support.loaded_modules import loaded_by
from support.projects import environment

import scrapy_spider_suite
from scrapy_spider_suite import addon as module
from scrapy_spider_suite import profiles
from scrapy_spider_suite.addon import PREFERRED_LOOP, Addon
from scrapy_spider_suite.errors import SettingsError

ADDONS = {"ADDONS": {"scrapy_spider_suite.Addon": 500}}
PLAIN_LOOP = {"ASYNCIO_EVENT_LOOP": "asyncio.SelectorEventLoop"}
SELECT = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
SCRIPT = Path(__file__).parent / "support" / "start_modes.py"
OURS = PREFERRED_LOOP if find_spec("uvloop") else "asyncio.unix_events._UnixSelectorEventLoop"
PLAIN = "asyncio.unix_events._UnixSelectorEventLoop"


def updated(values: dict[str, Any], *, crawling: bool = True) -> Settings:
    """Run the add-on on a crawler with a project's settings; return what became of them."""
    crawler = Crawler(Spider, values)
    crawler.crawling = crawling
    Addon.from_crawler(crawler).update_settings(crawler.settings)
    return crawler.settings


def start(way: str, project: dict[str, Any], *own: dict[str, Any]) -> tuple[int, str, str]:
    """Start a process, see support/start_modes.py; return exit code, output and log."""
    arguments = [json.dumps(settings) for settings in (project, *own)]
    done = forks.run(
        SCRIPT.read_text(), way, *arguments, folder=Path.cwd(), environment=environment()
    )
    return done.returncode, done.stdout, done.stderr


def test_importing_the_package_is_light() -> None:
    """Scrapy loads the commands of every package at each start: no Scrapy, no Twisted, no store."""
    loaded = loaded_by("import scrapy_spider_suite")
    assert not {"scrapy", "twisted", "rocksdict", "asyncio"} & loaded


def test_the_package_offers_the_addon() -> None:
    """By the name that goes into ADDONS; other names are not there."""
    assert scrapy_spider_suite.Addon is Addon
    with pytest.raises(AttributeError, match="Adon"):
        scrapy_spider_suite.Adon  # noqa: B018


def test_the_profile_is_applied() -> None:
    """The add-on chooses it and puts the components in place."""
    assert updated({})["SCHEDULER"] == profiles.CLASSES["SCHEDULER"]
    assert updated({})["CONCURRENT_REQUESTS"] == 16
    assert updated({"SUITE_FOLLOW": True})["CONCURRENT_REQUESTS"] == 200


def test_switched_off_it_does_nothing() -> None:
    """Not even bad values of its own settings matter then."""
    off = {"SUITE_ENABLED": False, "SUITE_REQUESTS_PER_VISIT": "bad"}
    settings = Settings(off)
    before = settings.copy_to_dict()
    Addon.update_pre_crawler_settings(settings)
    assert settings.copy_to_dict() == before
    assert updated(off).copy_to_dict() == before


def test_what_the_project_keeps_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """One warning lists all of it; without anything kept there is none."""
    with caplog.at_level(logging.WARNING):
        updated({})
        assert caplog.messages == []
        updated({"SCHEDULER": "a.Scheduler", "DOWNLOADER": "a.Downloader"})
    assert caplog.messages == [
        "The project's own components are kept: "
        f"SCHEDULER, so not {profiles.CLASSES['SCHEDULER']}; "
        f"DOWNLOADER, so not {profiles.CLASSES['DOWNLOADER']}"
    ]


@pytest.mark.parametrize("kept", ["SCHEDULER", "DOWNLOADER"])
def test_packs_that_stay_empty_are_said(kept: str, caplog: pytest.LogCaptureFixture) -> None:
    """A scheduler or downloader of the project's own packs nothing, and a warning says so."""
    updated({"SUITE_PACKS_DIR": "packs"})
    updated({"SUITE_PACKS_DIR": "", kept: "a.Own"})
    assert "packed" not in caplog.text
    updated({"SUITE_PACKS_DIR": "packs", kept: "a.Own"})
    said = f"only page items are packed with a {kept} of the project's own"
    assert f"SUITE_PACKS_DIR = 'packs': {said}" in caplog.messages


@pytest.mark.parametrize(
    "values",
    [{"SUITE_REQUESTS_PER_VISIT": 0}, {"SUITE_FOLOW": 1}, {"TWISTED_REACTOR_ENABLED": False}],
)
def test_bad_settings_are_for_the_crawl_to_refuse(values: dict[str, Any]) -> None:
    """In a script: before there is a crawl they pass, and ``crawl()`` raises the error."""
    Addon.update_pre_crawler_settings(Settings(values))
    with pytest.raises(SettingsError):
        updated(values)


@pytest.mark.parametrize(
    ("values", "installed", "loop"),
    [
        ({}, False, PREFERRED_LOOP if find_spec("uvloop") else None),
        ({}, True, None),
        (PLAIN_LOOP, False, "asyncio.SelectorEventLoop"),
        ({"ASYNCIO_EVENT_LOOP": None}, False, None),
    ],
)
def test_uvloop_is_asked_for_only_while_the_loop_can_be_chosen(
    values: dict[str, Any], installed: bool, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only where the project has not chosen; None in the project is a choice too."""
    monkeypatch.setattr(module, "is_reactor_installed", lambda: installed)
    settings = Settings(values)
    Addon.update_pre_crawler_settings(settings)
    assert settings["ASYNCIO_EVENT_LOOP"] == loop


@pytest.mark.parametrize(
    ("way", "project", "own", "loops"),
    [
        ("async_process", ADDONS, [{}], [OURS]),
        ("process", ADDONS, [{}, PLAIN_LOOP], [OURS, OURS]),
        ("runner_before", ADDONS, [{}, {"ADDONS": {}}], [PLAIN, PLAIN]),
        ("runner_after", ADDONS, [{}, {}], [PLAIN, PLAIN]),
        ("async_runner", ADDONS, [{}, {}], [PLAIN, PLAIN]),
        ("async_process", {}, [ADDONS, {}], [PLAIN, PLAIN]),
        ("async_process", ADDONS | PLAIN_LOOP, [{}], [PLAIN]),
        ("async_process", ADDONS, [PLAIN_LOOP, {}], [OURS, OURS]),
    ],
)
def test_no_way_of_starting_a_crawl_breaks(
    way: str, project: dict[str, Any], own: list[dict[str, Any]], loops: list[str]
) -> None:
    """All spiders run, on uvloop where Scrapy makes the loop, on the script's loop elsewhere."""
    code, output, log = start(way, project, *own)
    expected = [f"loop{number} ran on {loop}" for number, loop in enumerate(loops)]
    assert [line for line in sorted(output.splitlines()) if " ran on " in line] == expected, log
    assert code == 0
    assert "Traceback" not in log


def test_another_reactor_gets_no_impolite_crawl() -> None:
    """Nothing runs."""
    _, output, _ = start("other_reactor", ADDONS | {"TWISTED_REACTOR": None}, {})
    assert " ran on " not in output
