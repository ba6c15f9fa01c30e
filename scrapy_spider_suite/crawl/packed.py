"""Whether a body that a revisit record is to refer to is in the packs still."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from scrapy_spider_suite.packs.cdxj import REVISIT
from scrapy_spider_suite.packs.folder_index import FolderIndex
from scrapy_spider_suite.packs.pack_file import OPEN, uploaded
from scrapy_spider_suite.packs.warc import date, parse_date
from scrapy_spider_suite.store.revisit_plans import Packed


class PackedBodies:
    """Looks into the indexes of the packs in *folder*; for any thread.

    A page that was redacted is in none of them. A pack that was uploaded and is gone from here
    counts, one that somebody has deleted does not.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index: FolderIndex | None = None
        self._lock = Lock()

    def has(self, packed: Packed) -> bool:
        """Whether the record *packed* can be found; a read or two of the disk."""
        time = parse_date(date(packed.when))
        stamp = "" if time is None else f"{time:%Y%m%d%H%M%S}"
        try:
            with self._lock:
                self._index = self._index or FolderIndex(self.folder)
                entries = self._index.find(packed.url)
        except OSError:
            return False
        names = {
            each.filename for each in entries
            if (each.stamp, each.digest) == (stamp, packed.digest) and each.mime != REVISIT
        }  # fmt: skip
        return any(map(self._is_kept, names))

    def _is_kept(self, name: str) -> bool:
        pack = self.folder / Path(name).name
        there = pack.exists() or pack.with_name(pack.name + OPEN).exists()
        return there or uploaded(pack) is not None
