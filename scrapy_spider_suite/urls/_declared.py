"""What a page declares in words: where to go next, and what robots may do with it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

# HTML standard, §4.2.5.3, "shared declarative refresh steps".
_REFRESH: Final = re.compile(
    r"""[\t\n\f\r ]*(?:[0-9]|(?=\.))[0-9.]*
        (?:[;,]|[\t\n\f\r ]) [\t\n\f\r ]*[;,]?[\t\n\f\r ]*
        (?:[uU][rR][lL][\t\n\f\r ]*=[\t\n\f\r ]*)?
        (?:"(?P<double>[^"]*)|'(?P<single>[^']*)|(?P<bare>.*))""",
    re.VERBOSE | re.DOTALL,
)

_SEPARATORS: Final = re.compile(r"[\s,;]+")
_AGENT: Final = re.compile(r"\s*([A-Za-z_-]+)\s*:(.*)", re.DOTALL)
# Directives of X-Robots-Tag that have a colon, which would else make them the name of a robot.
_WITH_VALUE: Final = frozenset(
    ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
)


class Rules(NamedTuple):
    """What robots are asked not to do with a page."""

    noindex: bool
    nofollow: bool


def refresh_target(content: str) -> str | None:
    """The URL reference in the ``content`` of a ``meta`` refresh; None if it only reloads."""
    match = _REFRESH.match(content)
    if match is None:
        return None
    target = match["double"] or match["single"] or match["bare"] or ""
    return target.strip() or None


def robots_rules(directives: str) -> Rules:
    """The rules in the ``content`` of a robots ``meta``: ``none`` stands for both."""
    words = frozenset(_SEPARATORS.split(directives.lower()))
    none = "none" in words
    return Rules(none or "noindex" in words, none or "nofollow" in words)


def header_rules(values: Iterable[str], robot: str) -> Rules:
    """The rules in the ``X-Robots-Tag`` headers *values* for everyone, or for *robot* by name.

    ``googlebot: noindex, nofollow`` names whom the directives after it are for, to the end of its
    header or to the next name.
    """
    noindex = nofollow = False
    for value in values:
        mine = True
        for part in value.split(","):
            named = _AGENT.match(part)
            if named is not None and named[1].lower() not in _WITH_VALUE:
                mine = named[1].lower() == robot
                part = named[2]
            if mine:
                rules = robots_rules(part)
                noindex |= rules.noindex
                nofollow |= rules.nofollow
    return Rules(noindex, nofollow)
