"""When pages that were fetched are fetched again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import FREE, FROM_NOW_ON, setting

_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Revisits:
    """When pages that were fetched are fetched again."""

    revisit: Literal["off", "fixed", "adaptive"] = setting(
        v.choice("off", "fixed", "adaptive"), "off", FROM_NOW_ON,
        "Whether pages are fetched again, for as long as the crawl runs, which does not end by "
        "itself then: never, each after so long, or so often as keeps most of them fresh with as "
        "many fetches.",
    )
    revisit_interval: float = setting(
        v.duration(0.1), 7 * _DAY, FROM_NOW_ON,
        "After how long a page is fetched again; with `adaptive`, on average.",
    )
    revisit_least: float = setting(
        v.duration(0.1), 3600.0, FROM_NOW_ON,
        "With `adaptive`: after how long at least.",
    )
    revisit_most: float = setting(
        v.duration(0.1), 90 * _DAY, FROM_NOW_ON,
        "With `adaptive`: after how long at most, of pages too that are not worth it, so that "
        "it is found out if they change their ways.",
    )
    revisit_prior: float = setting(
        v.duration(0.1), 30 * _DAY, FROM_NOW_ON,
        "With `adaptive`: how long the median page stays as it is; what is not known yet of a "
        "page is taken from that.",
    )
    revisit_weight: float = setting(
        v.share(), 0.2, FREE,
        "The part of all fetches that pages which are due again have where new pages wait, too.",
    )
