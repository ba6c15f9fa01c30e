"""What is kept of the pages that are fetched, and under which names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scrapy_spider_suite.monitor.linkstats import TABLES
from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import FREE, FROM_NOW_ON, setting
from scrapy_spider_suite.settings.names import line, name
from scrapy_spider_suite.settings.places import place


@dataclass(frozen=True, kw_only=True)
class Pages:
    """What is kept of the pages that are fetched, and under which names."""

    packs_dir: Path | None = setting(
        v.folder(), None, FREE,
        "A folder for packs: every answer, robots.txt, redirects and errors included, as WARC "
        "records. Empty keeps none.",
    )
    packs_format: Literal["lzo", "gz", "zst"] = setting(
        v.choice("lzo", "gz", "zst"), "lzo", FREE,
        "How packs are compressed: lzo is fast and groups records; gz is what every tool that "
        "reads WARC opens, zst what FastWARC does.",
    )
    packs_size: int = setting(
        v.size(1 << 20), 1 << 30, FREE, "Size at which a pack is closed and another one begun."
    )
    packs_age: float = setting(
        v.duration(), 3600.0, FREE,
        "Age at which a pack is closed and another one begun; 0 closes none for its age.",
    )
    packs_upload: str = setting(
        place(), "", FREE,
        "Where closed packs are brought to, as fsspec has it, such as 's3://bucket/folder'; empty "
        "uploads none.",
    )
    packs_keep: bool = setting(
        v.boolean(), True, FREE,
        "Whether packs stay here when they have been uploaded; their indexes always do.",
    )
    index: bool = setting(
        v.boolean(), False, FREE,
        "Have a process beside the crawl index the texts of the pages in SUITE_PACKS_DIR, for "
        "`scrapy packs search`.",
    )
    extract: Literal["eager", "on-demand"] = setting(
        v.choice("eager", "on-demand"), "eager", FROM_NOW_ON,
        "Where links are followed in bulk: when those of a page are read. With on-demand, out of "
        "its pack, when the queue of its host runs low or too few hosts are left.",
    )
    items_dir: Path | None = setting(
        v.folder(), None, FREE,
        "A folder for item packs: the items that spiders yield, as compressed lines of JSON, each "
        "exactly once over kills with a JOBDIR. Empty keeps none.",
    )
    items_format: Literal["gz", "zst"] = setting(
        v.choice("gz", "zst"), "gz", FREE,
        "How item packs are compressed; they are closed as SUITE_PACKS_SIZE and _AGE say.",
    )
    page_items: bool = setting(
        v.boolean(), False, FREE,
        "Let pages be items: where links are followed in bulk every page is one, and pages are "
        "packed and counted only of which there was a PageItem.",
    )
    link_stats: tuple[str, ...] = setting(
        v.choices(*TABLES), (), FROM_NOW_ON,
        "Which link statistics are kept of the pages that are done: rows of the job, exact over "
        "kills.",
    )
    crawl_name: str = setting(
        name(), "", FREE,
        "The name of the crawl, which its packs bear; empty is the spider's. The agents of one "
        "crawl share it.",
    )
    agent_name: str = setting(
        name(), "", FREE,
        "The name of this process among those of its crawl, which its packs bear; empty is the "
        "machine's. No two that run at the same time have the same.",
    )
    operator: str = setting(
        line(), "", FREE,
        "Who crawls, a person or an institution: the first record of each pack says so, beside "
        "the contact that USER_AGENT gives.",
    )
    from_header: bool = setting(
        v.boolean(), False, FREE,
        "Send the e-mail address in SUITE_OPERATOR, or else in USER_AGENT, as the From header of "
        "all requests.",
        broad=True,
    )
