"""What `redact` does to the index of a folder of packs, where there is one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from scrapy_spider_suite.errors import SearchError
from scrapy_spider_suite.search import require
from scrapy_spider_suite.search.place import IndexPlace

logger = logging.getLogger(__name__)

WAIT = 600.0
"""Seconds to wait for another process that writes a batch, and merges."""


def hide_texts(folder: Path, *, host: str = "", url: str = "") -> None:
    """Let no page of *host* (``*.example.com``: and those below it), or *url*, be found any longer.

    Its bytes are there still. Raises `SearchBusyError` and `OSError`.
    """
    if _usable(folder):
        from scrapy_spider_suite.search.rewriting import hide

        hide(folder, *(("host", host) if host else ("url", url)), WAIT)


def redact_texts(folder: Path, takes: Callable[[str, str], bool]) -> None:
    """Leave nothing in the index of the pages that *takes*, by their URL and text, takes.

    To be called when they are in no pack any more. Raises `SearchBusyError` and `OSError`.
    """
    if _usable(folder):
        from scrapy_spider_suite.search.rewriting import rewrite

        rewrite(folder, takes, WAIT)


def _usable(folder: Path) -> bool:
    """Whether there is an index; one that cannot be read here goes as a whole."""
    place = IndexPlace(folder)
    if not place.exists():
        return False
    try:
        require()
    except SearchError as error:
        logger.warning("%s: the index of texts of %s is removed: `scrapy packs index` makes "
                       "another one", error, folder)  # fmt: skip
        with place.held(WAIT):
            place.clear()
        return False
    return True
