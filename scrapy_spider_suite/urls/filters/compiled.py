"""From a filter expression to a test, and from a test's answer to the atoms that gave it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from typing import NamedTuple

from scrapy_spider_suite.errors import FilterError
from scrapy_spider_suite.urls.filters import links as _links
from scrapy_spider_suite.urls.filters import responses as _responses
from scrapy_spider_suite.urls.filters.language import parse
from scrapy_spider_suite.urls.filters.nodes import And, Atom, Constant, Node, Not, Or
from scrapy_spider_suite.urls.filters.registry import ATOMS, Given
from scrapy_spider_suite.urls.filters.subject import KNOWN, Fact, Stage, Subject, Test

REGISTERED = (_links, _responses)
"""The modules whose atoms are known from the start."""


class Said(NamedTuple):
    """An atom and what it said, for a person to read."""

    atom: Atom
    holds: bool

    def __str__(self) -> str:
        return f"{self.atom} is {str(self.holds).lower()}"


class Filter:
    """An expression that was read for one stage.

    *wants* is the test itself: ``filter.wants(url, subject)`` costs what its atoms cost and some
    50 ns for each ``and``, ``or`` and ``not`` (`benchmarks/filters.py`). *node* is its tree,
    *text* what was read.
    """

    __slots__ = ("_tests", "node", "stage", "text", "wants")

    def __init__(self, text: str, stage: Stage, given: Given | None = None) -> None:
        """Raises `FilterError`, which names line and column of what is wrong."""
        self.text = text
        self.stage = stage
        self.node = parse(text)
        self._tests: dict[int, Test] = {}
        for atom in atoms_of(self.node):
            self._tests[id(atom)] = _test_of(atom, text, stage, given or Given())
        self.wants: Test = self._compiled(self.node)

    def __str__(self) -> str:
        return str(self.node)

    def asks(self, fact: Fact) -> bool:
        """Whether any of its atoms wants to know *fact*."""
        return any(fact in ATOMS[atom.name].needs for atom in atoms_of(self.node))

    def verdict(
        self, url: str, subject: Subject, known: Collection[Fact] | None = None
    ) -> tuple[bool | None, list[Said]]:
        """Whether *url* is wanted, and what the atoms that decided it said.

        *known* are the facts that *subject* tells (None: all of the stage). None is the answer
        where it depends on others (Kleene's three values).
        """
        facts = KNOWN[self.stage] if known is None else frozenset(known)
        return self._judge(self.node, url, subject, facts)

    # Compiling

    def _compiled(self, node: Node) -> Test:
        match node:
            case Constant(value):
                return lambda url, subject: value
            case Atom():
                return self._tests[id(node)]
            case Not(inner):
                test = self._compiled(inner)
                return lambda url, subject: not test(url, subject)
            case And(parts):
                return _all(tuple(map(self._compiled, parts)))
            case Or(parts):
                return _any(tuple(map(self._compiled, parts)))

    # Explaining

    def _judge(
        self, node: Node, url: str, subject: Subject, known: Collection[Fact]
    ) -> tuple[bool | None, list[Said]]:
        match node:
            case Constant(value):
                return value, []
            case Atom():
                if not ATOMS[node.name].needs <= frozenset(known):
                    return None, []
                holds = bool(self._tests[id(node)](url, subject))
                return holds, [Said(node, holds)]
            case Not(inner):
                inside, said = self._judge(inner, url, subject, known)
                return None if inside is None else not inside, said
            case And(parts) | Or(parts):
                deciding = isinstance(node, Or)
                answers = [self._judge(part, url, subject, known) for part in parts]
                for answer in answers:
                    if answer[0] is deciding:
                        return answer
                if any(holds is None for holds, _ in answers):
                    return None, []
                return not deciding, [each for _, said in answers for each in said]


def atoms_of(node: Node) -> Iterator[Atom]:
    """Every atom in *node*, from left to right."""
    match node:
        case Atom():
            yield node
        case Not(inner):
            yield from atoms_of(inner)
        case And(parts) | Or(parts):
            for part in parts:
                yield from atoms_of(part)


def _test_of(atom: Atom, text: str, stage: Stage, given: Given) -> Test:
    kind = ATOMS.get(atom.name)
    if kind is None:
        near = difflib.get_close_matches(atom.name, ATOMS, n=1, cutoff=0.0)[0]
        what = f"no atom is called {atom.name}; did you mean {near}?"
        raise FilterError(what, text, atom.line, atom.column)
    if stage not in kind.stages:
        missing = " and ".join(fact.value for fact in Fact if fact in kind.needs - KNOWN[stage])
        where = ", ".join(kind.stages)
        what = f"{atom.name} asks for {missing}, which is not known yet; it can be used in: {where}"
        raise FilterError(what, text, atom.line, atom.column)
    try:
        return kind.make(atom.argument, given)
    except ValueError as error:
        raise FilterError(f"{atom.name} expects {error}", text, *atom.inside) from None


def _all(tests: tuple[Test, ...]) -> Test:
    if len(tests) == 2:
        first, second = tests
        return lambda url, subject: first(url, subject) and second(url, subject)
    if len(tests) == 3:
        first, second, third = tests
        return lambda url, subject: (
            first(url, subject) and second(url, subject) and third(url, subject)
        )

    return lambda url, subject: all(test(url, subject) for test in tests)


def _any(tests: tuple[Test, ...]) -> Test:
    if len(tests) == 2:
        first, second = tests
        return lambda url, subject: first(url, subject) or second(url, subject)
    if len(tests) == 3:
        first, second, third = tests
        return lambda url, subject: (
            first(url, subject) or second(url, subject) or third(url, subject)
        )

    return lambda url, subject: any(test(url, subject) for test in tests)
