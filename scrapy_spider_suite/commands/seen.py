"""``scrapy seen``: look into a store of seen URLs, beside the crawl that fills it, too.

Scrapy loads this at each start of any command, so everything else is imported late.
"""

from __future__ import annotations

import argparse

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands import base

_ABOUT = """\
Look into a store of seen URLs, beside the crawl that fills it, too.

Verbs:
  stats          how many URLs there are, and what they take
  get URL        the id of a URL; exit code 1 if it was not seen
  id NUMBER      the URL of an id; exit code 1 if there is none
  ls [PREFIX]    URLs that begin with PREFIX, in no order; quick if a whole host is in it
                 (of a sieve neither: it holds fingerprints, and no URLs)
  check          read everything: is it as it was written? exit code 1 if not
"""
_EXAMPLES = """\
Examples:
  scrapy seen stats -j crawls/news
  scrapy seen crawls/news/seen-trie stats --json
  scrapy seen get https://example.com/a -j crawls/news
  scrapy seen ls https://example.com/ -j crawls/news --limit 0
  scrapy seen check -j crawls/news
  scrapy seen check -j crawls/news --repair

A crawl under suite/ keeps what it found last in its own database, which is not looked into.

Exit codes: 0 done, 1 the answer is no (see the verb), 2 wrong usage or an unusable store.
"""


class Command(base.Command):
    """See ``scrapy seen --help``."""

    name = "seen"

    def syntax(self) -> str:
        """The arguments."""
        return "[FOLDER] VERB [ARGUMENT] [-j JOBDIR] [options]"

    def short_desc(self) -> str:
        """One line."""
        return "Look into a store of seen URLs of scrapy-spider-suite"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options, which are those of all verbs."""
        from scrapy_spider_suite.operate.verb import row_limit as count

        super().add_options(parser)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.description, parser.epilog = _ABOUT, _EXAMPLES
        base.add_job(parser)
        base.add_json(parser)
        parser.add_argument(
            "--limit", type=count, default=20, metavar="N", help="URLs that ls prints (20; 0: all)"
        )
        parser.add_argument(
            "--repair", action="store_true",
            help="check: mend what can be; the URLs of a trie that is damaged are forgotten",
        )  # fmt: skip

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run one verb."""
        from scrapy_spider_suite.commands import seen_verbs

        folder, verb, argument = parsed(args, list(seen_verbs.VERBS))
        jobdir = self.jobdir(opts)
        if folder is None and not jobdir:
            raise UsageError("which store? give its FOLDER, or -j DIR", print_help=False)
        self.end(
            lambda: seen_verbs.VERBS[verb](seen_verbs.folder_of(folder, jobdir), argument, opts)
        )


def parsed(args: list[str], verbs: list[str]) -> tuple[str | None, str, str]:
    """Folder, verb and argument. Raises UsageError."""
    folder = None
    rest = list(args)
    if rest and rest[0] not in verbs:
        folder = rest.pop(0)
    if not rest or rest[0] not in verbs:
        raise UsageError(f"expected one of {', '.join(verbs)}", print_help=False)
    verb, *arguments = rest
    wanted = verb in ("get", "id")
    if len(arguments) > (wanted or verb == "ls") or len(arguments) < wanted:
        raise UsageError(f"{verb}: expected {1 if wanted else 'no'} argument", print_help=False)
    return folder, verb, arguments[0] if arguments else ""
