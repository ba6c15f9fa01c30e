"""What the commands have in common: the options, one line for what is wrong, verbs.

Scrapy loads this at each start of any command, so a verb is imported when it is asked for.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError

if TYPE_CHECKING:
    from scrapy_spider_suite.operate.verb import Invocation, Verb


class Command(ScrapyCommand):
    """A command that reads and prints, with or without a project, and logs nothing."""

    name: ClassVar[str]
    """What follows ``scrapy``."""
    faults: ClassVar[tuple[type[Exception], ...]] = ()
    """What is no fault of the suite either, beside a `SuiteError`."""
    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of all commands."""
        super().add_options(parser)
        parser.prog = f"scrapy {self.name}"

    def end(self, run: Callable[[], int]) -> None:
        """Exit with the code that *run* returns, or with 2 and a line if it cannot be done."""
        from scrapy_spider_suite.errors import SuiteError

        expected: tuple[type[Exception], ...] = (SuiteError, *self.faults)
        try:
            self.exitcode = run()
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read has read enough; Python would complain once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except expected as error:
            print(f"scrapy {self.name}: {error}", file=sys.stderr)
            self.exitcode = 2

    def jobdir(self, opts: argparse.Namespace) -> str | None:
        """The job directory that is meant, if any is."""
        return opts.jobdir or (None if self.settings is None else self.settings["JOBDIR"])


def add_job(parser: argparse.ArgumentParser) -> None:
    """Declare ``-j``."""
    parser.add_argument("-j", "--jobdir", metavar="DIR", help="the job (default: JOBDIR)")


def add_crawl(parser: argparse.ArgumentParser) -> None:
    """Declare ``--crawl``."""
    parser.add_argument(
        "--crawl", metavar="NAME",
        help="which crawl in that Redis (default: SUITE_CRAWL_NAME, or the only one there)",
    )  # fmt: skip


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON, a value a line")


def need_redis() -> None:
    """Raise `UsageError` if there is no client for Redis: it is an extra."""
    try:
        import_module("redis")
    except ImportError:
        raise UsageError(
            "-j redis://... (or SUITE_REDIS_URL) needs the package redis, which is not installed: "
            "pip install 'scrapy-spider-suite[redis]'", print_help=False,
        ) from None  # fmt: skip


class VerbCommand(Command):
    """A command of verbs, each with options, help and examples of its own.

    They are in the modules of *package*: its ``MODULES`` name for each verb the one whose
    ``VERBS`` has it, its ``ABOUT`` says what holds for all of them.
    """

    package: ClassVar[str]
    unusable: ClassVar[str]
    """What exit code 2 says of the data."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare what every verb has; the rest is left for the parser of the verb."""
        super().add_options(parser)
        parser.allow_abbrev = False  # what is short for one of ours may be a verb's own
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        self.add_common_options(parser)
        # Only once the verb is known is it known whose help this is.
        parser.add_argument("-h", "--help", action="store_true", help="this, or that of a verb")
        self._parser = parser

    def add_common_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options that mean the same for every verb."""
        add_json(parser)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run one verb."""
        from scrapy_spider_suite.operate.verb import Invocation

        verb = self.find(args[0]) if args else None
        if verb is None:
            self._no_verb(opts, args[0] if args else "")
            return
        parser = self.parser_of(verb)
        # Scrapy has its own parser say what is wrong: as the verb's would.
        self._parser.prog = parser.prog
        self._parser.usage = parser.format_usage().removeprefix("usage: ").replace("%", "%%")
        if opts.help:
            parser.print_help()
            return
        job = self.job_of(verb, opts)
        options = parser.parse_args(args[1:])
        call = Invocation(job, opts.json, self.settings, options, getattr(opts, "crawl", None))
        self.end(lambda: self.carry_out(verb, call, args[1:]))

    def carry_out(self, verb: Verb, call: Invocation, words: list[str]) -> int:
        """Do what *call* says, whose *words* follow *verb*; return the exit code."""
        assert verb.run is not None
        return verb.run(call)

    def job_of(self, verb: Verb, opts: argparse.Namespace) -> str | None:
        """The job directory that *verb* works on. Raises `UsageError`: it is not said."""
        return None

    def names(self) -> Iterable[str]:
        """The names of the verbs, in the order in which the help lists them."""
        modules: dict[str, str] = import_module(self.package).MODULES
        return modules

    def find(self, name: str) -> Verb | None:
        """The verb called *name*, or None."""
        module = import_module(self.package).MODULES.get(name)
        if module is None:
            return None
        verbs: tuple[Verb, ...] = import_module(f"{self.package}.{module}").VERBS
        return next(verb for verb in verbs if verb.name == name)

    def parser_of(self, verb: Verb) -> argparse.ArgumentParser:
        """The parser of what follows *verb*."""
        from scrapy_spider_suite.operate.verb import VerbParser

        parser = VerbParser(
            prog=f"scrapy {self.name} {verb.name}",
            description=verb.description(),
            epilog=verb.epilog(self.name, self.unusable),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        # Shown here; the values have been taken by then.
        self.add_common_options(parser)
        verb.add_options(parser)
        return parser

    def _no_verb(self, opts: argparse.Namespace, word: str) -> None:
        if not opts.help:
            near = difflib.get_close_matches(word, self.names(), n=1)
            what = f"{word!r} is no verb; did you mean {near[0]}?" if near else (
                f"expected one of {', '.join(self.names())}"
            )
            raise UsageError(what, print_help=False)
        self._parser.description = f"{self.short_desc()}.\n\n{self._overview()}"
        self._parser.print_help()

    def _overview(self) -> str:
        verbs = [verb for name in self.names() if (verb := self.find(name)) is not None]
        lines = [f"  {f'{v.name} {v.arguments}'.strip():<29} {v.summary}" for v in verbs]
        return "\n".join(["Verbs:", *lines, "", self.about()])

    def about(self) -> str:
        """What holds for all verbs: the end of the command's help."""
        about: str = import_module(self.package).ABOUT
        return about
