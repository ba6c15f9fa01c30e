"""``scrapy packs``: pages in packs, looked at, taken out and removed, beside a running crawl too.

Each verb is in a module of `packs_verbs`; Scrapy loads this one at each start of any command, so
those are imported when one of them is asked for.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError

if TYPE_CHECKING:
    from scrapy_spider_suite.commands.packs_verbs.verb import Verb


class Command(ScrapyCommand):
    """See ``scrapy packs --help``."""

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        """The arguments."""
        return "VERB [ARGUMENT...] [PATH...] [options]"

    def short_desc(self) -> str:
        """One line."""
        return "Look into packs of pages of scrapy-spider-suite, take pages out, remove some"

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
        from scrapy_spider_suite.commands import packs_verbs
        from scrapy_spider_suite.commands.frontier_verbs.verb import Call
        from scrapy_spider_suite.errors import SuiteError

        verb = packs_verbs.find(args[0]) if args else None
        if verb is None:
            self._no_verb(opts)
            return
        parser = parser_of(verb)
        if opts.help:
            parser.print_help()
            return
        call = Call(None, opts.json, self.settings, parser.parse_args(args[1:]))
        try:
            self.exitcode = verb.run(call)
            sys.stdout.flush()
        except BrokenPipeError:
            import os

            # Whoever read has read enough; Python would complain once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (SuiteError, OSError) as error:
            print(f"scrapy packs: {error}", file=sys.stderr)
            self.exitcode = 2

    def _no_verb(self, opts: argparse.Namespace) -> None:
        from scrapy_spider_suite.commands import packs_verbs

        if not opts.help:
            expected = ", ".join(packs_verbs.MODULES)
            raise UsageError(f"expected one of {expected}", print_help=False)
        self._parser.description = f"{self.short_desc()}.\n\n{packs_verbs.overview()}"
        self._parser.print_help()


class _VerbParser(argparse.ArgumentParser):
    """What is wrong is said as Scrapy says it: in one line, and exit code 2."""

    def error(self, message: str) -> Any:
        raise UsageError(f"{self.prog}: {message}", print_help=False)


def parser_of(verb: Verb) -> argparse.ArgumentParser:
    """The parser of what follows *verb*."""
    parser = _VerbParser(
        prog=f"scrapy packs {verb.name}",
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
    """Declare the option that means the same for every verb."""
    parser.add_argument("--json", action="store_true", help="print JSON, a value a line")
