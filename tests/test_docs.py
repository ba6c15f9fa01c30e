"""The documentation says what the code does: tables, names, links, commands and code blocks."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path
from types import ModuleType

import pytest
import scrapy.commands
from scrapy.settings import Settings

import scrapy_spider_suite
from benchmarks.__main__ import NAMES as BENCHMARKS
from scrapy_spider_suite.cluster.handover.handover_file import FileCounters
from scrapy_spider_suite.cluster.ledger.grants import GrantCounters
from scrapy_spider_suite.cluster.messages import MessageCounters
from scrapy_spider_suite.commands import cluster, dashboard, fakeweb, frontier, packs
from scrapy_spider_suite.commands.base import VerbCommand
from scrapy_spider_suite.crawl.queue.frontier import FrontierStatistics
from scrapy_spider_suite.fetch.connections import ConnectionPool
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.operate.executors.call_executor import ListenerCounters
from scrapy_spider_suite.settings.declarations import setting_name
from scrapy_spider_suite.settings.project import LIVE_SCRAPY_SETTINGS
from scrapy_spider_suite.settings.suite import DECLARATIONS
from scrapy_spider_suite.store.counters import Counters

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = Path(scrapy_spider_suite.__file__).parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")])
COMMANDS: dict[str, scrapy.commands.ScrapyCommand] = {
    "frontier": frontier.Command(), "fakeweb": fakeweb.Command(),
    "packs": packs.Command(), "cluster": cluster.Command(), "dashboard": dashboard.Command(),
}  # fmt: skip

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")
_STAT_SET = re.compile(r"(?:inc|set|max)_value\(\s*f?\"(suite/[^\"]+)\"")


def name_of(page: Path) -> str:
    """The page as a test's id."""
    return page.name


every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def text_of(page: Path) -> str:
    """The whole page."""
    return page.read_text(encoding="utf-8")


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The code blocks of a page in *languages*."""
    for language, code in _FENCE.findall(text_of(page)):
        if language in languages:
            yield code


def anchors(page: Path) -> set[str]:
    """What can be linked to in a page: its headings, as GitHub names them."""
    prose = _FENCE.sub("", text_of(page))
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def generator() -> ModuleType:
    """``docs/generate.py``, which is in no package."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Tables


def test_the_tables_are_up_to_date() -> None:
    """They are what the code has now; ``python docs/generate.py`` writes them."""
    generate = generator()
    for page in sorted({page for page, _ in generate.TABLES.values()}):
        assert generate.filled(page, text_of(DOCS / page)) == text_of(DOCS / page)


def test_a_table_without_a_place_is_an_error() -> None:
    """It would never be written, and nobody would see it."""
    with pytest.raises(ValueError, match=r"settings\.md: expected <!-- settings: begin -->"):
        generator().filled("settings.md", "no markers")


# Links


@every_page
def test_every_link_resolves(page: Path) -> None:
    """To a file of the repository, and to a heading in it."""
    for link in _LINK.findall(_FENCE.sub("", text_of(page))):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


# Names


@every_page
def test_every_setting_that_is_named_exists(page: Path) -> None:
    """A page that names a setting wrongly costs its reader an hour."""
    known = {setting_name(name) for name in DECLARATIONS}
    named = set(re.findall(r"\bSUITE_[A-Z0-9]\w+\*?", text_of(page)))
    families = {name for name in named if name.endswith("*")}  # such as SUITE_DNS_*
    assert named - families <= known
    assert all(any(fnmatch(one, family) for one in known) for family in families)


@every_page
def test_every_class_that_is_named_exists(page: Path) -> None:
    """Dotted paths into the package lead somewhere."""
    for path in set(re.findall(r"\bscrapy_spider_suite(?:\.\w+)+", text_of(page))):
        module, _, name = path.rpartition(".")
        found = importlib.util.find_spec(path) if _is_module(path) else None
        assert found is not None or hasattr(importlib.import_module(module), name), path


def test_the_architecture_names_what_is_there() -> None:
    """Each module, and each name before a module in brackets, is in the package."""
    text = text_of(DOCS / "architecture.md")
    for path in re.findall(r"`([\w/]+\.py)`", text):
        assert any((root / path).exists() for root in (PACKAGE, ROOT, ROOT / "tests/support")), path
    for names, path in re.findall(r"((?:`[\w.]+`(?:, )?)+) \(`([\w/]+\.py)`", text):
        source = (PACKAGE / path).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w.]+)`", names):
            assert all(re.search(rf"\b{part}\b", source) for part in name.split(".")), (name, path)


def _is_module(path: str) -> bool:
    file = ROOT / path.replace(".", "/")
    return file.is_dir() or file.with_suffix(".py").is_file()


# Stats


def set_stats() -> set[str]:
    """The names that the code sets, ``*`` for what it fills in."""
    names: set[str] = set()
    for module in PACKAGE.rglob("*.py"):
        names |= set(_STAT_SET.findall(module.read_text(encoding="utf-8")))
    return {re.sub(r"\{[^}]*\}", "*", name) for name in names}


def documented_stats() -> set[str]:
    """The names in the tables of the page, ``*`` for words in capitals."""
    rows = re.findall(r"^\| (`suite/.*?) \|", text_of(DOCS / "stats.md"), re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(suite/[^`]+)`", row)}
    return {re.sub(r"\b[A-Z]+\b", "*", name) for name in names}


def test_every_stat_is_documented_and_the_other_way_round() -> None:
    """What the code sets is in a table, and what is in a table is set."""
    known, told = set_stats(), documented_stats()
    assert {each for each in known if not any(fnmatch(one, each) for one in told)} == set()
    assert {one for one in told if not any(fnmatch(one, each) for each in known)} == set()


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("connections", set(ConnectionPool(1, 1).statistics())),
        (
            "frontier",
            {*FrontierStatistics.__slots__, "hosts_max", "queued_max", "phase"}
            - {"abandoning", "in_sieve", "unextracted"},
        ),
        (
            "ledger",
            {field.name for field in dataclasses.fields(GrantCounters)}
            | {"waiting", "addresses", "shared"},
        ),
        (
            "job",
            {field.name for field in dataclasses.fields(Counters)}
            - {"endings", "events", "failures", "found", "pending", "seconds", "sequence", "traps"},
        ),
        (
            "messages",
            {field.name for field in dataclasses.fields(MessageCounters)}
            | {"rows_taken", "spared", "too_large", "unread", "waiting"},
        ),
        ("handover_transport", {field.name for field in dataclasses.fields(FileCounters)}),
        ("calls", {field.name for field in dataclasses.fields(ListenerCounters)}),
    ],
)
def test_families_of_stats_are_documented_whole(family: str, names: set[str]) -> None:
    """One row for each stat of a name that the code puts together."""
    prefix = f"suite/{family}/"
    told = {one.removeprefix(prefix) for one in documented_stats() if one.startswith(prefix)}
    assert told == names


def test_reasons_and_events_are_those_of_the_code() -> None:
    """Every word in code style on the outcome page that looks like an event is one."""
    named = set(re.findall(r"^\| `(\w+)` \|", text_of(DOCS / "outcomes.md"), re.MULTILINE))
    assert named == {event.value for event in Event}


# Commands


def command_lines(page: Path) -> Iterator[list[str]]:
    """Every ``scrapy …`` of the shell blocks and of the text, split into words."""
    lines: list[str] = []
    for code in blocks(page, "sh", "console", ""):
        lines += code.replace("\\\n", " ").splitlines()
    lines += re.findall(r"`(scrapy [^`\n]+)`", _FENCE.sub("", text_of(page)))
    for line in lines:
        found = re.search(r"(?:^|[/ ])scrapy (\w+.*)", line)
        if found and not line.lstrip().startswith("fakeweb:"):
            words = shlex.split(found[1].rstrip(").,"), comments=True)
            # What the shell does with the output is no argument.
            yield list(takewhile(lambda word: word not in ("|", ">"), words))


@every_page
def test_every_command_line_exists(page: Path) -> None:
    """Command, verb and options; whatever follows ``-a`` and ``-s`` is the reader's."""
    for words in command_lines(page):
        name, *arguments = words
        command = COMMANDS.get(name)
        if command is None:
            assert importlib.util.find_spec(f"scrapy.commands.{name}"), words
            continue
        if not arguments:
            continue
        if isinstance(command, VerbCommand):
            _check_verb(arguments, command)
        else:
            most = int(command.syntax().startswith("[JOBDIR"))
            assert len(_left_over(command, arguments)) <= most, words


def parser_of(command: scrapy.commands.ScrapyCommand) -> argparse.ArgumentParser:
    """The parser that Scrapy's command line would make."""
    command.settings = Settings()
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    parser.add_argument("arguments", nargs="*")
    command.add_options(parser)
    return parser


def _left_over(command: scrapy.commands.ScrapyCommand, arguments: list[str]) -> list[str]:
    """Parse *arguments* as *command* would; return what is no option. Fails on unknown ones."""
    if arguments == ["--help"]:
        return []
    options, unknown = parser_of(command).parse_known_intermixed_args(arguments)
    assert unknown == [], arguments
    left: list[str] = options.arguments
    return left


def _check_verb(arguments: list[str], command: VerbCommand) -> None:
    """Fails if a verb of *command* does not exist, or does not have these options."""
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    command.add_common_options(common)
    _, left = common.parse_known_args(arguments)
    if left and left[0] not in ("VERB", "--help"):
        verb = command.find(left[0])
        assert verb is not None, arguments
        if left[1:] and "--help" not in left:  # its name alone, in the text, is enough
            command.parser_of(verb).parse_args(left[1:])


@every_page
def test_every_option_that_is_named_exists(page: Path) -> None:
    """In the text too: ``--limit`` and its like."""
    known = {"--help", "--check", "--small", "--version"}
    parsers = [parser_of(command) for command in COMMANDS.values()]
    for command in COMMANDS.values():
        if isinstance(command, VerbCommand):
            verbs = filter(None, map(command.find, command.names()))
            parsers.extend(map(command.parser_of, verbs))
    for parser in parsers:
        known |= {flag for action in parser._actions for flag in action.option_strings}
    for script in (ROOT / "benchmarks").glob("*.py"):
        known |= set(re.findall(r"add_argument\(\s*\"(--[a-z-]+)\"", script.read_text()))
    prose = _FENCE.sub("", text_of(page))
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", prose)) - {"--strict"} <= known


def test_only_live_settings_are_offered_to_be_set() -> None:
    live = {setting_name(name) for name, declared in DECLARATIONS.items() if declared.live}
    text = "".join(map(text_of, PAGES))
    offered = set(re.findall(r"frontier set ([A-Z_]+)", text))
    assert offered <= live | {*LIVE_SCRAPY_SETTINGS}


def test_when_each_live_setting_takes_effect() -> None:
    """The table of docs/operating.md has the settings that `set` takes, and no others."""
    section = text_of(DOCS / "operating.md").split("### Set\n")[1].split("\n### ")[0]
    rows = re.findall(r"^\| (\[?`[^|]+) \|", section, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    live = {setting_name(name) for name, row in DECLARATIONS.items() if row.live}
    assert told == live | set(LIVE_SCRAPY_SETTINGS)


# Code


@every_page
def test_python_blocks_compile(page: Path) -> None:
    """And what they import of the suite is there."""
    for code in blocks(page, "python"):
        tree = ast.parse(code)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and "suite" in node.module:
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), alias.name


def test_every_script_that_is_named_exists() -> None:
    """Figures come from commands that can be typed."""
    for page in PAGES:
        for path in re.findall(r"\btests/crawl/[\w/]+\.py", text_of(page)):
            assert (ROOT / path).is_file(), path
        for name in re.findall(r"python -m benchmarks ([a-z]\S*[a-z])", text_of(page)):
            assert name in BENCHMARKS or name == "page", name
