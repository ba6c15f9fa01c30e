"""``set``: another value for a setting, for as long as this crawl runs.

It is not kept: where a crawl is started from is the one place that says how it begins.

``scrapy frontier set``.

``scrapy frontier settings``: the settings of the suite.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.verb import (
    ACT_EXITS,
    Found,
    Invocation,
    JobVerb,
    Question,
    Result,
    Row,
    Work,
    add_act_options,
    in_a_thread,
)
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store.job_directory import FOLDER, JobFile


def set_value(site: JobTarget, action: Action) -> Result | Work:
    """Change one setting; with *dry*, only say whether that could be."""
    action.expect("name", "value", "dry")
    name, value = action.get("name", str), action.get("value", str)
    dry = action.get("dry", bool, default=False)
    if site.reads_long(name):
        return _after_reading(site, name, value, dry=dry)
    return _set(site, name, value, dry=dry)


def _after_reading(site: JobTarget, name: str, value: str, *, dry: bool) -> Work:
    yield from in_a_thread(partial(site.read_setting, name, value), 0.0)
    return _set(site, name, value, dry=dry)


def _set(site: JobTarget, name: str, value: str, *, dry: bool) -> Result:
    old, new = site.set(name, value, dry=dry)
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


_SET = (
    JobVerb(
        "set", "change a setting of a running crawl", add_options=_set_options,
        arguments="NAME VALUE", plan=_plan_set, apply=set_value, urgent=True,
        about=(
            "VALUE is written as after `-s NAME=`; `default` is the default. It holds until the\n"
            "crawl ends: to keep it, change it where the crawl is started from, too. Delays,\n"
            "concurrency, caps, retries and filters can be set; other settings are refused. Of\n"
            "Scrapy's own, CONCURRENT_REQUESTS, DOWNLOAD_TIMEOUT and LOG_LEVEL can be set;\n"
            "SUITE_HOST_DELAY is what DOWNLOAD_DELAY would be."
        ),
        examples=(
            'set SUITE_HOST_DELAY 10 --why "they asked for it" -j crawls/news',
            "set LOG_LEVEL DEBUG -j crawls/news",
            'set CONCURRENT_REQUESTS 50 --why "the line is full" -j crawls/news',
        ),
        exits=ACT_EXITS,
    ),
)  # fmt: skip


def _read_settings(call: Invocation, question: Question) -> Iterator[Row]:
    job = JobFile.read(Path(call.jobdir) / FOLDER) if call.jobdir else None
    settings = call.settings.copy()
    if job is not None and settings.get("SUITE_PROFILE", "auto") == "auto":
        # There is no spider here that would say which it is.
        settings.set("SUITE_PROFILE", job.settings.get("profile"), priority="project")
    for each in SuiteSettings.from_settings(settings).as_table():
        row = each._asdict()
        if job is not None:
            row["job"] = job.settings.get(each.name.removeprefix("SUITE_").lower())
        yield row


def _show_settings(call: Invocation, found: Found) -> int:
    rows = list(found.rows())
    job = ("job",) if rows and "job" in rows[0] else ()
    call.table(rows, ("name", "value", "unit", "kind", *job, "meaning"))
    return 0


_SETTINGS = (
    JobVerb(
        "settings", "the settings of the suite, and those that the job was last run with",
        look=_read_settings, show=_show_settings,
        not_remote="run it in the project, or with -j DIR on the machine of an agent",
        examples=("settings -j crawls/news",), needs_job=False,
    ),
)  # fmt: skip

VERBS = (*_SET, *_SETTINGS)
