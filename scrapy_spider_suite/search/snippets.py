"""The part of a text in which the words stand that were asked for."""

from __future__ import annotations

from typing import Final, NamedTuple

import tantivy

from scrapy_spider_suite.search.schema import schema, words_of

CHARACTERS: Final = 200
_WINDOW: Final = 2_000
_WINDOW_MAX: Final = 32_000
"""Characters of a long text that are looked at, a quarter of a millisecond; as many more where
words are spelled in another way there than they were asked for."""


class Snippet(NamedTuple):
    """Some 200 characters of a text. *marks*: where in it words that were asked for begin and end.
    """

    text: str
    marks: tuple[tuple[int, int], ...] = ()

    def marked(self, before: str, after: str) -> str:
        """Return the text with *before* and *after* round each of those words."""
        out, place = [], 0
        for start, end in self.marks:
            out += [self.text[place:start], before, self.text[start:end], after]
            place = end
        return "".join([*out, self.text[place:]])


class Snippets:
    """Snippets for the *query* that was made of *asked*."""

    def __init__(self, searcher: tantivy.Searcher, query: tantivy.Query, asked: str) -> None:
        self._make = tantivy.SnippetGenerator.create(searcher, query, schema(), "text")
        self._make.set_max_num_chars(CHARACTERS)
        self._words = words_of(asked)

    def of(self, text: str) -> Snippet:
        """Return that of *text*: its beginning, if it has none of the words."""
        part = self._part(text)
        found = self._make.snippet_from_doc(tantivy.Document.from_dict({"text": part}, schema()))
        # Places are counted in bytes of UTF-8.
        fragment = found.fragment()
        data = fragment.encode()
        marks: list[tuple[int, int]] = []
        for each in found.highlighted():
            start, end = len(data[: each.start].decode()), len(data[: each.end].decode())
            if marks and marks[-1][1] == start:  # signs of one phrase
                start = marks.pop()[0]
            marks.append((start, end))
        return Snippet(_on_one_line(fragment if marks else text[:CHARACTERS]), tuple(marks))

    def _part(self, text: str) -> str:
        """Of a long text that part in which the most of the words come first."""
        if len(text) <= _WINDOW:
            return text
        lower = text.lower()
        places = [place for word in self._words if (place := lower.find(word)) >= 0]
        if not places:
            return text[:_WINDOW_MAX]
        first = max(places, key=lambda one: sum(one <= each < one + _WINDOW for each in places))
        start = max(0, first - CHARACTERS)
        return text[start : start + _WINDOW]


def _on_one_line(text: str) -> str:
    """*text* without what moves a cursor or turns the writing round: a terminal may show it."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
