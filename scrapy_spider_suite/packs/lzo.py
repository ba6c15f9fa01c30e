"""LZO1X through either of two libraries, which read each other's blocks.

``lzallright`` (MIT, wheels) compresses like LZO1X-999; ``python-lzo`` (GPL, compiles against
liblzo2; the extra ``[lzo]``) is used where it is installed: LZO1X-1, many times as fast, in half as
much room again. Both let other threads run meanwhile. `benchmarks/packs.py` has the figures.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Final, Protocol

import lzallright

from scrapy_spider_suite.errors import PackDamagedError, PackError


class Lzo(Protocol):
    """One library. *method* and *level* are what lzop's header says of its blocks."""

    name: str
    method: int
    level: int

    def compress(self, data: bytes) -> bytes:
        """Return *data* compressed."""

    def decompress(self, data: bytes, size: int) -> bytes:
        """Return the *size* bytes that *data* was made of. Raises `PackDamagedError`."""


class Lzallright:
    """The library that is always there."""

    name: str = "lzallright"
    method = 3
    level = 9

    def __init__(self) -> None:
        self._compressor = lzallright.LZOCompressor()

    def compress(self, data: bytes) -> bytes:
        """Return *data* compressed."""
        return self._compressor.compress(data)

    def decompress(self, data: bytes, size: int) -> bytes:
        """Return the *size* bytes that *data* was made of."""
        try:
            # It grows its buffer where that is too small: at most 255 times len(data).
            out = self._compressor.decompress(data, size)
        except lzallright.LZOError as error:
            raise PackDamagedError(f"bad LZO data: {error}") from error
        if len(out) != size:
            raise PackDamagedError("a block has another length than it says")
        return out


class PythonLzo:
    """The library of the extra ``[lzo]``. Raises ImportError where it is not installed."""

    name: str = "python-lzo"
    method = 1
    level = 3

    def __init__(self) -> None:
        self._lzo = importlib.import_module("lzo")

    def compress(self, data: bytes) -> bytes:
        """Return *data* compressed."""
        out: bytes = self._lzo.compress(data, 1, False)
        return out

    def decompress(self, data: bytes, size: int) -> bytes:
        """Return the *size* bytes that *data* was made of."""
        try:
            out: bytes = self._lzo.decompress(data, False, size)
        except self._lzo.error as error:
            raise PackDamagedError(f"bad LZO data: {error}") from error
        if len(out) != size:
            raise PackDamagedError("a block has another length than it says")
        return out


LIBRARIES: Final[dict[str, type[Lzallright] | type[PythonLzo]]] = {
    "lzallright": Lzallright,
    "python-lzo": PythonLzo,
}


def library(name: str = "") -> Lzo:
    """Return the library of that *name*; without one ``python-lzo`` if it is there.

    Raises `PackError`: it is not installed.
    """
    if name:
        try:
            return LIBRARIES[name]()
        except (ImportError, KeyError) as error:
            raise PackError(f"the LZO library {name!r} is not installed") from error
    return _best()()


@cache
def _best() -> type[Lzallright] | type[PythonLzo]:
    try:
        PythonLzo()
    except ImportError:  # to look for it once more takes half a millisecond
        return Lzallright
    return PythonLzo
