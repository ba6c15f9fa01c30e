"""URLs that nobody linked to, mined from one that exists (Tarantula's §1 and §5.1; T13, T14).

Ancestors are the folders above a page, siblings the pages whose numbers are one more or one less.
"""

from __future__ import annotations

import re
from typing import Final

RUNS_MAX: Final = 3
"""Numbers of a path, from its end, of which siblings are made."""
DIGITS_MAX: Final = 6
"""Digits of a number beyond which it is no page's: it is an id, or a time."""

# No digit of an escape: "%20" is no page 20.
_NUMBER: Final = re.compile(r"(?<![%0-9])(?<!%[0-9A-F])[0-9]+")


def ancestors(url: str) -> list[str]:
    """The folders above the normal *url*, the closest first (bottom-up, T13).

    Of ``http://h/video/clips/`` these are ``http://h/video/`` and ``http://h/``.
    """
    path = url.partition("?")[0]
    root = path.index("/", 8) + 1
    found = []
    while len(path) > root:
        path = path[: path.rfind("/", 0, -1) + 1]
        found.append(path)
    return found


def siblings(url: str) -> list[str]:
    """The pages beside the normal *url* by the numbers of its path, the last number first (T14).

    Of ``http://h/pics1/Page1.html`` these are ``http://h/pics1/Page2.html`` and
    ``http://h/pics2/Page1.html``. Leading zeros stay, there is no page 0 before page 1, and of a
    URL with a query there are none: its numbers mean anything.
    """
    if "?" in url:
        return []
    root = url.index("/", 8)
    found = []
    for run in [*_NUMBER.finditer(url, root)][: -RUNS_MAX - 1 : -1]:
        digits = run[0]
        if len(digits) > DIGITS_MAX:
            continue
        width = len(digits) if digits.startswith("0") else 0
        for number in (int(digits) + 1, int(digits) - 1):
            if number > 0:
                found.append(f"{url[: run.start()]}{number:0{width}}{url[run.end() :]}")
    return found


def folder_of(url: str) -> str:
    """Where a mined *url* lies, numbers made alike: its misses teach about what else lies there."""
    path = url[url.index("/", 8) :]
    kind = "folders" if path.endswith("/") else "pages"
    return f"{kind} in {_NUMBER.sub('0', path[: path.rfind('/', 0, -1) + 1])}"
