"""Jobs whose URLs came to the ends that a test wants, without a crawl."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from scrapy import Spider
from scrapy.settings import Settings

from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event, Pace
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.operate.terms import CrawlTerms
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store.job_directory import Job

OVERRIDES = """# by hand
blocked.test   blocked=yes reason="asked by mail"
few.test       max_pages=1
free.test      robots=ignore
"""
VIA = "http://page.test/that/led/there"


class Made:
    """A job whose URLs came to the ends that a test wants; nothing is fetched for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path.parent / "overrides.txt").write_text(OVERRIDES)
        self.given = {
            "SUITE_PROFILE": "broad", "ROBOTSTXT_OBEY": True, "USER_AGENT": "bot/1.0",
            "SUITE_OVERRIDES": str(path.parent / "overrides.txt"), "SUITE_RETRY_TIMES": 3,
        }  # fmt: skip
        self.job = Job(path, SuiteSettings.from_settings(Settings(self.given)), "news")
        self.store = self.job.store
        self.keep()
        self.now, self.wall = 1_000.0, time.time()
        policy = Policy(Pace(3_600.0), retry_times=3)
        self.behind = Frontier(self.store, policy, now=self.now, wall=self.wall, capacity=1_000)

    def keep(self, **settings: Any) -> None:
        """Keep the terms of a crawl in it, as one does."""
        spider = Spider("news")
        spider.allowed_domains = ["test", "10.1.2.3"]  # type: ignore[attr-defined]
        terms = CrawlTerms.from_settings(Settings({**self.given, **settings}), spider)
        terms.save(self.store.kv("terms"))

    def find(self, url: str, **fields: Any) -> None:
        """The page *VIA* leads to *url*."""
        host = url.split("/")[2]
        self.behind.admission.schedule([Entry(host, url, referrer=VIA, **fields)], self.now)

    def end(self, url: str, event: Event, status: int = 0) -> None:
        """Find *url*, and try it once, with this end."""
        if not [row for row in self.store.rows(url.split("/")[2], b"", 9) if row.url == url]:
            self.find(url)
        for host in self.behind.unresolved_hosts(self.now, 10):
            self.behind.set_address(host, "192.0.2.1", host.key, self.now + 1e6, self.now)
        [lease] = self.behind.leases.acquire(self.now)
        lease.event, lease.status = event, status
        if lease.visit is not None:
            lease.visit.host.start_clock(self.now)
        self.behind.commit.settle([lease], self.now)
        self.behind.leases.release(lease, self.now)
        self.now += 1.0

    def close(self) -> None:
        """Let others read it."""
        self.behind.close()
        self.job.close()
