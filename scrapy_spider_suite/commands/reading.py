"""Looks at the job of an agent for somebody who asked through Redis: ``python -m`` this.

What is asked comes as JSON on standard input; what was found is printed as the verb prints it with
``--json``, lines of the fetch log as they are. The words are those of a stranger: only verbs that
look are known here, they go through the parser of the verb, and none of them may name a file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_spider_suite.commands.frontier import Command
from scrapy_spider_suite.commands.verb import Call
from scrapy_spider_suite.errors import SuiteError

_CALM: Final = 10
"""By so much the crawl comes first."""


class Asked(msgspec.Struct, frozen=True):
    """What is asked: *words* follow *verb*, then the path of a *list* of URLs, if there is one."""

    verb: str
    words: list[str]
    list: str | None
    folder: str


def _any(options: argparse.Namespace, asked: Asked) -> bool:
    return asked.list is None


def _only_counts(options: argparse.Namespace, asked: Asked) -> bool:
    return bool(options.dry_run) and asked.list is None


def _counts_list(options: argparse.Namespace, asked: Asked) -> bool:
    return bool(options.dry_run) and options.sources == [asked.list]


def _counts_again(options: argparse.Namespace, asked: Asked) -> bool:
    named = options.source == asked.list or not os.path.exists(options.source)
    return bool(options.dry_run) and named


def _tries_list(options: argparse.Namespace, asked: Asked) -> bool:
    return options.spider is None and options.source == [asked.list]


KNOWN: Final[dict[str, Callable[[argparse.Namespace, Asked], bool]]] = {
    "status": _any, "hosts": _any, "why": _any, "urls": _any, "log": _any, "report": _any,
    "blocks": _any, "audit": _any, "manifest": _any, "check": _any, "test": _tries_list,
    "add": _counts_list, "refetch": _counts_again, "retry": _only_counts, "block": _only_counts,
    "unblock": _only_counts, "drop": _only_counts,
}  # fmt: skip
"""Verb -> whether it only looks, with these options, and reads no file but the list."""


def call_of(asked: Asked) -> Callable[[], int]:
    """What does what is *asked*. Raises `UsageError`: nobody may ask that."""
    command = Command()
    verb = command.find(asked.verb) if asked.verb in KNOWN else None
    if verb is None:
        raise UsageError(f"nobody looks at {asked.verb[:80]!r} when asked through Redis")
    words = asked.words if asked.list is None else [*asked.words, "--", asked.list]
    if {"-h", "--help"} & set(words):
        raise UsageError(f"{verb.name}: there is no help from here")
    options = command.parser_of(verb).parse_args(words)
    if not KNOWN[verb.name](options, asked):
        raise UsageError(f"{verb.name}: that cannot be asked through Redis")
    jobdir = str(Path(asked.folder).parent)
    as_json = verb.name != "log"  # whose lines are for programs anyway
    return lambda: verb.run(Call(jobdir, as_json, Settings(), options))


def main() -> int:
    """Answer what standard input asks, and return the exit code."""
    os.nice(_CALM)
    try:
        return call_of(msgspec.json.decode(sys.stdin.buffer.read(), type=Asked))()
    except (SuiteError, UsageError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
