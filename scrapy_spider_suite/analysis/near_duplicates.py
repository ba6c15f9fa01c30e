"""Pages that say nearly the same, among the latest ones, in a fixed amount of memory.

A page is the set of its runs of three words: 64 MinHash numbers (Broder 1997; rensa, extra
``near``), eight bits of each (Li, König, WWW 2010). Pages that agree in one of eight bands are
compared.
"""

from __future__ import annotations

import re
import struct
from importlib.metadata import version
from typing import Final

import numpy as np
import numpy.typing as npt
from rensa import RMinHash  # type: ignore[import-untyped]

from scrapy_spider_suite.store.interface import KV

THRESHOLD: Final = 0.9  # similarity from which on a page is a near duplicate
HASHES: Final = 64
_BANDS: Final = 8
_SEED: Final = 42
_RUN: Final = 3
_LONGEST: Final = 1 << 18
_ENTRY: Final = HASHES + 8 + 2 * 4 * _BANDS
"""Bytes of memory of a page: numbers, name, two places in each band's table."""

_TEXT: Final = re.compile(rb"<(?:script|style)\b[^<>]*>[^<]*|>([^<]+)", re.I)
_WORDS: Final = (b" " * 65 + bytes(range(97, 123)) + b" " * 6 + bytes(range(97, 123))).ljust(
    128
) + bytes(range(128, 256))
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_MADE, _PAGE = b"m", b"p"
_MET = struct.Struct(">Q")
_ROW: Final = np.dtype([("met", "<u8"), ("number", "<u8"), ("signature", "u1", HASHES)])

Signature = npt.NDArray[np.uint8]


def signature(body: bytes) -> Signature | None:
    """Return the 64 numbers of the HTML page *body*; None if it has too few words."""
    words = b" ".join(_TEXT.findall(body[:_LONGEST])).translate(_WORDS).split()
    if len(words) < _RUN:
        return None
    hashes = RMinHash(HASHES, _SEED)
    hashes.update(list(map(b" ".join, zip(*(words[n:] for n in range(_RUN)), strict=False))))
    return np.array(hashes.digest(), np.uint32).astype(np.uint8)


def similarity(one: Signature, other: Signature) -> float:
    """Estimate the shared part of the runs, 0 to 1; standard deviation 0.06 at 0.5, 0.04 at 0.9."""
    return max(0.0, (float(np.mean(one == other)) - 1 / 256) / (1 - 1 / 256))


class NearIndex:
    """Finds a similar page among the latest pages, in *memory* bytes (7,700 pages a MiB). *rows*
    keep the pages, 89 bytes each, for the next run with the same release of rensa.
    """

    def __init__(self, memory: int, rows: KV | None = None) -> None:
        self._band = np.arange(_BANDS)
        self._met = 0
        self._rows = rows
        self.capacity = max(1, memory // _ENTRY)
        slots = 2 * self.capacity
        self._signatures = np.zeros((self.capacity, HASHES), np.uint8)
        self._numbers = np.zeros(self.capacity, np.uint64)
        self._tables = np.zeros((_BANDS, slots), np.uint32)
        self._slots = np.uint64(slots)
        if rows is not None:
            self._load(rows)

    def find(self, page: Signature) -> tuple[int, float] | None:
        """Return number and similarity of the most similar page, or None below the threshold."""
        places = self._tables[self._band, self._places(page)]
        found = np.unique(places[places > 0]) - 1
        if not len(found):
            return None
        same = (self._signatures[found] == page).sum(axis=1)
        best = int(np.argmax(same))
        like = similarity(self._signatures[found[best]], page)
        return (int(self._numbers[found[best]]), like) if like >= THRESHOLD else None

    def add(self, page: Signature, number: int) -> None:
        place = self._met % self.capacity
        self._signatures[place] = page
        self._numbers[place] = number
        self._tables[self._band, self._places(page)] = place + 1
        if self._rows is not None:
            row = np.array((self._met, number, page), _ROW)
            self._rows.put(_key(self._met), row.tobytes())
            if self._met >= self.capacity:
                self._rows.delete(_key(self._met - self.capacity))
        self._met += 1

    def _load(self, rows: KV) -> None:
        made = f"rensa {version('rensa')}".encode()
        found = list(rows.items(_PAGE))
        if rows.get(_MADE) != made:
            for key, _ in found:
                rows.delete(key)
            rows.put(_MADE, made)
            return
        whole = [row for _, row in found if len(row) == _ROW.itemsize]
        pages = np.frombuffer(b"".join(whole), _ROW)  # in the order of *met*
        if not len(pages):
            return
        for met in pages["met"][: -self.capacity]:  # an earlier run may have had more memory
            rows.delete(_key(int(met)))
        pages = pages[-self.capacity :]
        self._met = int(pages["met"][-1]) + 1
        places = (pages["met"] % np.uint64(self.capacity)).astype(np.uint32)
        self._signatures[places] = pages["signature"]
        self._numbers[places] = pages["number"]
        slots = self._places(np.ascontiguousarray(pages["signature"]))
        for band in self._band:
            # The newest of a band's place is the one that is found there.
            self._tables[band, slots[:, band]] = places + 1

    def _places(self, pages: Signature) -> npt.NDArray[np.uint64]:
        bands = pages.view(np.uint64) * _MIX
        places: npt.NDArray[np.uint64] = (bands ^ bands >> np.uint64(32)) % self._slots
        return places


def _key(met: int) -> bytes:
    return _PAGE + _MET.pack(met)
