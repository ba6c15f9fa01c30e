"""File formats of packs: lzop blocks, gzip members (RFC 1952), Zstandard frames.

lzop: a header, blocks, four zero bytes; big-endian. A block: size of the data, size of the bytes
(the same if not compressed), Adler-32 of the data, Adler-32 of the bytes (if compressed), the
bytes. lzop 1.04 refuses blocks over 256 KiB. A *group* of records begins a block and is compressed
together. gzip and Zstandard have one member per record (WARC's annex D).
"""

from __future__ import annotations

import ctypes
import importlib
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import BinaryIO, ClassVar, Final, NamedTuple, Protocol
from zlib import adler32

import lzallright
from backports import zstd

from scrapy_spider_suite.errors import PackDamagedError

RECORD_MAX: Final = 1 << 30
"""Default limit of one decompressed record, in bytes."""
_WINDOW: Final = 1 << 20
_BEGINNING: Final = 8


class RecordPlace(NamedTuple):
    """*length* bytes at *offset*; decompressed, the record is *size* bytes from *start* on."""

    offset: int
    length: int
    start: int
    size: int


class PackFrame(NamedTuple):
    """A block or member. If damaged: a *problem*, no *data*, *end* is the next readable place."""

    offset: int
    end: int
    data: bytes
    problem: str = ""


class Container(Protocol):
    """A file format. *grouped*: several records may share one compressed part."""

    suffix: str
    grouped: bool
    may_be: re.Pattern[bytes]
    """Matches where a frame may begin, of which its first 8 bytes tell."""
    readers: ClassVar[str]
    """Which programs open such a file."""

    @property
    def compression(self) -> str:
        """Return what compresses the records, for the log."""
        return ""

    def begin(self, name: str, time: int) -> bytes:
        """Return the header of a file. *time*: seconds since the epoch."""
        return b""

    def end(self) -> bytes:
        """Return the end mark of a file."""
        return b""

    def encode(self, records: Sequence[bytes], offset: int = 0) -> tuple[bytes, list[RecordPlace]]:
        """Return *records* compressed, and the place of each if they are written at *offset*."""

    def decode(self, data: bytes, limit: int = RECORD_MAX) -> bytes:
        """Decompress whole frames. Raises `PackDamagedError`: damaged, or over *limit* bytes."""

    def start(self, file: BinaryIO) -> int:
        """Return where the first frame begins. Raises `PackDamagedError`: another format."""

    def frames(self, file: BinaryIO, offset: int, limit: int = RECORD_MAX) -> Iterator[PackFrame]:
        """Yield the frames from *offset* to the end. A damaged part is one frame with a problem."""
        size = file.seek(0, 2)
        while offset < size:
            frame = self.frame(file, offset, limit)
            if frame is None:
                return
            if frame.problem:
                frame = frame._replace(end=self._resume(file, offset + 1, limit))
            yield frame
            offset = frame.end
        if self.end():
            yield PackFrame(offset, offset, b"", "no end mark")

    def frame(self, file: BinaryIO, offset: int, limit: int) -> PackFrame | None:
        """Return the frame at *offset*, or None for the end mark."""

    def _resume(self, file: BinaryIO, offset: int, limit: int) -> int:
        while True:
            file.seek(offset)
            window = file.read(_WINDOW + _BEGINNING)
            for match in self.may_be.finditer(window):
                frame = self.frame(file, offset + match.start(), limit)
                if frame is not None and frame.data:
                    return frame.offset
            if len(window) < _WINDOW + _BEGINNING:
                return offset + len(window)
            offset += _WINDOW


class LzoCompressor(Protocol):
    """*method*, *level*: for lzop's header. For one thread."""

    name: str
    method: int
    level: int

    def compress(self, data: bytes) -> bytes:
        """Return at most `BLOCK` bytes of *data* compressed. They may have grown."""


class PythonLzo:
    """python-lzo (GPL, extra ``[lzo]``): LZO1X-1. Raises ImportError if not installed."""

    name = "python-lzo"
    method, level = 1, 3

    def __init__(self) -> None:
        self._compress = importlib.import_module("lzo").compress

    def compress(self, data: bytes) -> bytes:
        return bytes(self._compress(data, 1, False))


class SystemLzo:
    """liblzo2 (GPL) of this system: LZO1X-1. Raises OSError if there is none."""

    name = "liblzo2"
    method, level = 1, 3

    def __init__(self) -> None:
        library = ctypes.CDLL("liblzo2.so.2")
        # By `getattr`, since a class mangles such names. -1: a size that is not compared.
        if getattr(library, "__lzo_init_v2")(0x20A0, *[-1] * 9):
            raise OSError("liblzo2.so.2 does not fit this machine")
        size = ctypes.c_size_t
        self._compress = library.lzo1x_1_compress
        self._compress.argtypes = [ctypes.c_char_p, size, ctypes.c_void_p, ctypes.c_void_p,
                                   ctypes.c_void_p]  # fmt: skip
        # Of incompressible data a sixteenth more, and 67 bytes: LZO.FAQ.
        self._out = ctypes.create_string_buffer(BLOCK + BLOCK // 16 + 67)
        self._memory = ctypes.create_string_buffer(16_384 * ctypes.sizeof(ctypes.c_void_p))
        self._size = size()
        self._places = [ctypes.addressof(each) for each in (self._out, self._size, self._memory)]

    def compress(self, data: bytes) -> bytes:
        if len(data) > BLOCK:
            raise ValueError(f"a block of {len(data)} bytes")
        if error := self._compress(data, len(data), *self._places):
            raise RuntimeError(f"liblzo2: error {error}")
        return ctypes.string_at(self._out, self._size.value)


class Lzallright:
    """lzallright (MIT), always installed: smaller than LZO1X-1, and many times as slow."""

    name = "lzallright"
    method, level = 3, 9

    def __init__(self) -> None:
        self.compress = lzallright.LZOCompressor().compress


LZO: Final[tuple[type[LzoCompressor], ...]] = (PythonLzo, SystemLzo, Lzallright)
"""The compressors, by preference. Only the last is always there."""


def best_lzo() -> LzoCompressor:
    """Return the fastest compressor of this machine."""
    for kind in LZO:
        try:
            return kind()
        except (ImportError, OSError, AttributeError):  # not here, or of another make
            continue
    raise AssertionError("lzallright is a dependency")


MAGIC: Final = b"\x89LZO\x00\r\n\x1a\n"
BLOCK: Final = 1 << 18
END: Final = bytes(4)

_VERSION, _LIBRARY, _NEEDED = 0x1040, 0x20A0, 0x0940
_FLAGS = 0x03000003  # made on Unix; sums of the data and of what is compressed
_FIXED = struct.Struct(">HHHBBIIIIB")
_SIZES = struct.Struct(">II")
_SUM = struct.Struct(">I")
_PLAIN, _PACKED = 12, 16


class LzopContainer(Container):
    suffix = "lzo"
    grouped = True
    # The sizes of a block of at most 256 KiB: what may be one, to be proven by its sum.
    may_be = re.compile(rb"(?=\x00[\x00-\x04]..\x00[\x00-\x04]..)", re.DOTALL)
    readers = (
        "`lzop -dc FILE` or `scrapy packs cat FILE` prints its WARC, and "
        "`scrapy packs export --warc-gz FILE` makes a file that every WARC tool opens"
    )

    def __init__(self, lzo: LzoCompressor | None = None) -> None:
        self._given = lzo

    @cached_property
    def _lzo(self) -> LzoCompressor:
        return self._given or best_lzo()  # whoever only reads needs none

    @property
    def compression(self) -> str:
        if self._lzo.name != Lzallright.name:
            return f"LZO by {self._lzo.name}"
        return (
            "LZO by lzallright; many times as fast with liblzo2, which is not part of the suite "
            '(GPL; Debian: apt-get install liblzo2-2), and with SUITE_PACKS_FORMAT = "zst"'
        )

    def begin(self, name: str, time: int) -> bytes:
        """Return lzop's header; ``lzop -N -d`` restores *name*."""
        text = name.encode("utf-8")[-255:]
        fixed = _FIXED.pack(_VERSION, _LIBRARY, _NEEDED, self._lzo.method, self._lzo.level, _FLAGS,
                            0o100644, time & 0xFFFFFFFF, time >> 32, len(text))  # fmt: skip
        return MAGIC + fixed + text + _SUM.pack(adler32(fixed + text))

    def end(self) -> bytes:
        return END

    def encode(self, records: Sequence[bytes], offset: int = 0) -> tuple[bytes, list[RecordPlace]]:
        whole = b"".join(records)
        blocks = [whole[place : place + BLOCK] for place in range(0, len(whole), BLOCK)]
        out = b"".join(map(self._block, blocks))
        sizes = [len(record) for record in records]
        starts = accumulate(sizes, initial=0)
        return out, [RecordPlace(offset, len(out), *each)
                     for each in zip(starts, sizes, strict=False)]  # fmt: skip

    def _block(self, data: bytes) -> bytes:
        packed = self._lzo.compress(data)
        if len(packed) >= len(data):
            return b"%b%b%b" % (_SIZES.pack(len(data), len(data)), _SUM.pack(adler32(data)), data)
        sums = _SIZES.pack(adler32(data), adler32(packed))
        return b"%b%b%b" % (_SIZES.pack(len(data), len(packed)), sums, packed)

    def decode(self, data: bytes, limit: int = RECORD_MAX) -> bytes:
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
        packed = _SIZES.unpack_from(block)[1]
        body = block[-packed:]
        if len(block) != (_PACKED if packed < size else _PLAIN) + packed:
            raise PackDamagedError("a block is cut off")
        if adler32(body) != _SUM.unpack_from(block, _PACKED - 4 if packed < size else 8)[0]:
            raise PackDamagedError("a block is damaged: its sum is another")
        if packed == size:
            return body
        try:
            # It grows its buffer where that is too small: at most 255 times len(body).
            data = lzallright.LZOCompressor.decompress(body, size)
        except lzallright.LZOError as error:
            raise PackDamagedError(f"bad LZO data: {error}") from error
        if len(data) != size:
            raise PackDamagedError("a block has another length than it says")
        if both and adler32(data) != _SUM.unpack_from(block, 8)[0]:
            raise PackDamagedError("a block is damaged: the sum of its data is another")
        return data

    def start(self, file: BinaryIO) -> int:
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

    def frame(self, file: BinaryIO, offset: int, limit: int) -> PackFrame | None:
        file.seek(offset)
        head = file.read(_PACKED)
        if head == END:  # nothing follows it
            return None
        try:
            size, length = _extent(head)
            block = head[:length] + file.read(max(0, length - len(head)))
            return PackFrame(offset, offset + length, self._open(block, size))
        except PackDamagedError as error:
            what = "an end mark, and bytes after it" if head.startswith(END) else str(error)
            return PackFrame(offset, offset, b"", what)


def _extent(head: bytes) -> tuple[int, int]:
    if len(head) < _PLAIN:
        raise PackDamagedError("a block is cut off")
    size, packed = _SIZES.unpack_from(head)
    if not 0 < packed <= size <= BLOCK:
        raise PackDamagedError(f"a block of {size} bytes in {packed} is none of a pack")
    return size, (_PACKED if packed < size else _PLAIN) + packed


GZIP_LEVEL: Final = 6
ZSTD_LEVEL: Final = 3

_GZIP_AHEAD: Final = 262
"""Bytes of a window that deflate needs beside what it looks back at."""
_STEP = 1 << 16
_ERRORS = zlib.error, zstd.ZstdError, EOFError


class MemberContainer(Container):
    grouped = False

    def start(self, file: BinaryIO) -> int:
        file.seek(0)
        if not self.may_be.match(file.read(_BEGINNING)):
            raise PackDamagedError(f"not a file of {self.suffix}")
        return 0

    def encode(self, records: Sequence[bytes], offset: int = 0) -> tuple[bytes, list[RecordPlace]]:
        members = [self.compress(record) for record in records]
        places = []
        for record, member in zip(records, members, strict=True):
            places.append(RecordPlace(offset, len(member), 0, len(record)))
            offset += len(member)
        return b"".join(members), places

    def decode(self, data: bytes, limit: int = RECORD_MAX) -> bytes:
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

    def frame(self, file: BinaryIO, offset: int, limit: int) -> PackFrame:
        file.seek(offset)
        engine = self.engine()
        out: list[bytes] = []
        size, end = 0, offset
        try:
            while not engine.eof:
                data = file.read(_STEP)
                if not data:
                    return PackFrame(offset, offset, b"", "cut off")
                end += len(data)
                out.append(engine.decompress(data, limit + 1 - size))
                size += len(out[-1])
                if size > limit:
                    return PackFrame(offset, offset, b"", f"a record of more than {limit} bytes")
        except _ERRORS as error:
            return PackFrame(offset, offset, b"", f"a member is damaged: {error}")
        return PackFrame(offset, end - len(engine.unused_data), b"".join(out))

    def compress(self, record: bytes) -> bytes:
        raise NotImplementedError

    def engine(self) -> zlib._Decompress | zstd.ZstdDecompressor:
        raise NotImplementedError


class GzipContainer(MemberContainer):
    suffix = "gz"
    may_be = re.compile(rb"\x1f\x8b\x08")
    readers = "every WARC tool opens it"
    compression = f"gzip, level {GZIP_LEVEL}"

    def compress(self, record: bytes) -> bytes:
        """Return a gzip member, without a time in its header."""
        # A larger window finds nothing more, and to clear its tables takes longer than a request.
        bits = min(max(9, (len(record) + _GZIP_AHEAD).bit_length()), zlib.MAX_WBITS)
        engine = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, bits | 16, bits - 7)
        return engine.compress(record) + engine.flush()

    def engine(self) -> zlib._Decompress:
        return zlib.decompressobj(zlib.MAX_WBITS | 16)


class ZstdContainer(MemberContainer):
    suffix = "zst"
    may_be = re.compile(rb"\x28\xb5\x2f\xfd")
    readers = "FastWARC opens it, and `zstd -dc FILE` prints its WARC for other tools"
    compression = f"Zstandard, level {ZSTD_LEVEL}"

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

    def engine(self) -> zstd.ZstdDecompressor:
        return zstd.ZstdDecompressor()
