"""``scrapy cluster``: the agents of a crawl, which meet in a Redis."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands import base

if TYPE_CHECKING:
    from scrapy_spider_suite.operate.verb import Verb

_ABOUT = """\
-j DIR is the --dir of an `up` that runs and was given no Redis.
The crawl is that of --crawl, else SUITE_CRAWL_NAME, else the only one in that Redis.
`scrapy frontier VERB -j redis://...|DIR` acts on a crawl: pause, block, add, ...

`scrapy cluster VERB --help` has the options of a verb, and examples.

Exit codes: 0 done, 1 the answer is no (see the verb), 2 wrong usage, or no such Redis, crawl or
agent, 3 no answer in time."""


class Command(base.VerbCommand):
    """See ``scrapy cluster --help``."""

    name = "cluster"
    arguments = "VERB [ARGUMENT...] [-j redis://HOST/0|DIR] [options]"
    summary = "Start, look at and end the agents of a crawl of scrapy-spider-suite"
    unusable = "no such Redis, crawl or agent"

    def add_common_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "-j", "--redis", dest="jobdir", metavar="URL|DIR",
            help="the Redis of the crawl (default: SUITE_REDIS_URL)",
        )  # fmt: skip
        base.add_crawl(parser)
        super().add_common_options(parser)

    def names(self) -> Iterable[str]:
        return self._verbs()

    def find(self, name: str) -> Verb | None:
        return self._verbs().get(name)

    def _verbs(self) -> dict[str, Verb]:
        base.need_redis()
        from scrapy_spider_suite.commands.cluster_arguments import VERBS

        return {verb.name: verb for verb in VERBS}

    def about(self) -> str:
        return _ABOUT

    def job_of(self, verb: Verb, opts: argparse.Namespace) -> str | None:
        from scrapy_spider_suite.cluster.local_redis import LocalRedis

        named = None if self.settings is None else self.settings.get("SUITE_REDIS_URL")
        job = opts.jobdir or named or None
        redis = None if verb.name == "up" else LocalRedis.find(job)
        if redis is None:
            return job
        if not redis.answers:
            raise UsageError(
                f"the crawl in {job} does not run: `scrapy cluster up` starts it", print_help=False
            )
        return redis.url
