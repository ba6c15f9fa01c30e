"""``scrapy frontier set``."""

from __future__ import annotations

import argparse

from scrapy_spider_suite.commands.frontier_verbs import acting
from scrapy_spider_suite.operate.verb import Invocation, Verb


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="such as SUITE_HOST_DELAY")
    parser.add_argument("value", metavar="VALUE", help="as after `-s NAME=`")
    parser.add_argument(
        "--dry-run", action="store_true", help="ask whether it could be, and change nothing"
    )
    acting.add_options(parser)


def _run(call: Invocation) -> int:
    options = call.options
    arguments = {"name": options.name, "value": options.value}
    return acting.act(call, "set", arguments | ({"dry": True} if options.dry_run else {}))


VERBS = (
    Verb(
        "set", "change a setting of a running crawl", _run, _options, "NAME VALUE",
        about=(
            "VALUE is written as after `-s NAME=`; `default` is the default. It holds until the\n"
            "crawl ends: to keep it, change it where the crawl is started from, too. `scrapy\n"
            "frontier settings NAME` says whether a setting can be set. Of Scrapy's own settings\n"
            "CONCURRENT_REQUESTS, DOWNLOAD_TIMEOUT and LOG_LEVEL can; SUITE_HOST_DELAY is what\n"
            "DOWNLOAD_DELAY would be."
        ),
        examples=(
            'set SUITE_HOST_DELAY 10 --why "they asked for it" -j crawls/news',
            "set SUITE_MAX_PAGES 500000 -j crawls/news",
            'set CONCURRENT_REQUESTS 50 --why "the line is full" -j crawls/news',
        ),
        exits=acting.EXITS,
    ),
)  # fmt: skip
