"""Pages of made-up text: the same for the same seed, different for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import shake_128
from html import escape
from random import Random
from typing import NamedTuple

from scrapy_spider_suite.testing.http import HTML, Reply, reply

_LETTERS = ("bcdfgklmnprstvw", "aeiou")


class Page(NamedTuple):
    """What a page says, and where it leads: paths, relative paths or URLs. *lines* are said one by
    one, as a list has them."""

    text: str
    links: Sequence[str]
    lines: Sequence[str] = ()

    def reply(self, title: str) -> Reply:
        """The answer that has it, in HTML."""
        links = "".join(f'<li><a href="{escape(each)}">more</a></li>\n' for each in self.links)
        lines = "".join(f"<p>{each}</p>\n" for each in self.lines)
        head = f"<!DOCTYPE html>\n<html><head><title>{title}</title></head>\n"
        body = f"<body><p>{self.text}</p>\n{lines}<ul>{links}</ul>\n</body></html>\n"
        return reply(200, head + body, HTML)


class Prose:
    """Text of words that nobody has heard of, by a *seed*."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def number(self, *what: object) -> int:
        """A large number for *what* it is of."""
        text = " ".join(map(str, (self._seed, *what)))
        return int.from_bytes(shake_128(text.encode()).digest(8), "big")

    def words(self, what: str, count: int) -> str:
        """So many words for *what* they are of."""
        return _words(self.number(what), count)

    def text(self, what: str) -> str:
        """A paragraph about *what* it is of."""
        return self.words(what, 60) + "."


@lru_cache(50_000)
def _words(number: int, count: int) -> str:
    draw = Random(number)
    return " ".join(_word(draw) for _ in range(count))


def _word(draw: Random) -> str:
    return "".join(draw.choice(_LETTERS[k % 2]) for k in range(draw.randint(4, 10)))
