"""Full-text search over packs. Needs the extra ``[index]``: tantivy (MIT) and resiliparse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_spider_suite.errors import PackError, SearchError

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.search.text_index import TextIndex

__all__ = ["hide_texts", "open_index", "remove_texts", "require"]


def open_index(*folders: str | Path) -> TextIndex:
    """Open the indexes of *folders* of packs. Raises `PackError` and `SearchError`."""
    require()
    from scrapy_spider_suite.analysis.search.text_index import TextIndex

    for folder in folders:
        if not Path(folder).is_dir():
            raise PackError(f"not a folder of packs: {folder}")
    return TextIndex(map(Path, folders))


def require() -> None:
    """Raise `SearchError` if an extra is not installed."""
    try:
        import resiliparse  # noqa: F401
        import tantivy  # noqa: F401
    except ImportError as error:
        raise SearchError(
            f"{error.name} is not installed: pip install 'scrapy-spider-suite[index]'"
        ) from None


WAIT = 600.0  # seconds to wait for another process that writes a batch


def hide_texts(folder: Path, *, host: str = "", url: str = "") -> None:
    """Hide pages of *host* or *url* from searches. Raises `SearchError` and `OSError`."""
    if _has_index(folder):
        from scrapy_spider_suite.analysis.search.index_follower import hide

        hide(folder, *(("host", host) if host else ("url", url)), WAIT)


def remove_texts(folder: Path, accepts: Callable[[str, str], bool]) -> None:
    """Remove the pages that *accepts* accepts by URL and text, with every byte. Raises as above."""
    if _has_index(folder):
        from scrapy_spider_suite.analysis.search.index_follower import rewrite

        rewrite(folder, accepts, WAIT)


def _has_index(folder: Path) -> bool:
    # The add-on asks `require` at each start of Scrapy: it must not load what reads packs.
    from scrapy_spider_suite.analysis.search.index_place import IndexPlace

    if found := IndexPlace(folder).exists():
        require()
    return found
