"""Budgets, the end, and what stops a crawl before it does harm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import FREE, FROM_NOW_ON, setting


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Budgets, the end, and what stops a crawl before it does harm."""

    # Budgets and the end
    host_max_pages: int = setting(
        v.integer(0, unit="pages"), 0, FROM_NOW_ON, "Most pages of one host; 0 is no limit."
    )
    host_max_depth: int = setting(
        v.integer(0, unit="links"), 0, FROM_NOW_ON,
        "Links followed in bulk: how many links a page may be away from the first page of its "
        "host; links from other hosts are always followed. 0 is no limit.",
    )
    domain_max_pages: int = setting(
        v.integer(0, unit="pages"), 0, FROM_NOW_ON,
        "Most pages of one registered domain, all its hosts together; 0 is no limit.",
    )
    domain_max_hosts: int = setting(
        v.integer(0, unit="hosts"), 0, FROM_NOW_ON,
        "Most hosts of one registered domain, those met first; 0 is no limit.",
    )
    max_pages: int = setting(
        v.integer(0, unit="pages"), 0, FREE,
        "Close with the reason 'max_pages' when the job has so many pages; 0 is no limit.",
    )
    max_bytes: int = setting(
        v.size(), 0, FREE,
        "Close with the reason 'max_bytes' when the job has received so much; 0 is no limit.",
    )
    max_time: float = setting(
        v.duration(), 0.0, FREE,
        "Close with the reason 'max_time' when the job has run for so long, all its runs "
        "together; 0 is no limit.",
    )
    max_bandwidth: int = setting(
        v.size(), 0, FREE,
        "Most bytes a second that are received, on average; pages wait for it before they are "
        "asked for. 0 is no limit.",
    )
    body_max: int = setting(
        v.size(), 0, FROM_NOW_ON,
        "Bytes of a page's body after which reading stops; the page is flagged 'truncated'. 0 "
        "reads it to its end.",
    )
    media_types: tuple[str, ...] = setting(
        v.media_types(), (), FROM_NOW_ON,
        "Broad profile: media types of pages that are wanted, with * for any; others are not read "
        "beyond their head. Empty reads all.",
    )
    max_wait: float = setting(
        # Of the default back-off, more than the 1,280 s before the tenth attempt, after which a
        # host that never answers is given up, and less than the 2,560 s after it.
        v.duration(), 1800.0, FREE,
        "Close with the reason 'waiting' when only hosts remain that must wait longer than this; "
        "0 waits for ever.",
    )
    idle: Literal["finish", "wait"] = setting(
        v.choice("finish", "wait"), "finish", FREE,
        "What to do when nothing is left: end, or wait for URLs from outside.",
    )
    stop_timeout: float = setting(
        v.duration(), 20.0, FREE,
        "Longest time that a stop waits for requests that are under way.",
    )

    # Guards
    min_free: int = setting(
        v.size(), 64 << 20, FREE,
        "Pause while a disk that is written to has less room than this, and than the store needs "
        "to merge its files; 0 goes on until the disk is full.",
        broad=256 << 20,
    )
    stall_timeout: float = setting(
        v.duration(), 0.0, FREE,
        "End the process when its event loop has stood still for so long, and the crawl when "
        "nothing was fetched for so long although hosts are ready; 0 never does.",
        broad=900.0,
    )
    exit_codes: bool = setting(
        v.boolean(), False, FREE,
        "Let the exit code of the scrapy command tell how the crawl ended.",
        broad=True,
    )
