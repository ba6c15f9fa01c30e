"""``scrapy frontier upgrade``."""

from __future__ import annotations

import argparse
from dataclasses import replace

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands.frontier_verbs import acting
from scrapy_spider_suite.job.upgrading import upgrade
from scrapy_spider_suite.operate.actions import whoami
from scrapy_spider_suite.operate.verb import Invocation, Verb, add_caution
from scrapy_spider_suite.store.rows import FORMAT


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="DIR", nargs="?", help="the job, instead of -j DIR")
    add_caution(parser)
    acting.add_why(parser)


def _run(call: Invocation) -> int:
    options = call.options
    job = options.job or call.jobdir
    if not job:
        raise UsageError("which job? give DIR, or -j DIR, or set JOBDIR", print_help=False)
    folder = replace(call, jobdir=job).folder()
    had, changes = upgrade(
        folder, dry_run=options.dry_run, who=options.who or whoami(), why=options.why
    )
    upgraded = bool(changes) and not options.dry_run
    call.facts({
        "format": FORMAT if upgraded else had, "before": had, "newest": FORMAT,
        "upgraded": upgraded, "new": changes,
    })  # fmt: skip
    return 0


VERBS = (
    Verb(
        "upgrade", "bring a job of an older release to the present data format", _run, _options,
        "[DIR]",
        about=(
            "A crawl does it too as it starts, and says so in the log. Older releases open the\n"
            "job no more: copy the directory before, if you may want to go back. It may be\n"
            "interrupted at any moment, and goes on with the next start."
        ),
        examples=("upgrade crawls/news --dry-run", "upgrade -j crawls/news"),
        needs_job=False,
    ),
)  # fmt: skip
