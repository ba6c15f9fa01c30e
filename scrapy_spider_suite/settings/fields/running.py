"""What runs, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import FIXED, FREE, FROM_NOW_ON, Profile, setting


@dataclass(frozen=True, kw_only=True)
class Running:
    """What runs, and what comes next."""

    # What runs
    enabled: bool = setting(
        v.boolean(), True, FIXED,
        "Whether the add-on does anything at all; of a job that was begun with it nothing else can "
        "go on.",
    )
    profile: Profile = setting(
        v.choice("auto", "spider", "broad"), "auto", FIXED,
        "Keep an existing spider's ways (spider), or crawl many hosts in bulk (broad); auto is "
        "broad for a BroadSpider and with SUITE_FOLLOW, else spider.",
    )
    follow: bool = setting(
        v.boolean(), False, FROM_NOW_ON,
        "Follow every link of every page in bulk, whatever the spider.",
    )

    seeds: tuple[str, ...] = setting(
        v.texts(), (), FREE,
        "URLs, host names, files of them, and @URLs of such files, to begin with; for a spider "
        "beside what its start() yields.",
    )

    # What comes next
    order: Literal["breadth-first", "bottom-up", "best-first"] = setting(
        v.choice("breadth-first", "bottom-up", "best-first"), "breadth-first", FIXED,
        "Which URL of a host comes next among those of one priority: the first that was found, the "
        "left-most leaf of its paths, or that of the best SUITE_SCORE.",
    )
    score: str = setting(
        v.import_path(), "", FROM_NOW_ON,
        "For best-first: a function that is given a URL, its depth and the page that led there, "
        "and returns a number; the highest comes first.",
    )
    scores: Path | None = setting(
        v.file(), None, FROM_NOW_ON,
        "For best-first, instead of a function: a file with a URL or host, a tab and a number a "
        "line, such as `scrapy packs graph DIR --rank` writes; a URL without one has that of the "
        "host it was found on.",
    )
    window: Literal["none", "top", "leaf"] = setting(
        v.choice("none", "top", "leaf"), "none", FROM_NOW_ON,
        "Let a sliding window choose what is in memory: so many hosts, a URL of each (top), or so "
        "many leaves of every host, row by row (leaf). Slower than none.",
    )
    window_size: int = setting(
        v.integer(1, unit="hosts or leaves"), 100, FROM_NOW_ON,
        "Hosts of the top window, or leaves of each host's leaf window.",
    )
    phases: int = setting(
        v.integer(1, 10_000, "phases"), 1, FROM_NOW_ON,
        "Visit a part of the hosts at a time, of so many parts; the others are on disk meanwhile.",
    )
    phase_seconds: float = setting(
        v.duration(1.0), 300.0, FROM_NOW_ON, "How long a phase lasts, by the clock on the wall.",
    )
    phase_guard: float = setting(
        v.duration(), 0.0, FROM_NOW_ON,
        "At the end of a phase, for so long no visit begins: those that are out have time to end.",
    )

    sitemaps: Literal["off", "robots", "all"] = setting(
        v.choice("off", "robots", "all"), "off", FROM_NOW_ON,
        "Broad profile: read the sitemaps that a host's robots.txt names (robots), and look for "
        "them by their usual names where it names none (all).",
    )
