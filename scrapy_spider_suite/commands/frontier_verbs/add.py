"""``scrapy frontier add``: URLs for the running or the next crawl."""

from __future__ import annotations

import argparse

from scrapy_spider_suite.commands.frontier_verbs.verb import Call, Verb
from scrapy_spider_suite.inbox import leave
from scrapy_spider_suite.seeds import read_seeds


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", metavar="URL|FILE", nargs="+")


def _run(call: Call) -> int:
    number = leave(call.folder(), read_seeds(call.options.sources))
    print(f"{number} URLs left for the crawl; a running one takes them within seconds")
    return 0


VERBS = (
    Verb(
        "add", "URLs, host names, or files of them, for the running or the next crawl",
        _run, _options, "URL|FILE...",
        examples=("add https://example.com/ seeds.txt -j crawls/news",),
    ),
)  # fmt: skip
