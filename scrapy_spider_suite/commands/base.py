"""Options, errors and verbs of the commands; Scrapy always loads this, so verbs come late."""

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

    name: ClassVar[str]  # what follows ``scrapy``
    arguments: ClassVar[str]  # what follows the name, in the usage
    summary: ClassVar[str]
    faults: ClassVar[tuple[type[Exception], ...]] = ()  # expected exceptions beside `SuiteError`
    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        return self.arguments

    def short_desc(self) -> str:
        return self.summary

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.prog = f"scrapy {self.name}"

    def exit_with(self, run: Callable[[], int]) -> None:
        """Exit with the code of *run*, or with one line and 2 for an expected exception."""
        from scrapy_spider_suite.errors import SuiteError

        expected: tuple[type[Exception], ...] = (SuiteError, *self.faults)
        try:
            self.exitcode = run()
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the pipe; Python would complain once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except expected as error:
            print(f"scrapy {self.name}: {error}", file=sys.stderr)
            self.exitcode = 2


def add_crawl(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--crawl", metavar="NAME",
        help="which crawl in that Redis (default: SUITE_CRAWL_NAME, or the only one there)",
    )  # fmt: skip


def need_redis() -> None:
    """Raise `UsageError` if the client for Redis, an extra, is not installed."""
    try:
        import_module("redis")
    except ImportError:
        raise UsageError(
            "agents of one crawl need the package redis, which is not installed: "
            "pip install 'scrapy-spider-suite[cluster]'", print_help=False,
        ) from None  # fmt: skip


class VerbCommand(Command):
    """A command of verbs, each with options, help and examples of its own.

    ``MODULES`` of *package* names for each verb the module whose ``VERBS`` has it. ``ABOUT`` is
    the end of the command's help.
    """

    faults = (OSError,)
    package: ClassVar[str]
    unusable: ClassVar[str]  # the second meaning of exit code 2

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.allow_abbrev = False  # an abbreviation may be an option of the verb
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        self.add_common_options(parser)
        parser.add_argument("-h", "--help", action="store_true", help="this, or that of a verb")
        self._parser = parser

    def add_common_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON, a value a line")

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        from scrapy_spider_suite.operate.verb import Invocation

        verb = self.find(args[0]) if args else None
        if verb is None:
            self._no_verb(opts, args[0] if args else "")
            return
        parser = self.parser_of(verb)
        # Scrapy's own parser prints errors, in the words of the verb's parser.
        self._parser.prog = parser.prog
        self._parser.usage = parser.format_usage().removeprefix("usage: ").replace("%", "%%")
        if opts.help:
            parser.print_help()
            return
        job = self.job_of(verb, opts)
        options = parser.parse_intermixed_args(args[1:])
        call = Invocation(job, opts.json, self.settings, options, getattr(opts, "crawl", None))
        self.exit_with(lambda: self.carry_out(verb, call, args[1:]))

    def carry_out(self, verb: Verb, call: Invocation, words: list[str]) -> int:
        """Run *verb*, which *words* follow on the command line; return the exit code."""
        assert verb.run is not None
        return verb.run(call) or 0

    def job_of(self, verb: Verb, opts: argparse.Namespace) -> str | None:
        """The job directory for *verb*. Raises `UsageError`."""
        return None

    def names(self) -> Iterable[str]:
        modules: dict[str, str] = import_module(self.package).MODULES
        return modules

    def find(self, name: str) -> Verb | None:
        module = import_module(self.package).MODULES.get(name)
        if module is None:
            return None
        verbs: tuple[Verb, ...] = import_module(f"{self.package}.{module}").VERBS
        return next(verb for verb in verbs if verb.name == name)

    def parser_of(self, verb: Verb) -> argparse.ArgumentParser:
        from scrapy_spider_suite.operate.verb import VerbParser

        parser = VerbParser(
            prog=f"scrapy {self.name} {verb.name}",
            description=verb.description(),
            epilog=verb.epilog(self.name, self.unusable),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        # For the help: the values were read before.
        self.add_common_options(parser)
        verb.declare(parser)
        return parser

    def _no_verb(self, opts: argparse.Namespace, word: str) -> None:
        if not opts.help:
            near = difflib.get_close_matches(word, self.names(), n=1)
            what = f"{word!r} is no verb; did you mean {near[0]}?" if near else (
                f"expected one of {', '.join(self.names())}"
            )
            raise UsageError(what, print_help=False)
        verbs = [verb for name in self.names() if (verb := self.find(name)) is not None]
        lines = [f"  {f'{v.name} {v.arguments}'.strip():<29} {v.summary}" for v in verbs]
        overview = "\n".join(["Verbs:", *lines, "", self.about()])
        self._parser.description = f"{self.short_desc()}.\n\n{overview}"
        self._parser.print_help()

    def about(self) -> str:
        about: str = import_module(self.package).ABOUT
        return about
