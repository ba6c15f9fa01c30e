"""``scrapy frontier add``: URLs for the running or the next crawl."""

from __future__ import annotations

import argparse

from scrapy_spider_suite.commands.frontier_verbs import acting, counting
from scrapy_spider_suite.operate.verb import Invocation, Verb, add_caution
from scrapy_spider_suite.urls.url_lists import read_lines


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", metavar="URL|FILE", nargs="+")
    parser.add_argument(
        "--first", action="store_true", help="before everything else of their hosts"
    )
    parser.add_argument(
        "--tag", metavar="NAME", type=_tag,
        help="where the seeds come from, unless their lines say it",
    )  # fmt: skip
    add_caution(parser)
    acting.add_options(parser)


def _tag(text: str) -> str:
    if len(text) <= 100 and text.split() == [text]:
        return text
    raise argparse.ArgumentTypeError(f"{text!r}: expected a word of at most 100 characters")


def _run(call: Invocation) -> int:
    options = call.options
    sources = [
        f"{source} #tag={options.tag}" if options.tag else source for source in options.sources
    ]
    lines = read_lines(sources, str(call.settings["USER_AGENT"]))
    if options.dry_run:
        return counting.count_seeds(call, lines)
    return acting.act(call, "add", {"first": options.first}, urls=lines)


VERBS = (
    Verb(
        "add", "URLs, host names, or files of them, for the running or the next crawl",
        _run, _options, "URL|FILE...",
        about=(
            "A file has a URL or a host name a line, plain or compressed (gz, xz, zst); @URL is a\n"
            "list that is downloaded. What is known already is left as it is: see `refetch`. All\n"
            "sources are read before anything is added; if one cannot be read, nothing is. Lines\n"
            "that are no seeds are left out and counted: `report bad-seeds` has them."
        ),
        examples=(
            "add https://example.com/ seeds.txt -j crawls/news",
            "add breaking.txt --first -j crawls/news",
            "add seeds.txt --dry-run -j crawls/news",
            "add hosts.txt.zst @https://example.org/more.txt.gz --tag spring -j crawls/news",
        ),
        exits=acting.EXITS,
    ),
)  # fmt: skip
