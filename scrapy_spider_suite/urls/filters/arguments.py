"""What stands between an atom's parentheses, read; each function raises `ValueError`.

Its message says what was expected.
"""

from __future__ import annotations

from collections.abc import Callable

from scrapy_spider_suite.urls.filters.language import split, word
from scrapy_spider_suite.urls.normalize import host_of, normalize


def nothing(argument: str) -> None:
    """No argument at all."""
    if argument:
        raise ValueError("no argument")


def text(argument: str) -> str:
    """One text."""
    found = word(argument)
    if not found:
        raise ValueError("a text")
    return found


def texts(argument: str) -> tuple[str, ...]:
    """One text or more, with commas between them."""
    found = tuple(filter(None, split(argument)))
    if not found:
        raise ValueError("one text or more, with commas between them")
    return found


def lowered(argument: str) -> tuple[str, ...]:
    """Texts whose case does not matter."""
    return tuple(each.lower() for each in texts(argument))


def number(argument: str, low: int) -> int:
    """A whole number of at least *low*."""
    if not (argument.isascii() and argument.isdigit()) or int(argument) < low:
        raise ValueError(f"a whole number >= {low}")
    return int(argument)


def host(name: str) -> str:
    """A host, or the end of one, as hosts of normal URLs are written."""
    dot = "." * name.startswith(".")
    literal = f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name[len(dot) :]
    url = None
    if literal and not any(sign in literal.strip("[]") for sign in "/?#@\\"):
        url = normalize(f"http://{literal}/")
    # The end of a host, such as ".1", may be no host.
    if url is None or not literal.isascii():
        found = None if url is None else host_of(url)
    else:
        found = host_of(url) if literal.startswith("[") else literal.lower().rstrip(".")
    if not found:
        raise ValueError(f"a host such as example.com, not {name!r}")
    return dot + found


def hosts(argument: str) -> tuple[str, ...]:
    """Hosts, or ends of hosts."""
    return tuple(map(host, texts(argument)))


def ends_with_one_of(suffixes: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a text ends with one of *suffixes*, in a time that hardly grows with their number."""
    among = frozenset(suffixes)
    lengths = sorted({len(suffix) for suffix in suffixes})
    return lambda text: any(text[-length:] in among for length in lengths)
