"""Bad packs, bad pages, a bad index: named, passed over, made anew."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.packs import NOW, fetch, head
from support.text_index import contents, expected, followed, hits, page, write

from scrapy_spider_suite.analysis.search.index_follower import TRIES, CrashJournal, IndexFollower
from scrapy_spider_suite.analysis.search.index_place import IndexPlace, verify_index
from scrapy_spider_suite.packs.pack_file import FORMATS
from scrapy_spider_suite.runtime import files

TEXT = " ".join(f"word{number}" for number in range(4_000))


@pytest.mark.parametrize("form", FORMATS)
def test_damaged_packs(tmp_path: Path, form: str) -> None:
    """A flipped bit and a lost end cost the pages that they hit, and are named, once."""
    pages = [page(number, f"{TEXT} apple{number}") for number in range(12)]
    whole, flipped, cut = (
        write(tmp_path, *pages[4 * place : 4 * place + 4], form=form, time=NOW + place)
        for place in range(3)
    )
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-3000])
    follower = IndexFollower(tmp_path)
    progress = follower.step()
    assert {pack for pack, _ in progress.damaged} == {flipped.name, cut.name}
    assert whole.name not in str(progress.damaged)
    found = contents(tmp_path)
    assert found == expected(tmp_path)
    assert {f"http://a.test/{number}" for number in range(4)} <= set(found)
    assert 4 < len(found) < 12
    assert follower.step().damaged == []
    assert IndexFollower(tmp_path).step().damaged == []


def test_bad_pages(tmp_path: Path) -> None:
    """Empty, binary, not what they say, a bomb, of no language: none stops the others."""
    bomb = gzip.compress(bytes(40 << 20))
    packed = "Content-Encoding: gzip\r\n"
    write(
        tmp_path,
        fetch(1, b""),
        fetch(2, bytes(range(256)) * 40),
        fetch(3, b"\x89PNG\r\n\x1a\n" + bytes(range(256))),
        fetch(4, b"no gzip", head=head(7, packed)),
        fetch(5, bomb, head=head(len(bomb), packed)),
        fetch(6, "<title>ᏣᎳᎩ</title><p>ᎦᏬᏂᎯᏍᏗ ᎤᏬᏂᎯᏍᏗ ᎠᏂᏴᏫᏯ".encode()),
        fetch(7, "<title>größe</title>".encode("latin-1")),
        fetch(8, b"<title>\xff\xfe\x00\xd8</title>\xf0\x9f"),
        fetch(9, b"<p>" * 200_000 + b"deep"),
        fetch(10, b"<title>apple</title>", url="http://a.test/%ff?" + "x" * 9_000),
        page(11, "apple"),
    )
    assert IndexFollower(tmp_path).step().damaged == []
    assert hits(tmp_path, "ᎦᏬᏂᎯᏍᏗ") == {"http://www.example.com/6"}
    assert hits(tmp_path, "title:apple OR text:apple") == {
        "http://a.test/%ff?" + "x" * 9_000, "http://a.test/11",
    }  # fmt: skip


def _damages(index: Path) -> list[Path]:
    """The files of an index, one of each kind."""
    return list({path.suffix: path for path in sorted(index.iterdir())
                 if not path.name.startswith(".")}.values())  # fmt: skip


def test_a_damaged_index(tmp_path: Path) -> None:
    """Whatever is flipped, cut or missing is found at the next start, and made anew."""
    text = TEXT[:500]
    write(tmp_path, *(page(number % 9, f"{text} {number}", number) for number in range(20)))
    known = followed(tmp_path)
    kinds = [path.name for path in _damages(IndexPlace(tmp_path).current())]
    assert {Path(name).suffix for name in kinds} >= {".store", ".term", ".idx", ".pos", ".json"}
    found: list[Path] = []
    for place, kind in enumerate(Path(name).suffix for name in kinds):
        index = IndexPlace(tmp_path).current()
        path = next(path for path in _damages(index) if path.suffix == kind)
        data = bytearray(path.read_bytes())
        if place % 3 == 0:
            data[len(data) // 3] ^= 0x20
        elif place % 3 == 1:
            del data[len(data) // 2 :]
        else:
            data[-1] ^= 1
        # As another file: what maps this one would end with SIGBUS if it were cut off under it.
        files.replace_file(path, bytes(data))
        found += [finding.path for finding in verify_index(tmp_path) if finding.kind == "index"]
        progress = IndexFollower(tmp_path).step()
        assert str(index) in progress.rebuilt, path
        assert contents(tmp_path) == known
    # Where tantivy's own version is spelled in a file, only tantivy sees that it is wrong.
    assert len(found) >= len(kinds) - 2
    assert set(found) == {IndexPlace(tmp_path).folder}
    for kind in (".store", ".json"):
        next(p for p in _damages(IndexPlace(tmp_path).current()) if p.suffix == kind).unlink()
        assert IndexFollower(tmp_path).step().rebuilt
        assert contents(tmp_path) == known
    assert IndexFollower(tmp_path).step().rebuilt == ""
    assert list(verify_index(tmp_path)) == []


_KILLER = """
import os, sys
from pathlib import Path
from scrapy_spider_suite.analysis.search import index_follower
from scrapy_spider_suite.analysis.search.index_follower import IndexFollower
honest = index_follower.document_of
def document_of(page, entry):
    if entry.url.endswith("/3"):
        os.kill(os.getpid(), 9)
    return honest(page, entry)
index_follower.document_of = document_of
print(IndexFollower(Path(sys.argv[1])).step().skipped)
"""


@pytest.mark.slow
def test_a_page_that_ends_the_process(tmp_path: Path) -> None:
    """It is tried three times, then passed over: the others are found."""
    write(tmp_path, *(page(number, "apple") for number in range(6)))
    ends = [subprocess.run([sys.executable, "-c", _KILLER, str(tmp_path)], stdout=subprocess.PIPE,
                           check=False) for _ in range(TRIES + 1)]  # fmt: skip
    assert [end.returncode for end in ends] == [-9] * TRIES + [0]
    assert ends[-1].stdout == b"1\n"
    assert hits(tmp_path, "apple") == {f"http://a.test/{n}" for n in (0, 1, 2, 4, 5)}


def test_the_journal(tmp_path: Path) -> None:
    """Deaths in between, at other pages, do not clear a page; having been read does."""
    for page_name in ("a", "b", "a", "c", "a"):
        journal = CrashJournal(tmp_path)
        assert not journal.is_barred("a")
        journal.reading(page_name).__enter__()
        journal.__exit__()
    with CrashJournal(tmp_path) as journal:
        assert journal.is_barred("a")
        assert not journal.is_barred("b")
        with journal.reading("b"):
            pass
        assert not journal.is_barred("c")
    (tmp_path / "reading").write_bytes(json.dumps([1]).encode())
    with CrashJournal(tmp_path) as journal:
        assert not journal.is_barred("a")


def test_a_commit_that_a_kill_cut_short(tmp_path: Path) -> None:
    """What it had begun to write is no damage, and keeps no later one from being written."""
    write(tmp_path, *(page(number, "apple") for number in range(6)))
    IndexFollower(tmp_path).step()
    index = IndexPlace(tmp_path).current()
    [segment] = {path.name.partition(".")[0] for path in index.glob("*.store")}
    left = [index / f"{segment}.{number}.del" for number in range(1, 40)]
    for path in left:
        path.write_bytes(b"torn")
    write(tmp_path, page(1, "gone", status=404, time=9.0), time=NOW + 9)
    progress = IndexFollower(tmp_path).step()
    assert progress.rebuilt == ""
    assert contents(tmp_path) == expected(tmp_path)
    assert b"torn" not in {path.read_bytes() for path in left if path.exists()}
