"""PageRank (Page, Brin, Motwani, Winograd 1998), and scores read from a file. Needs numpy alone.

A file of scores has lines of URL or host, tab, number; ``.gz`` is compressed.
"""

from __future__ import annotations

import gzip
from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.urls.normalize import host_of

DAMPING = 0.85
TOLERANCE = 1e-10  # the total change of ranks below which they are final
ROUNDS_MAX = 1_000
_CHUNK = 1 << 20


def pagerank(edges: npt.NDArray[np.uint32], count: int) -> npt.NDArray[np.float64]:
    """Return the ranks of *count* vertices; their sum is 1. *edges*: distinct pairs (source,
    target). A vertex without links gives its rank to all, as in networkx.
    """
    if not count:
        return np.empty(0)
    degrees = np.zeros(count)
    for chunk in _chunks(edges):
        degrees += np.bincount(chunk[:, 0], minlength=count)
    ends = degrees == 0
    shares = np.divide(DAMPING, degrees, out=np.zeros(count), where=~ends)
    ranks = np.full(count, 1 / count)
    for _ in range(ROUNDS_MAX):
        given = ranks * shares
        new = np.full(count, (1 - DAMPING + DAMPING * ranks[ends].sum()) / count)
        for chunk in _chunks(edges):
            new += np.bincount(chunk[:, 1], weights=given[chunk[:, 0]], minlength=count)
        changed = np.abs(new - ranks).sum()
        ranks = new
        if changed < TOLERANCE:
            break
    ranks /= ranks.sum()
    return ranks


def _chunks(edges: npt.NDArray[np.uint32]) -> list[npt.NDArray[np.uint32]]:
    return [edges[at : at + _CHUNK] for at in range(0, len(edges), _CHUNK)]


_hash = xxhash.xxh3_64_intdigest


class ScoreTable:
    """Numbers by name, 12 bytes each. Of n names, another one is one by chance of n / 2**64."""

    def __init__(self, names: npt.NDArray[np.uint64], scores: npt.NDArray[np.float32]) -> None:
        order = np.argsort(names, kind="stable")
        self._names = names[order]
        self._scores = scores[order]

    @classmethod
    def read(cls, path: Path) -> ScoreTable:
        """Read a file. Raises `SettingsError` (a bad line) and `OSError`."""
        names, scores = array("Q"), array("f")
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                name, _, score = line.rstrip("\n").partition("\t")
                try:
                    scores.append(float(score))
                except ValueError:
                    what = f"{path}, line {number}: {line[:80]!r}: expected URL or host, a tab, "
                    raise SettingsError(f"{what}and a number") from None
                names.append(_hash(name.encode()))
        return cls(np.array(names, np.uint64), np.array(scores, np.float32))

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
