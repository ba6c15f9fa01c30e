"""``scrapy fakeweb``: serves the in-vitro web. See :mod:`scrapy_spider_suite.testing`."""

from __future__ import annotations

import argparse

from scrapy.commands import ScrapyHelpFormatter

from scrapy_spider_suite.commands import base


class Command(base.Command):
    """Scrapy loads this at each start of any command, so everything else is imported late."""

    name = "fakeweb"

    def short_desc(self) -> str:
        """One line for the list of commands."""
        return "Serve a local web of many hosts, for tests and experiments"

    def long_desc(self) -> str:
        """A paragraph for ``scrapy fakeweb --help``."""
        from scrapy_spider_suite.testing.cli import ABOUT

        return ABOUT

    def syntax(self) -> str:
        """What follows the name of the command."""
        return "[options]"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add Scrapy's own options and those of the in-vitro web."""
        from scrapy_spider_suite.testing import cli

        super().add_options(parser)
        parser.allow_abbrev = False
        parser.formatter_class = _Formatter
        parser.epilog = cli.EXAMPLES
        cli.add_options(parser)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Serve until Ctrl-C, ``--seconds`` or the end of the parent."""
        from scrapy_spider_suite.testing import cli

        self.end(lambda: cli.run(opts, args))


class _Formatter(ScrapyHelpFormatter):
    """Scrapy's formatter, which leaves the lines of the examples alone."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        # What ends with a colon would be taken for a heading: "(default:" stays with its value.
        glue = "(default:\N{NO-BREAK SPACE}"
        lines = super()._split_lines(text.replace("(default: ", glue), width)
        return [line.replace(glue, "(default: ") for line in lines]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return text
        return super()._fill_text(text, width, indent)
