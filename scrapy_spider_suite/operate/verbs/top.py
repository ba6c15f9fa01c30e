"""``top``: a crawl in a terminal, live, as the page of ``scrapy dashboard`` shows it."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from scrapy.exceptions import UsageError

from scrapy_spider_suite.cluster.run_queue import STATES
from scrapy_spider_suite.errors import SuiteError
from scrapy_spider_suite.operate import verb
from scrapy_spider_suite.operate.judge import display_duration
from scrapy_spider_suite.runtime.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from scrapy_spider_suite.operate.crawl_view import View

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_POINTS: Final = 40  # columns of a chart, which spans `_SPAN`
_SPAN: Final = 600.0
_ROWS: Final = 6  # most rows of a table
_PERIOD: Final = 1.0
_WIDTH: Final = 80  # columns without a terminal
_END: Final = "\x04"  # Ctrl-D; also the end of the input
_QUIT: Final = frozenset({"q", "Q", _END})
_CHARTS: Final = (
    ("pages/s", "pages", 1.0), ("new URLs/s", "new_urls", 1.0), ("Mbit/s", "bytes", 8e-6),
    ("failed/s", "failed", 1.0),
)  # fmt: skip


class _Screen:
    """What is shown of *view*: the last good values, and the last error."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._trouble = ""
        self._read()

    def poll(self) -> None:
        try:
            self._read()
            self._trouble = ""
        except SuiteError as error:
            self._trouble = str(error)

    def _read(self) -> None:
        self._overview = shown = self._view.overview()
        now = time.time() if shown["state"] == "running" else shown["when"]
        self._series = self._view.series(now - _SPAN, now, _POINTS)

    def content(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        shown = self._overview
        style = "bold" if shown["healthy"] and not self._trouble else "bold red"
        name = printable(f"{shown['crawl'] or shown['spider']}  {shown['job']}")
        parts: list[RenderableType] = [
            Text(name, style="dim", overflow="ellipsis", no_wrap=True),
            Text(printable(self._trouble or str(shown["words"])), style=style), "",
            self._figures(), "", self._charts(),
        ]  # fmt: skip
        for table in (self._waits(), self._failures(), self._queues(), self._agents()):
            if table.row_count:
                parts += ["", table]
        parts.append(Text(f"\n{time.strftime('%H:%M:%S')}  q quits", style="dim"))
        return Group(*parts)

    def _figures(self) -> Table:
        counters, gauges = self._overview["counters"], self._overview["gauges"]
        rows = (
            ("pages", _count(counters.get("pages")), "to go", _count(gauges.get("pending"))),
            ("failed", _count(counters.get("failed")), "end", self._overview["end"]["text"]),
            ("under way", _count(gauges.get("under_way")), "memory", _size(gauges.get("memory"))),
            ("hosts", _count(gauges.get("hosts")), "disk free", _size(gauges.get("disk_free"))),
        )  # fmt: skip
        return _table(("", "-", "", ""), rows)

    def _charts(self) -> Table:
        rates = self._overview["rates"]
        return _table(("", "-", ""), (
            (title, f"{rates.get(name, 0.0) * unit:,.1f}", _spark(self._series.rate(name).tolist()))
            for title, name, unit in _CHARTS
        ))  # fmt: skip

    def _waits(self) -> Table:
        waits = sorted(self._overview["waits"], key=lambda row: -row["hosts"])
        return _table(("waiting hosts", "-", "-next in"), (
            (row["reason"], f"{row['hosts']:,}",
             "" if row["next"] is None else display_duration(row["next"]))
            for row in waits[:_ROWS]
        ))  # fmt: skip

    def _failures(self) -> Table:
        counters = self._overview["counters"]
        found = [each for each in counters.items() if each[0].startswith("errors.") and each[1]]
        found.sort(key=lambda each: -each[1])
        return _table(("failures", "-"), (
            (name.removeprefix("errors.").replace("_", " "), _count(count))
            for name, count in found[:_ROWS]
        ))  # fmt: skip

    def _queues(self) -> Table:
        columns = ("queue", "-share", *(f"-{state}" for state in STATES))
        return _table(columns, (
            (row["queue"], f"{row['share']:.0%}", *(_count(row[f"runs_{s}"]) for s in STATES))
            for row in self._overview["queues"]
        ))  # fmt: skip

    def _agents(self) -> Table:
        agents = sorted(self._overview["agents"], key=lambda row: -(row["rate"] or 0))
        columns = ("agent", "state", "-pages", "-pages/s", "-share", "-to go", "-memory")
        return _table(columns, (
            (row["name"], row["state"], _count(row["pages"]), f"{row['rate'] or 0:,.1f}",
             "" if row["share"] is None else f"{row['share']:.0%}", _count(row["pending"]),
             _size(row["memory"]))
            for row in agents[: 2 * _ROWS]
        ))  # fmt: skip


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table; a column that begins with - has numbers. Without titles it has no head."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold", pad_edge=False,
                  show_header=any(column.strip("-") for column in columns))  # fmt: skip
    for column in columns:
        justify: Any = "right" if column.startswith("-") else "left"
        table.add_column(column.removeprefix("-"), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def _spark(values: list[float]) -> str:
    """A character for each value, as high as it is; a blank where it is not known."""
    known = [value for value in values if value == value]
    highest = max(known, default=0.0) or 1.0
    steps = len(_BLOCKS) - 2
    return "".join(
        _BLOCKS[0] if value != value else _BLOCKS[1 + round(value / highest * steps)]
        for value in values
    )


def _count(value: Any) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _size(value: Any) -> str:
    return "-" if value is None else f"{value / 1e6:,.0f} MB"


def _run(call: verb.Invocation) -> int:
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        raise UsageError(
            "top needs the package rich: pip install 'scrapy-spider-suite[dashboard]'",
            print_help=False,
        ) from None
    # With numpy: crawls load the modules of all verbs.
    from scrapy_spider_suite.operate.crawl_view import open_view

    view = open_view(str(call.jobdir), call.settings)
    if call.json:
        call.facts(view.overview())
        return 0
    screen = _Screen(view)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        Console(width=_WIDTH).print(screen.content())
        return 0
    with suppress(KeyboardInterrupt), _pressed_keys() as pressed, Live(
        screen.content(), screen=True, auto_refresh=False
    ) as live:
        while pressed(_PERIOD) not in _QUIT:
            screen.poll()
            live.update(screen.content(), refresh=True)
    return 0


@contextmanager
def _pressed_keys() -> Iterator[Callable[[float], str]]:
    """A function that returns the next key, or "" after so many seconds."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        if not select.select([terminal], [], [], seconds)[0]:
            return ""
        return os.read(terminal, 1).decode("latin-1") or _END

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


VERBS = (
    verb.JobVerb(
        "top", "the crawl in a terminal, live: rates, queue, waits, failures, agents",
        run=_run,
        about=(
            "It shows what the page of `scrapy dashboard` shows first, and asks once a second.\n"
            "q ends it. Charts are of the last ten minutes. Without a terminal it prints once."
        ),
        examples=("top -j crawls/news", "top -j redis://localhost/0 --crawl news"),
    ),
)  # fmt: skip
