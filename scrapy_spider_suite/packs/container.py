"""What a pack's file format is asked for. `lzop`, `members` and `formats` have the formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final, NamedTuple, Protocol

RECORD_MAX: Final = 1 << 30
"""Bytes that one record may have, decompressed, unless the reader says otherwise."""


class Place(NamedTuple):
    """Where a record is: the *length* bytes at *offset* of the file hold it.

    Decompressed, they hold it from *start* on, and it has *size* bytes: 0 and all of them, but in
    groups of several records.
    """

    offset: int
    length: int
    start: int
    size: int


class Frame(NamedTuple):
    """A part of a pack's file that can be decompressed by itself: a block, or a member.

    *end* is where the next one begins. Where *problem* says what is wrong, *data* is empty and
    *end* is the next place from which on the file can be read, or its end.
    """

    offset: int
    end: int
    data: bytes
    problem: str = ""


class Container(Protocol):
    """A file format for packs.

    *suffix* is that of its files. *grouped*: several records may lie in one part of the file that
    has to be decompressed as one.
    """

    suffix: str
    grouped: bool

    def begin(self, name: str, time: int) -> bytes:
        """Return what a file starts with. *time* in seconds since the epoch."""

    def end(self) -> bytes:
        """Return what a file ends with."""

    def encode(self, records: Sequence[bytes]) -> tuple[bytes, list[Place]]:
        """Return *records* compressed, and where in that each of them is."""

    def decode(self, data: bytes, limit: int = RECORD_MAX) -> bytes:
        """Return what *data*, a whole number of frames, was made of.

        Raises `PackDamagedError`: it is damaged, or more than *limit* bytes.
        """

    def start(self, file: BinaryIO) -> int:
        """Return where the first frame begins. Raises `PackDamagedError`: not such a file."""

    def frames(self, file: BinaryIO, offset: int, limit: int = RECORD_MAX) -> Iterator[Frame]:
        """Yield the frames from *offset* on, up to the end mark or the end of the file.

        What is damaged is yielded as one with a problem; what is torn off at the end of the file,
        too: the last one then reaches to the end of the file.
        """
