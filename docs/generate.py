"""Writes the tables of the documentation that the code knows best.

    python docs/generate.py           # rewrite the pages
    python docs/generate.py --check   # exit code 1 if one of them is out of date

A table stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->`` in the page that `TABLES`
gives; the text around it is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from scrapy_spider_suite.frontier.outcomes import Event, Health, Retry, State
from scrapy_spider_suite.profiles import LEAN
from scrapy_spider_suite.settings.declarations import (
    Derived,
    SettingDeclaration,
    setting_name,
    shown_value,
)
from scrapy_spider_suite.settings.suite import DECLARATIONS
from scrapy_spider_suite.settings.table import FRONT_PAGE
from scrapy_spider_suite.urls.filters import ATOMS, Stage

HERE = Path(__file__).parent

_RETRIES = {
    Retry.NOBODY: "nobody",
    Retry.STORE: "frontier, up to `SUITE_RETRY_TIMES`",
    Retry.HOST: "frontier, without limit",
}
_HEALTH = {
    Health.WELL: "answers",
    Health.OVERLOADED: "back-off (overloaded)",
    Health.UNREACHABLE: "back-off (unreachable), in the end given up",
    Health.NONE: "none",
}


def settings() -> Iterator[str]:
    """The ten settings to know first, then each group, with a heading for each setting."""
    yield from _head("Setting", "Default", "Meaning")
    for name in FRONT_PAGE:
        declared = DECLARATIONS[name]
        link = f"[`{setting_name(name)}`](#{setting_name(name).lower()})"
        yield _row(link, _defaults(declared), declared.meaning)
    group = ""
    for name, declared in DECLARATIONS.items():
        if declared.group.title != group:
            group = declared.group.title
            yield from ("", f"## {group}")
        allowed = declared.type.allowed.replace("*", "\\*")
        unit = f" ({declared.type.unit})" if declared.type.unit else ""
        live = " Can be [set](operating.md#set) in a running crawl." if declared.live else ""
        more = f" More: [{_title(declared.page)}]({declared.page})."
        yield from (
            "", f"### `{setting_name(name)}`", "", declared.meaning, "",
            f"Default: {_defaults(declared)}. Expected: {allowed}{unit}. "
            f"Kind: {declared.kind.value}.{live}{more}",
        )


def _defaults(declared: SettingDeclaration) -> str:
    unit = declared.type.unit
    spider, broad = _default(declared.spider, unit), _default(declared.broad, unit)
    return spider if spider == broad else f"spider: {spider}; broad: {broad}"


def _title(page: str) -> str:
    return (HERE / page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def outcomes() -> Iterator[str]:
    """The outcome table."""
    yield from _head(
        "Event", "Meaning", "The URL is", "Tried again by", "Effect on the host", "Stat"
    )
    for event in Event:
        outcome = event.outcome
        state = outcome.state.value
        if outcome.retry is Retry.STORE:
            state = f"{State.PENDING.value}, then {State.FAILED.value}"
        yield _row(
            f"`{event.value}`", outcome.meaning, state, _RETRIES[outcome.retry],
            _HEALTH[outcome.health], f"`suite/outcome/{event.value}`",
        )  # fmt: skip


def lean() -> Iterator[str]:
    """Scrapy's settings in the broad profile."""
    yield from _head("Setting", "Broad profile", "Why")
    for name, change in LEAN.items():
        yield _row(f"`{name}`", f"`{change.value!r}`", change.reason)


def atoms() -> Iterator[str]:
    """The atoms of filters."""
    yield from _head("Atom", "True if", "Example", "Stages")
    for name, kind in sorted(ATOMS.items()):
        stages = "all" if len(kind.stages) == len(Stage) else ", ".join(kind.stages)
        yield _row(f"`{kind.usage}`", kind.meaning, f"`{name}({kind.example})`", stages)


TABLES: dict[str, tuple[str, Callable[[], Iterable[str]]]] = {
    "settings": ("settings.md", settings),
    "outcomes": ("outcomes.md", outcomes),
    "lean": ("broad-crawls.md", lean),
    "atoms": ("filters.md", atoms),
}
"""Each table: the page that it stands in, and what makes its lines."""


def filled(page: str, text: str) -> str:
    """Return *text*, that of *page*, with its tables as the code has them now.

    Raises `ValueError` if a table has no place in its page.
    """
    for name, (where, lines) in TABLES.items():
        if where != page:
            continue
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
        table = "\n".join([begin, "", *lines(), "", end])
        text, count = re.subn(pattern, lambda _, table=table: table, text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{page}: expected {begin} and {end} once")
    return text


def main() -> int:
    """Rewrite or check all pages; give the exit code."""
    stale = []
    for page in sorted({page for page, _ in TABLES.values()}):
        path = HERE / page
        old = path.read_text(encoding="utf-8")
        new = filled(page, old)
        if new != old:
            stale.append(page)
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    print(f"changed: {', '.join(stale)}" if stale else "all tables are up to date")
    return 1 if stale and "--check" in sys.argv else 0


def _default(value: object, unit: str) -> str:
    text = shown_value(value, unit)
    return text if isinstance(value, Derived) else f"`{text}`"


def _head(*cells: str) -> Iterator[str]:
    yield _row(*cells)
    yield _row(*("---" for _ in cells))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
