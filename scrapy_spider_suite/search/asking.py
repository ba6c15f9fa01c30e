"""What people ask for as a query of tantivy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import tantivy
from tantivy import FieldType, Occur, Query

from scrapy_spider_suite.errors import QueryError
from scrapy_spider_suite.packs.selection import Choice
from scrapy_spider_suite.search.schema import PAGE, schema

FIELDS: Final = ("title", "text", "url", "host", "language", "mime", "status", "time")
"""What ``FIELD:word`` may ask for."""
_DEFAULT: Final = ["title", "text"]
_BOOSTS: Final = {"title": 3.0}
_FIELD: Final = re.compile(r"Field does not exist: '(.*)'")


def query_of(
    index: tantivy.Index, text: str, choice: Choice, languages: Iterable[str] = ()
) -> tuple[Query, Query]:
    """Return what is to be found, and that part of it by which words are marked.

    Raises `QueryError`.
    """
    words = _words(index, text)
    wanted = [words, *map(_filter, [_term("kind", PAGE), *_filters(choice, languages)])]
    return Query.boolean_query([(Occur.Must, each) for each in wanted]), words


def _words(index: tantivy.Index, text: str) -> Query:
    if not text.strip():
        raise QueryError("what is to be searched for? * stands for every page")
    try:
        return index.parse_query(text, _DEFAULT, _BOOSTS, conjunction_by_default=True)
    except ValueError as error:
        raise QueryError(f"{text!r} is no query: {_why(str(error))}") from None


def _why(message: str) -> str:
    field = _FIELD.fullmatch(message)
    if field:
        return (f"there is no field {field[1]!r}, but {', '.join(FIELDS)}; what has a colon in it "
                f'is put into quotes: "{field[1]}:..."')  # fmt: skip
    if message.startswith("Syntax Error"):
        return "a quote or a bracket that is not closed, or a word of the query language alone"
    if "Only excluding" in message:
        return "it only says what is not wanted; * -word stands for every page without it"
    return message


def _filters(choice: Choice, languages: Iterable[str]) -> Iterable[Query]:
    """What *choice* leaves."""
    if choice.hosts:
        yield _any(_term("host", host) for host in choice.hosts)
    if languages := tuple(languages):
        yield _any(_term("language", language) for language in languages)
    if choice.mimes:
        yield _any(map(_mime, choice.mimes))
    if choice.statuses:
        yield _any(map(_status, choice.statuses))
    if choice.first or choice.last:
        yield _range("time", choice.first or "0", choice.last or "99991231235959")


def _any(queries: Iterable[Query]) -> Query:
    return Query.boolean_query([(Occur.Should, each) for each in queries])


def _filter(query: Query) -> Query:
    """*query* without a say in the score."""
    return Query.const_score_query(query, 0.0)


def _term(field: str, value: str) -> Query:
    return Query.term_query(schema(), field, value, "basic")


def _mime(wanted: str) -> Query:
    if wanted.endswith("*"):
        return Query.regex_query(schema(), "mime", f"{re.escape(wanted[:-1])}.*")
    return _term("mime", wanted)


def _status(wanted: str) -> Query:
    if wanted.endswith("xx"):
        return _range("status", f"{wanted[0]}00", f"{wanted[0]}99")
    return _range("status", wanted, wanted)


def _range(field: str, first: str, last: str) -> Query:
    return Query.range_query(schema(), field, FieldType.Unsigned, int(first), int(last))
