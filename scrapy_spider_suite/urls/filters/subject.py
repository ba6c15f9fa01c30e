"""What a filter is asked about: a link, a request, a response; and what is known of it when."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum

from scrapy_spider_suite.runtime.http_fields import media_type


class Fact(Enum):
    """What an atom may want to know beside the URL."""

    VIA = "the page that led there"
    DEPTH = "its depth"
    BEYOND = "how far it is from the scope"
    ADDRESS = "the address of its host"
    PAGE = "a response"


class Stage(StrEnum):
    """When a filter is asked; see the manual for what is refused at each."""

    SCHEDULE = "schedule"
    FETCH = "fetch"
    PARSE = "parse"
    FOLLOW = "follow"
    STORE = "store"


_OF_LINK = frozenset({Fact.VIA, Fact.DEPTH, Fact.BEYOND})
KNOWN: dict[Stage, frozenset[Fact]] = {
    Stage.SCHEDULE: _OF_LINK,
    Stage.FETCH: _OF_LINK | {Fact.ADDRESS},
    Stage.PARSE: frozenset(Fact),
    # The page is there, but the link's own host has not been looked up.
    Stage.FOLLOW: _OF_LINK | {Fact.PAGE},
    Stage.STORE: frozenset(Fact),
}
"""What is known at each stage."""

_LANG = re.compile(rb"<html\b[^>]{0,1000}?\blang\s*=\s*[\"']?([A-Za-z0-9-]{1,35})", re.IGNORECASE)
_HEAD = 4_096
"""Bytes of a body in which its ``html`` element is looked for."""


class Page:
    """A response, as far as filters look at it.

    *http* is whether it came over HTTP; *content_type* and *content_language* are those headers
    ("" without); *text* gives the body's text, when it is asked for.
    """

    __slots__ = ("_text", "body", "content_language", "content_type", "http", "status", "text_of")

    def __init__(
        self, status: int, body: bytes, content_type: str = "", content_language: str = "", *,
        http: bool = True, text: Callable[[], str] | None = None,
    ) -> None:  # fmt: skip
        self.status = status
        self.body = body
        self.content_type = content_type
        self.content_language = content_language
        self.http = http
        self.text_of = text
        self._text: str | None = None

    @property
    def media_type(self) -> str:
        """Its type, in lower case and without parameters; "" if it does not say."""
        return media_type(self.content_type)

    @property
    def languages(self) -> list[str]:
        """In which languages it says that it is, in lower case (RFC 9110 §8.5, HTML ``lang``)."""
        said = self.content_language
        if not said:
            found = _LANG.search(self.body, 0, _HEAD)
            said = found[1].decode() if found else ""
        return [tag.strip().lower() for tag in said.split(",") if tag.strip()]

    @property
    def folded_text(self) -> str:
        """Its text, in lower case."""
        if self._text is None:
            text = self.body.decode("latin-1") if self.text_of is None else self.text_of()
            self._text = text.lower()
        return self._text


@dataclass(slots=True)
class Subject:
    """What is known of a URL beside itself; all links of a page share one.

    *via* is the page that led there ("": a seed), *depth* the links from a seed, *beyond* how
    many links in a row have led out of the scope (0: it is within), *address* that of its host
    ("": not known), *page* the answer, or for a link the page that it stands on.
    """

    via: str = ""
    depth: int = 0
    beyond: int = 0
    address: str = ""
    page: Page | None = None


Test = Callable[[str, Subject], bool]
"""Whether a normal URL, with what else is known of it, is wanted."""
