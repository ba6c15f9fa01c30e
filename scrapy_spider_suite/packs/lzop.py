"""Files of lzop: LZO blocks with Adler-32 sums of both sides (lzop 1.04, ``lzop -t`` checks them).

All numbers are big-endian. A file is a header, blocks, and four zero bytes. A block is the size of
its data, the size of what follows (the same size: not compressed), the sum of the data, the sum of
what follows (only if compressed), and that. lzop 1.04 refuses blocks of more than 256 KiB, so a
large record takes several. A *group* of records is compressed together and begins a block.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final
from zlib import adler32

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs.container import RECORD_MAX, Frame, Place
from scrapy_spider_suite.packs.lzo import Lzo, library

MAGIC: Final = b"\x89LZO\x00\r\n\x1a\n"
BLOCK: Final = 1 << 18
END: Final = bytes(4)

_VERSION, _LIBRARY, _NEEDED = 0x1040, 0x20A0, 0x0940
_FLAGS = 0x03000003  # made on Unix; sums of the data and of what is compressed
_FIXED = struct.Struct(">HHHBBIIIIB")
_SIZES = struct.Struct(">II")
_SUM = struct.Struct(">I")
_PLAIN, _PACKED = 12, 16
# The sizes of a block of at most 256 KiB: what may be one, to be proven by its sum.
_MAY_BE = re.compile(rb"(?=\x00[\x00-\x04]..\x00[\x00-\x04]..)", re.DOTALL)
_WINDOW = 1 << 20


class LzopContainer:
    """The format ``lzo``."""

    suffix: str = "lzo"
    grouped = True

    def __init__(self, lzo: Lzo | None = None) -> None:
        self._lzo = lzo or library()

    def begin(self, name: str, time: int) -> bytes:
        """Return lzop's header, with the *name* that ``lzop -N -d`` restores."""
        text = name.encode("utf-8")[-255:]
        fixed = _FIXED.pack(_VERSION, _LIBRARY, _NEEDED, self._lzo.method, self._lzo.level, _FLAGS,
                            0o100644, time & 0xFFFFFFFF, time >> 32, len(text))  # fmt: skip
        return MAGIC + fixed + text + _SUM.pack(adler32(fixed + text))

    def end(self) -> bytes:
        """Return the end mark."""
        return END

    def encode(self, records: Sequence[bytes]) -> tuple[bytes, list[Place]]:
        """Return *records* as one group."""
        whole = b"".join(records)
        out = b"".join(
            self._block(whole[place : place + BLOCK]) for place in range(0, len(whole), BLOCK)
        )
        places, start = [], 0
        for record in records:
            places.append(Place(0, len(out), start, len(record)))
            start += len(record)
        return out, places

    def _block(self, data: bytes) -> bytes:
        packed = self._lzo.compress(data)
        if len(packed) >= len(data):
            return b"%b%b%b" % (_SIZES.pack(len(data), len(data)), _SUM.pack(adler32(data)), data)
        sums = _SIZES.pack(adler32(data), adler32(packed))
        return b"%b%b%b" % (_SIZES.pack(len(data), len(packed)), sums, packed)

    def decode(self, data: bytes, limit: int = RECORD_MAX) -> bytes:
        """Return what the blocks of *data* hold."""
        out: list[bytes] = []
        place = room = 0
        while place < len(data):
            size, length = _extent(data[place : place + _PACKED])
            room += size
            if room > limit:
                raise PackDamagedError(f"more than {limit} bytes when it is decompressed")
            # The sum of what is compressed is proof enough; that of the data takes half as long as
            # to decompress it. `frames` checks both.
            out.append(self._open(data[place : place + length], size, both=False))
            place += length
        return b"".join(out)

    def _open(self, block: bytes, size: int, *, both: bool = True) -> bytes:
        """Return the *size* bytes of a block, its sums checked."""
        packed = _SIZES.unpack_from(block)[1]
        body = block[-packed:]
        if len(block) != (_PACKED if packed < size else _PLAIN) + packed:
            raise PackDamagedError("a block is cut off")
        if adler32(body) != _SUM.unpack_from(block, _PACKED - 4 if packed < size else 8)[0]:
            raise PackDamagedError("a block is damaged: its sum is another")
        if packed == size:
            return body
        data = self._lzo.decompress(body, size)
        if both and adler32(data) != _SUM.unpack_from(block, 8)[0]:
            raise PackDamagedError("a block is damaged: the sum of its data is another")
        return data

    def start(self, file: BinaryIO) -> int:
        """Return where the first block begins."""
        file.seek(0)
        fixed = len(MAGIC) + _FIXED.size
        head = file.read(fixed)
        if len(head) < fixed or not head.startswith(MAGIC):
            raise PackDamagedError("not a file of lzop")
        name = file.read(head[-1])
        total = file.read(4)
        if total != _SUM.pack(adler32(head[len(MAGIC) :] + name)):
            raise PackDamagedError("the header of the file is damaged")
        if _FIXED.unpack_from(head, len(MAGIC))[5] != _FLAGS:
            raise PackDamagedError("a file of lzop with other sums than a pack has")
        return fixed + len(name) + 4

    def frames(self, file: BinaryIO, offset: int, limit: int = RECORD_MAX) -> Iterator[Frame]:
        """Yield the blocks."""
        size = file.seek(0, 2)
        while offset < size:
            file.seek(offset)
            head = file.read(_PACKED)
            if head == END and offset + len(END) == size:
                return
            frame = self._frame(file, offset, head)
            if frame.problem:
                if head[:4] == END:
                    frame = frame._replace(problem="an end mark, and bytes after it")
                frame = frame._replace(end=self._resume(file, offset + 1))
            yield frame
            offset = frame.end
        yield Frame(offset, offset, b"", "no end mark")

    def _frame(self, file: BinaryIO, offset: int, head: bytes) -> Frame:
        try:
            size, length = _extent(head)
            block = head[:length] + file.read(max(0, length - len(head)))
            if len(head) > length:
                file.seek(offset + length)
            return Frame(offset, offset + length, self._open(block, size))
        except PackDamagedError as error:
            return Frame(offset, offset, b"", str(error))

    def _resume(self, file: BinaryIO, offset: int) -> int:
        """Return where, from *offset* on, the next block is whose sum is right, or the end."""
        while True:
            file.seek(offset)
            window = file.read(_WINDOW + _PACKED)
            for match in _MAY_BE.finditer(window[: _WINDOW + 7]):
                place = offset + match.start()
                file.seek(place)
                if not self._frame(file, place, file.read(_PACKED)).problem:
                    return place
            if len(window) < _WINDOW + _PACKED:
                return offset + len(window)
            offset += _WINDOW


def _extent(head: bytes) -> tuple[int, int]:
    """Return the size of a block's data and the length of the block. Raises `PackDamagedError`."""
    if len(head) < _PLAIN:
        raise PackDamagedError("a block is cut off")
    size, packed = _SIZES.unpack_from(head)
    if not 0 < packed <= size <= BLOCK:
        raise PackDamagedError(f"a block of {size} bytes in {packed} is none of a pack")
    return size, (_PACKED if packed < size else _PLAIN) + packed
