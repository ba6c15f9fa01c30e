"""The types that a setting's value can have: how each is read, and what is allowed, in words.

A value arrives as Python wrote it (``4``, ``True``, ``["a"]``) or as text from a command line or an
environment variable (``"4"``, ``"true"``, ``"a,b"``); both read the same. Each factory returns a
:class:`ValueType`, whose ``parse`` raises :class:`ValueError` for anything else. The sentence that
the user sees is built from ``allowed``, so a parser says nothing of its own.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from scrapy_spider_suite.urls.normalizer import UrlRules
from scrapy_spider_suite.urls.normalizer import names as parameter_names

T = TypeVar("T")
N = TypeVar("N", int, float)

_DURATION = re.compile(r"(\d+(?:\.\d+)?) *([smhdw]?)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kmg]?)b?", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TRUTH = {"1": True, "true": True, "0": False, "false": False}
"""How True and False are spelled, in lower case."""
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]+/(\*|[a-z0-9!#$&^_.+-]+)")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


@dataclass(frozen=True, slots=True)
class ValueType:
    """How a setting's value is read.

    Attributes:
        parse: from what the user wrote to the typed value; raises ValueError.
        allowed: what is allowed, to follow "expected", such as "a number of seconds >= 0".
        unit: what one of it is: "seconds", "bytes", "hosts"; empty where that makes no sense.
    """

    parse: Callable[[object], object]
    allowed: str
    unit: str = ""


def boolean() -> ValueType:
    """Return the type of True and False, spelled as Scrapy's own settings allow."""

    def parse(raw: object) -> bool:
        return _lookup(TRUTH, str(raw).lower())

    return ValueType(parse, "True or False")


def integer(low: int, high: int | None = None, unit: str = "") -> ValueType:
    """Return the type of whole numbers from *low* to *high*, both included."""

    def parse(raw: object) -> int:
        if isinstance(raw, float) and raw.is_integer():
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise ValueError(raw)
        return within(int(raw), low, high)

    bounds = f">= {low}" if high is None else f"from {low} to {high}"
    return ValueType(parse, f"a whole number {bounds}", unit)


def duration(low: float = 0.0) -> ValueType:
    """Return the type of durations: a float of seconds, also written ``10m``, ``2h`` or ``7d``."""

    def parse(raw: object) -> float:
        if isinstance(raw, str):
            number, letter = _match(_DURATION, raw)
            seconds = float(number) * _SECONDS[letter.lower()]
        elif isinstance(raw, int | float) and not isinstance(raw, bool):
            seconds = float(raw)
        else:
            raise ValueError(raw)
        if not math.isfinite(seconds):
            raise ValueError(raw)
        return within(seconds, low, None)

    return ValueType(parse, f"a number of seconds >= {low:g}, or one like 10m, 2h, 7d", "seconds")


def share() -> ValueType:
    """Return the type of a part of a whole: a float from 0 to 1, both included."""
    return number(0.0, 1.0)


def number(low: float, high: float) -> ValueType:
    """Return the type of floats from *low* to *high*, both included."""

    def parse(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise ValueError(raw)
        if not low <= float(raw) <= high:  # nor is a NaN
            raise ValueError(raw)
        return float(raw)

    return ValueType(parse, f"a number from {low:g} to {high:g}")


def size(low: int = 0) -> ValueType:
    """Return the type of sizes: an int of bytes, also written ``512K``, ``64M`` or ``2G``."""

    def parse(raw: object) -> int:
        if isinstance(raw, str):
            number, letter = _match(_SIZE, raw)
            return within(int(float(number) * _BYTES[letter.lower()]), low, None)
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError(raw)
        return within(raw, low, None)

    return ValueType(parse, f"a number of bytes >= {low}, or one like 512K, 64M, 2G", "bytes")


def choice(*names: str) -> ValueType:
    """Return the type of a word out of *names*."""

    def parse(raw: object) -> str:
        return _lookup({name: name for name in names}, str(raw).lower())

    return ValueType(parse, " or ".join(repr(name) for name in names))


def choices(*names: str) -> ValueType:
    """Return the type of a list of words out of *names*, in the order of those."""

    def parse(raw: object) -> tuple[str, ...]:
        chosen = {_lookup({name: name for name in names}, item.lower()) for item in texts_of(raw)}
        return tuple(name for name in names if name in chosen)

    return ValueType(parse, f"a list of {', '.join(repr(name) for name in names)}")


def file() -> ValueType:
    """Return the type of the path of a file that exists; an empty text is None, no file."""

    def parse(raw: object) -> Path | None:
        if not isinstance(raw, str | os.PathLike):
            raise ValueError(raw)
        if raw == "":
            return None
        path = Path(raw)
        if not path.is_file():
            raise ValueError(raw)
        return path

    return ValueType(parse, "the path of a file that exists")


def folder() -> ValueType:
    """Return the type of the path of a folder, which need not exist yet; an empty text is None."""

    def parse(raw: object) -> Path | None:
        return None if raw == "" else _folder(raw)

    return ValueType(parse, "the path of a folder")


def switch_or_folder() -> ValueType:
    """Return the type of True, False, or the path of a folder, which need not exist yet."""

    def parse(raw: object) -> bool | Path:
        if (truth := TRUTH.get(str(raw).lower())) is not None:
            return truth
        return _folder(raw)

    return ValueType(parse, "True, False, or the path of a folder")


def _folder(raw: object) -> Path:
    if not isinstance(raw, str | os.PathLike) or raw == "" or "\0" in str(raw):
        raise ValueError(raw)
    path = Path(raw)
    if path.exists() and not path.is_dir():
        raise ValueError(raw)
    return path


def texts() -> ValueType:
    """Return the type of a list of texts without control characters."""

    def parse(raw: object) -> tuple[str, ...]:
        items = texts_of(raw)
        if not all(item.isprintable() for item in items):
            raise ValueError(raw)
        return items

    return ValueType(parse, "a list of texts such as 'seeds.txt.gz, example.com'")


def media_types() -> ValueType:
    """Return the type of a list of media types in lower case, with ``*`` for any part."""

    def parse(raw: object) -> tuple[str, ...]:
        types = tuple(item.lower() for item in texts_of(raw))
        if not all(_MEDIA_TYPE.fullmatch(item) for item in types):
            raise ValueError(raw)
        return types

    return ValueType(parse, "a list of media types such as 'text/*, application/xhtml+xml'")


def dotted_paths() -> ValueType:
    """Return the type of a list of import paths such as ``project.items.Book``."""

    def parse(raw: object) -> tuple[str, ...]:
        paths = texts_of(raw)
        if not all(_DOTTED.fullmatch(path) for path in paths):
            raise ValueError(raw)
        return paths

    return ValueType(parse, "a list of import paths such as 'project.items.Book'")


def parameters() -> ValueType:
    """Return the type of a list of names of query parameters, ``*`` at the end for any ending."""

    def parse(raw: object) -> tuple[str, ...]:
        return tuple(sorted({*parameter_names(texts_of(raw))}))

    return ValueType(parse, "a list of names of parameters such as 'ref, src_*'")


def url_rules() -> ValueType:
    """Return the type of the rules of the normal form by host: their lines, in any order.

    They are read from a file or given as a list; what comes out are the lines themselves, without
    comments, so that a job keeps the rules and not the place where they lay.
    """

    def parse(raw: object) -> tuple[str, ...]:
        if isinstance(raw, str | os.PathLike):
            try:
                lines = Path(raw).read_text(encoding="utf-8").splitlines() if raw else []
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(raw) from error
        else:
            lines = list(texts_of(raw))
        try:
            UrlRules(lines)
        except ValueError as error:
            raise WrongLine(str(error)) from None
        bare = (" ".join(line.partition("#")[0].split()) for line in lines)
        return tuple(sorted(filter(None, bare)))

    return ValueType(parse, "a file of rules, or a list such as ['.example.org tracking=yes']")


class WrongLine(ValueError):
    """A value of many lines, of which one is wrong: the text says which, and what is allowed."""


def import_path() -> ValueType:
    """Return the type of an import path such as ``project.scores.score``; empty for none."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or (raw and not _DOTTED.fullmatch(raw)):
            raise ValueError(raw)
        return raw

    return ValueType(parse, "an import path such as 'project.scores.score'")


def filter_for(stage: str) -> ValueType:
    """Return the type of a filter for *stage*, as text: an expression, or ``@`` and a file's path.

    An expression is checked here; a file, which may change, where it is read.
    """

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or not all(c.isprintable() or c in "\t\r\n" for c in raw):
            raise ValueError(raw)
        text = raw.strip()
        if text.startswith("@") and not Path(text[1:]).is_file():
            raise ValueError(raw)
        if text and not text.startswith("@"):
            _check_filter(text, stage)
        return text

    return ValueType(parse, "a filter such as 'HostEndsWith(.org)', or '@' and a file that exists")


def _check_filter(text: str, stage: str) -> None:
    # Who has no filter needs neither its parser nor the list of public suffixes.
    from scrapy_spider_suite.errors import FilterError
    from scrapy_spider_suite.urls.filters import Filter, Given, Stage

    try:
        Filter(text, Stage(stage), Given(country_of=str))
    except FilterError as error:
        raise WrongLine(str(error)) from None


def _lookup(table: dict[str, T], key: str) -> T:
    if key not in table:
        raise ValueError(key)
    return table[key]


def within(number: N, low: N, high: N | None) -> N:
    """Return *number*. Raises ValueError: it is not from *low* to *high*, both included."""
    if number < low or (high is not None and number > high):
        raise ValueError(number)
    return number


def _match(pattern: re.Pattern[str], raw: str) -> tuple[str, str]:
    if (found := pattern.fullmatch(raw.strip())) is None:
        raise ValueError(raw)
    return found[1], found[2]


def texts_of(raw: object) -> tuple[str, ...]:
    """Split a comma-separated text, or take a list of texts; both without empty entries.

    Raises ValueError: it is neither.
    """
    if isinstance(raw, str):
        parts: Collection[object] = raw.split(",")
    elif isinstance(raw, list | tuple | set | frozenset):
        parts = raw
    else:
        raise ValueError(raw)
    texts = [part.strip() for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise ValueError(raw)
    return tuple(text for text in texts if text)
