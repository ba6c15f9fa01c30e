"""What a verb is, and the options and output that verbs share."""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
from scrapy.exceptions import UsageError

from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.runtime.text import printable
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.urls.normalize import host_of, normalize

Row = dict[str, Any]

_TIME_FIELDS = ("begun", "ended", "next_due", "last_heard", "started", "when")
"""What is seconds since the epoch in JSON, and a date for people."""


REDIS = ("redis://", "rediss://", "unix://")
"""What ``-j`` begins with if it names no directory."""

_MORE = re.compile(r"[/\\?#@]|\]:|^[^:]*:[^:]*$")
"""What a URL has beside its host; of IPv6 there are more colons."""
_WITH_PORT = re.compile(r"(\[[^\]]+\]|[^][:/]+):\d{1,5}")
"""A host and its port; a bare IPv6 address has more colons."""


def display_text(name: str, value: Any) -> str:
    """Return the value of the field *name* as people read it, on a line; nothing is ``-``."""
    if value is None:
        return "-"
    if name in _TIME_FIELDS and isinstance(value, int | float):
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
    return printable(str(value))


@dataclass(frozen=True)
class Invocation:
    """One call of a verb: the options of all verbs, and in *options* its own."""

    jobdir: str | None
    json: bool
    settings: Any
    """Scrapy's settings, with those of the project and ``-s``."""
    options: argparse.Namespace
    crawl: str | None = None
    """The name of the crawl that ``--crawl`` gives."""

    @property
    def redis(self) -> str | None:
        """The URL of the Redis where the agents of the crawl meet, if that is what ``-j`` names."""
        return self.jobdir if self.jobdir and self.jobdir.startswith(REDIS) else None

    def folder(self) -> Path:
        """The ``suite`` folder of the job. Raises `JobError` if there is no job."""
        from scrapy_spider_suite.errors import JobError
        from scrapy_spider_suite.store.job_directory import FOLDER, JobFile

        folder = Path(str(self.jobdir)) / FOLDER
        if JobFile.read(folder) is None:
            raise JobError(f"{self.jobdir} holds no job of scrapy-spider-suite")
        return folder

    def table(self, rows: Iterable[Row], columns: tuple[str, ...]) -> None:
        """Print *rows*: as JSON a line each, else the *columns* of them."""
        if self.json:
            for row in rows:
                print(json.dumps(row))
            return
        table = [[display_text(c, row.get(c)) for c in columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(columns, *table, strict=True)]
        for line in ([c.replace("_", " ") for c in columns], *table):
            cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
            print("  ".join(cells).rstrip())

    def facts(self, row: Row) -> None:
        """Print one *row*: as JSON, else a line for each of its values."""
        if self.json:
            print(json.dumps(row))
            return
        for key, value in row.items():
            several = isinstance(value, list)
            lines = [printable(str(v)) for v in value] if several else [display_text(key, value)]
            text = f"\n{'':<18} ".join(lines) or "-"
            print(f"{key.replace('_', ' '):<18} {text}")


def _nothing(parser: argparse.ArgumentParser) -> None:
    """The verb has neither arguments nor options."""


@dataclass(frozen=True)
class Verb:
    """One verb: *run* does it and returns the exit code; it may raise `SuiteError`s."""

    name: str
    summary: str
    """What it does, without a full stop, for the list of verbs."""
    run: Callable[[Invocation], int]
    add_options: Callable[[argparse.ArgumentParser], None] = _nothing
    arguments: str = ""
    """As they are written, such as ``HOST``; for the list of verbs."""
    about: str = ""
    """What else has to be known of it: a paragraph or a few, at most 99 columns wide."""
    examples: tuple[str, ...] = ()
    """Whole command lines without ``scrapy`` and the name of the command."""
    exits: Mapping[int, str] = field(default_factory=dict)
    """Exit codes beside 0 (done) and 2 (wrong usage, or nothing to work on)."""
    needs_job: bool = True
    """Of ``scrapy frontier``: it is about the job that ``-j`` names."""

    def description(self) -> str:
        """The head of its help."""
        summary = f"{self.summary[:1].upper()}{self.summary[1:]}."
        return f"{summary}\n\n{self.about}" if self.about else summary

    def epilog(self, command: str, unusable: str) -> str:
        """The end of its help: examples and exit codes; *unusable*: what 2 says of the data."""
        exits = {0: "done", **self.exits, 2: f"wrong usage or {unusable}"}
        codes = ", ".join(f"{code} {meaning}" for code, meaning in sorted(exits.items()))
        lines = [f"  scrapy {command} {example}" for example in self.examples]
        examples = "\n".join(["Examples:", *lines, "", ""]) if lines else ""
        return examples + textwrap.fill(f"Exit codes: {codes}.", 88)


def row_limit(text: str) -> int:
    """The type of ``--limit``. Raises `argparse.ArgumentTypeError`."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number of rows, 0 for all")


def add_limit(parser: argparse.ArgumentParser) -> None:
    """Declare ``--limit``, the number of rows."""
    parser.add_argument(
        "--limit", type=row_limit, default=20, metavar="N", help="rows to print (20; 0: all)"
    )


def add_caution(parser: argparse.ArgumentParser, *, asks: bool = False) -> None:
    """Declare ``--dry-run`` and ``--yes``, which all verbs take that destroy or change much.

    Only those that *ask* ask whether it is meant: what they do cannot be taken back.
    """
    parser.add_argument("--dry-run", action="store_true", help="only count what it would change")
    parser.add_argument(
        "--yes", action="store_true",
        help="do not ask for confirmation" if asks else "no effect: this verb never asks",
    )  # fmt: skip


def confirm(call: Invocation, question: str) -> None:
    """Ask whether what destroys is meant, unless ``--yes`` says so. Raises `UsageError`."""
    if call.options.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this cannot be undone: give --yes, or --dry-run", print_help=False)
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was done", print_help=False)


def without_port(text: str) -> str:
    """*text*, or the host alone where it is a host with a port: a host is one, whatever its ports.
    """
    found = _WITH_PORT.fullmatch(text)
    return text if found is None else found[1]


def host_argument(text: str) -> str:
    """The type of a HOST argument: as URLs in normal form have it, an IPv6 address in the brackets
    that it came in, or in none. ``*.`` may begin it; a port is left out.

    Raises `argparse.ArgumentTypeError`: nothing that a URL could have as its host, or more of one.
    """
    text = without_port(text)
    if _MORE.search(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a host, without scheme or path")
    bare = ":" in text and not text.startswith("[")
    url = normalize(f"http://[{text}]/" if bare else f"http://{text}/")
    name = "" if url is None else host_of(url)
    if not any(map(str.isalnum, name)):  # "*" could be one, and names none
        raise argparse.ArgumentTypeError(f"{text!r}: expected a host")
    return name[1:-1] if bare else name


class ActionProgress:
    """The last *host* and *url* that were dealt with, a position *at* in a file, and counts."""

    def __init__(self, kv: KV, id: str) -> None:
        self._kv = kv
        self._key = b"progress " + id.encode()
        data = kv.get(self._key)
        self.host, self.url, self.at, self.counts = "", b"", 0, dict[str, int]()
        if data is not None:
            self.host, self.url, self.at, self.counts = msgpack.unpackb(data)

    def count(self, name: str, number: int = 1) -> None:
        """Count *number* more."""
        self.counts[name] = self.counts.get(name, 0) + number

    def save(self) -> None:
        """Put it into the next batch, with what was done up to here."""
        self._kv.put(self._key, msgpack.packb([self.host, self.url, self.at, self.counts]))

    def forget(self) -> None:
        """The action is over."""
        self._kv.delete(self._key)


def in_a_thread(work: Callable[[], None], wait: float) -> Generator[Any, None, None]:
    """Do *work*, looking every *wait* seconds for whether it is over."""
    worker = Thread(target=work, daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(wait)
        yield WAITING


Result = tuple[str, dict[str, Any]]


Work = Generator[Any, None, Result]
"""Yields nothing, or `WAITING`."""


Apply = Callable[[JobTarget, Action], Result | Work]


PORTION = 0.015
"""Seconds for which a crawl may be kept from its work at a time."""


WAITING: Final = True
"""What a verb yields that has nothing to do before something else has happened."""
