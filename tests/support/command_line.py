"""Scrapy's command line for tests: its parser, and a command of the suite as a process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from scrapy.commands import ScrapyCommand
from scrapy.settings import Settings

C = TypeVar("C", bound=ScrapyCommand)

_RUN = """
import sys
from scrapy import cmdline
from scrapy_spider_suite.commands.{0} import Command
commands = cmdline._get_commands_dict
cmdline._get_commands_dict = lambda *a, **k: commands(*a, **k) | {{"{0}": Command()}}
cmdline.execute(["scrapy", "{0}", *sys.argv[1:]])
"""


def script_of(name: str) -> str:
    """A script that is ``scrapy NAME``, whether or not the entry point is installed."""
    return _RUN.format(name)


def process_of(name: str) -> list[str]:
    """How that is started."""
    return [sys.executable, "-c", script_of(name)]


def parsed(
    command: C, arguments: Sequence[object], settings: dict[str, Any] | None = None
) -> tuple[C, argparse.Namespace, list[str]]:
    """*command*, its options, and what is left for its `run`."""
    command.settings = Settings(settings)
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    command.add_options(parser)
    options, left = parser.parse_known_args(list(map(str, arguments)))
    return command, options, left
