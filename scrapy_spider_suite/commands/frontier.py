"""``scrapy frontier``: look at a job directory, beside a running crawl too, and add to it."""

from __future__ import annotations

import argparse
import sys
from typing import Any, ClassVar

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError

_VERBS = {
    "status": ("", "the job in figures"),
    "hosts": ("", "hosts, those with the longest queues first: length, next visit, why it waits"),
    "why": ("HOST", "why a host waits, and what comes next"),
    "urls": ("HOST", "the URLs of a host, their states and reasons"),
    "add": ("URL|FILE...", "URLs, host names, or files of them, for the running or the next crawl"),
    "check": ("", "whether everything in the job agrees; exit code 1 if not"),
    "settings": ("", "the settings of the suite, and those that the job was begun with"),
}


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
        return "Look at a job directory of scrapy-spider-suite, and add URLs to it"

    def long_desc(self) -> str:
        """The verbs, with examples."""
        verbs = "\n".join(
            f"  {f'{verb} {argument}'.strip():<18} {meaning}"
            for verb, (argument, meaning) in _VERBS.items()
        )
        return (
            f"{self.short_desc()}.\n\nVerbs:\n{verbs}\n\nExamples:\n"
            "  scrapy frontier status -j crawls/news\n"
            "  scrapy frontier hosts -j crawls/news --limit 50\n"
            "  scrapy frontier why example.com -j crawls/news\n"
            "  scrapy frontier urls example.com --state failed -j crawls/news --json\n"
            "  scrapy frontier add https://example.com/ seeds.txt -j crawls/news\n\n"
            "Exit codes: 0 done, 1 check found something wrong, 2 wrong usage or an unusable job."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        super().add_options(parser)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.add_argument("-j", "--jobdir", metavar="DIR", help="the job (default: JOBDIR)")
        parser.add_argument("--json", action="store_true", help="print JSON, a value a line")
        parser.add_argument(
            "--limit", type=_count, default=20, metavar="N",
            help="rows of hosts and urls (20; 0: all)",
        )  # fmt: skip
        parser.add_argument(
            "--state", choices=["pending", "done", "failed"], help="urls: only those in this state"
        )

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run one verb."""
        if not args or args[0] not in _VERBS:
            raise UsageError(f"expected one of {', '.join(_VERBS)}", print_help=False)
        from scrapy_spider_suite.commands import frontier_verbs
        from scrapy_spider_suite.errors import SuiteError

        jobdir = opts.jobdir or (None if self.settings is None else self.settings["JOBDIR"])
        if not jobdir and args[0] != "settings":
            raise UsageError("which job? give -j DIR, or set JOBDIR", print_help=False)
        options: dict[str, Any] = {
            "json": opts.json, "limit": opts.limit, "state": opts.state, "settings": self.settings,
        }  # fmt: skip
        try:
            self.exitcode = frontier_verbs.run(args[0], args[1:], jobdir, options)
            sys.stdout.flush()
        except SuiteError as error:
            print(f"scrapy frontier: {error}", file=sys.stderr)
            self.exitcode = 2
        except BrokenPipeError:
            import os

            # Whoever read has read enough; Python would complain once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _count(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number of rows, 0 for all")
