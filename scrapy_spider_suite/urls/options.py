"""Which further spellings a crawl takes for one: options of the normal form, all off by default.

The plain normal form (`normalize`) never changes which page is meant. These options may: only
whoever knows the sites can say whether ``?sid=7`` names a visitor or a story. So each is asked for,
for all hosts or by a rule for some::

    .shop.example     tracking=yes sessions=yes query-order=yes
    forum.example     keep=topic,page
    wiki.example      tracking=no drop=oldid,diff_*

Each field is decided by the closest rule that names it, a host's own before its domain's, a longer
domain before a shorter one; where none does, by the general options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from scrapy_spider_suite.frontier.subjects import Kind, Subject, Subjects
from scrapy_spider_suite.urls.normalize import normalize

WORDS: Final = ("tracking", "sessions", "query-order", "index", "www")
"""The options that are on or off."""

_SWITCH: Final = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class Options:
    """What is rewritten in a normal URL.

    *tracking*, *sessions*: parameters that say how a visitor came, or who it is, are dropped.
    *query_order*: parameters are sorted by name. *index*: ``index.html`` and its like at the end
    of a path are dropped. *www*: ``www.`` before a registered name is dropped. *drop*: names of
    further parameters to be dropped, in lower case, ``*`` at the end for any ending. *keep*: all
    others are dropped; None keeps all.
    """

    tracking: bool = False
    sessions: bool = False
    query_order: bool = False
    index: bool = False
    www: bool = False
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] | None = None

    @classmethod
    def of(cls, words: Iterable[str], drop: Iterable[str] = ()) -> Options:
        """The options that *words* of `WORDS` name, and the parameters to *drop*."""
        on: dict[str, Any] = {word.replace("-", "_"): True for word in words}
        return cls(**on, drop=tuple(names(drop)))


NONE: Final = Options()
"""The plain normal form."""

_FIELDS: Final = tuple(field.name for field in fields(Options))


def names(given: Iterable[str]) -> Iterator[str]:
    """The names of parameters in *given*, as normal URLs have them, but in lower case.

    Raises `ValueError` if one is none.
    """
    for name in given:
        stem = name.removesuffix("*")
        if not stem.isprintable() or set(stem) & set("*&=#, "):
            raise ValueError(f"{name!r} is no name of a parameter")
        spelled = (normalize(f"http://a.example/?{stem}") or "").partition("?")[2]
        if not spelled:
            raise ValueError(f"{name!r} is no name of a parameter")
        yield spelled.lower() + name[len(stem) :]


class UrlRules:
    """The exceptions by host, looked up by host."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        """Read a rule a line. Raises `ValueError` that says which and what is wrong."""
        self._rules: Subjects[dict[str, Any]] = Subjects()
        for number, line in enumerate(lines, 1):
            try:
                self._add(line.partition("#")[0].split())
            except ValueError as error:
                raise ValueError(f"rule {number}, {line.strip()[:80]!r}: {error}") from None

    def _add(self, words: list[str]) -> None:
        if not words:
            return
        subject = Subject.parse(words[0])
        if subject.kind in (Kind.PREFIX, Kind.RANGE):
            raise ValueError(f"{words[0]!r} is no host or .domain")
        if self._rules.get(subject) is not None:
            raise ValueError(f"{subject} has a rule already")
        self._rules.put(subject, _parsed(words[1:]))

    def __len__(self) -> int:
        return len(self._rules)

    def of_host(self, host: str, general: Options) -> Options:
        """The options for *host*, where *general* hold for all that no rule decides."""
        found = general
        for rule in reversed([*self._rules.of_host(host)]):
            found = replace(found, **rule)
        return found


def _parsed(words: list[str]) -> dict[str, Any]:
    """The fields that one rule decides. Raises `ValueError`."""
    if not words:
        raise ValueError("nothing to change: expected e.g. sessions=yes")
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        field = name.replace("-", "_")
        if not equals or field not in _FIELDS:
            allowed = ", ".join(each.replace("_", "-") for each in _FIELDS)
            raise ValueError(f"{word!r}: expected one of {allowed} and a value")
        if field in values:
            raise ValueError(f"{word!r}: {name} stands twice in the rule")
        if field in ("drop", "keep"):
            values[field] = tuple(names(filter(None, text.split(","))))
        elif text in _SWITCH:
            values[field] = _SWITCH[text]
        else:
            raise ValueError(f"{word!r}: expected yes or no")
    return values
