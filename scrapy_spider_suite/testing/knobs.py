"""Kinds of the in-vitro web's knobs: how each is declared, read from text and checked.

=========  ==========================================================================
``count``  a whole number
``bytes``  a whole number of bytes, ``K``, ``M`` and ``G`` (powers of 1,024) allowed
``secs``   seconds, a decimal number of at least 0
``share``  a share between 0 and 1
``sigma``  spread of a log-normal distribution (0 = every draw is the mean)
``text``   a name
``file``   the path of a file
``flag``   off unless it is given
``table``  a table; on the command line one repeated option an entry
=========  ==========================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar, cast

from scrapy_spider_suite.errors import SettingsError

T = TypeVar("T")

ALLOWED = {
    "count": "a whole number",
    "bytes": "a whole number of bytes, with K, M or G if you like",
    "secs": "a number of seconds of at least 0",
    "share": "a number between 0 and 1",
    "sigma": "a number between 0 and 5",
}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "flag": bool,
    "text": str,
    "file": (Path, type(None)),
    "table": Mapping,
}
_TYPE_NAMES = {"flag": "true or false", "text": "a name", "file": "a Path", "table": "a table"}
_MOST = {"secs": 1e9, "share": 1.0, "sigma": 5.0}
_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def knob(default: T, kind: str, meaning: str, minimum: int = 0) -> T:
    """Declare one dataclass field as a knob; *minimum* binds counts and bytes only."""
    known = about(default, kind, meaning, minimum)
    if kind == "table":
        return cast(T, field(default_factory=dict, metadata=known))
    return field(default=default, metadata=known)


def about(default: object, kind: str, meaning: str, minimum: int = 0) -> dict[str, Any]:
    """What is kept about a knob, as the metadata of its field."""
    return {"kind": kind, "help": meaning, "min": minimum, "default": default}


def parse(name: str, kind: str, value: Any) -> Any:
    """Turn *value*, as the command line or JSON has it, into what a knob of *kind* holds.

    Raises:
        SettingsError: the text cannot be read as that kind (ranges are :func:`check`'s matter).
    """
    if kind == "file" and value is not None:
        return Path(value)
    if kind not in _READERS or not isinstance(value, str):
        return value
    try:
        return _READERS[kind](value)
    except ValueError:
        raise SettingsError.of(name, value, ALLOWED[kind]) from None


def check(name: str, kind: str, value: Any, minimum: int = 0) -> None:
    """Refuse a *value* that a knob of *kind* cannot have.

    Raises:
        SettingsError: it is of the wrong type or out of range.
    """
    if kind in ("count", "bytes"):
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise SettingsError.of(name, value, f"a whole number of at least {minimum}")
    elif kind in _MOST:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value <= _MOST[kind]:
            raise SettingsError.of(name, value, ALLOWED[kind])
    elif not isinstance(value, _TYPES[kind]):
        raise SettingsError.of(name, value, _TYPE_NAMES[kind])


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]+)([KMG]?)", text.strip().upper())
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _SUFFIXES[match[2]]


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_READERS: dict[str, Callable[[str], float]] = {
    "count": int,
    "bytes": _size,
    "secs": _number,
    "share": _number,
    "sigma": _number,
}
