"""``scrapy frontier``: look at a job directory, beside a running crawl too, and act on it.

Each verb is a module of `frontier_verbs` with options, help and examples of its own. Scrapy loads
this module at each start of any command, so those are imported when one of them is asked for.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError

if TYPE_CHECKING:
    from scrapy_spider_suite.commands.frontier_verbs.verb import Verb


class Command(ScrapyCommand):
    """See ``scrapy frontier --help``."""

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        """The arguments."""
        return "VERB [ARGUMENT...] -j JOBDIR [options]"

    def short_desc(self) -> str:
        """One line."""
        return "Look at a job directory of scrapy-spider-suite, and act on it"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare what every verb has; the rest is left for the parser of the verb."""
        super().add_options(parser)
        parser.allow_abbrev = False  # what is short for one of ours may be a verb's own
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        add_common_options(parser)
        # Only once the verb is known is it known whose help this is.
        parser.add_argument("-h", "--help", action="store_true", help="this, or that of a verb")
        self._parser = parser

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run one verb."""
        from scrapy_spider_suite.commands import frontier_verbs
        from scrapy_spider_suite.commands.frontier_verbs.verb import Call
        from scrapy_spider_suite.errors import SuiteError

        verb = frontier_verbs.find(args[0]) if args else None
        if verb is None:
            self._no_verb(opts)
            return
        parser = parser_of(verb)
        if opts.help:
            parser.print_help()
            return
        jobdir = opts.jobdir or (None if self.settings is None else self.settings["JOBDIR"])
        if not jobdir and verb.needs_job:
            raise UsageError("which job? give -j DIR, or set JOBDIR", print_help=False)
        call = Call(jobdir, opts.json, self.settings, parser.parse_args(args[1:]))
        try:
            self.exitcode = verb.run(call)
            sys.stdout.flush()
        except SuiteError as error:
            print(f"scrapy frontier: {error}", file=sys.stderr)
            self.exitcode = 2
        except BrokenPipeError:
            import os

            # Whoever read has read enough; Python would complain once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _no_verb(self, opts: argparse.Namespace) -> None:
        from scrapy_spider_suite.commands import frontier_verbs

        if not opts.help:
            expected = ", ".join(frontier_verbs.MODULES)
            raise UsageError(f"expected one of {expected}", print_help=False)
        self._parser.description = f"{self.short_desc()}.\n\n{frontier_verbs.overview()}"
        self._parser.print_help()


class _VerbParser(argparse.ArgumentParser):
    """What is wrong is said as Scrapy says it: in one line, and exit code 2."""

    def error(self, message: str) -> Any:
        raise UsageError(f"{self.prog}: {message}", print_help=False)


def parser_of(verb: Verb) -> argparse.ArgumentParser:
    """The parser of what follows *verb*."""
    parser = _VerbParser(
        prog=f"scrapy frontier {verb.name}",
        description=verb.description(),
        epilog=verb.epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # Shown here; the values have been taken by then.
    add_common_options(parser)
    verb.add_options(parser)
    return parser


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that mean the same for every verb."""
    parser.add_argument("-j", "--jobdir", metavar="DIR", help="the job (default: JOBDIR)")
    parser.add_argument("--json", action="store_true", help="print JSON, a value a line")
