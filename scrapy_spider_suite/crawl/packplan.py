"""How the packs of a crawl are written: what they are called, say of it, and when they are full."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_spider_suite.contact import contact_in
from scrapy_spider_suite.job.chronicle import digest_of
from scrapy_spider_suite.packs import Crawl, Plan
from scrapy_spider_suite.packs.pages import SOFTWARE
from scrapy_spider_suite.settings.suite import SuiteSettings

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.commitlog import CommitLog


def limits(settings: SuiteSettings) -> dict[str, Any]:
    """What of a `Plan` may change while it is gone by."""
    return {
        "max_bytes": settings.packs_size, "max_age": settings.packs_age,
        "power": settings.sync == "power",
    }  # fmt: skip


def plan_of(log: CommitLog, folder: Path) -> Plan:
    """How packs are written in *folder*, by the settings of *log*'s crawl."""
    settings, crawler = log.settings, log.crawler
    job = None if log.core is None else log.core.job
    agent = crawler.settings["USER_AGENT"] or ""
    spider = "" if crawler.spider is None else crawler.spider.name
    machine = socket.gethostname()
    crawl = Crawl(
        name=settings.crawl_name or spider,
        software=SOFTWARE,
        operator=settings.operator,
        contact=contact_in(agent),
        robots="classic" if crawler.settings.getbool("ROBOTSTXT_OBEY") else "ignore",
        user_agent=agent,
        hostname=machine,
        settings_digest=digest_of(settings.as_stored()),
        notes={} if job is None else {"job": job.file.id},
    )
    return Plan(
        folder=folder,
        crawl=crawl,
        agent=settings.agent_name or machine,
        form=settings.packs_format,
        **limits(settings),
    )
