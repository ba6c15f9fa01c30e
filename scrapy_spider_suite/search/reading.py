"""Reads a pack from where it was left, while it is written too: one fetch after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import xxhash

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs import cdxj
from scrapy_spider_suite.packs.cdxj import Located
from scrapy_spider_suite.packs.containers import Container
from scrapy_spider_suite.packs.pack_file import OPEN, container, format_of
from scrapy_spider_suite.packs.scan import Damage, beginning, scan_from

_TAIL: Final = 4096
RECORD_MAX: Final = 256 << 20
"""Bytes of a record that is read; a larger one has no words that anybody reads."""


class Read(NamedTuple):
    """The records of one fetch; *next* is from where on the pack is to be read after it."""

    records: list[Located]
    next: int


class PackReading:
    """The pack *path*, which is there. Raises `OSError`.

    What is torn at the end of a pack that is being written is no damage: it may be written yet.
    """

    def __init__(self, path: Path) -> None:
        self.written = path.name.endswith(OPEN)
        self._form: Container = container(format_of(path))
        self._file: BinaryIO = path.open("rb")
        self.size = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def tail(self, offset: int) -> str:
        """A digest of what lies before *offset*: another one where the pack was written anew."""
        start = max(0, offset - _TAIL)
        self._file.seek(start)
        return xxhash.xxh3_64_hexdigest(self._file.read(offset - start))

    def fetches(self, offset: int) -> Iterator[Read | Damage]:
        """Yield what is there from *offset* on, 0 for all, and what is damaged between it."""
        held: list[Located] = []
        offset = offset or beginning(self._form, self._file)
        for part in scan_from(self._form, self._file, offset, RECORD_MAX):
            if isinstance(part, Damage):
                if not (part.torn and self.written):
                    yield part
                continue
            try:
                records = list(part.records())
            except PackDamagedError as error:
                yield Damage(part.offset, part.length, str(error), False)
                continue
            # A member may be part of a fetch that goes on in the next one; a group never is.
            for located in records:
                if held and not cdxj.belongs(located[0], held):
                    yield Read(held, located[1].offset)
                    held = []
                held.append(located)
            offset = part.offset + part.length
            if self._form.grouped:
                yield Read(held, offset)
                held = []
        if held and not self.written:
            yield Read(held, offset)
