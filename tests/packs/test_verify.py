"""What `verify` says of packs, sound ones and others."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.packs import NOW, body, fetch, make_records, plan, write_records

from scrapy_spider_suite.packs import build_index, merge_indexes, verify
from scrapy_spider_suite.packs.folder_index import repair_indexes
from scrapy_spider_suite.packs.pack_file import FORMATS, Uploaded, mark_uploaded
from scrapy_spider_suite.packs.verify import PackFinding
from scrapy_spider_suite.packs.warc import Record
from scrapy_spider_suite.packs.writer import GroupWriter, WriteJob


def write(folder: Path, bundles: list[list[Record]], form: str = "lzo") -> Path:
    """Write a pack, a group for each of *bundles*."""
    path = folder / f"n-20261122000000-{len(list(folder.iterdir())):05}-a.warc.{form}"
    write_records(path, bundles)
    return path


def pages(count: int) -> list[list[Record]]:
    """The records of *count* pages of a few kilobytes."""
    return [make_records(fetch(number, body(number, 5000))) for number in range(count)]


def kinds(found: list[PackFinding]) -> list[str]:
    """What kinds of things are wrong."""
    return [finding.kind for finding in found]


@pytest.mark.parametrize("form", FORMATS)
def test_sound_packs_have_nothing(form: str, tmp_path: Path) -> None:
    """Closed, merged, and one that is being written."""
    for _ in range(5):
        write(tmp_path, pages(4), form)
    merge_indexes(tmp_path)
    packing = GroupWriter(plan(tmp_path, form), print)
    packing.add_job(WriteJob([fetch(0)], Future()), NOW)
    packing.write(NOW)
    packing.give_up(RuntimeError())
    assert list(verify(tmp_path)) == []


@pytest.mark.parametrize("form", FORMATS)
def test_damage_and_a_torn_end_are_found(form: str, tmp_path: Path) -> None:
    """With where they are, and the pages that the index has and the pack has no more."""
    path = write(tmp_path, pages(9), form)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle] ^= 1
    path.write_bytes(data[:-9])
    found = list(verify(path))
    assert sorted(set(kinds(found))) == ["damaged", "index", "torn"]
    for finding in found:
        if finding.kind == "damaged":
            assert finding.offset <= middle < finding.offset + finding.length
        if finding.kind == "index":
            assert finding.url.startswith("http://www.example.com/")


def test_a_record_that_is_not_what_it_was(tmp_path: Path) -> None:
    """Its container is sound: who wrote it had the wrong bytes, or the wrong digest."""
    good = pages(3)
    response = good[1][0]
    changed = replace_block(response, response.block[:-1] + b"!")
    undated = Record(tuple((n, "never" if n == "WARC-Date" else v) for n, v in good[2][0].fields),
                     good[2][0].block)  # fmt: skip
    found = list(verify(write(tmp_path, [good[0], [changed], [undated]])))
    assert kinds(found) == ["digest", "digest", "date"]
    assert {finding.url for finding in found[:2]} == {"http://www.example.com/1"}


def replace_block(record: Record, block: bytes) -> Record:
    """The record with another block of the same length."""
    assert len(block) == len(record.block)
    return record._replace(block=block)


@pytest.mark.parametrize("fault", ["none", "missing", "damaged", "wrong", "disorder", "twice"])
def test_an_index_that_is_not_true(fault: str, tmp_path: Path) -> None:
    """Named line by line; a new one is true again."""
    path = write(tmp_path, pages(6))
    index = path.with_name(f"{path.name}.cdxj")
    lines = index.read_bytes().splitlines(keepends=True)
    if fault == "none":
        index.unlink()
    else:
        changed = {
            "missing": lines[:2] + lines[3:],
            "damaged": [*lines[:2], lines[2].replace(b'"offset"', b'"offsex"'), *lines[3:]],
            "wrong": [*lines[:2], lines[2].replace(b'"start": ', b'"start": 9'), *lines[3:]],
            "disorder": lines[::-1],
            "twice": [*lines, lines[-1]],
        }[fault]
        index.write_bytes(b"".join(changed))
    found = list(verify(tmp_path))
    assert set(kinds(found)) == {"index"}
    whats = " ".join(finding.what for finding in found)
    if fault in ("missing", "damaged", "wrong"):
        lost = json.loads(lines[2].split(b" ", 2)[2])["url"]
        assert found[0] == PackFinding(index, "index", "a page is not in the index", lost)
    wanted = {
        "none": "no index",
        "missing": "not in",
        "damaged": "not a line",
        "wrong": "leads to no page",
        "disorder": "out of order",
        "twice": "several times",
    }
    assert wanted[fault] in whats
    build_index(path)
    assert list(verify(tmp_path)) == []


def test_a_merged_index_that_is_not_true(tmp_path: Path) -> None:
    """Or covers packs that are gone."""
    for _ in range(4):
        path = write(tmp_path, pages(2))
    merge_indexes(tmp_path)
    [merged] = tmp_path.glob("merged-*")
    data = merged.read_bytes()
    merged.write_bytes(data[: data.rindex(b"\n", 0, -1) + 1])
    assert [finding.path for finding in verify(tmp_path)] == [merged]
    merged.write_bytes(data)
    assert list(verify(tmp_path)) == []
    path.with_name(f"{path.name}.cdxj").unlink()
    assert [finding.path for finding in verify(tmp_path)] == [path, merged]
    assert repair_indexes(tmp_path) == 1
    assert (list(verify(tmp_path)), merged.exists()) == ([], False)


def test_a_pack_that_was_deleted_by_hand(tmp_path: Path) -> None:
    """Is named; not one that is being written, or was uploaded before it went."""
    gone, away, _ = (write(tmp_path, pages(2)) for _ in range(3))
    packing = GroupWriter(plan(tmp_path), print)
    packing.add_job(WriteJob([fetch(0)], Future()), NOW)
    packing.write(NOW)
    gone.unlink()
    mark_uploaded(away, Uploaded("s3://far/x", 1, "0", ""))
    away.unlink()
    [finding] = verify(tmp_path)
    assert (finding.path, finding.kind) == (gone, "missing")
    assert f"remove {gone.name}.cdxj" in finding.what
    packing.give_up(RuntimeError())


def test_links_of_no_page_are_no_fault(tmp_path: Path) -> None:
    """A bare response, a request alone, a page with other digests."""
    plain = make_records(replace(fetch(1), request=b"", via="", hops="", links=()))
    [response] = plain
    md5 = Record(tuple((n, v.replace("sha1:", "md5:")) for n, v in response.fields), response.block)
    assert list(verify(write(tmp_path, [plain, [make_records(fetch(2))[1]], [md5]]))) == []
