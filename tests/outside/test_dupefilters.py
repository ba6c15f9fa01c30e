"""The dupefilters of the suite with Scrapy's own scheduler."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Semaphore
from typing import Any

import pytest
from support import websites
from support.crawls import crawl, start
from support.names import Component
from support.websites import Answer, Site, Visit, links

_FIRST = 40
"""Pages that the site gives to the crawl that is killed."""
_AT_ONCE = 4
_HUBS = {f"/hub/{hub}": [f"/leaf/{hub}/{leaf}" for leaf in range(20)] for hub in range(5)}
_PAGES = {"/": links(*_HUBS), **{hub: links("/", *leaves) for hub, leaves in _HUBS.items()}}


@pytest.mark.parametrize("filter_", [Component.SIEVE_DUPEFILTER, Component.TRIE_DUPEFILTER])
def test_a_kill_loses_no_page(filter_: str, tmp_path: Path) -> None:
    """Scrapy's scheduler forgets what was pending when it was killed: the next run fetches it.

    What an earlier run fetched, which ended in order, is not fetched again.
    """
    settings: dict[str, Any] = {
        "CONCURRENT_REQUESTS": _AT_ONCE, "CONCURRENT_REQUESTS_PER_DOMAIN": _AT_ONCE,
        "DUPEFILTER_CLASS": filter_, "JOBDIR": str(tmp_path / "job"), "RETRY_ENABLED": False,
        "TELNETCONSOLE_ENABLED": False,
    }  # fmt: skip
    given, held = Semaphore(_FIRST), Semaphore(0)

    def page(visit: Visit) -> Answer:
        if given.acquire(blocking=False):
            return Answer(pages[visit.path].encode())
        held.release()
        return Answer(wait=600)

    with websites.running(Site({"/": links("/early"), "/early": links()})) as site:
        early = crawl("support.visiting_spider.Persistent", settings, tmp_path, site=site.url)
        assert (early.reason, sorted(site.paths())) == ("finished", ["/", "/early"])

        pages = _PAGES | {leaf: links() for leaves in _HUBS.values() for leaf in leaves}
        pages["/"] = links("/early", *_HUBS)
        site.visits.clear()
        site.pages = dict.fromkeys(pages, page)
        killed = start("support.visiting_spider.Persistent", settings, tmp_path, site=site.url)
        for _ in range(_AT_ONCE):  # then the crawl has all that the site gave, and waits
            assert held.acquire(timeout=60)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(60)

        site.pages = dict(pages)
        resumed = crawl("support.visiting_spider.Persistent", settings, tmp_path, site=site.url)
        assert resumed.reason == "finished", resumed.log[-3000:]
        assert len(set(pages) & set(site.paths())) == len(pages)
        assert "/early" not in site.paths()
