"""PageRank (Page, Brin, Motwani, Winograd 1998), and scores read from a file. Needs numpy alone.

A file of scores has lines of URL or host, tab, number; ``.gz`` is compressed.
"""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.urls.normalize import host_of

ROUNDS_MAX = 1_000
_CHUNK = 1 << 20


def pagerank(
    edges: npt.NDArray[np.uint32], count: int, *, damping: float = 0.85, tolerance: float = 1e-10
) -> npt.NDArray[np.float64]:
    """Return the ranks of *count* vertices; their sum is 1.

    *edges*: distinct pairs (source, target). A vertex without links gives its rank to all, as in
    networkx. Ends at a total change below *tolerance*. Raises `ValueError`: *damping* is not in [0,
    1).
    """
    if not 0 <= damping < 1:
        raise ValueError(f"a damping of {damping}: expected from 0 to less than 1")
    if not count:
        return np.empty(0)
    degrees = np.zeros(count)
    for chunk in _chunks(edges):
        degrees += np.bincount(chunk[:, 0], minlength=count)
    ends = degrees == 0
    shares = np.divide(damping, degrees, out=np.zeros(count), where=~ends)
    ranks = np.full(count, 1 / count)
    for _ in range(ROUNDS_MAX):
        given = ranks * shares
        new = np.full(count, (1 - damping + damping * ranks[ends].sum()) / count)
        for chunk in _chunks(edges):
            new += np.bincount(chunk[:, 1], weights=given[chunk[:, 0]], minlength=count)
        changed = np.abs(new - ranks).sum()
        ranks = new
        if changed < tolerance:
            break
    ranks /= ranks.sum()
    return ranks


def _chunks(edges: npt.NDArray[np.uint32]) -> list[npt.NDArray[np.uint32]]:
    return [edges[at : at + _CHUNK] for at in range(0, len(edges), _CHUNK)]


_BATCH = 100_000
_hash = xxhash.xxh3_64_intdigest


class ScoreTable:
    """Numbers by name, 12 bytes each. Names are 64-bit hashes: an unknown name matches one of *n*
    with probability n / 2**64.
    """

    def __init__(self, names: npt.NDArray[np.uint64], scores: npt.NDArray[np.float32]) -> None:
        order = np.argsort(names, kind="stable")
        self._names = names[order]
        self._scores = scores[order]

    def __len__(self) -> int:
        return len(self._names)

    @classmethod
    def read(cls, path: Path) -> ScoreTable:
        """Read a file. Raises `SettingsError` (a bad line) and `OSError`."""
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

    def get(self, name: str, default: float = 0.0) -> float:
        key = np.uint64(_hash(name.encode()))
        at = int(np.searchsorted(self._names, key))
        if at == len(self._names) or self._names[at] != key:
            return default
        return float(self._scores[at])

    def of_url(self, url: str, depth: int, referrer: str) -> float:
        """The score of *url*, or 0. For SUITE_SCORE."""
        return self.get(url)

    def of_referrer(self, url: str, depth: int, referrer: str) -> float:
        """The score of the referrer's host; 0 for seeds. For SUITE_SCORE."""
        return self.get(host_of(referrer)) if "://" in referrer else 0.0

    def of_link(self, url: str, depth: int, referrer: str) -> float:
        return self.of_url(url, depth, referrer) or self.of_referrer(url, depth, referrer)


def _row(path: Path, number: int, line: str) -> tuple[int, float]:
    name, _, score = line.rstrip("\n").partition("\t")
    try:
        return _hash(name.encode()), float(score)
    except ValueError:
        expected = "URL or host, a tab, and a number"
        raise SettingsError(f"{path}, line {number}: {line[:80]!r}: expected {expected}") from None
