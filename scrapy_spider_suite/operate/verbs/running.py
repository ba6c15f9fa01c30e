"""``pause``, ``resume``, ``set``, ``drain``: change how a crawl runs, not what it has.

A pause is kept in the job; another value of a setting is not.
"""

from __future__ import annotations

import argparse

from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.restrictions import keep_pause, lift_pause, paused_by
from scrapy_spider_suite.operate.verb import (
    ACT_EXITS,
    Invocation,
    JobVerb,
    Question,
    Result,
)


def pause(target: JobTarget, action: Action) -> Result:
    """Send nothing more; what is under way is fetched to its end."""
    action.expect()
    before = paused_by(target.kv)
    if before:
        return f"it was paused already: {before}", {"paused": True, "changed": False}
    keep_pause(target.kv, action)
    target.pause(paused=True)
    how = "what is under way is finished" if target.running else "a crawl that is started waits"
    return f"paused; {how}", {"paused": True, "changed": True}


def resume(target: JobTarget, action: Action) -> Result:
    """Continue."""
    action.expect()
    if not paused_by(target.kv):
        return "it was not paused", {"paused": False, "changed": False}
    lift_pause(target.kv)
    target.pause(paused=False)
    return "the crawl goes on", {"paused": False, "changed": True}


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


def _plan_set(call: Invocation) -> Question:
    options = call.options
    arguments = {"name": options.name, "value": options.value}
    return Question(arguments | ({"dry": True} if options.dry_run else {}))


def drain(target: JobTarget, action: Action) -> Result:
    """Begin to hand over everything to the other agents."""
    action.expect()
    target.drain()
    return "it hands over what it has, and ends then", {"draining": True}


VERBS = (
    JobVerb(
        "pause", "send nothing more until `resume`",
        plan=lambda call: Question(future_job="the crawl that begins a job there waits"),
        apply=pause, urgent=True, stands="pause",
        about=(
            "Requests in progress run to their end. A paused crawl neither ends nor times out.\n"
            "The job keeps the pause: a crawl that is started again stays paused. Where DIR holds\n"
            "no job yet, the crawl that begins one there waits at once."
        ),
        examples=('pause -j crawls/news --why "maintenance of the proxy"',), exits=ACT_EXITS,
    ),
    # It stands until the next pause: an agent that was removed, and comes back, has the pause in
    # its job.
    JobVerb(
        "resume", "continue a paused crawl",
        plan=lambda call: Question(future_job="the crawl that begins a job there goes on"),
        apply=resume, urgent=True, stands="pause",
        examples=("resume -j crawls/news",), exits=ACT_EXITS,
    ),
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
    # `scrapy cluster drain` asks one agent, and waits until the agent has left.
    JobVerb("drain", "have an agent hand over all it has, and end", apply=drain),
)  # fmt: skip
