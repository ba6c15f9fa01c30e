"""The From header: how the owner of a site reaches the operator of a crawl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.names import Setting
from support.projects import Project
from support.websites import Site, links, running

LOOPBACK = {Setting.ALLOW_PRIVATE_ADDRESSES: True, Setting.HOST_DELAY: 0, Setting.IP_DELAY: 0}
OPERATOR = "Jane Doe <jane@crawler.example>"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"USER_AGENT": "bot/1.0 (+mailto:bot@crawler.example)"}, "bot@crawler.example"),
        ({Setting.OPERATOR: OPERATOR, Setting.FROM_HEADER: False}, None),
        ({Setting.OPERATOR: OPERATOR, Setting.PROFILE: "spider"}, None),
        ({Setting.OPERATOR: OPERATOR, "DEFAULT_REQUEST_HEADERS": {"From": "x@y.example"}},
         "x@y.example"),
    ],
)  # fmt: skip
def test_it_gives_the_address_of_the_operator(
    tmp_path: Path, settings: dict[str, Any], expected: str | None
) -> None:
    """In every request, for robots.txt too; on by default in the broad profile alone."""
    project = Project(tmp_path / "project", **(LOOPBACK | settings), ROBOTSTXT_OBEY=True)
    with running(Site({"/": links("/a"), "/a": "<p>a"})) as site:
        spider = ["ordinary", "-astart="] if Setting.PROFILE in settings else ["bulk", "-aseeds="]
        done = project.scrapy("crawl", spider[0], spider[1] + site.url)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {"/robots.txt", "/"} <= set(site.paths())
    assert {visit.headers.get("From") for visit in site.visits} == {expected}


NOWHERE = {"USER_AGENT": "bot/1.0 (+https://crawler.example/)", Setting.OPERATOR: "Jane Doe"}


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({Setting.FROM_HEADER: True}, True),
        ({Setting.FROM_HEADER: True, Setting.PROFILE: "spider"}, True),
        ({Setting.FROM_HEADER: False}, False),
        ({}, False),  # on by default, where there is an address
        ({Setting.FROM_HEADER: True, Setting.OPERATOR: OPERATOR}, False),
        ({Setting.FROM_HEADER: True, "DEFAULT_REQUEST_HEADERS": {"From": "x@y.example"}}, False),
    ],
)  # fmt: skip
def test_without_an_address_it_is_said_that_none_is_sent(
    tmp_path: Path, settings: dict[str, Any], warned: bool
) -> None:
    """Once, with the settings that might give one, to a project that asked for the header."""
    project = Project(tmp_path / "project", **(LOOPBACK | NOWHERE | settings))
    with running(Site({"/": links("/a"), "/a": "<p>a"})) as site:
        spider = ["ordinary", "-astart="] if Setting.PROFILE in settings else ["bulk", "-aseeds="]
        done = project.scrapy("crawl", spider[0], spider[1] + site.url)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stderr.splitlines() if f"{Setting.FROM_HEADER} = True" in line]
    lines = [line for line in lines if " WARNING: " in line]
    assert len(lines) == int(warned), done.stderr[-3000:]
    assert all(Setting.OPERATOR in line and "USER_AGENT" in line for line in lines)
