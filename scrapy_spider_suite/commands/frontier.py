"""``scrapy frontier``: look at a job directory, beside a running crawl too, and act on it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands import base

if TYPE_CHECKING:
    from scrapy_spider_suite.commands.verb import Verb


class Command(base.VerbCommand):
    """See ``scrapy frontier --help``."""

    name = "frontier"
    package = "scrapy_spider_suite.commands.frontier_verbs"
    unusable = "an unusable job"
    faults = (OSError,)

    def syntax(self) -> str:
        """The arguments."""
        return "VERB [ARGUMENT...] -j JOBDIR [options]"

    def short_desc(self) -> str:
        """One line."""
        return "Look at a job directory of scrapy-spider-suite, and act on it"

    def add_common_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options that mean the same for every verb."""
        base.add_job(parser)
        super().add_common_options(parser)

    def job_of(self, verb: Verb, opts: argparse.Namespace) -> str | None:
        """The job directory that *verb* works on. Raises `UsageError`: it is not said."""
        job = self.jobdir(opts)
        if not job and verb.needs_job:
            raise UsageError("which job? give -j DIR, or set JOBDIR", print_help=False)
        return job
