"""A crawl whose event loop has slow turns is heard of all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.crawls import loopback_settings, start
from support.endless_site import EndlessSite
from support.names import STATUS_FILE, Setting
from support.running_crawl import until
from support.websites import running

PAGES, HEARD = 20, 5
"""Pages for which the crawl is listened to, and how often it must be heard meanwhile."""


@pytest.mark.slow
def test_a_crawl_with_slow_turns_of_the_loop_is_heard(tmp_path: Path) -> None:
    """The crawl says how it does, although each turn takes longer than 0.25 s."""
    job, said = tmp_path / "job", set[float]()
    settings = loopback_settings(**{
        "JOBDIR": str(job), Setting.HOST_DELAY: 0.01, Setting.IP_DELAY: 0,
    })  # fmt: skip
    with running(EndlessSite()) as site:
        process = start("support.stalling_spiders.Slow", settings, tmp_path, seeds=f"{site.url}/")

        def pages() -> int:
            if (job / STATUS_FILE).exists():
                said.add(json.loads((job / STATUS_FILE).read_text())["when"])
            return len(site.visits)

        try:
            until(lambda: pages() > PAGES or len(said) >= HEARD, within=120)
        finally:
            process.kill()
            process.wait(30)
    assert len(said) >= HEARD, f"{len(site.visits)} pages, and heard {len(said)} times"
