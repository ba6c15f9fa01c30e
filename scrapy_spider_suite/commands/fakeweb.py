"""``scrapy fakeweb``: serves the in-vitro web. See :mod:`scrapy_spider_suite.testing`."""

from __future__ import annotations

import argparse

from scrapy_spider_suite.commands import base


class Command(base.Command):
    """Scrapy loads this at each start of any command, so everything else is imported late."""

    name = "fakeweb"
    arguments = "[options]"
    summary = "Serve a local web of many hosts, for tests and experiments"

    def long_desc(self) -> str:
        from scrapy_spider_suite.testing.cli import ABOUT

        return ABOUT

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        from scrapy_spider_suite.testing import cli

        super().add_options(parser)
        parser.allow_abbrev = False
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = cli.EXAMPLES
        cli.add_options(parser)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Serve until Ctrl-C, ``--seconds`` or the end of the parent."""
        from scrapy_spider_suite.testing import cli

        self.exit_with(lambda: cli.run(opts, args))
