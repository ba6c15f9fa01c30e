"""What is made of pages that were there before."""

from __future__ import annotations

from dataclasses import dataclass

from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import FREE, FROM_NOW_ON, setting


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """What is made of pages that were there before."""

    duplicates: tuple[str, ...] = setting(
        v.choices("payload", "structure", "near"), (), FROM_NOW_ON,
        "By what pages are compared with those that were there before: their bytes (in packs a "
        "duplicate is a revisit record then, without its body), what they say without mark-up and "
        "numbers, and nearly that.",
    )
    follow_duplicates: bool = setting(
        v.boolean(), True, FROM_NOW_ON,
        "Follow the links of pages that are duplicates by one of SUITE_DUPLICATES.",
    )
    near_memory: int = setting(
        v.size(1 << 20), 16 << 20, FREE,
        "Memory for pages that others may nearly repeat, 7,700 in a MiB; the oldest are forgotten.",
    )
