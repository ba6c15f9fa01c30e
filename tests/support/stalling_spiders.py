"""Spiders that stand still, each in its own way, and what a project may put in their way."""

from __future__ import annotations

import asyncio
import re
import time

import scrapy
from scrapy.http import Response

from scrapy_spider_suite.spiders import BroadSpider


class Sleeper(BroadSpider):
    """Blocks the event loop."""

    name = "sleeper"

    def parse(self, response: Response) -> None:
        """Sleep."""
        time.sleep(600)


class Slow(BroadSpider):
    """Computes 0.3 s in each turn of the event loop, from the first page on."""

    name = "slow"
    computing = False

    def parse_page(self, response: Response) -> None:
        """Begin."""
        if not self.computing:
            self.computing = True
            self.compute()

    def compute(self) -> None:
        """Take a part of this turn, and of the next one."""
        time.sleep(0.3)
        asyncio.get_running_loop().call_soon(self.compute)


class Matcher(BroadSpider):
    """Keeps the interpreter's lock: a regular expression that takes for ever."""

    name = "matcher"

    def parse(self, response: Response) -> None:
        """Match."""
        re.match(r"(a+)+$", "a" * 64 + "b")


class Endless:
    """A downloader middleware that loses its requests, whatever their host."""

    async def process_request(self, request: scrapy.Request) -> None:
        """Wait for nothing."""
        await asyncio.get_running_loop().create_future()
