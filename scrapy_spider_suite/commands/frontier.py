"""``scrapy frontier``: look at a job directory, beside a running crawl too, and act on it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands import base

if TYPE_CHECKING:
    from scrapy_spider_suite.operate.verb import Invocation, JobVerb, Verb

_ABOUT = """\
`scrapy frontier VERB --help` has the options of a verb, and examples.

Exit codes: 0 done, 1 the answer is no (see the verb), 2 wrong usage or an unusable job,
3 no answer in time, 4 done in part (`drop`)."""


class Command(base.VerbCommand):
    """See ``scrapy frontier --help``."""

    name = "frontier"
    unusable = "an unusable job"
    faults = (OSError,)

    def syntax(self) -> str:
        return "VERB [ARGUMENT...] -j JOBDIR [options]"

    def short_desc(self) -> str:
        return "Look at a job directory of scrapy-spider-suite, and act on it"

    def add_common_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "-j", "--jobdir", metavar="DIR|URL",
            help="the job (default: JOBDIR), or redis://HOST/0: all agents of a crawl",
        )  # fmt: skip
        base.add_crawl(parser)
        super().add_common_options(parser)

    def names(self) -> Iterable[str]:
        """Verbs that only read come first."""
        from scrapy_spider_suite.operate.verbs import all_verbs

        verbs = sorted(all_verbs().values(), key=lambda verb: verb.apply is not None)
        return [verb.name for verb in verbs if verb.listed]

    def find(self, name: str) -> JobVerb | None:
        from scrapy_spider_suite.operate.verbs import find_verb

        verb = find_verb(name)
        return verb if verb is not None and verb.listed else None

    def about(self) -> str:
        return _ABOUT

    def carry_out(self, verb: Verb, call: Invocation, words: list[str]) -> int:
        from scrapy_spider_suite.operate.executors.one_job import run_on_job
        from scrapy_spider_suite.operate.verb import JobVerb

        assert isinstance(verb, JobVerb)
        if call.redis is None:
            return run_on_job(verb, call)
        base.need_redis()
        from scrapy_spider_suite.operate.executors.all_agents import run_on_agents

        return run_on_agents(verb, call, words)

    def job_of(self, verb: Verb, opts: argparse.Namespace) -> str | None:
        job = self.jobdir(opts)
        if not job and verb.needs_job:
            raise UsageError("which job? give -j DIR, or set JOBDIR", print_help=False)
        return job
