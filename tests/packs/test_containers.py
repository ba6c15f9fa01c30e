"""The formats: what other programs read, random access, and every kind of damage."""

from __future__ import annotations

import gzip
import io
import random
import struct
import sys
from pathlib import Path
from types import ModuleType
from zlib import adler32

import pytest
from backports import zstd
from support.lzop import Lzop
from support.packs import (
    fastwarc_records,
    fetch,
    make_records,
    some,
    tiny,
    warcio_records,
    whole_file,
)

from scrapy_spider_suite.errors import PackDamagedError, PackError
from scrapy_spider_suite.packs.containers import (
    BLOCK,
    LZO,
    Container,
    Lzallright,
    LzoCompressor,
    LzopContainer,
    PythonLzo,
    SystemLzo,
    best_lzo,
)
from scrapy_spider_suite.packs.pack_file import (
    FORMATS,
    Damage,
    RecordGroup,
    format_of,
    make_container,
    pack_name,
    read_records,
    scan,
)
from scrapy_spider_suite.packs.warc import Record

DRAWS = random.Random(5)
NOISE = DRAWS.randbytes(3 * BLOCK + 777)
"""What cannot be compressed."""


def bundles() -> list[list[Record]]:
    """Small pages, empty ones, binary ones, and one of several blocks."""
    large = [
        make_records(fetch(90, content)) for content in (b"", NOISE[:5000], NOISE, b"a" * 700_000)
    ]
    return [*some(8), *large, *some(2)]


def unpacked(form: str, data: bytes) -> bytes:
    """What *data* is when it is decompressed by the standard programs' libraries."""
    if form == "gz":
        return gzip.decompress(data)
    return zstd.ZstdFile(io.BytesIO(data)).read()


def groups(path: Path) -> tuple[list[Record], list[Damage]]:
    """The records that can be read, and the damage."""
    found: list[Record] = []
    damage: list[Damage] = []
    for part in scan(path):
        if isinstance(part, RecordGroup):
            found += [record for record, _ in part.records()]
        else:
            damage.append(part)
    return found, damage


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_written_is_read(form: str, tmp_path: Path) -> None:
    """One after another, and each by its place."""
    pages = bundles()
    data, _ = whole_file(make_container(form), pages)
    path = tmp_path / f"x.warc.{form}"
    path.write_bytes(data)
    found, damage = groups(path)
    assert found[1:] == [record for bundle in pages for record in bundle]
    assert not damage
    for group in scan(path):
        assert isinstance(group, RecordGroup)
        for record, place in group.records():
            assert read_records(path, place)[0] == record


def test_lzop_and_warcio_accept_what_each_compressor_wrote(
    lzo: LzoCompressor, lzop: Lzop, tmp_path: Path
) -> None:
    """``lzop -t`` and ``lzop -dc | warcio``: sums, end mark, blocks of at most 256 KiB."""
    pages = bundles()
    data, _ = whole_file(LzopContainer(lzo), pages)
    path = tmp_path / "x.warc.lzo"
    path.write_bytes(data)
    lzop.test(path)
    wanted = [record.block for bundle in pages for record in bundle]
    for others in (warcio_records, fastwarc_records):
        assert [block for _, _, block in others(lzop("-dc", path))][1:] == wanted


def test_what_each_compressor_wrote_is_read(lzo: LzoCompressor, tmp_path: Path) -> None:
    """By lzallright, which is always there; blocks of every size, also such as do not shrink."""
    pages = bundles()
    data, _ = whole_file(LzopContainer(lzo), pages)
    path = tmp_path / "x.warc.lzo"
    path.write_bytes(data)
    found, damage = groups(path)
    assert found[1:] == [record for bundle in pages for record in bundle]
    assert not damage
    for size in (1, 2, 17, 4095, BLOCK - 1, BLOCK):
        for content in (NOISE[:size], bytes(size)):
            packed, _ = LzopContainer(lzo).encode([content])
            assert LzopContainer().decode(packed) == content


def test_the_fastest_compressor_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the faster ones has to be here; the log says which one writes."""
    monkeypatch.setitem(sys.modules, "lzo", None)

    def absent(self: object) -> None:
        raise OSError("liblzo2.so.2: cannot open shared object file")

    with monkeypatch.context() as patch:
        patch.setattr(SystemLzo, "__init__", absent)
        assert isinstance(best_lzo(), Lzallright)
        said = LzopContainer().compression
    assert "lzallright" in said
    assert "liblzo2" in said
    assert "zst" in said
    module = ModuleType("lzo")
    monkeypatch.setitem(sys.modules, "lzo", module)
    monkeypatch.setattr(SystemLzo, "__init__", lambda self: None)
    assert isinstance(best_lzo(), SystemLzo)  # that module is another one
    assert LzopContainer().compression == "LZO by liblzo2"
    module.compress = lambda data, level, header: data  # type: ignore[attr-defined]
    assert isinstance(best_lzo(), PythonLzo)
    assert [kind.name for kind in LZO] == ["python-lzo", "liblzo2", "lzallright"]


def test_a_file_that_lzop_packed_is_none(lzop: Lzop, tmp_path: Path) -> None:
    """It has other sums, and blocks that end in the midst of records."""
    plain = tmp_path / "x.warc"
    plain.write_bytes(b"".join(record.to_bytes() for bundle in some(3) for record in bundle))
    lzop(plain)
    path = tmp_path / "x.warc.lzo"
    with path.open("rb") as file, pytest.raises(PackDamagedError, match="other sums"):
        LzopContainer().start(file)
    found, damage = groups(path)
    assert not found
    assert damage


@pytest.mark.parametrize("form", ["gz", "zst"])
@pytest.mark.parametrize("others", [warcio_records, fastwarc_records])
def test_other_tools_read_members(form: str, others, tmp_path: Path) -> None:
    """gz is opened as it is; zst after it was decompressed, as not all of them know it."""
    pages = bundles()
    data, _ = whole_file(make_container(form), pages)
    wanted = [record.block for bundle in pages for record in bundle]
    assert [block for _, _, block in others(unpacked(form, data))][1:] == wanted
    if form == "gz":
        assert [block for _, _, block in others(data)][1:] == wanted


@pytest.mark.parametrize("form", FORMATS)
def test_a_pack_cut_at_any_byte_gives_the_groups_before(form: str, tmp_path: Path) -> None:
    """And says that it is torn."""
    data, starts = whole_file(make_container(form), tiny(2))
    path = tmp_path / f"x.warc.{form}"
    whole, _ = _read(path, data)
    end = len(data) - len(make_container(form).end())
    first = starts[0]
    for length in range(0, len(data), 3):
        found, damage = _read(path, data[:length])
        if form == "lzo":
            count = sum(1 for start in [*starts[1:], end] if start <= length)
            assert len(found) == count, length
            assert damage, length
        else:
            assert found == whole[: len(found)]
            assert bool(damage) is (length > first and length not in _ends(form, data))
        assert all(part.torn for part in damage)


def _read(path: Path, data: bytes) -> tuple[list[Record], list[Damage]]:
    path.write_bytes(data)
    return groups(path)


def _ends(form: str, data: bytes) -> set[int]:
    """Where the members of *data* end."""
    frames = make_container(form).frames(io.BytesIO(data), 0)
    return {frame.end for frame in frames}


@pytest.mark.parametrize("form", FORMATS)
def test_a_flipped_bit_costs_one_group(form: str, tmp_path: Path) -> None:
    """Wherever it is: what it hit is named, and all others are read, none of them forged."""
    data, starts = whole_file(make_container(form), some(6))
    path = tmp_path / f"x.warc.{form}"
    whole, _ = _read(path, data)
    draws = random.Random(3)
    for _ in range(120):
        place = draws.randrange(starts[0], len(data) - len(make_container(form).end()))
        spoilt = bytearray(data)
        spoilt[place] ^= 1 << draws.randrange(8)
        found, damage = _read(path, bytes(spoilt))
        assert all(record in whole for record in found)
        missing = len(whole) - len(found)
        if form == "lzo":
            assert missing in (1, 3), place
        else:  # some bits of a member's header say nothing
            assert missing <= 1, place
        assert bool(damage) == bool(missing)
        assert all(part.offset <= place < part.offset + part.length for part in damage)


@pytest.mark.parametrize("form", FORMATS)
def test_a_part_that_is_lost_costs_no_other(form: str, tmp_path: Path) -> None:
    """Zeros, as a power failure leaves them, or noise over several blocks of a large record."""
    pages = [*some(2), make_records(fetch(50, NOISE)), *some(2)]
    data, starts = whole_file(make_container(form), pages)
    path = tmp_path / f"x.warc.{form}"
    middle = starts[3] + 300_000
    for filling in (bytes(4000), DRAWS.randbytes(4000)):
        found, damage = _read(path, data[:middle] + filling + data[middle + 4000 :])
        assert [record.url for record in found if record.kind == "response"] == [
            "http://www.example.com/0", "http://www.example.com/1",
            "http://www.example.com/0", "http://www.example.com/1",
        ]  # fmt: skip
        assert [part.torn for part in damage] == [False]
        assert damage[0].offset <= middle < damage[0].offset + damage[0].length


def test_bytes_behind_the_end_mark_are_named(tmp_path: Path) -> None:
    """A second file appended to the first is read too."""
    data, _ = whole_file(LzopContainer(), some(2))
    found, damage = _read(tmp_path / "x.warc.lzo", data + data)
    assert len(found) == 2 * 7
    assert [part.torn for part in damage] == [False]
    found, damage = _read(tmp_path / "x.warc.lzo", data + b"rest")
    assert len(found) == 7
    assert damage[0].length


@pytest.mark.parametrize("form", FORMATS)
def test_files_that_are_something_else(form: str, tmp_path: Path) -> None:
    """Empty ones, text, noise: damage, never another error."""
    magic = (b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x89LZO\x00\r\n\x1a\n")
    for data in (b"", b"\0", b"WARC/1.1\r\n\r\n", NOISE[:5000], *magic):
        found, damage = _read(tmp_path / f"x.warc.{form}", data)
        assert not found
        assert damage or not data


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    """A block that claims gigabytes, one that gives more than it says, a record over the limit."""
    form = LzopContainer()
    claims = struct.pack(">IIII", 1 << 31, 40, 0, adler32(bytes(40))) + bytes(40)
    lies = form.encode([bytes(BLOCK)])[0]
    lies = struct.pack(">I", 1000) + lies[4:]
    for block in (claims, lies):
        with pytest.raises(PackDamagedError):
            form.decode(block)
    for name in FORMATS:
        kind: Container = make_container(name)
        data, _ = kind.encode([b"WARC/1.1\r\n" + bytes(5_000_000)])
        with pytest.raises(PackDamagedError, match="more than 1000000"):
            kind.decode(data, 1_000_000)
        path = tmp_path / f"x.warc.{name}"
        pages = [*some(1), make_records(fetch(2, bytes(3_000_000))), *some(1)]
        path.write_bytes(whole_file(kind, pages)[0])
        parts = list(scan(path, 1_000_000))
        assert sum(isinstance(part, Damage) for part in parts) == 1
        assert isinstance(parts[-1], RecordGroup)


@pytest.mark.parametrize("form", FORMATS)
def test_a_record_with_a_false_length_is_damage(form: str, tmp_path: Path) -> None:
    """In a sound container: what follows is read, nothing is raised."""
    response = make_records(fetch(1))[0]
    fields = tuple((n, "95" if n == "Content-Length" else v) for n, v in response.fields)
    short = response._replace(fields=fields).to_bytes()
    kind = make_container(form)
    data, _ = whole_file(kind, some(1))
    path = tmp_path / f"x.warc.{form}"
    end = len(data) - len(kind.end())
    again = kind.encode([record.to_bytes() for record in some(1)[0]])[0]
    path.write_bytes(data[:end] + kind.encode([short])[0] + again + kind.end())
    found, damage = groups(path)
    assert len(found) == 7
    assert [part.offset for part in damage] == [end]


def test_a_place_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    """Past the end, into the midst, to another size."""
    path = tmp_path / "x.warc.lzo"
    path.write_bytes(whole_file(LzopContainer(), some(3))[0])
    place = [part for part in scan(path) if isinstance(part, RecordGroup)][2].places[1]
    for changes in ({"offset": 10**9}, {"offset": place.offset + 1}, {"start": place.start + 1},
                    {"size": place.size + 1}, {"length": place.length + 7}, {"start": 10**9},
                    {"length": 10**15}):  # fmt: skip
        with pytest.raises(PackDamagedError):
            read_records(path, place._replace(**changes))


def test_names() -> None:
    """The parts are told apart by hyphens, and no part leads out of the folder."""
    assert pack_name("a/../b c", 0, 7, "x-y", "gz") == "a_.._b_c-19700101000000-00007-x_y.warc.gz"
    assert pack_name("é", 0, 7, "..", "lzo") == "_-19700101000000-00007-crawl.warc.lzo"
    assert format_of(Path("x.warc.zst.open")) == "zst"
    for name in ("x.warc", "x.lzo", ".warc.gz"):
        with pytest.raises(PackError):
            format_of(Path(name))
    with pytest.raises(PackError, match="there are lzo, gz, zst"):
        make_container("zip")
