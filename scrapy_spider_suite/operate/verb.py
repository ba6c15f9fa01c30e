"""Verbs, and the options and output that they share."""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgpack  # type: ignore[import-untyped]
from scrapy.exceptions import UsageError

from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.operate.actions import Action, Answer
from scrapy_spider_suite.runtime.text import printable
from scrapy_spider_suite.settings.values import REDIS_SCHEMES, ValueType, duration, integer
from scrapy_spider_suite.urls.normalize import host_of, normalize

if TYPE_CHECKING:
    from scrapy_spider_suite.operate.job_target import JobTarget
    from scrapy_spider_suite.store.interface import KV

Row = dict[str, Any]
T = TypeVar("T")

_TIME_FIELDS = ("begun", "ended", "next_due", "last_heard", "started", "when")
"""Seconds since the epoch in JSON, a date in a table."""


_MORE = re.compile(r"[/\\?#@]|\]:|^[^:]*:[^:]*$")
"""Parts of a URL beside its host."""
_FIRST = 10  # URLs that are shown
_WITH_PORT = re.compile(r"(\[[^\]]+\]|[^][:/]+):\d{1,5}")
"""A host and its port; a bare IPv6 address has more colons."""


Result = tuple[str, dict[str, Any]]  # the message of an action, and its facts
Work = Generator[Any, None, Result]  # a long action: yields None between portions, or `WAITING`
Apply: TypeAlias = "Callable[[JobTarget, Action], Result | Work]"
Option = Callable[[Any], object]  # declares itself to a parser
AskJob = Callable[..., Answer | None]  # `executors.one_job.ask_job`
PORTION = 0.015  # seconds that a portion may delay a crawl
WAITING: Final = True  # yielded by a verb that waits for another thread or process

ACT_EXITS = {
    1: "the answer is no: nothing was changed",
    3: "no answer in time: it stays asked, and is carried out later",
}
"""Exit codes of the verbs that change a job."""


class AnswerIsNoError(Exception):
    """A look whose answer is no: it is printed, and the exit code is 1."""


def display_text(name: str, value: Any) -> str:
    """Return *value* as one line of text; None is ``-``."""
    if value is None:
        return "-"
    if name in _TIME_FIELDS and isinstance(value, int | float):
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
    return printable(str(value))


@dataclass(frozen=True)
class Invocation:
    """One call of a verb; *options* are those of the verb alone."""

    jobdir: str | None
    json: bool
    settings: Any  # Scrapy's settings, with those of the project and ``-s``
    options: argparse.Namespace
    crawl: str | None = None

    @property
    def redis(self) -> str | None:
        """The URL of the agents' Redis, if ``-j`` names one."""
        return self.jobdir if self.jobdir and self.jobdir.startswith(REDIS_SCHEMES) else None

    def folder(self) -> Path:
        """The ``suite`` folder of the job. Raises `JobError` if there is no job."""
        # The verbs of packs do without the database.
        from scrapy_spider_suite.store.job_directory import FOLDER, JobFile

        folder = Path(str(self.jobdir)) / FOLDER
        JobFile.require(folder)
        return folder

    def table(
        self, rows: Iterable[Row], columns: tuple[str, ...], *, spell: bool = True
    ) -> None:  # fmt: skip
        """Print *rows*: as JSON a line each, else the *columns* of them.

        *spell*: titles have spaces for underscores.
        """
        if self.json:
            for row in rows:
                print(json.dumps(row))
            return
        table = [[display_text(c, row.get(c)) for c in columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(columns, *table, strict=True)]
        titles = [c.replace("_", " ") if spell else c for c in columns]
        for line in (titles, *table):
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


@dataclass(frozen=True)
class Verb:
    name: str
    summary: str  # for the list of verbs, without a full stop
    run: Callable[[Invocation], int | None] | None = None
    """Returns the exit code; a `JobVerb` may have none, or None is returned: its parts do it.
    Raises `SuiteError`s.
    """
    options: tuple[Option, ...] = ()
    arguments: str = ""  # such as ``HOST``; for the list of verbs
    about: str = ""  # a paragraph or a few of help, at most 99 columns wide
    examples: tuple[str, ...] = ()  # command lines without ``scrapy`` and the name of the command
    exits: Mapping[int, str] = field(default_factory=dict)  # exit codes other than 0 and 2
    needs_job: bool = True

    def declare(self, parser: argparse.ArgumentParser) -> None:
        for each in self.options:
            each(parser)

    def description(self) -> str:
        summary = f"{self.summary[:1].upper()}{self.summary[1:]}."
        return f"{summary}\n\n{self.about}" if self.about else summary

    def exit_meanings(self) -> Mapping[int, str]:
        return self.exits

    def epilog(self, command: str, unusable: str) -> str:
        """The end of its help; *unusable* is the second meaning of exit code 2."""
        exits = {0: "done", **self.exit_meanings(), 2: f"wrong usage or {unusable}"}
        codes = ", ".join(f"{code} {meaning}" for code, meaning in sorted(exits.items()))
        lines = [f"  scrapy {command} {example}" for example in self.examples]
        examples = "\n".join(["Examples:", *lines, "", ""]) if lines else ""
        return examples + textwrap.fill(f"Exit codes: {codes}.", 88)


@dataclass(frozen=True)
class Question:
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the action
    lines: Iterable[str] | None = None  # a list of URLs that goes with it
    words: tuple[str, ...] | None = None
    """The command line by which an agent looks; None: the words of the user."""
    future_job: str = ""
    """Printed where no job is yet: the crawl that begins one does it. "": that is refused."""
    by_owner: bool = False  # the URLs may be new: each goes to its owner, not to its holder


@dataclass(frozen=True)
class Found:
    """The result of a look: rows, or lines of text, by the agent's name; of one job it is ""."""

    by_agent: Mapping[str, Iterable[Any]]

    @property
    def one_job(self) -> bool:
        return "" in self.by_agent

    def rows(self) -> Iterator[Row]:
        """All rows; rows of agents begin with the name."""
        for name, rows in self.by_agent.items():
            for row in rows:
                if isinstance(row, dict):
                    yield {"agent": name, **row} if name else row

    def names(self, agents: list[str]) -> str:
        """The names of *agents* as people read them."""
        return "all" if len(agents) == len(self.by_agent) else ", ".join(agents)

    def columns(self, *names: str) -> tuple[str, ...]:
        """The columns *names*, after that of the agent if agents were asked."""
        return names if self.one_job else ("agent", *names)


def show_counts(call: Invocation, found: Found) -> int:
    """Print the counts of ``--dry-run``."""
    by_agent = {name: list(rows) for name, rows in found.by_agent.items()}
    if found.one_job:
        [row] = by_agent[""]
        call.facts(row if call.json else _flat(row))
        return 0
    facts: Row = {"dry_run": True, "urls": 0}
    facts |= add_up(row for rows in by_agent.values() for row in rows)
    first = facts.pop("first", [])[:_FIRST]
    if call.json:
        agents = {name: rows[0] for name, rows in by_agent.items() if rows}
        call.facts({**facts, "first": first, "agents": agents})
    else:
        call.facts({**_flat(facts), "first": first})
    return 0


def _flat(facts: Row) -> Row:
    flat: Row = {}
    for name, value in facts.items():
        flat |= value if name == "by_reason" else {name: value}
    return flat


def add_up(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add numbers up, join lists; keep other values only where all are equal."""
    sums: dict[str, Any] = {}
    for facts in found:
        for name, value in facts.items():
            if name not in sums:
                sums[name] = value
            elif _is_number(value) and _is_number(sums[name]):
                sums[name] = sums[name] + value
            elif isinstance(value, list) and isinstance(sums[name], list):
                sums[name] = [*sums[name], *(each for each in value if each not in sums[name])]
            elif isinstance(value, dict) and isinstance(sums[name], dict):
                sums[name] = add_up([sums[name], value])
            elif value != sums[name]:
                sums[name] = None
    return {name: value for name, value in sums.items() if value is not None}


def as_number(value: object) -> float:
    return value if isinstance(value, int | float) else 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def say_answer(call: Invocation, answer: Answer) -> int:
    print_answer(call, answer)
    return print_silence(answer) or (0 if answer.ok else 1)


@dataclass(frozen=True)
class JobVerb(Verb):
    """A verb about a job: at rest, in a running crawl, or of all agents. Its module is its place.

    `plan` reads the command line and asks the user; `look` reads the job, also beside a running
    crawl; `apply` changes it, in portions; `show` and `say` print rows and answers. A verb with
    both looks with ``--dry-run``.
    """

    plan: Callable[[Invocation], Question] = lambda call: Question()
    look: Callable[[Invocation, Question], Iterable[Any]] | None = None
    apply: Apply | None = None
    show: Callable[[Invocation, Found], int] = show_counts
    say: Callable[[Invocation, Answer], int] = say_answer
    run_with: Callable[[Invocation, AskJob], int] | None = None
    """Runs in place of `plan` to `say`: needs the answer before its end."""
    urgent: bool = False  # read before other actions
    stands: str = ""
    """Later agents obey it too; it replaces the last call with this word and subject."""
    ends_standing: bool = False  # removes the standing call once all agents have done it
    of_one_host: bool = False  # most agents do not know its host
    not_remote: str = ""  # advice where agents cannot be asked through Redis; "": they can
    reads_only: Callable[[argparse.Namespace, str | None], bool] = (
        lambda options, listed: listed is None
    )
    """Whether a look with these options names no file but the list."""

    def declare(self, parser: argparse.ArgumentParser) -> None:
        super().declare(parser)
        for each in (*(CAUTION if self.look else ()), WHY, WHO, WAIT) if self.apply else ():
            each(parser)

    def exit_meanings(self) -> Mapping[int, str]:
        answers = self.apply is not None and self.run_with is None
        return {**ACT_EXITS, **self.exits} if answers else self.exits

    def looks(self, options: argparse.Namespace) -> bool:
        """Whether a call with *options* only reads."""
        return self.look is not None and (self.apply is None or options.dry_run)


def argument_type(parse: Callable[[str], T], allowed: str = "") -> Callable[[str], T]:
    """The type of an argument that *parse* reads: its errors become errors of the command line."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except (ValueError, ActionError) as error:
            why = f"{text!r}: expected {allowed}" if allowed else str(error)
            raise argparse.ArgumentTypeError(why) from None

    return read


def value_argument(kind: ValueType) -> Callable[[str], Any]:
    """The type of an argument that is written like a setting of this *kind*."""
    return argument_type(kind.parse, kind.allowed)


def option(*names: str, **settings: Any) -> Option:
    """An argument of a verb; takes what ``add_argument`` takes."""
    return lambda parser: parser.add_argument(*names, **settings)


def one_of(*options: Option, required: bool = False) -> Option:
    """Options of which a call has one at most."""

    def declare(parser: Any) -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        for each in options:
            each(group)

    return declare


SECONDS: Final = value_argument(duration())
COUNT: Final = value_argument(integer(0))
NUMBER: Final = value_argument(integer(1))
ROWS: Final = value_argument(ValueType(integer(0).parse, "a number of rows, 0 for all"))
WHY: Final = option(
    "--why", metavar="TEXT", default="", help="a comment, which the audit log keeps"
)
WHO: Final = option("--who", metavar="NAME", help="who asks (default: user@host)")
WAIT: Final = option(
    "--wait", type=SECONDS, default=60.0, metavar="S",
    help="seconds to wait for a running crawl's answer (60)",
)  # fmt: skip
LIMIT: Final = option(
    "--limit", type=ROWS, default=20, metavar="N", help="rows to print (20; 0: all)"
)
CAUTION: Final = (
    option("--dry-run", action="store_true", help="only count what it would change"),
    option("--yes", action="store_true", help="do not ask for confirmation"),
)


def print_answer(call: Invocation, answer: Answer) -> None:
    """Print *answer*: a refusal goes to stderr unless JSON is wanted."""
    if call.json:
        print(json.dumps({"ok": answer.ok, "said": answer.said, **answer.facts}))
    else:
        print(answer.said, file=sys.stdout if answer.ok else sys.stderr)


def print_silence(answer: Answer) -> int:
    """Print the agents without an answer; return 3 if there are any, else 0."""
    silent = answer.facts.get("silent")
    if not silent:
        return 0
    names = ", ".join(f"{name} ({why})" for name, why in silent.items())
    print(f"scrapy frontier: no answer from {names}; they stay asked, for a day", file=sys.stderr)
    return 3


def confirm(call: Invocation, question: str) -> None:
    """Ask for confirmation, unless ``--yes`` is given. Raises `UsageError`."""
    if call.options.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this cannot be undone: give --yes, or --dry-run", print_help=False)
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was done", print_help=False)


def without_port(text: str) -> str:
    found = _WITH_PORT.fullmatch(text)
    return text if found is None else found[1]


def host_argument(text: str) -> str:
    """The type of HOST: the normal form, without port; ``*.`` may begin it.

    An IPv6 address keeps its brackets, or has none. Raises `argparse.ArgumentTypeError`.
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
    """The last *host* and *url* done, and counts."""

    def __init__(self, kv: KV, id: str) -> None:
        self._kv = kv
        self._key = b"progress " + id.encode()
        data = kv.get(self._key)
        self.host, self.url, self.counts = "", b"", dict[str, int]()
        if data is not None:
            self.host, self.url, self.counts = msgpack.unpackb(data)

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def save(self) -> None:
        """Put it into the next batch, with the changes so far."""
        self._kv.put(self._key, msgpack.packb([self.host, self.url, self.counts]))

    def forget(self) -> None:
        self._kv.delete(self._key)


class VerbParser(argparse.ArgumentParser):
    """A parser whose errors Scrapy prints: below the usage, with exit code 2."""

    def error(self, message: str) -> Any:
        raise UsageError(message, print_help=False)
