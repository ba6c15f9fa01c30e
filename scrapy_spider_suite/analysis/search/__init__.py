"""Full-text search over packs. Needs the extra ``[index]``: tantivy (MIT) and resiliparse."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_spider_suite.errors import PackError, SearchError

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.search.text_index import TextIndex

logger = logging.getLogger(__name__)

__all__ = ["hide_texts", "open_index", "remove_texts", "require"]


def open_index(*folders: str | Path) -> TextIndex:
    """Open the indexes of *folders* of packs. Raises `PackError` and `SearchError`."""
    require()
    from scrapy_spider_suite.analysis.search.text_index import TextIndex

    found = [Path(folder) for folder in folders]
    for folder in found:
        if not folder.is_dir():
            raise PackError(f"not a folder of packs: {folder}")
    return TextIndex(found)


def require() -> None:
    """Raise `SearchError` if an extra is not installed."""
    try:
        import resiliparse  # noqa: F401
        import tantivy  # noqa: F401
    except ImportError as error:
        raise SearchError(
            f"{error.name} is not installed: pip install 'scrapy-spider-suite[index]'"
        ) from None


WAIT = 600.0
"""Seconds to wait for another process that writes a batch."""


def hide_texts(folder: Path, *, host: str = "", url: str = "") -> None:
    """Hide pages of *host* (``*.example.com``: with all below) or *url* from searches; their bytes
    stay. Raises `SearchBusyError` and `OSError`.
    """
    if _usable(folder):
        from scrapy_spider_suite.analysis.search.index_follower import hide

        hide(folder, *(("host", host) if host else ("url", url)), WAIT)


def remove_texts(folder: Path, accepts: Callable[[str, str], bool]) -> None:
    """Remove the pages that *accepts* accepts by URL and text, with every byte, once no pack has
    them. Raises `SearchBusyError` and `OSError`.
    """
    if _usable(folder):
        from scrapy_spider_suite.analysis.search.index_follower import rewrite

        rewrite(folder, accepts, WAIT)


def _usable(folder: Path) -> bool:
    # The add-on asks `require` at each start of Scrapy: it must not load what reads packs.
    from scrapy_spider_suite.analysis.search.index_place import IndexPlace

    place = IndexPlace(folder)
    if not place.exists():
        return False
    try:
        require()
    except SearchError as error:
        logger.warning("%s: the index of texts of %s is removed: `scrapy packs index` makes "
                       "another one", error, folder)  # fmt: skip
        with place.locked(WAIT):
            place.clear()
        return False
    return True
