"""What an agent is asked by somebody who only looks: the words behind the verb, and lists."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from scrapy.exceptions import UsageError

from scrapy_spider_suite.operate.verb import Invocation
from scrapy_spider_suite.urls.url_lists import is_file_name, read_lines

REFUSED: Final = {
    "snapshot": "run it on the machine of each agent, with -j DIR",
    "upgrade": "run it on the machine of each agent, while that is stopped",
    "settings": "run it in the project, or with -j DIR on the machine of an agent",
}
"""Verb -> what to do instead of asking agents for it."""
_ADDED_UP: Final = (
    "statuses", "responsecode", "types", "mimetype", "domains", "degrees", "languages", "sizes",
    "anchors",
)  # fmt: skip


class Listed(NamedTuple):
    """A list of URLs that goes to the agents, and the words that do."""

    lines: Iterable[str]
    words: list[str]


def list_of(verb: str, call: Invocation) -> Listed | None:
    """The list that comes with *call*, if any does. Raises `UsageError`, `SettingsError`."""
    options = call.options
    if verb == "test":
        if options.spider is not None:
            raise UsageError("test: --spider goes by this project: leave -j out", print_help=False)
        lines = read_lines(options.source, "") if options.source else _standard_input()
        return Listed(lines, ["--depth", str(options.depth)])
    if verb == "add":
        return Listed(read_lines(options.sources, str(call.settings["USER_AGENT"])), ["--dry-run"])
    if verb == "refetch" and "://" not in options.source and os.path.isfile(options.source):
        return Listed(read_lines([options.source], ""), _again(call))
    return None


def words_of(verb: str, call: Invocation, words: list[str]) -> list[str]:
    """What the agents are asked, where the user has said *words*."""
    options = call.options
    if verb == "report":
        # What is added up of several agents is cut when it is.
        if options.name in _ADDED_UP or not options.limit:
            return [options.name]
        return [options.name, "--limit", str(options.limit)]
    if verb == "refetch":
        if "://" not in options.source and is_file_name(options.source):
            raise UsageError(f"{options.source!r} is no URL, and there is no such file",
                             print_help=False)  # fmt: skip
        return [*_again(call), "--", options.source]
    return words


def _again(call: Invocation) -> list[str]:
    return ["--dry-run", *["--first"] * bool(call.options.first)]


def _standard_input() -> Iterator[str]:
    return (line.decode("utf-8", "replace").rstrip("\r\n") for line in sys.stdin.buffer)
