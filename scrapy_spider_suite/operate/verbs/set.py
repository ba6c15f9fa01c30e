"""``set``: another value for a setting until the running crawl ends. The job does not keep it."""

from __future__ import annotations

import argparse

from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.verb import (
    ACT_EXITS,
    Invocation,
    JobVerb,
    Question,
    Result,
    add_act_options,
)


def set_value(target: JobTarget, action: Action) -> Result:
    """Change one setting; with *dry*, only say whether that could be."""
    action.expect("name", "value", "dry")
    name, value = action.get("name", str), action.get("value", str)
    dry = action.get("dry", bool, default=False)
    old, new = target.set(name, value, dry=dry)
    facts = {"name": name, "old": old, "new": new}
    if old == new:
        return f"{name} is {new} already", facts
    if dry:
        return f"{name} is {old} and would be {new} until this crawl ends", facts
    return f"{name} was {old} and is {new} until this crawl ends", facts


def _set_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="such as SUITE_HOST_DELAY")
    parser.add_argument("value", metavar="VALUE", help="as after `-s NAME=`")
    parser.add_argument(
        "--dry-run", action="store_true", help="ask whether it could be, and change nothing"
    )
    add_act_options(parser)


def _plan_set(call: Invocation) -> Question:
    options = call.options
    arguments = {"name": options.name, "value": options.value}
    return Question(arguments | ({"dry": True} if options.dry_run else {}))


VERBS = (
    JobVerb(
        "set", "change a setting of a running crawl", add_options=_set_options,
        arguments="NAME VALUE", plan=_plan_set, apply=set_value, urgent=True,
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
        exits=ACT_EXITS,
    ),
)  # fmt: skip
