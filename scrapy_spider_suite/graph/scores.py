"""Scores of URLs or hosts from a file, for ``SUITE_ORDER = "best-first"`` (T17).

Such a file has a line for each: URL or host, tab, number; compressed if its name ends in ``.gz``.
``SUITE_SCORES = "ranks/page-ranks.txt.gz"`` has a crawl use it; in a project's module::

    SCORES = Scores.read(Path("page-ranks.txt.gz"))
    score = SCORES.of_url  # SUITE_SCORE = "myproject.scores.score"
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.urls.normalize import host_of

_BATCH = 100_000
_hash = xxhash.xxh3_64_intdigest


class Scores:
    """Numbers by name, in 12 bytes each: names are known by 64 bits of a hash.

    Among *n* names, one that has no score is taken for another with a probability of n / 2**64.
    """

    def __init__(self, names: npt.NDArray[np.uint64], scores: npt.NDArray[np.float32]) -> None:
        order = np.argsort(names, kind="stable")
        self._names = names[order]
        self._scores = scores[order]

    def __len__(self) -> int:
        return len(self._names)

    @classmethod
    def read(cls, path: Path) -> Scores:
        """Read a file. Raises `SettingsError` if a line is not one of them, `OSError`."""
        names, scores = [], []
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            lines = enumerate(file, 1)
            while batch := list(islice(lines, _BATCH)):
                rows = [_row(path, *line) for line in batch]
                names.append(np.array([row[0] for row in rows], np.uint64))
                scores.append(np.array([row[1] for row in rows], np.float32))
        if not names:
            return cls(np.empty(0, np.uint64), np.empty(0, np.float32))
        return cls(np.concatenate(names), np.concatenate(scores))

    @classmethod
    def of(cls, rows: Iterable[tuple[str, float]]) -> Scores:
        """From pairs of name and score."""
        found = [(_hash(name.encode()), score) for name, score in rows]
        return cls(
            np.array([name for name, _ in found], np.uint64),
            np.array([score for _, score in found], np.float32),
        )

    def get(self, name: str, default: float = 0.0) -> float:
        """The score of *name*; *default* if it has none."""
        key = np.uint64(_hash(name.encode()))
        at = int(np.searchsorted(self._names, key))
        if at == len(self._names) or self._names[at] != key:
            return default
        return float(self._scores[at])

    def of_url(self, url: str, depth: int, referrer: str) -> float:
        """The score of *url* itself; 0 if it has none. A function for SUITE_SCORE."""
        return self.get(url)

    def of_referrer(self, url: str, depth: int, referrer: str) -> float:
        """That of the host that *url* was found on; 0 for seeds. A function for SUITE_SCORE."""
        return self.get(host_of(referrer)) if "://" in referrer else 0.0

    def of_link(self, url: str, depth: int, referrer: str) -> float:
        """That of *url* itself, if it has one, else that of the host that it was found on."""
        return self.of_url(url, depth, referrer) or self.of_referrer(url, depth, referrer)


def _row(path: Path, number: int, line: str) -> tuple[int, float]:
    name, _, score = line.rstrip("\n").partition("\t")
    try:
        return _hash(name.encode()), float(score)
    except ValueError:
        expected = "URL or host, a tab, and a number"
        raise SettingsError(f"{path}, line {number}: {line[:80]!r}: expected {expected}") from None
