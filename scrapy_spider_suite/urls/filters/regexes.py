"""Regular expressions that no text can make slow: RE2's, whose time is linear in text and pattern.

There is no look-around and no backreference in them. What RE2 cannot do for a text with a table of
states it does in one step for each character and instruction of the pattern's program: so the
product of the two is bounded, and with it the time (some 25 ns a step, 0.4 s in all).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import re2  # type: ignore[import-untyped]

STEPS_MAX = 1 << 24
"""Steps for one text at the most: of a body so much is looked at as is possible with them."""
PROGRAM_MAX = 1_024
"""Instructions of a pattern's program at the most."""
BODY_MAX = 1 << 20
"""Bytes of a body that are looked at, at the most."""


def matches(pattern: str) -> Callable[[str], bool]:
    """Whether *pattern* matches the whole of a URL. Raises `ValueError`."""
    match, _ = _compiled(pattern, _utf8(), whole=True)
    return lambda text: bool(match(text))


def contains(pattern: str) -> Callable[[str], bool]:
    """Whether *pattern* matches somewhere in a URL. Raises `ValueError`."""
    match, _ = _compiled(pattern, _utf8(), whole=False)
    return lambda text: bool(match(text))


def body_matches(pattern: str) -> Callable[[bytes], bool]:
    """Whether *pattern* matches the whole of a body as ISO-8859-1. Raises `ValueError`."""
    match, limit = _compiled(_latin(pattern), _latin_1(), whole=True)
    return lambda body: bool(match(body[:limit]))


def body_contains(pattern: str) -> Callable[[bytes], bool]:
    """Whether *pattern* matches somewhere in a body as ISO-8859-1. Raises `ValueError`."""
    match, limit = _compiled(_latin(pattern), _latin_1(), whole=False)
    return lambda body: bool(match(body[:limit]))


def _compiled(
    pattern: str | bytes, options: re2.Options, *, whole: bool
) -> tuple[Callable[[str | bytes], Any], int]:
    """The match of *pattern* and the length of the longest text for it."""
    # Only who has a regex needs it.
    import re2

    try:
        size = re2.compile(pattern, options).programsize
    except re2.error as error:
        said = error.args[0] if error.args else error
        why = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        raise ValueError(f"a regular expression as RE2 has them ({why})") from None
    if size > PROGRAM_MAX:
        raise ValueError(
            f"a shorter regular expression: its program has {size:,} instructions, at most "
            f"{PROGRAM_MAX:,} are allowed"
        )
    # A set of one: it only says whether, and asking it costs a fifth of asking an expression.
    one = re2.Set.FullMatchSet(options) if whole else re2.Set.SearchSet(options)
    one.Add(pattern)
    one.Compile()
    return one.Match, min(BODY_MAX, STEPS_MAX // size)


def _latin(pattern: str) -> bytes:
    try:
        return pattern.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("a regular expression of ISO-8859-1 characters") from None


@cache
def _utf8() -> re2.Options:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    return options


@cache
def _latin_1() -> re2.Options:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.encoding = re2.Options.Encoding.LATIN1
    return options
