"""``scrapy frontier upgrade``."""

from __future__ import annotations

import argparse

from scrapy_spider_suite.commands.verb import Call, Verb
from scrapy_spider_suite.job.upgrading import upgrade
from scrapy_spider_suite.storage.records import FORMAT


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


def _run(call: Call) -> int:
    had, changes = upgrade(call.folder(), dry_run=call.options.dry_run)
    upgraded = bool(changes) and not call.options.dry_run
    call.facts({
        "format": FORMAT if upgraded else had, "before": had, "newest": FORMAT,
        "upgraded": upgraded, "new": changes,
    })  # fmt: skip
    return 0


VERBS = (
    Verb(
        "upgrade", "bring a job of an older release to the present data format", _run, _options,
        about=(
            "A crawl does it too as it starts, and says so in the log. Older releases open the\n"
            "job no more: copy the directory before, if you may want to go back. It may be\n"
            "interrupted at any moment, and goes on with the next start."
        ),
        examples=("upgrade --dry-run -j crawls/news", "upgrade -j crawls/news"),
    ),
)  # fmt: skip
