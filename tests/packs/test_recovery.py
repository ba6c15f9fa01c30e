"""Packs that a crash left open: cut at any byte, damaged in the midst, held by a living process."""

from __future__ import annotations

import os
import random
import resource
import time
from pathlib import Path

import pytest
from support.forks import Fork
from support.lzop import Lzop
from support.packs import accepted, fetch, hand_in, plan, some, tiny, whole_file
from support.projects import environment

from scrapy_spider_suite.packs import cdxj, open_packs
from scrapy_spider_suite.packs.pack_file import FORMATS, PackFile, make_container, read_records
from scrapy_spider_suite.packs.writer import PackWriter, build_index, recover_folder, recover_pack

WRITER = """
import sys
from pathlib import Path
from support.packs import fetch, hand_in, plan
from scrapy_spider_suite.packs.writer import PackWriter
folder, form = Path(sys.argv[1]), sys.argv[2]
def say(number):
    return lambda future: print(number, *future.result().place, future.result().filename)
with open(folder / "log", "w", buffering=1) as sys.stdout:
    writer = PackWriter(plan(folder, form, max_bytes=40_000, wait=0.002))
    for number in range(100_000):
        hand_in(writer, fetch(number)).add_done_callback(say(number))
"""


@pytest.mark.parametrize("form", FORMATS)
def test_cut_at_every_byte(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is a whole pack with an index, and nothing that was whole is lost."""
    monkeypatch.setattr(os, "fsync", lambda number: None)  # thousands of them; nothing is cut here
    kind = make_container(form)
    data, starts = whole_file(kind, tiny(2))
    end = len(data) - len(kind.end())
    for length in range(0, end + 1, 1 if form == "lzo" else 11):
        path = tmp_path / f"x.warc.{form}.open"
        path.write_bytes(data[:length])
        (tmp_path / f"x.warc.{form}.cdxj.open").write_bytes(b"com,exam")
        found = recover_pack(path)
        whole = sum(1 for start in [*starts[1:], end] if start <= length)
        assert found is not None
        assert sorted(tmp_path.iterdir()) == ([found.path, Path(f"{found.path}.cdxj")]
                                              if whole else [])  # fmt: skip
        if found.path:
            assert found.path.read_bytes() == data[: length - found.cut] + kind.end()
            lines = Path(f"{found.path}.cdxj").read_bytes().splitlines()
            assert [cdxj.parse_entry(line).url for line in lines] == [
                f"http://www.example.com/{number}" for number in range(whole - 1)
            ]


def test_lzop_accepts_a_pack_that_was_cut_at_any_byte(lzop: Lzop, tmp_path: Path) -> None:
    """At a sample of them, of a pack with a record of several blocks."""
    data, _ = whole_file(make_container("lzo"), some(6))
    draws = random.Random(1)
    for number, length in enumerate([*draws.sample(range(200, len(data)), 12), len(data)]):
        path = tmp_path / f"x{number}.warc.lzo.open"
        path.write_bytes(data[:length])
        found = recover_pack(path)
        assert found is not None
        if found.path is not None:
            assert accepted(found.path, lzop)


@pytest.mark.parametrize("form", FORMATS)
def test_damage_in_the_midst_is_left_out(form: str, lzop: Lzop, tmp_path: Path) -> None:
    """As a power failure leaves it; the pages after it are kept, and the pack is sound."""
    kind = make_container(form)
    data, starts = whole_file(kind, some(5))
    end = len(data) - len(kind.end())
    path = tmp_path / f"x.warc.{form}.open"
    middle = starts[2] + 40
    path.write_bytes(data[:middle] + bytes(30) + data[middle + 30 : end])
    found = recover_pack(path)
    assert found is not None
    assert found.path is not None
    assert [part.torn for part in found.damage] == [False]
    assert 13 <= accepted(found.path, lzop) < 16
    path.write_bytes(bytes(30) + data[30:end])
    found = recover_pack(path)
    assert found is not None
    assert found.path is not None
    assert accepted(found.path, lzop) == (16 if form == "lzo" else 15)
    for line in Path(f"{found.path}.cdxj").read_bytes().splitlines():
        entry = cdxj.parse_entry(line)
        assert read_records(found.path, entry.place)[0].url == entry.url


def test_a_pack_that_is_written_is_left_alone(tmp_path: Path) -> None:
    """By whoever holds it; an agent closes only its own."""
    pack = PackFile(tmp_path / "n-0-1-a.warc.gz", make_container("gz"), 0.0)
    pack.append([cdxj.bundle_records(bundle) for bundle in some(1)])
    assert recover_folder(tmp_path) == []
    pack.abandon()
    assert recover_folder(tmp_path, "b") == []
    found = recover_folder(tmp_path, "a")
    assert [part.cut for part in found] == [0]


def test_what_a_kill_left_beside_a_pack_is_swept(tmp_path: Path) -> None:
    """Between the renaming of the pack and the removing of its notes; not while it is written."""
    pack = PackFile(tmp_path / "n-0-2-a.warc.gz", make_container("gz"), 0.0)
    kept = {path.name for path in tmp_path.iterdir()} | {"notes.cdxj.open", "n-0-1-b.warc.gz"}
    left = ["n-0-1-a.warc.gz.cdxj.open", "n-0-1-a.warc.gz.cdxj.new", "n-0-1-a.warc.lzo.open.new"]
    for name in [*left, "notes.cdxj.open", "n-0-1-b.warc.gz"]:
        (tmp_path / name).touch()
    recover_folder(tmp_path, "b")
    assert {path.name for path in tmp_path.iterdir()} == kept | set(left)
    recover_folder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept
    pack.abandon()


def test_an_index_is_made_again(tmp_path: Path) -> None:
    """The same as the one that was written beside the pack."""
    for form in FORMATS:
        writer = PackWriter(plan(tmp_path, form))
        for number in range(20):
            hand_in(writer, fetch(number))
        writer.close()
    for path in tmp_path.glob("*.cdxj"):
        before = path.read_bytes()
        path.unlink()
        assert build_index(path.with_suffix("")) == 20
        assert path.read_bytes() == before


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk_while_recovering_loses_nothing(form: str, tmp_path: Path) -> None:
    """The index can wait; the pack is whole, or as it was."""
    data, starts = whole_file(make_container(form), some(30))
    path = tmp_path / f"x.warc.{form}.open"
    path.write_bytes(data[:-6])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (starts[1], limits[1]))
    try:
        found = None
        try:
            found = recover_pack(path)
        except OSError:
            assert path.exists()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    found = found or recover_pack(path)
    assert found is not None
    assert found.path is not None
    assert len(list(open_packs(found.path))) >= 29


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_killed_at_random_instants(form: str, lzop: Lzop, tmp_path: Path) -> None:
    """What was told to be on disk is there, in its place, and every pack is sound."""
    draws = random.Random(form)
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        log = folder / "log"
        with (folder / "said").open("wb") as said:
            process = Fork(WRITER, [str(folder), form], folder, environment(), said, said)
        while not (log.exists() and log.stat().st_size):
            time.sleep(0.01)
        time.sleep(draws.uniform(0, 0.4))
        process.kill()
        process.wait()
        recover_folder(folder)
        _check_killed(folder, log.read_text().split("\n")[:-1], lzop)


def _check_killed(folder: Path, said: list[str], lzop: Lzop) -> None:
    packs = sorted(folder.glob("*.warc.*[oz4t]"))
    assert not list(folder.glob("*.open"))
    for path in [path for path in packs if path.suffix != ".cdxj"]:
        accepted(path, lzop)
    assert said
    for line in said:
        number, *place, name = line.split()
        record = read_records(folder / name, cdxj.RecordPlace(*map(int, place)))[0]
        assert record.url == f"http://www.example.com/{number}"
