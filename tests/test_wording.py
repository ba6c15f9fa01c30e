"""Numbers in sentences, and that no sentence of the package can say "1 pages"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import scrapy_spider_suite
from scrapy_spider_suite.runtime.text import counted

PACKAGE = Path(scrapy_spider_suite.__file__).parent
PLURAL = re.compile(r"(%[-+,\d]*[ds]|\{[^{}]*\}) (?:(?!whose )[a-z-]*[a-rt-z] )?([A-Za-z]+s)\b")
"""A placeholder and a plural, with a word between them or none."""
MANY = re.compile(r"\{.*\b[A-Z][A-Z_0-9]+\b|\{counted\(")
"""Placeholders of no 1: constants, which are limits, and what `counted` has made."""
UNITS = {"bits", "bytes", "characters", "seconds"}
"""Those of measures, which are hardly ever 1."""
NO_PLURALS = {
    "address", "its", "Redis", "status", "this",
    # Verbs, after a name.
    "allows", "answers", "asks", "belongs", "changes", "comes", "counts", "decides", "does", "ends",
    "exists", "expects", "goes", "has", "holds", "is", "leads", "lies", "meets", "names", "needs",
    "rebuilds", "redirects", "refuses", "runs", "sends", "stands", "throws", "waits", "was",
    "works",
}  # fmt: skip
ALLOWED = {
    "{len(names)} crawls": "with one there is nothing to choose",
    "{value!r} times": "1 is no error",
    "{size:,} instructions": "more than the limit",
    "{plan.misses} times": "once is said otherwise",
    "{len(self._late)} hand-over files": "as many as the limit",
}
"""Other plurals that stay, with the reason."""


def test_counted() -> None:
    """One is one, everything else is many; thousands are set apart."""
    assert counted(1, "URL") == "1 URL"
    assert counted(0, "URL") == "0 URLs"
    assert counted(2_000, "query", "queries") == "2,000 queries"


def test_a_number_before_a_plural_is_counted() -> None:
    """A verb that this takes for a plural goes to `NO_PLURALS`."""
    found = [
        f"{path}:{line}: {words}" for path in sorted(PACKAGE.rglob("*.py"))
        for line, words in plurals(path.read_text()) if words not in ALLOWED
    ]  # fmt: skip
    assert not found, "use scrapy_spider_suite.runtime.text.counted"


@pytest.mark.parametrize(
    "code", ['"%d pages"', 'f"{n:,} pages"', '"{pages} new pages".format(pages=1)']
)
def test_others_are_found(code: str) -> None:
    """However the number comes in; not after a constant or `counted`, nor in docstrings."""
    assert [line for line, _ in plurals(f"say({code})")] == [1]
    assert not [*plurals("say(f'{LIMIT} pages', f\"{counted(n, 'page')} of {name} has links\")")]
    assert not [*plurals(f"def __repr__(self):\n    return {code}")]
    assert not [*plurals("def f():\n    'Say {n} pages.'")]


def plurals(code: str) -> Iterator[tuple[int, str]]:
    """The lines of *code* in which a string has a plural behind a number that may be 1."""
    for node in _strings(ast.parse(code)):
        for found in PLURAL.finditer(_text(node)):
            if not MANY.match(found[1]) and found[2] not in NO_PLURALS | UNITS:
                yield node.lineno, found[0]


def _strings(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """The strings in *node*, but for docstrings and what only programmers see."""
    if isinstance(node, ast.FunctionDef) and node.name == "__repr__":
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Constant | ast.JoinedStr):
        yield node
        return
    for each in ast.iter_child_nodes(node):
        yield from _strings(each)


def _text(node: ast.AST) -> str:
    """The string *node*, with the code of its placeholders; "": it is none."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        return ast.unparse(ast.JoinedStr([node]))[2:-1]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
