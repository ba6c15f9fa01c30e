"""``scrapy frontier add``: URLs for the running or the next crawl."""

from __future__ import annotations

import argparse

from scrapy_spider_suite.commands.frontier_verbs import acting
from scrapy_spider_suite.commands.frontier_verbs.verb import Call, Verb
from scrapy_spider_suite.seeds import read_seeds


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", metavar="URL|FILE", nargs="+")
    parser.add_argument(
        "--first", action="store_true", help="before everything else of their hosts"
    )
    acting.add_options(parser)


def _run(call: Call) -> int:
    options = call.options
    return acting.act(call, "add", {"first": options.first}, urls=read_seeds(options.sources))


VERBS = (
    Verb(
        "add", "URLs, host names, or files of them, for the running or the next crawl",
        _run, _options, "URL|FILE...",
        about=(
            "What is known already is left as it is: see `refetch`. All sources are read before\n"
            "anything is added; if one cannot be read, nothing is."
        ),
        examples=(
            "add https://example.com/ seeds.txt -j crawls/news",
            "add breaking.txt --first -j crawls/news",
        ),
        exits=acting.EXITS,
    ),
)  # fmt: skip
