"""The grammar of filter expressions: BUbiNG's, with comments and quoted arguments.

``not`` (``!``, ``~``) binds closer than ``and`` (``&``), that closer than ``or`` (``|``). An
argument is any text without parentheses and double quotes; between double quotes it may hold
everything, a quote itself as ``\\"``. From ``#`` to the end of its line there is a comment. The
case of the words does not matter; that of the atoms' names does.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from scrapy_spider_suite.errors import FilterError
from scrapy_spider_suite.urls.filters.nodes import And, Atom, Constant, Node, Not, Or

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput

MAX_LENGTH = 100_000
"""Characters of an expression."""
DEEPEST = 100
"""Operators within one another."""

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
    """The tree of a filter expression. Raises `FilterError`, which names line and column."""
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


_Grown = tuple[Node, int]
"""A tree and how high it is."""


@cache
def _parser() -> Lark:
    # Only who has a filter needs it: 40 ms.
    from lark import Lark, Transformer

    class Builder(Transformer[Any, Any]):
        """Makes the nodes while the text is parsed, so that no depth of it is too much."""

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
    """*error* in words: where it is, what stands there, and what could."""
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


# Arguments


def word(argument: str) -> str:
    """The one text that *argument* is: as it stands, or without its quotes.

    Raises `ValueError`.
    """
    if argument.startswith('"'):
        if len(argument) < 2 or argument.find('"', 1) < 0:
            raise ValueError("a text without quotes or within them")
        pieces = split(argument)
        if len(pieces) != 1:
            raise ValueError("one text")
        return pieces[0]
    if '"' in argument:
        raise ValueError("a text without quotes or within them")
    return argument


def split(argument: str) -> list[str]:
    """The texts of a list with commas between them, empty ones left out. Raises `ValueError`."""
    pieces, rest = [], argument
    while rest := rest.lstrip(", \t\r\n"):
        if rest.startswith('"'):
            end = _end_of_quote(rest)
            pieces.append(rest[1:end].replace('\\"', '"'))
            rest = rest[end + 1 :].lstrip()
            if rest and not rest.startswith(","):
                raise ValueError("a comma after a quoted text")
        else:
            piece, _, rest = rest.partition(",")
            if '"' in piece:
                raise ValueError("quotes around the whole of a text")
            pieces.append(piece.strip())
    return pieces


def _end_of_quote(text: str) -> int:
    at = 1
    while text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return at
