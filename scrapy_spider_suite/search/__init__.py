"""Words in pages: an index of the texts in packs, that follows them, and is asked without Scrapy.

In a notebook, while the crawl writes too::

    from scrapy_spider_suite.search import open_index

    index = open_index("crawls/news/packs")           # several folders: one for each agent
    for hit in index.search('crawler "full text" -java', limit=20):
        hit.url, hit.title, hit.time, hit.language, hit.score
        hit.snippet.marked("<b>", "</b>")
        hit.page().body                               # from its pack

`follower.Follower` writes it: a batch of pages at a time (`step`), or all of it anew (`rebuild`).
What a page says is found out by `packs.text`; the index itself is one of tantivy (MIT). The extra
``[index]`` brings what is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_spider_suite.errors import PackError, SearchError

if TYPE_CHECKING:
    from scrapy_spider_suite.search.searching import TextIndex

__all__ = ["open_index", "require"]


def open_index(*folders: str | Path) -> TextIndex:
    """Open the indexes of *folders* of packs.

    Raises `PackError` (one is no folder) and `SearchError` (what is needed is not installed).
    """
    require()
    from scrapy_spider_suite.search.searching import TextIndex

    found = [Path(folder) for folder in folders]
    for folder in found:
        if not folder.is_dir():
            raise PackError(f"not a folder of packs: {folder}")
    return TextIndex(found)


def require() -> None:
    """Raises `SearchError`: what is needed to index and to search is not installed."""
    try:
        import resiliparse  # noqa: F401
        import tantivy  # noqa: F401
    except ImportError as error:
        raise SearchError(
            f"{error.name} is not installed: pip install 'scrapy-spider-suite[index]'"
        ) from None
