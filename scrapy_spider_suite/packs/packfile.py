"""One pack while it is written: groups of records, all or nothing, and an index beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from scrapy_spider_suite.packs import cdxj
from scrapy_spider_suite.packs.container import Container, Place
from scrapy_spider_suite.packs.formats import OPEN, final
from scrapy_spider_suite.packs.groupfile import GroupFile, cut, write_all
from scrapy_spider_suite.packs.sorting import sort_lines
from scrapy_spider_suite.packs.warc import Record

INDEX = ".cdxj"


def index_path(pack: Path) -> Path:
    """Return where the index of *pack* lies: ``.cdxj.open`` while it is written."""
    if pack.name.endswith(OPEN):
        return pack.with_name(f"{final(pack).name}{INDEX}{OPEN}")
    return pack.with_name(f"{pack.name}{INDEX}")


class PackFile(GroupFile):
    """An open pack. *path* is what it will be called; raises `OSError` where that is not said.

    *power*: `append` returns when the group is on the medium, not only with the system.
    """

    def __init__(self, path: Path, form: Container, time: float, *, power: bool = False) -> None:
        super().__init__(
            path, time, form.begin(path.name.rpartition(".")[0], int(time)), power=power
        )
        self._form = form
        self._index_whole = True
        try:
            self._index: BinaryIO = index_path(self.open_path).open("wb", buffering=0)
        except OSError:
            super().abandon()
            self.open_path.unlink(missing_ok=True)
            raise

    def append(self, records: Sequence[Record], data: Sequence[bytes]) -> list[Place]:
        """Add *records*, which are *data* as bytes, as one group; return the place of each.

        Raises `OSError`: nothing of them is in the pack, and it can be appended to again, unless
        the pack had to be given up (`broken`; then `recover` closes it).
        """
        group, places = self._form.encode(data)
        places = [place._replace(offset=place.offset + self.size) for place in places]
        self.add((group,))
        self._note(records, places)
        return places

    def close(self) -> None:
        """Write the end mark and the sorted index, and give the pack its name. Raises `OSError`.

        May be called again after it failed.
        """
        self.end(self._form.end())
        notes, index = index_path(self.open_path), index_path(self.path)
        if self._index_whole and not self.named:
            try:
                sort_lines(notes, index)
            except OSError:  # a pack without an index is whole: `index.build` makes one
                index.unlink(missing_ok=True)
        self.name()
        notes.unlink(missing_ok=True)
        self.abandon()

    def abandon(self) -> None:
        """Leave the pack as it is, for `recover`."""
        super().abandon()
        self._index.close()

    def discard(self) -> None:
        """Remove the pack: nothing is in it."""
        index_path(self.open_path).unlink(missing_ok=True)
        super().discard()

    def _note(self, records: Sequence[Record], places: list[Place]) -> None:
        """Add the lines of the index; it can be made again, so the pages are safe without."""
        if not self._index_whole:
            return
        found = cdxj.entries(list(zip(records, places, strict=True)), self.path.name)
        size = os.fstat(self._index.fileno()).st_size
        try:
            write_all(self._index, b"".join(entry.line() + b"\n" for entry in found))
        except OSError:
            self._index_whole = False
            cut(self._index, size)
