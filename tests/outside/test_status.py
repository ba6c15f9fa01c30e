"""``scrapy frontier status``: whether a crawl runs, is paused or was killed, and how it ended."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.crawls import crawl, loopback_settings, start
from support.endless_site import EndlessSite
from support.forks import Fork
from support.names import STATUS_FILE, Setting
from support.projects import SCRAPY, Project, environment, scrapy
from support.running_crawl import until
from support.websites import Site, running

FAST = {Setting.HOST_DELAY: 0.01, Setting.IP_DELAY: 0}


@pytest.fixture
def site() -> Iterator[Site]:
    """One that a crawl does not come to the end of."""
    with running(EndlessSite()) as site:
        yield site


def status(job: Path) -> tuple[dict[str, Any], str]:
    """The status of *job*, as JSON and as text."""
    on = ["frontier", "status", "-j", str(job)]
    return json.loads(scrapy(job.parent, *on, "--json").stdout), scrapy(job.parent, *on).stdout


def test_a_paused_and_a_killed_crawl_say_so_first(site: Site, tmp_path: Path) -> None:
    """The first lines say what matters; a kill is known at once."""
    job = tmp_path / "job"
    process = start(
        "support.spiders.Bulk", loopback_settings(JOBDIR=str(job), **FAST), tmp_path,
        seeds=f"{site.url}/",
    )  # fmt: skip
    try:
        until((job / STATUS_FILE).exists)
        assert status(job)[0]["running"]
        paused = scrapy(tmp_path, "frontier", "pause", "--who", "anna", "-j", str(job))
        assert paused.returncode == 0, paused.stderr
        until(lambda: status(job)[0]["paused"])
        first, second = status(job)[1].splitlines()[:2]
        assert re.fullmatch(r"running +yes", first)
        assert re.fullmatch(r"paused +by the operator \(anna\)", second)
    finally:
        process.kill()
        process.wait(30)
    row, text = status(job)
    assert (row["running"], row["state"]) == (False, "killed")
    assert re.match(r"running +no: killed, last heard \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n", text)


@pytest.mark.parametrize(("codes", "code"), [(False, 0), (True, 4)])
def test_the_exit_code_is_that_of_the_process(
    codes: bool, code: int, site: Site, tmp_path: Path
) -> None:
    """Ctrl-C in the spider profile: Scrapy's 0, or that of an interruption where it is wanted."""
    job, folder = tmp_path / "job", tmp_path / "project"
    Project(folder, JOBDIR=str(job), **{
        Setting.ALLOW_PRIVATE_ADDRESSES: True, Setting.EXIT_CODES: codes, "DOWNLOAD_DELAY": 0.01,
    })  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        line = ["crawl", "ordinary", "-a", f"start={site.url}/"]
        process = Fork(SCRAPY, line, folder, environment(), log, log)
    try:
        until(lambda: len(site.visits) > 3)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == code, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait(30)
    row, text = status(job)
    assert (row["finish_reason"], row["exit_code"]) == ("shutdown", code)
    first = text.splitlines()[0]
    assert re.fullmatch(rf"running +no: ended .* UTC \(shutdown, exit code {code}\)", first)


def test_a_script_has_an_exit_code_of_its_own(site: Site, tmp_path: Path) -> None:
    """The status of a crawl in it names the reason alone."""
    job = tmp_path / "job"
    settings = loopback_settings(JOBDIR=str(job), CLOSESPIDER_PAGECOUNT=2, **FAST)
    ended = crawl("support.spiders.Bulk", settings, tmp_path, seeds=f"{site.url}/")
    assert ended.code == 0
    row, text = status(job)
    assert row["finish_reason"] == ended.reason == "closespider_pagecount"
    assert row.get("exit_code") is None
    assert "exit code" not in text
