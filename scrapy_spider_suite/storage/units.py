"""Some units of a crawl: which hosts and URLs lie in them, and where to find those in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np

from scrapy_spider_suite.errors import ParcelError
from scrapy_spider_suite.frontier.entries import UNITS

Unit = Callable[[str, str], int]
"""The unit of a URL: of its host, and itself."""


class Units:
    """The *units* of an assignment, whose function is *unit*.

    With *by_host* it goes by the host alone; with *slots* the unit is the slot of the host, so that
    what is kept of a unit lies together.
    """

    def __init__(
        self, units: Iterable[int], unit: Unit, *, by_host: bool = True, slots: bool = False
    ) -> None:
        self.numbers = frozenset(units)
        self.by_host = by_host
        self.slots = slots
        self._unit = unit

    def __repr__(self) -> str:
        return f"<Units: {len(self.numbers):,}>"

    def has_host(self, host: str) -> bool:
        """Whether all URLs of *host* lie in them; where that goes by URL, whether some may."""
        return not self.by_host or self._unit(host, f"https://{host}/") in self.numbers

    def has(self, host: str, url: str) -> bool:
        """Whether *url* of *host* lies in them."""
        return self._unit(host, url) in self.numbers

    def prefixes(self) -> Iterator[tuple[bytes, bytes]]:
        """Where keys that begin with a slot may lie: from the first key on, before the second."""
        if not self.slots:
            yield b"", b"\xff" * 3
            return
        run = sorted(self.numbers)
        starts = [n for n, before in zip(run, [-2, *run], strict=False) if n != before + 1]
        ends = [before + 1 for before, n in pairwise([*run, UNITS + 1]) if n != before + 1]
        for start, end in zip(starts, ends, strict=True):
            # No host's name begins with a byte above all others.
            yield start.to_bytes(2, "big"), (end - 1).to_bytes(2, "big") + b"\xff"


def packed(units: Iterable[int]) -> bytes:
    """*units* as a bit for each."""
    bits = np.zeros(UNITS, bool)
    bits[list(units)] = True
    return np.packbits(bits).tobytes()


def unpacked(data: bytes) -> frozenset[int]:
    """What `packed` packed. Raises `ParcelError` for anything else."""
    if len(data) != UNITS // 8:
        raise ParcelError("units that are none")
    found = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8)))
    return frozenset(found.tolist())
