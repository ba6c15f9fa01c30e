"""docs/normal-form.md says what the normal form of each URL in its tables is."""

from __future__ import annotations

import re
from pathlib import Path

from scrapy_spider_suite.urls.normalize import normalize

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "normal-form.md").read_text(encoding="utf-8")


def rows(head: str) -> list[list[str]]:
    """The cells of the table whose first line contains *head*."""
    lines = PAGE[PAGE.index(head) :].splitlines()[2:]
    table = lines[: next((n for n, line in enumerate(lines) if line[:1] != "|"), len(lines))]
    return [[cell.strip(" ") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]


def url_in(cell: str) -> str | None:
    """The URL that a cell shows, None for "none"."""
    return None if cell == "none" else cell.strip("`").replace("\\t", "\t").replace("\\|", "|")


def test_the_table_of_normalisers() -> None:
    """Its column for the suite is what the suite does now."""
    table = rows("| URL | normal form | why |")
    for about, url, normal, *_ in table:
        assert normalize(url_in(url) or "") == url_in(normal), about
    assert len(table) == 40


def test_the_table_of_rules() -> None:
    """The same for those of the plain form."""
    base = "http://a.example/"
    checked = 0
    for rule, before, after in rows("| Rule | From | To |"):
        url, wanted = url_in(before), url_in(after)
        if url:
            found = normalize(url, base)
            assert found in (wanted, base + (wanted or "-").removeprefix("/")), rule
            checked += 1
    assert checked >= 8
