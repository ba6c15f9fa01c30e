"""Item packs as files: cut where they were committed, read as far as they are whole."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path

import pytest
from support.small_disks import tmpfs

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs import open_items
from scrapy_spider_suite.packs.item_file import ItemBuffer, ItemFile, recover_items

NAME = "news-20261122101500-00001-a.jsonl"


def lines(*numbers: int) -> list[bytes]:
    """Items as lines."""
    return [json.dumps({"n": number}).encode() + b"\n" for number in numbers]


def numbers(*paths: Path) -> list[int]:
    """The items of files."""
    return [item["n"] for item in open_items(*paths)]


def begun(folder: Path) -> ItemFile:
    """A file with two blocks."""
    file = ItemFile(folder / f"{NAME}.gz", 0.0)
    file.append(lines(1, 2))
    file.append(lines(3))
    return file


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """While it is open, and when it has its name."""
    file = begun(tmp_path)
    assert numbers(tmp_path) == [1, 2, 3]
    assert numbers(file.open_path) == [1, 2, 3]
    file.close()
    assert numbers(file.path, file.open_path) == [1, 2, 3, 1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.gz"]


def test_a_file_is_cut_where_it_was_committed(tmp_path: Path) -> None:
    """Whatever came behind, whole or torn, is of pages that are fetched again."""
    file = begun(tmp_path)
    committed = file.size
    file.append(lines(4))
    with file.open_path.open("ab") as more:
        more.write(b"torn")
    assert recover_items(file.open_path, committed) is None  # it is being written
    file.abandon()
    recovered = recover_items(file.open_path, committed)
    assert recovered is not None
    cut, missing = recovered
    assert cut > 4
    assert (missing, file.path.exists()) == (0, True)
    assert numbers(tmp_path) == [1, 2, 3]


def test_a_file_of_which_nothing_was_committed_goes(tmp_path: Path) -> None:
    """And so does one that was never written to."""
    file = begun(tmp_path)
    file.abandon()
    assert recover_items(file.open_path, 0) is not None
    assert not file.path.exists()
    ItemFile(file.path, 0.0).close()
    assert not list(tmp_path.iterdir())


def test_what_a_power_failure_took_is_told(tmp_path: Path) -> None:
    """The blocks that are whole stay."""
    file = begun(tmp_path)
    file.abandon()
    data = file.open_path.read_bytes()
    file.open_path.write_bytes(data[:-3])
    recovered = recover_items(file.open_path, len(data))
    assert recovered is not None
    assert recovered[1] == 3
    assert numbers(tmp_path) == [1, 2]


def test_lines_that_fail_leave_nothing(tmp_path: Path) -> None:
    """A group is in the file wholly or not at all."""
    file = begun(tmp_path)

    def fail() -> object:
        yield b"x" * (1 << 18)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        file.append(fail())  # type: ignore[arg-type]
    file.append(lines(4))
    file.close()
    assert numbers(tmp_path) == [1, 2, 3, 4]


def test_damage_costs_its_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A flipped bit, and a bomb; what is no item pack is refused."""
    file = begun(tmp_path)
    file.append(lines(5))
    file.close()
    data = bytearray(file.path.read_bytes())
    data[15] ^= 0xFF
    file.path.write_bytes(data)
    assert numbers(tmp_path) == [3, 5]
    assert f"{file.path}, from byte 0 on: a member is damaged" in caplog.text
    file.path.write_bytes(gzip.compress(b"[" * 100_000) + gzip.compress(lines(6)[0]))
    assert [item["n"] for item in open_items(file.path, limit=1_000)] == [6]
    for name in ("x.jsonl", "x.warc.gz"):
        (tmp_path / name).touch()
        with pytest.raises(PackError, match="not an item pack"):
            numbers(tmp_path / name)
    with pytest.raises(PackError, match="no such file or folder"):
        numbers(tmp_path / "none")


def test_a_pile_is_larger_than_memory(tmp_path: Path) -> None:
    """Whole lines come back, as often as they are asked for; the folder stays empty."""
    pile = ItemBuffer(tmp_path)
    line = b"x" * 99_999 + b"\n"
    for _ in range(30):
        pile.add(line)
    assert (pile.items, pile.size) == (30, 3_000_000)
    for _ in range(2):
        parts = list(pile.lines())
        assert all(part.endswith(b"\n") for part in parts)
        assert b"".join(parts) == line * 30
    assert not list(tmp_path.iterdir())
    pile.close()


def test_a_full_disk_takes_no_item_of_a_pile(tmp_path: Path) -> None:
    """Neither those before nor half of the one that does not fit; there is room for others then."""
    line = b"x" * 99_999 + b"\n"
    with tmpfs(tmp_path / "disk", "2m") as folder:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(1_200_000))
        pile = ItemBuffer(folder)
        for _ in range(10):
            pile.add(line)
        for _ in range(2):  # from memory to the disk
            with pytest.raises(OSError, match="No space left"):
                pile.add(line)
        assert b"".join(pile.lines()) == line * 10
        ballast.write_bytes(bytes(400_000))
        with suppress(OSError):  # on the disk
            for _ in range(20):
                pile.add(line)
        assert 12 <= pile.items < 20
        pile.add(b"short\n")
        assert b"".join(pile.lines()) == line * (pile.items - 1) + b"short\n"
        pile.close()
