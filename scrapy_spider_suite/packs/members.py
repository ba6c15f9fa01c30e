"""Packs with a gzip member (RFC 1952) or a Zstandard frame per record, which WARC tools open.

So the WARC standard (annex D) and its Zstandard companion have it: a record is found by seeking.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final, Protocol

from backports import zstd

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs.container import RECORD_MAX, Frame, Place

GZIP_LEVEL: Final = 6
ZSTD_LEVEL: Final = 3

_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_STEP = 1 << 16
_WINDOW = 1 << 20
_ERRORS = zlib.error, zstd.ZstdError, EOFError


class Engine(Protocol):
    """Decompresses one member."""

    @property
    def eof(self) -> bool:
        """Whether the member has ended, and its checksum was right."""

    @property
    def unused_data(self) -> bytes:
        """What was given and lies behind the member."""

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        """Return what *data* goes on with, *max_length* bytes of it at most."""


class MemberContainer:
    """What the formats ``gz`` and ``zst`` have in common."""

    suffix: str
    magic: bytes
    grouped = False

    def begin(self, name: str, time: int) -> bytes:
        """Nothing: a file is its members."""
        return b""

    def end(self) -> bytes:
        """Nothing."""
        return b""

    def start(self, file: BinaryIO) -> int:
        """Return 0. Raises `PackDamagedError`: the file begins with no member."""
        file.seek(0)
        head = file.read(len(self.magic))
        if head != self.magic:
            raise PackDamagedError(f"not a file of {self.suffix}")
        return 0

    def encode(self, records: Sequence[bytes]) -> tuple[bytes, list[Place]]:
        """Return a member for each record."""
        members = [self.compress(record) for record in records]
        places, offset = [], 0
        for record, member in zip(records, members, strict=True):
            places.append(Place(offset, len(member), 0, len(record)))
            offset += len(member)
        return b"".join(members), places

    def decode(self, data: bytes, limit: int = RECORD_MAX) -> bytes:
        """Return what the member *data* holds."""
        engine = self.engine()
        try:
            out = engine.decompress(data, limit + 1)
        except _ERRORS as error:
            raise PackDamagedError(f"a member is damaged: {error}") from error
        if len(out) > limit:
            raise PackDamagedError(f"more than {limit} bytes when it is decompressed")
        if not engine.eof or engine.unused_data:
            raise PackDamagedError("a member has another length than it should")
        return out

    def frames(self, file: BinaryIO, offset: int, limit: int = RECORD_MAX) -> Iterator[Frame]:
        """Yield the members."""
        while True:
            file.seek(offset)
            frame = self._frame(file, offset, limit)
            if frame is None:
                return
            if frame.problem:
                frame = frame._replace(end=self._resume(file, offset + 1, limit))
            yield frame
            offset = frame.end

    def _frame(self, file: BinaryIO, offset: int, limit: int) -> Frame | None:
        engine = self.engine()
        out: list[bytes] = []
        size, end = 0, offset
        try:
            while not engine.eof:
                data = file.read(_STEP)
                if not data:
                    return None if end == offset else Frame(offset, offset, b"", "cut off")
                end += len(data)
                out.append(engine.decompress(data, limit + 1 - size))
                size += len(out[-1])
                if size > limit:
                    return Frame(offset, offset, b"", f"a record of more than {limit} bytes")
        except _ERRORS as error:
            return Frame(offset, offset, b"", f"a member is damaged: {error}")
        return Frame(offset, end - len(engine.unused_data), b"".join(out))

    def _resume(self, file: BinaryIO, offset: int, limit: int) -> int:
        """Return where, from *offset* on, the next whole member is, or the end of the file."""
        while True:
            file.seek(offset)
            window = file.read(_WINDOW)
            place = window.find(self.magic)
            if place < 0:
                if len(window) < _WINDOW:
                    return offset + len(window)
                offset += _WINDOW - len(self.magic) + 1
                continue
            file.seek(offset + place)
            frame = self._frame(file, offset + place, limit)
            if frame is not None and not frame.problem and frame.data:
                return offset + place
            offset += place + 1

    def compress(self, record: bytes) -> bytes:
        """Return the member for *record*."""
        raise NotImplementedError

    def engine(self) -> Engine:
        """Return what decompresses a member."""
        raise NotImplementedError


class GzipContainer(MemberContainer):
    """The format ``gz``."""

    suffix = "gz"
    magic = _GZIP_MAGIC

    def compress(self, record: bytes) -> bytes:
        """Return a gzip member, without a time in its header."""
        engine = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
        return engine.compress(record) + engine.flush()

    def engine(self) -> Engine:
        """Return what decompresses a member; it checks the CRC."""
        return zlib.decompressobj(zlib.MAX_WBITS | 16)


class ZstdContainer(MemberContainer):
    """The format ``zst``."""

    suffix = "zst"
    magic = _ZSTD_MAGIC

    def __init__(self) -> None:
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: ZSTD_LEVEL,
            zstd.CompressionParameter.checksum_flag: 1,
        }
        self._compressor = zstd.ZstdCompressor(options=options)

    def compress(self, record: bytes) -> bytes:
        """Return a frame with its checksum and the size of its content."""
        self._compressor.set_pledged_input_size(len(record))
        return self._compressor.compress(record, zstd.ZstdCompressor.FLUSH_FRAME)

    def engine(self) -> Engine:
        """Return what decompresses a frame; it checks the checksum."""
        return zstd.ZstdDecompressor()
