r"""The language of filters: grammar, tree, and test.

The grammar is BUbiNG's, with comments and quoted arguments. ``not`` (``!``, ``~``) binds closer
than ``and`` (``&``), that closer than ``or`` (``|``). An argument is text without parentheses and
double quotes, or anything between double quotes, where ``\"`` is a quote. A comment goes from ``#``
to the end of its line. Case matters in names of atoms only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from scrapy_spider_suite.errors import FilterError
from scrapy_spider_suite.urls.filters import (
    ATOMS,
    KNOWN,
    Fact,
    FilterInputs,
    LinkFacts,
    Stage,
    Test,
)


@dataclass(frozen=True, slots=True)
class Constant:
    value: bool

    def __str__(self) -> str:
        return "TRUE" if self.value else "FALSE"


@dataclass(frozen=True, slots=True)
class Atom:
    """*at* and *inside* are the places of name and argument in the text."""

    name: str
    argument: str
    at: int = field(default=0, compare=False)
    inside: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.name}({self.argument})"


@dataclass(frozen=True, slots=True)
class Not:
    inner: Node

    def __str__(self) -> str:
        return f"not {_within(self.inner, And, Or)}"


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return " and ".join(_within(part, And, Or) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return " or ".join(_within(part, Or) for part in self.parts)


Node = Constant | Atom | Not | And | Or


def _within(part: Node, *looser: type) -> str:
    return f"({part})" if isinstance(part, looser) else str(part)


MAX_LENGTH = 100_000  # characters of an expression
DEEPEST = 100  # operators within one another

_BLANK = re.compile(r"(?:\s|#[^\n]*)*+")
_TOKEN = re.compile(
    r"(?P<or>or\b|\|\|?|\u2228)|(?P<and>and\b|&&?|\u2227)|(?P<not>not\b|[!~])"
    r"|(?P<true>true\b)|(?P<false>false\b)|(?P<atom>[a-z_][\w.$]*)|(?P<open>\()|(?P<close>\))",
    re.IGNORECASE,
)
_ARGUMENT = re.compile(r'\((?:"(?:[^"\\]|\\.)*"|[^()"])*\)', re.DOTALL)
# What BUbiNG's own atoms may be called there.
_BUBING = "it.unimi.di.law.warc.filters."

_Grown = tuple[Node, int]  # a tree and how high it is


class _Group:
    """The parts between two parentheses, and the ``not`` before the next one."""

    def __init__(self) -> None:
        self._ors: list[_Grown] = []
        self._ands: list[_Grown] = []
        self.nots = 0

    def add(self, node: Node, height: int) -> None:
        for _ in range(self.nots):
            node = Not(node)
        self._ands.append((node, height + self.nots))
        self.nots = 0

    def end_and(self) -> None:
        self._ors.append(_joined(And, self._ands))
        self._ands = []

    def end(self) -> _Grown:
        self.end_and()
        return _joined(Or, self._ors)


def _joined(kind: type[And] | type[Or], parts: list[_Grown]) -> _Grown:
    if len(parts) == 1:
        return parts[0]
    return kind(tuple(node for node, _ in parts)), 1 + max(height for _, height in parts)


def parse(text: str) -> Node:
    """The tree of an expression. Raises `FilterError` with line and column."""
    if len(text) > MAX_LENGTH:
        raise FilterError(f"longer than {MAX_LENGTH:,} characters", text, 1, 1)
    groups, at, is_whole = [_Group()], _skip_blank(text, 0), False
    while at < len(text) or not is_whole or len(groups) > 1:
        group, token = groups[-1], _TOKEN.match(text, at)
        kind = "" if token is None else token.lastgroup
        end = at if token is None else token.end()
        match kind, is_whole:
            case "not", False:
                group.nots += 1
            case "open", False:
                groups.append(_Group())
            case "true" | "false", False:
                group.add(Constant(kind == "true"), 1)
                is_whole = True
            case "atom", False:
                inside = _skip_blank(text, end)
                argument = _ARGUMENT.match(text, inside)
                if argument is None:
                    raise _unexpected(text, inside, "an argument in parentheses")
                name = text[at:end].removeprefix(_BUBING)
                group.add(Atom(name, argument[0][1:-1].strip(), at, inside), 1)
                end, is_whole = argument.end(), True
            case "and", True:
                is_whole = False
            case "or", True:
                group.end_and()
                is_whole = False
            case "close", True if len(groups) > 1:
                groups.pop()
                groups[-1].add(*group.end())
            case _, True:
                closing = "the end" if len(groups) == 1 else "')'"
                raise _unexpected(text, at, f"'and', 'or' or {closing}")
            case _:
                what = "an atom such as HostEndsWith(.com), TRUE, FALSE, 'not' or '('"
                raise _unexpected(text, at, what)
        at = _skip_blank(text, end)
    node, height = groups[0].end()
    if height > DEEPEST:
        raise FilterError(f"more than {DEEPEST} operators within one another", text, 1, 1)
    return node


def _skip_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return at if blank is None else blank.end()


def _unexpected(text: str, at: int, expected: str) -> FilterError:
    token = _TOKEN.match(text, at)
    if at == len(text):
        at, found = len(text.rstrip()), "the end"
    else:
        found = repr(text[at] if token is None else token[0][:30])
    if "argument" in expected and found == "'('":
        why = "this parenthesis is not closed; if there are others in it, they need double quotes"
    else:
        why = f"expected {expected}, not {found}"
    return FilterError(why, text, *_place(text, at))


def _place(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


class AtomResult(NamedTuple):
    atom: Atom
    holds: bool

    def __str__(self) -> str:
        return f"{self.atom} is {str(self.holds).lower()}"


class Filter:
    """An expression that was read for one stage; *wants* is the test, *node* the tree."""

    __slots__ = ("_tests", "node", "stage", "text", "wants")

    def __init__(self, text: str, stage: Stage, given: FilterInputs | None = None) -> None:
        """Raises `FilterError` with line and column."""
        self.text = text
        self.stage = stage
        self.node = parse(text)
        self._tests: dict[int, Test] = {}
        for atom in atoms_of(self.node):
            self._tests[id(atom)] = _test_of(atom, text, stage, given or FilterInputs())
        names = {f"atom_{key}": test for key, test in self._tests.items()}
        self.wants: Test = self._tests.get(id(self.node)) or eval(
            f"lambda url, facts: {self._compiled(self.node)}", names
        )

    def __str__(self) -> str:
        return str(self.node)

    def place(self, atom: Atom) -> tuple[int, int]:
        """Line and column of *atom*, from 1."""
        return _place(self.text, atom.at)

    def needs(self, fact: Fact) -> bool:
        return any(fact in ATOMS[atom.name].needs for atom in atoms_of(self.node))

    def verdict(
        self, url: str, subject: LinkFacts, known: Collection[Fact] | None = None
    ) -> tuple[bool | None, list[AtomResult]]:
        """Whether *url* is wanted (None: not known), and what the atoms that decided it said."""
        facts = KNOWN[self.stage] if known is None else frozenset(known)
        return self._judge(self.node, url, subject, facts)

    def _compiled(self, node: Node) -> str:
        """Python's own expression for *node*: the fastest test that there is."""
        match node:
            case Constant(value):
                return str(value)
            case Atom():
                return f"atom_{id(node)}(url, facts)"
            case Not(inner):
                return f"(not {self._compiled(inner)})"
            case And(parts):
                return f"({' and '.join(map(self._compiled, parts))})"
            case Or(parts):
                return f"({' or '.join(map(self._compiled, parts))})"

    def _judge(
        self, node: Node, url: str, subject: LinkFacts, known: Collection[Fact]
    ) -> tuple[bool | None, list[AtomResult]]:
        match node:
            case Constant(value):
                return value, []
            case Atom():
                if not ATOMS[node.name].needs <= frozenset(known):
                    return None, []
                holds = bool(self._tests[id(node)](url, subject))
                return holds, [AtomResult(node, holds)]
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
    match node:
        case Atom():
            yield node
        case Not(inner):
            yield from atoms_of(inner)
        case And(parts) | Or(parts):
            for part in parts:
                yield from atoms_of(part)


def _test_of(atom: Atom, text: str, stage: Stage, given: FilterInputs) -> Test:
    kind = ATOMS.get(atom.name)
    if kind is None:
        near = difflib.get_close_matches(atom.name, ATOMS, n=1, cutoff=0.0)[0]
        what = f"no atom is called {atom.name}; did you mean {near}?"
        raise FilterError(what, text, *_place(text, atom.at))
    if stage not in kind.stages:
        missing = " and ".join(fact.value for fact in Fact if fact in kind.needs - KNOWN[stage])
        where = ", ".join(kind.stages)
        what = f"{atom.name} asks for {missing}, which is not known yet; it can be used in: {where}"
        raise FilterError(what, text, *_place(text, atom.at))
    try:
        return kind.make(atom.argument, given)
    except ValueError as error:
        why = f"{atom.name} expects {error}"
        raise FilterError(why, text, *_place(text, atom.inside)) from None
