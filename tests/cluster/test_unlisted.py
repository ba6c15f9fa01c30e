"""An agent of a LAN that has one name more on its list than those that run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.crawls import loopback_settings
from support.fleet import Fleet
from support.inprocess_crawls import QUIET
from support.redis_servers import free_port
from support.running_crawl import until
from support.websites import Site, running

from scrapy_spider_suite.runtime.refusal import ExitCode

LATE = 100.0
"""Seconds that anything may take on a busy machine."""


@pytest.mark.slow
def test_it_is_refused(tmp_path: Path) -> None:
    """Before it fetches anything, with a line on either side; the other one goes on."""
    listed = [f"{name}=127.0.0.1:{free_port()}" for name in "ab"]
    site = Site({"/": "x"})
    settings = loopback_settings(
        **QUIET, ROBOTSTXT_OBEY=False, SUITE_CLUSTER="lan", SUITE_CRAWL_NAME="unlisted",
        SUITE_CLUSTER_KEY="sixteen bytes or more", SUITE_WHEN_DONE="wait", SUITE_IP_CONCURRENCY=0,
        SUITE_IP_DELAY=0,
    )  # fmt: skip
    lists = {"a": listed[:1], "b": listed}
    with (
        running(site),
        Fleet(tmp_path, lambda name: settings | {"SUITE_AGENTS": lists[name]}, {}) as fleet,
    ):
        a = fleet.start("a")
        until((a.job / "suite/status.json").exists, LATE)
        fleet.arguments = {"seeds": f"{site.url}/"}
        b = fleet.start("b")
        assert b.process is not None
        assert b.process.wait(LATE) == ExitCode.REFUSED
        assert "agent a runs with another list, on which agent b is not" in b.log.splitlines()[-1]
        assert "of an agent that is not on the list: SUITE_AGENTS may differ there" in a.log
        assert fleet.alive() == ["a"]
    assert not site.visits
