"""``scrapy seen`` is gone: an installation may still name it as an entry point of Scrapy."""

from __future__ import annotations

import argparse

from scrapy.exceptions import UsageError

from scrapy_spider_suite.commands import base


class Command(base.Command):
    """Refuses, with the commands to use instead."""

    name = "seen"

    def short_desc(self) -> str:
        """One line."""
        return "Gone: see `scrapy frontier check --repair` and `scrapy frontier why`"

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Refuse."""
        raise UsageError(self.short_desc(), print_help=False)
