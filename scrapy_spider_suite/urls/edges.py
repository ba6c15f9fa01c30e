"""The links of a page as edges of a graph: how they link, and whether the page vouches for them.

`extract` gives what a crawl follows: without links marked ``rel=nofollow``, each once. Here these
are edges, too, and the page's own name for itself is one.
"""

from __future__ import annotations

import re
from typing import Final, Unpack

from scrapy_spider_suite.urls._encoding import Page
from scrapy_spider_suite.urls.extract import Context, PageLinks, Reader

Edge = tuple[str, str, bool]
"""A normal URL, the kind (``a``, ``area``, ``frame``, ``refresh``, ``canonical``), nofollow."""

TEXT_MAX: Final = 500
"""Bytes of the text of a link that are read."""

_KINDS: Final = {b"area": "area", b"frame": "frame", b"iframe": "frame", b"meta": "refresh"}
# Linear in the page: nothing is searched for across a "<".
_TEXT: Final = re.compile(rb"<a\b[^<>]*>([^<]+)", re.I)


def extract_edges(body: bytes, **context: Unpack[Context]) -> tuple[PageLinks, list[Edge]]:
    """What `extract` returns, and the edges of the page, in document order, the canonical one last.

    An edge is there once for each kind; it is nofollow if all links of that kind are marked so, or
    the page asks it of all its links. There are no more than four times *max_links*. Never raises.
    """
    reader = _EdgeReader(body, **context)
    reader.read()
    found = reader.result()
    edges = [(to, kind, no or found.nofollow) for (to, kind), no in reader.edges.items()]
    if found.canonical is not None:
        edges.append((found.canonical, "canonical", False))
    return found, edges


class _EdgeReader(Reader):
    """Notes, beside what it reads, how each link links."""

    def _begin(self, base: str) -> None:
        super()._begin(base)
        self.edges: dict[tuple[str, str], bool] = {}
        self._kind = "a"
        self._noted: set[tuple[bytes, str, bool]] = set()

    def _tag(self, name: bytes, raw: bytes) -> str | None:
        self._kind = _KINDS.get(name, "a")
        late = super()._tag(name, raw)
        self._kind = "a"
        return late

    def _link_element(self, value: bytes, found: dict[bytes, bytes]) -> None:
        before = self._rel_nofollow
        super()._link_element(value, found)
        if self._rel_nofollow > before:
            self._note(value, nofollow=True)

    def _add(self, value: bytes) -> None:
        before = len(self._seen)
        super()._add(value)
        if len(self._seen) == before:  # met before, but maybe as another kind, or marked nofollow
            self._note(value, nofollow=False)
        else:
            self._noted.add((value, self._kind, False))

    def _add_reference(self, href: str) -> str | None:
        to = super()._add_reference(href)
        if to is not None:
            self.edges[to, self._kind] = False
        return to

    def _note(self, value: bytes, *, nofollow: bool) -> None:
        """Note the link *value*, which was not resolved, or not as this kind."""
        mark = value, self._kind, nofollow
        if mark in self._noted:
            return
        self._noted.add(mark)
        to = self._resolved(value)
        if to is not None:
            edge = to, self._kind
            self.edges[edge] = self.edges.get(edge, True) and nofollow


def link_texts(
    body: bytes, encoding: str | None = None, content_type: bytes | str | None = None
) -> list[str]:
    """The texts of the links of an HTML page, up to the first tag in each. Never raises."""
    page = Page(body, encoding, content_type)
    texts = (page.read(text[:TEXT_MAX]).strip() for text in _TEXT.findall(page.markup))
    return [text for text in texts if text]
