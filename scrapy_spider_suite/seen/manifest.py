"""The small file that says which files a sieve consists of; replaced whole, or not at all.

msgpack, and xxh3 of it behind. Whatever it does not name is the rest of something unfinished.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import xxhash
from numpy.typing import NDArray

from scrapy_spider_suite.errors import JobDamagedError, JobFormatError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen.fingerprints import SLOTS

NAME = "sieve.manifest"
_FORMAT = 1
_SUM = 8


def _no_counts() -> NDArray[np.int64]:
    return np.zeros(SLOTS, np.int64)


@dataclass
class Manifest:
    """What a sieve consists of.

    Attributes:
        words: words of 64 bits in a fingerprint.
        generation: how often it was replaced.
        parts: of each part its least first word, its base and its recent file (empty: none).
        counts: fingerprints of each slot.
        notes: what the owner of the files wants to be true from the same moment on.
    """

    words: int
    generation: int = 0
    parts: list[tuple[int, str, str]] = field(default_factory=lambda: [(0, "", "")])
    counts: NDArray[np.int64] = field(default_factory=_no_counts)
    notes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """That of *folder*; None if it has none yet.

        Raises:
            JobDamagedError: it is not what was written.
            JobFormatError: a newer release wrote it.
        """
        path = folder / NAME
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        body, sum_ = data[:-_SUM], data[-_SUM:]
        if len(data) <= _SUM or xxhash.xxh3_64_digest(body) != sum_:
            raise JobDamagedError(f"{path} is damaged")
        row = msgpack.unpackb(body)
        if row["format"] != _FORMAT:
            raise JobFormatError(f"{path} has format {row['format']}, this release reads {_FORMAT}")
        counts = np.frombuffer(row["counts"], "<u4").astype(np.int64)
        parts = [tuple(part) for part in row["parts"]]
        return cls(row["words"], row["generation"], parts, counts, row["notes"])

    def write(self, folder: Path) -> None:
        """Put it in the place of that of *folder*, on the medium. Raises `OSError`: it is not."""
        row = {
            "format": _FORMAT, "words": self.words, "generation": self.generation,
            "parts": self.parts, "counts": self.counts.astype("<u4").tobytes(),
            "notes": self.notes,
        }  # fmt: skip
        body: bytes = msgpack.packb(row)
        new = folder / f"{NAME}.new"
        files.write(new, body + xxhash.xxh3_64_digest(body))
        os.replace(new, folder / NAME)
        # It is in its place now; a disk that cannot say so will say it of the next thing written.
        with suppress(OSError):
            files.sync(folder)
