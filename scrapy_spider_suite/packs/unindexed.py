"""Pages of packs that have no index, or none that serves: one is made aside, for whoever asks."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from scrapy_spider_suite.packs import cdxj
from scrapy_spider_suite.packs.indexing import build_index, index_entries
from scrapy_spider_suite.packs.lines import SortedLines, identity
from scrapy_spider_suite.packs.packfile import index_path
from scrapy_spider_suite.packs.warc import clean_url

logger = logging.getLogger(__name__)

_KEPT: Final = 64
"""Packs whose index is kept: each is an open file."""


class Unindexed:
    """Reads such packs, each once and whole, however many URLs are asked for."""

    def __init__(self) -> None:
        self._made: dict[tuple[Path, tuple[int, int, int]], SortedLines] = {}

    def find(self, pack: Path, url: str) -> list[cdxj.Entry]:
        """Return every entry of *url* in the closed *pack*. Raises `OSError`."""
        url = clean_url(url)
        key = pack, identity(pack.stat())
        lines = self._made.get(key)
        if lines is None:
            logger.warning("%s has no index that serves: it is read whole; `scrapy packs merge` "
                           "makes one", pack)  # fmt: skip
            lines = self._make(pack)
        found: Iterable[cdxj.Entry]
        if lines is None:
            found = index_entries(pack, pack.name)
        else:
            self._made[key] = lines
            found = map(cdxj.parse, lines.find(f"{cdxj.key_of(url)} ".encode()))
        return [entry for entry in found if entry.url == url]

    def _make(self, pack: Path) -> SortedLines | None:
        """An index of *pack*, in a file that has no name any more; None if there is no room."""
        if len(self._made) >= _KEPT:
            return None
        try:
            with tempfile.TemporaryDirectory(prefix="scrapy-packs-") as folder:
                named = Path(folder) / pack.name
                build_index(pack, named)
                return SortedLines(index_path(named))
        except OSError as error:
            logger.warning("An index of %s cannot be kept: %s", pack, error)
            return None
