"""The page of Scrapy's features is complete: a row for each, and each row's test exists."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import scrapy
from scrapy.commands import ScrapyCommand
from scrapy.settings import Settings, default_settings
from scrapy.utils.misc import walk_modules_iter

from scrapy_spider_suite import profiles
from scrapy_spider_suite.settings.declarations import Profile

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scrapy-features.md"
_CODE = re.compile(r"`([^`]+)`")
VERDICTS = {"honoured", "replaced", "off", "not applicable"}


class Row(NamedTuple):
    """One name of a table's row."""

    table: str
    name: str
    verdict: str
    why: str
    tests: tuple[str, ...]


@cache
def rows() -> tuple[Row, ...]:
    """Every name in the first cell of every row of the page."""
    found, table = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            table = line[3:]
        elif line.startswith("| `"):
            first, verdict, why, last = (cell.strip() for cell in line.strip("|").split(" | "))
            tests = tuple(_CODE.findall(last))
            found.extend(Row(table, name, verdict, why, tests) for name in _CODE.findall(first))
    return tuple(found)


def names(table: str) -> set[str]:
    """The names that a table has rows for."""
    return {row.name for row in rows() if row.table == table}


def test_every_setting_has_a_row() -> None:
    """Each default setting of the installed Scrapy, and none twice."""
    settings = {name for name in dir(default_settings) if name.isupper()}
    assert settings - names("Settings") == set()
    everything = [(row.table, row.name) for row in rows()]
    assert len(everything) == len(set(everything))


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        ("Downloader middlewares", "DOWNLOADER_MIDDLEWARES_BASE"),
        ("Spider middlewares", "SPIDER_MIDDLEWARES_BASE"),
        ("Extensions", "EXTENSIONS_BASE"),
    ],
)
def test_every_component_has_a_row(table: str, setting: str) -> None:
    """Each one that the installed Scrapy lists."""
    assert set(getattr(default_settings, setting)) - names(table) == set()


def test_every_spider_class_and_command_has_a_row() -> None:
    """Each that the installed Scrapy exports, and each command that it comes with."""
    classes = {
        f"scrapy.spiders.{name}" for name in scrapy.spiders.__all__ if name.endswith("Spider")
    }
    classes.discard("scrapy.spiders.Spider")
    assert classes - names("Spider classes") == set()
    commands = {
        value.__module__.rpartition(".")[2]
        for module in walk_modules_iter("scrapy.commands")
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ScrapyCommand)
        and value.__name__ == "Command"
    }  # fmt: skip
    assert commands - names("Commands") == set()


_META = re.compile(r"""meta(?:\.(?:get|pop|setdefault)\(|\[)\s*["']([a-z]\w*)["']""")


def test_every_meta_key_has_a_row() -> None:
    """Each key that the installed Scrapy reads or writes by name."""
    folder = Path(scrapy.__file__).parent
    keys = {
        key for file in folder.rglob("*.py") for key in _META.findall(file.read_text())
    }  # fmt: skip
    assert len(keys) > 30
    assert keys - names("Request meta keys") == set()


def _tests(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def test_every_row_names_a_verdict_and_a_test_that_exists() -> None:
    """The last column has test functions, or files of tests."""
    assert {row.verdict for row in rows()} <= VERDICTS
    assert all(row.tests for row in rows())
    for test in {test for row in rows() for test in row.tests}:
        path, _, name = test.partition("::")
        file = ROOT / path
        assert file.is_file(), test
        assert not name or name in set(_tests(file)), test


def test_replaced_parts_are_those_that_the_profiles_replace() -> None:
    """What the page calls replaced is what the add-on switches off in the spider profile."""
    said = {
        row.name for row in rows()
        if row.verdict == "replaced" and row.name.startswith("scrapy.")
    }  # fmt: skip
    done = {part.replaces for part in profiles.COMPONENTS["spider"] if part.replaces}
    assert said == done


def _flat(settings: Settings) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: repr(settings[name]) for name in settings}


@pytest.mark.parametrize("profile", ["spider", "broad"])
def test_only_what_the_page_says_is_changed(profile: Profile) -> None:
    """A setting that the page says is left alone has the same value with the add-on on."""
    settings = Settings()
    before = _flat(settings)
    list(profiles.apply(settings, profile))
    after = _flat(settings)
    changed = {name for name, value in after.items() if before.get(name) != value}
    lists = {"DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "EXTENSIONS", "DOWNLOAD_HANDLERS"}
    expected = {"SCHEDULER", "DOWNLOADER"} | lists
    if profile == "broad":
        expected |= set(profiles.LEAN)
    assert changed == expected
    untouched = {row.name for row in rows() if row.why == "unchanged"}
    assert not untouched & changed
