"""``scrapy packs links``."""

from __future__ import annotations

import argparse
import json

from scrapy_spider_suite.commands.packs_verbs.common import (
    add_choice,
    add_paths,
    choice_of,
    packs_of,
    progress,
    tell_absent,
    tell_damage,
)
from scrapy_spider_suite.commands.verb import Call, Verb
from scrapy_spider_suite.packs.selection import pages


def _options(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    add_choice(parser, sample=True)


def _run(call: Call) -> int:
    packs = packs_of(call)
    with progress(None, "pages") as move:
        for page in pages(packs, choice_of(call.options)):
            for link in page.links:
                if call.json:
                    time = page.record.get("WARC-Date")
                    print(json.dumps({"page": page.url, "time": time, **link._asdict()}))
                else:
                    flag = "nofollow" if link.nofollow else "-"
                    print(page.url, link.url, link.kind, flag, sep="\t")
            move(1)
    tell_absent(packs)
    return tell_damage(packs)


VERBS = (
    Verb(
        "links", "where pages lead to: edges, as the crawl found them", _run, _options,
        "[PATH...]",
        about=(
            "A line for each link of each page: page, link, kind (a, area, frame, redirect,\n"
            "refresh, canonical, sitemap) and nofollow or -, separated by tabs. A page that was\n"
            "fetched again is there again. Graphs with numbers for pages: docs/links.md."
        ),
        examples=(
            "links crawls/news/packs > edges.tsv",
            "links crawls/news/packs --host example.com --json",
        ),
        exits={1: "something is damaged, and was left out"},
    ),
)  # fmt: skip
