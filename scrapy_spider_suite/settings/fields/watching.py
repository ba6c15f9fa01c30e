"""What is written down of a crawl."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import FREE, setting


@dataclass(frozen=True, kw_only=True)
class Watching:
    """What is written down of a crawl."""

    fetch_log: bool | Path = setting(
        v.switch_or_folder(), True, FREE,
        "Where the fetch log is kept: True is in the job directory (without one there is none), "
        "False is nowhere.",
    )
    fetch_log_size: int = setting(
        v.size(1 << 20), 64 << 20, FREE,
        "Size at which a file of the fetch log is closed and compressed.",
    )
    fetch_log_max: int = setting(
        v.size(0), 0, FREE,
        "Size of the whole fetch log beyond which its oldest files are removed; 0: none are.",
    )
    quiet_log: bool = setting(
        v.boolean(), False, FREE,
        "Fold the engine's repeated log lines and repeated tracebacks into counts, and leave out "
        "tracebacks of network errors.",
        broad=True,
    )
