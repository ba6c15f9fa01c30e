"""How the packs of a crawl are written: where, what they are called, and when they are full."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_spider_suite.contact import contact_in
from scrapy_spider_suite.crawl.closed import target_of
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.packs import Crawl, Plan
from scrapy_spider_suite.packs.warc import SOFTWARE
from scrapy_spider_suite.settings.declarations import full_name
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store.job_directory import digest_of

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.commitlog import CommitLog


def prepare_folder(setting: str, folder: Path) -> None:
    """Have the *folder* that *setting* names.

    Raises `SettingsError` if it cannot be made, or written: waiting would not help.
    """
    why = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            why = "the folder cannot be written"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise SettingsError(f"{full_name(setting)} = {str(folder)!r}: {why}")


def require_place(settings: SuiteSettings, folder: Path) -> None:
    """Raises `SettingsError` if packs cannot be written in *folder*, or not be uploaded."""
    target_of(settings, folder)
    prepare_folder("packs_dir", folder)


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
