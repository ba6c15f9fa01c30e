"""``scrapy frontier``: look at a job directory, beside a running crawl too, and act on it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands import base

if TYPE_CHECKING:
    from scrapy_spider_suite.operate.verb import Invocation, Verb


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
        parser.add_argument(
            "-j", "--jobdir", metavar="DIR|URL",
            help="the job (default: JOBDIR), or redis://HOST/0: all agents of a crawl",
        )  # fmt: skip
        base.add_crawl(parser)
        super().add_common_options(parser)

    def carry_out(self, verb: Verb, call: Invocation, words: list[str]) -> int:
        """Do what *call* says; ask agents if ``-j`` names a Redis."""
        if call.redis is None:
            return verb.run(call)
        base.need_redis()
        from scrapy_spider_suite.commands.agents.looks import over_redis

        return over_redis(verb, call, words)

    def job_of(self, verb: Verb, opts: argparse.Namespace) -> str | None:
        """The job directory that *verb* works on. Raises `UsageError`: it is not said."""
        job = self.jobdir(opts)
        if not job and verb.needs_job:
            raise UsageError("which job? give -j DIR, or set JOBDIR", print_help=False)
        return job
