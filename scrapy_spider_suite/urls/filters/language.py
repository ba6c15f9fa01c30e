r"""The language of filters: grammar, tree, and test.

The grammar is BUbiNG's, with comments and quoted arguments. ``not`` (``!``, ``~``) binds closer
than ``and`` (``&``), that closer than ``or`` (``|``). An argument is text without parentheses and
double quotes, or anything between double quotes, where ``\"`` is a quote. A comment goes from ``#``
to the end of its line. Case matters in names of atoms only.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import scrapy_spider_suite.urls.filters.atoms  # noqa: F401 - registers all of them
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

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput


@dataclass(frozen=True, slots=True)
class Constant:
    value: bool

    def __str__(self) -> str:
        return "TRUE" if self.value else "FALSE"


@dataclass(frozen=True, slots=True)
class Atom:
    """*line*, *column* and *inside* are positions, and not compared."""

    name: str
    argument: str
    line: int = field(default=0, compare=False)
    column: int = field(default=0, compare=False)
    inside: tuple[int, int] = field(default=(0, 0), compare=False)

    def __str__(self) -> str:
        return f"{self.name}({self.argument})"


@dataclass(frozen=True, slots=True)
class Not:
    inner: Node

    def __str__(self) -> str:
        return f"not {_within(self.inner, And, Or)}"


@dataclass(frozen=True, slots=True)
class And:
    """Two parts or more, in the order in which they are asked."""

    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return " and ".join(_within(part, And, Or) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    """Two parts or more, in the order in which they are asked."""

    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return " or ".join(_within(part, Or) for part in self.parts)


Node = Constant | Atom | Not | And | Or


def _within(part: Node, *looser: type) -> str:
    return f"({part})" if isinstance(part, looser) else str(part)


MAX_LENGTH = 100_000  # characters of an expression
DEEPEST = 100  # operators within one another

_GRAMMAR = r"""
start: either
either: both (_OR both)*
both: unit (_AND unit)*
?unit: negation | atom | constant | "(" either ")"
negation: _NOT unit
atom: NAME ARGUMENT
constant: TRUE | FALSE

_OR.2: /or\b|\|\|?|\u2228/i
_AND.2: /and\b|&&?|\u2227/i
_NOT.2: /not\b|[!~]/i
TRUE.2: /true\b/i
FALSE.2: /false\b/i
NAME: /[A-Za-z_][\w.$]*/
ARGUMENT: /\((?:"(?:[^"\\]|\\.)*"|[^()"])*\)/s
%ignore /\s+/
%ignore /#[^\n]*/
"""

# What BUbiNG's own atoms may be called there.
_BUBING = "it.unimi.di.law.warc.filters."


def parse(text: str) -> Node:
    """The tree of an expression. Raises `FilterError` with line and column."""
    from lark.exceptions import UnexpectedInput

    if len(text) > MAX_LENGTH:
        raise FilterError(f"longer than {MAX_LENGTH:,} characters", text, 1, 1)
    try:
        grown: Any = _parser().parse(text)
    except UnexpectedInput as error:
        raise _explained(error, text) from None
    node, height = grown
    if height > DEEPEST:
        raise FilterError(f"more than {DEEPEST} operators within one another", text, 1, 1)
    found: Node = node
    return found


_Grown = tuple[Node, int]  # a tree and how high it is


@cache
def _parser() -> Lark:
    # Only who has a filter needs it: 40 ms.
    from lark import Lark, Transformer

    class Builder(Transformer[Any, Any]):
        def start(self, parts: list[_Grown]) -> _Grown:
            return parts[0]

        def either(self, parts: list[_Grown]) -> _Grown:
            return _joined(Or, parts)

        def both(self, parts: list[_Grown]) -> _Grown:
            return _joined(And, parts)

        def negation(self, parts: list[_Grown]) -> _Grown:
            [(inner, height)] = parts
            return Not(inner), height + 1

        def atom(self, parts: list[Token]) -> _Grown:
            name, argument = parts
            known, inner = str(name).removeprefix(_BUBING), str(argument)[1:-1]
            place = (argument.line or 1, argument.column or 1)
            return Atom(known, inner.strip(), name.line or 1, name.column or 1, place), 1

        def constant(self, parts: list[Token]) -> _Grown:
            return Constant(parts[0].upper() == "TRUE"), 1

    return Lark(_GRAMMAR, parser="lalr", transformer=Builder())


def _joined(kind: type[And] | type[Or], parts: list[_Grown]) -> _Grown:
    if len(parts) == 1:
        return parts[0]
    return kind(tuple(node for node, _ in parts)), 1 + max(height for _, height in parts)


def _explained(error: UnexpectedInput, text: str) -> FilterError:
    token = getattr(error, "token", None)
    expected = set(getattr(error, "accepts", None) or getattr(error, "expected", None) or ())
    expected |= set(getattr(error, "allowed", None) or ())
    at = error.pos_in_stream
    if token is not None and token.type != "$END":
        line, column, found = token.line, token.column, repr(str(token)[:30])
    elif token is None and at is not None and at < len(text):
        line, column, found = error.line, error.column, repr(text[at])
    else:
        before = text.rstrip()
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        found = "the end"
    if "ARGUMENT" in expected and found == "'('":
        why = "this parenthesis is not closed; if there are others in it, they need double quotes"
    else:
        why = f"expected {_wanted(expected)}, not {found}"
    return FilterError(why, text, line, column)


def _wanted(expected: set[str]) -> str:
    if "NAME" in expected:
        return "an atom such as HostEndsWith(.com), TRUE, FALSE, 'not' or '('"
    if "ARGUMENT" in expected:
        return "an argument in parentheses"
    return "'and', 'or' or ')'" if "RPAR" in expected else "'and', 'or' or the end"


class AtomResult(NamedTuple):
    atom: Atom
    holds: bool

    def __str__(self) -> str:
        return f"{self.atom} is {str(self.holds).lower()}"


class Filter:
    """An expression that was read for one stage.

    *wants* is the test: ``filter.wants(url, facts)`` costs its atoms, and some 50 ns for each
    operator. *node* is the tree, *text* the source.
    """

    __slots__ = ("_tests", "node", "stage", "text", "wants")

    def __init__(self, text: str, stage: Stage, given: FilterInputs | None = None) -> None:
        """Raises `FilterError` with line and column."""
        self.text = text
        self.stage = stage
        self.node = parse(text)
        self._tests: dict[int, Test] = {}
        for atom in atoms_of(self.node):
            self._tests[id(atom)] = _test_of(atom, text, stage, given or FilterInputs())
        self.wants: Test = self._compiled(self.node)

    def __str__(self) -> str:
        return str(self.node)

    def needs(self, fact: Fact) -> bool:
        return any(fact in ATOMS[atom.name].needs for atom in atoms_of(self.node))

    def verdict(
        self, url: str, subject: LinkFacts, known: Collection[Fact] | None = None
    ) -> tuple[bool | None, list[AtomResult]]:
        """Whether *url* is wanted, and the answers of the atoms that decided it.

        The answer is None where it depends on facts that are not *known* (Kleene's three values).
        """
        facts = KNOWN[self.stage] if known is None else frozenset(known)
        return self._judge(self.node, url, subject, facts)

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


# By halves: calls of two are quicker than a loop, and never deep.
def _all(tests: tuple[Test, ...]) -> Test:
    if len(tests) == 1:
        return tests[0]
    first, second = _all(tests[: len(tests) // 2]), _all(tests[len(tests) // 2 :])
    return lambda url, subject: first(url, subject) and second(url, subject)


def _any(tests: tuple[Test, ...]) -> Test:
    if len(tests) == 1:
        return tests[0]
    first, second = _any(tests[: len(tests) // 2]), _any(tests[len(tests) // 2 :])
    return lambda url, subject: first(url, subject) or second(url, subject)
