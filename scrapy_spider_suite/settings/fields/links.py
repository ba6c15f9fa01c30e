"""Which links are followed, and which spellings of URLs are one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scrapy_spider_suite.settings import values as v
from scrapy_spider_suite.settings.declarations import FIXED, FREE, FROM_NOW_ON, setting
from scrapy_spider_suite.urls.normalizer import WORDS


@dataclass(frozen=True, kw_only=True)
class Links:
    """Which links are followed, and which spellings of URLs are one."""

    # Filters
    schedule_filter: str = setting(
        v.filter_for("schedule"), "", FROM_NOW_ON,
        "Which links and requests may enter the queue; seeds always may.",
    )
    fetch_filter: str = setting(
        v.filter_for("fetch"), "", FROM_NOW_ON,
        "Which pages may be fetched, asked just before; the others fail ('filtered').",
    )
    parse_filter: str = setting(
        v.filter_for("parse"), "", FROM_NOW_ON,
        "Which answers go to their callbacks and have their links followed; the others are done.",
    )
    follow_filter: str = setting(
        v.filter_for("follow"), "", FROM_NOW_ON,
        "Which links of pages are taken, where links are followed in bulk.",
    )
    store_filter: str = setting(
        v.filter_for("store"), "", FROM_NOW_ON,
        "Of which answers the items go to the pipelines.",
    )
    countries: Path | None = setting(
        v.file(), None, FREE,
        "A file that says in which country addresses are, for filters: lines of 'network,country' "
        "or 'first,last,country'.",
    )

    # Traps, and what nobody linked to
    trap_length: int = setting(
        v.integer(0, unit="characters"), 0, FROM_NOW_ON,
        "Links followed in bulk: longer URLs are taken for a trap; 0 takes none for one.",
        broad=1024,
    )
    trap_segments: int = setting(
        v.integer(0, unit="segments"), 0, FROM_NOW_ON,
        "Links followed in bulk: paths of more segments are taken for a trap; 0: none are.",
        broad=24,
    )
    trap_repeats: int = setting(
        v.integer(0, unit="times"), 0, FROM_NOW_ON,
        "Links followed in bulk: a path that holds one segment more often is taken for a trap; "
        "0: none is.",
        broad=4,
    )
    trap_calendar: int = setting(
        v.integer(0, 200, "years"), 0, FROM_NOW_ON,
        "Links followed in bulk: dates in URLs that are further ahead are taken for a trap; 0: "
        "none are.",
        broad=10,
    )
    trap_permuted: bool = setting(
        v.boolean(), False, FROM_NOW_ON,
        "Links followed in bulk: whether a URL whose query has the parameters of another in "
        "another order is taken for a trap.",
        broad=True,
    )
    trap_query: int = setting(
        v.integer(0, 10_000, "pages"), 0, FROM_NOW_ON,
        "Links followed in bulk: when so many pages of one path, whose queries combine values that "
        "others of it had, said nothing new and led to nothing new but more of the kind, its "
        "combinations are a trap; 0: none are.",
        broad=64,
    )
    trap_sessions: int = setting(
        v.integer(0, 10_000, "pages"), 0, FROM_NOW_ON,
        "Links followed in bulk: when so many pages of a host said the same with another session "
        "id, each page is fetched with one of them only; 0: with all.",
        broad=8,
    )
    trap_same: int = setting(
        v.integer(0, 10_000, "pages"), 0, FROM_NOW_ON,
        "Links followed in bulk: when so many pages of one pattern, folder or host have said what "
        "earlier ones said, with hardly a new one between, it is a trap; 0: none is.",
        broad=24,
    )
    trap_numbers: bool = setting(
        v.boolean(), False, FROM_NOW_ON,
        "Links followed in bulk: whether pages that differ from earlier ones in numbers alone are "
        "such a trap, too; if not, URLs like theirs come after the host's others.",
    )
    trap_hosts: int = setting(
        v.integer(0, 10_000, "hosts"), 0, FROM_NOW_ON,
        "Links followed in bulk: when the first pages of so many hosts of a registered domain have "
        "said what those of others said, further hosts of it are a trap; 0: none are.",
        broad=24,
    )
    trap_prefix: int = setting(
        v.integer(0, 100, "percent"), 0, FROM_NOW_ON,
        "Links followed in bulk: URLs below a folder that has had this share of a large host, or "
        "of its SUITE_HOST_MAX_PAGES, come after the host's others; 0: none do.",
        broad=50,
    )
    mine: Literal["none", "ancestors", "siblings", "both"] = setting(
        v.choice("none", "ancestors", "siblings", "both"), "none", FROM_NOW_ON,
        "Links followed in bulk: also try the folders above a page, or the pages whose numbers are "
        "one more or one less, although nobody linked to them.",
    )
    mine_max: int = setting(
        v.integer(1, unit="URLs"), 100, FROM_NOW_ON, "Most such URLs of one host."
    )

    # URLs
    normal_form: tuple[str, ...] = setting(
        v.choices(*WORDS), (), FIXED,
        "Broad profile: which further spellings of URLs are taken for one, for all hosts.",
    )
    drop_parameters: tuple[str, ...] = setting(
        v.parameters(), (), FIXED, "Broad profile: query parameters that are left out of URLs."
    )
    url_rules: tuple[str, ...] = setting(
        v.url_rules(), (), FIXED,
        "Broad profile: exceptions from these two by host and .domain, a rule a line.",
    )
    normalizer: str = setting(
        v.import_path(), "", FIXED,
        "Broad profile: a callable of the project's own, or a class of such, that is given every "
        "URL and returns the one to take for it, None to drop it.",
    )
    prefer_https: bool = setting(
        v.boolean(), False, FROM_NOW_ON,
        "Broad profile: take links to http for https, and those with www. for those without, or "
        "the other way round, for hosts whose answers show that they are the same.",
    )
