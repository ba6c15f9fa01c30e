"""Looks at the job of an agent for somebody who asked through Redis, in a helper process.

What is asked comes as a line of JSON on standard input, what was found goes as one to standard
output: what the verb prints with ``--json``, or lines of the fetch log as they are. The words are
those of a stranger: only verbs that look are known here, they go through the parser of the verb,
and none of them may name a file.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

import msgspec
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_spider_suite.commands.frontier import Command
from scrapy_spider_suite.errors import SuiteError
from scrapy_spider_suite.operate.executors.call_executor import OUT, LookResult
from scrapy_spider_suite.operate.verb import Invocation

_CALM: Final = 5
"""By so much the crawl comes first."""


class Asked(msgspec.Struct, frozen=True):
    """What is asked: *words* follow *verb*, then the path of a list of *urls*, if there is one."""

    verb: str
    words: list[str]
    urls: str | None
    folder: str


def _any(options: argparse.Namespace, asked: Asked) -> bool:
    return asked.urls is None


def _only_counts(options: argparse.Namespace, asked: Asked) -> bool:
    return bool(options.dry_run) and asked.urls is None


def _counts_list(options: argparse.Namespace, asked: Asked) -> bool:
    return bool(options.dry_run) and options.sources == [asked.urls]


def _counts_again(options: argparse.Namespace, asked: Asked) -> bool:
    named = options.source == asked.urls or not os.path.exists(options.source)
    return bool(options.dry_run) and named


def _tries_list(options: argparse.Namespace, asked: Asked) -> bool:
    return options.spider is None and options.source == [asked.urls]


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
    words = asked.words if asked.urls is None else [*asked.words, "--", asked.urls]
    options = command.parser_of(verb).parse_args(words)
    if not KNOWN[verb.name](options, asked):
        raise UsageError(f"{verb.name}: that cannot be asked through Redis")
    jobdir = str(Path(asked.folder).parent)
    as_json = verb.name != "log"  # whose lines are for programs anyway
    return lambda: verb.run(Invocation(jobdir, as_json, Settings(), options))


class _Cut(io.StringIO):
    """What is printed, as far as it is handed on."""

    def write(self, text: str) -> int:
        if self.tell() + len(text) > OUT:
            raise _EnoughError
        return super().write(text)


class _EnoughError(Exception):
    """There is more than is handed on."""


def answer(line: bytes) -> LookResult:
    """What there is to say to what *line* asks."""
    out, err, code, cut = _Cut(), io.StringIO(), 2, False
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = call_of(msgspec.json.decode(line, type=Asked))()
        except _EnoughError:
            code, cut = 0, True
        except (SuiteError, UsageError, OSError) as error:
            print(error, file=err)
        except SystemExit:
            print("there is no help from here", file=err)
        except Exception as error:  # the next one may be answered
            print(f"it failed: {error!r}", file=err)
    lines = out.getvalue().split("\n")
    return LookResult(code, lines[:-1], err.getvalue(), cut)


def main(arguments: list[str]) -> int:
    """Answer what standard input asks, line by line, until there is nothing more."""
    os.nice(_CALM)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(answer(line)) + b"\n")
        sys.stdout.buffer.flush()
    return 0
