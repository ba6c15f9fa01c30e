"""``scrapy frontier``: look at a job directory, beside a running crawl too, and act on it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands import base

if TYPE_CHECKING:
    from scrapy_spider_suite.operate.verb import Invocation, Verb

class Command(base.VerbCommand):
    """See ``scrapy frontier --help``."""

    name = "frontier"
    arguments = "VERB [ARGUMENT...] -j JOBDIR [options]"
    summary = "Look at a job directory of scrapy-spider-suite, and act on it"
    package = "scrapy_spider_suite.operate.verbs"
    unusable = "an unusable job"

    def add_common_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "-j", "--jobdir", metavar="DIR|URL",
            help="the job (default: JOBDIR); redis://HOST/0, or DIR of `cluster up`: all agents",
        )  # fmt: skip
        base.add_crawl(parser)
        super().add_common_options(parser)

    def carry_out(self, verb: Verb, call: Invocation, words: list[str]) -> int:
        from scrapy_spider_suite.cluster.local_redis import LocalRedis
        from scrapy_spider_suite.operate.executors.one_job import run_on_job
        from scrapy_spider_suite.operate.verb import JobVerb

        assert isinstance(verb, JobVerb)
        if call.crawl:
            call.settings.set("SUITE_CRAWL_NAME", call.crawl, priority="cmdline")
        if verb.run is not None and (code := verb.run(call)) is not None:
            return code
        own = LocalRedis.find(call.jobdir)
        if call.redis is None and own is None:
            return run_on_job(verb, call)
        base.need_redis()
        from scrapy_spider_suite.operate.executors.all_agents import run_on_agents

        if own is None:
            return run_on_agents(verb, call, words)
        if own.answers:
            return run_on_agents(verb, replace(call, jobdir=own.url), words)
        return run_on_agents(verb, call, words, Path(str(call.jobdir)))

    def job_of(self, verb: Verb, opts: argparse.Namespace) -> str | None:
        job = opts.jobdir or (None if self.settings is None else self.settings["JOBDIR"])
        if not job and verb.needs_job:
            raise UsageError("which job? give -j DIR, or set JOBDIR", print_help=False)
        return job
