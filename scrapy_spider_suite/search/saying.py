"""What a fetch means for the index: a page with words, one that has none any more, or nothing."""

from __future__ import annotations

from enum import Enum
from typing import Final

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs.cdxj import REVISIT, Entry
from scrapy_spider_suite.packs.reader import Page
from scrapy_spider_suite.packs.text import Text, text_of
from scrapy_spider_suite.search.schema import TEXT_MAX, Document

_NOT_MODIFIED: Final = 304
_CODE: Final = frozenset({"text/css", "text/javascript", "text/ecmascript", "text/x-javascript"})


class Meaning(Enum):
    """Of a fetch, for what is known of its URL."""

    NOTHING = "nothing"
    GONE = "gone"
    WORDS = "words"


def meaning(entry: Entry) -> Meaning:
    """Return what a fetch means, by its status: what it says, if anything, is in its body.

    An answer for now (5xx, 429) changes nothing; robots.txt is for robots.
    """
    revisit = entry.mime == REVISIT
    status = entry.status
    if entry.says_nothing:
        return Meaning.NOTHING
    if 200 <= status < 300 or (status == _NOT_MODIFIED and revisit):
        return Meaning.WORDS
    if status == _NOT_MODIFIED or 0 < status < 200:
        return Meaning.NOTHING
    # What did not come by HTTP has no status, and a type that is its own.
    return Meaning.GONE if status else Meaning.WORDS


def document_of(page: Page, entry: Entry) -> Document | None:
    """Return what *page* says; None: its body, or that of its original, cannot be read. `OSError`.
    """
    try:
        origin = page.original if page.is_revisit else page
        if origin is None:
            return None
        said = text_of(page.body, origin.head.get("Content-Type"))
    except (PackError, FileNotFoundError):
        return None
    return _document(entry, said)


def _document(entry: Entry, said: Text) -> Document:
    """With words, if there are any to be read."""
    if said.mime in _CODE or not (said.text.strip() or said.title):
        return Document(entry)
    return Document(entry, said.title, said.text[:TEXT_MAX], said.language, said.mime)
