"""Indexes: their lines, keys as the field has them, merging, and what a damaged one costs."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.packs import CRAWL, NOW, fetch, hand_in, make_records, plan

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs import (
    PackWriter,
    RefersTo,
    build_index,
    cdxj,
    merge_indexes,
    open_packs,
)
from scrapy_spider_suite.packs.cdxj import GrowingLines, SortedLines, sort_key, sort_lines
from scrapy_spider_suite.packs.containers import RecordPlace
from scrapy_spider_suite.packs.folder_index import (
    FolderIndex,
    IndexMerger,
    index_entries,
    index_runs,
    repair_indexes,
    run_lines,
)
from scrapy_spider_suite.packs.redaction import RedactionTarget, redact
from scrapy_spider_suite.packs.warc import parse_record, record_ids, warcinfo

DATA = Path(__file__).parent.parent / "data" / "packs"


def write(folder: Path, *numbers: int, form: str = "lzo") -> None:
    """Write a pack of the pages *numbers*."""
    writer = PackWriter(plan(folder, form))
    for number in numbers:
        hand_in(writer, fetch(number))
    writer.close()


def url(number: int) -> str:
    """The URL of a page."""
    return f"http://www.example.com/{number}"


def test_keys_are_those_of_the_field() -> None:
    """What ``surt`` 0.3.1, which pywb and cdxj-indexer use, gives for 400 URLs."""
    rows = [line.split("\t") for line in (DATA / "surt.tsv").read_text().splitlines()]
    assert len(rows) == 400
    assert [sort_key(row[0]) for row in rows] == [row[1] for row in rows]


@pytest.mark.parametrize(
    "bad", ["", " ", "\n", "http://", "http:///", "http://[", "http://a:b:c/", "http://%/%zz?%",
            "é", "http://a/\0", "HTTP://A/B?C&&=", "filedesc:x", "http://a/..", "http://a//./../"],
)  # fmt: skip
def test_every_text_has_a_key(bad: str) -> None:
    """Of one word; the same again for what is equal."""
    key = cdxj.line_key(bad)
    assert key
    assert not set(key) & set(" \n\r\0")
    assert cdxj.line_key(bad) == key


def test_a_line_says_what_is_in_it() -> None:
    """As cdxj-indexer writes them; what a grouped pack needs stands behind."""
    found = make_records(fetch(7))
    response = found[0]
    places = [
        RecordPlace(100, 50, 10, 20),
        RecordPlace(100, 50, 30, 5),
        RecordPlace(100, 50, 35, 6),
    ]
    [entry] = cdxj.entries_for(list(zip(found, places, strict=True)), "x.warc.lzo")
    line = entry.line().decode()
    key, stamp, text = line.split(" ", 2)
    assert (key, stamp) == ("com,example)/7", "20261118110647")
    assert json.loads(text) == {
        "url": url(7), "mime": "text/html", "status": "200",
        "digest": response.get("WARC-Payload-Digest"), "length": "50", "offset": "100",
        "filename": "x.warc.lzo", "start": 10, "size": 20, "metadata": [35, 6],
    }  # fmt: skip
    assert cdxj.parse_entry(line.encode()) == entry
    assert entry.time.year == 2026


@given(st.text(max_size=30), st.text(max_size=30), st.binary(max_size=80), st.booleans())
def test_an_index_is_the_same_from_captures_and_from_records(
    path: str, type_: str, more: bytes, revisit: bool
) -> None:
    """Whatever is in a URL or a head: `verify` compares what was written with what it reads."""
    head = b"HTTP/1.1 404 X\r\nA: b\r\nContent-type: %b\r\n" % type_.encode("utf-8", "replace")
    original = RefersTo("http://a.test/", NOW, "sha1:ABC") if revisit else None
    pages = [fetch(1, url=f"http://a.test/{path}", head=head + more, original=original, via=path),
             fetch(2, head=more, links=(), via="", hops="")]  # fmt: skip
    made = cdxj.bundle_captures(pages, record_ids(1))
    records = [parse_record(data)[0] for data in made.data]
    assert cdxj.page_entries(records) == made.entries
    assert cdxj.bundle_records(records).data == made.data
    places = [RecordPlace(7 * number, 7, 0, 7) for number in range(len(records))]
    for entry in made.entries:
        key, stamp, text = entry.at("x.warc.gz", places).line().decode().split(" ", 2)
        assert json.dumps(json.loads(text)) == text
        assert json.loads(text)["url"] == entry.url
        assert (key, stamp) == (entry.key, entry.stamp)


def test_only_pages_are_in_an_index() -> None:
    """Not a warcinfo, a request, or a metadata record."""
    info = (parse_record(warcinfo(CRAWL, "x", NOW))[0], RecordPlace(0, 1, 0, 1))
    assert cdxj.entries_for([info], "x") == []


SOUND = b'a 20260101000000 {"url":"u","length":"1","offset":"2","filename":"f","metadata":[1,2]}'


@pytest.mark.parametrize("change", [
    (SOUND, b""), (SOUND, b"a b"), (SOUND, b"a 20260101000000 []"), (SOUND, b"\xff"),
    (SOUND, b"a 20260101000000 " + b"[" * 100_000), (b"20260101", b"20261301"), (b"url", b"urx"),
    (b'"2"', b'"-2"'), (b"[1,2]", b"1"), (b"[1,2]", b"[1]"), (b"[1,2]", b"[1,-2]"),
    (b'"1"', b"[]"), (b'"1"', b'"x"'), (b"20260101000000", b"20260101"),
])  # fmt: skip
def test_a_damaged_line_is_one(change: tuple[bytes, bytes]) -> None:
    """Whatever is wrong with it."""
    assert cdxj.parse_entry(SOUND).metadata == RecordPlace(1, 2, 0, 0)
    line = SOUND.replace(*change)
    with pytest.raises(PackDamagedError, match="index"):
        cdxj.parse_entry(line)


def test_lines_are_found(tmp_path: Path) -> None:
    """As by looking at all of them, sorted or growing; the last one may have no end."""
    draws = random.Random(2)
    for count in (0, 1, 2, 3, 300):
        lines = sorted({b"%x %d" % (draws.randrange(200), n % 3) for n in range(count)})
        path = tmp_path / "lines"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        ordered, growing = SortedLines(path), GrowingLines(path)
        assert list(ordered) == list(growing) == lines
        assert growing.last() == (lines[-1] if lines else b"")
        for key in range(-1, 201):
            prefix = b"%x " % key if key >= 0 else b""
            wanted = [line for line in lines if line.startswith(prefix)]
            assert list(ordered.find(prefix)) == list(growing.find(prefix)) == wanted
        with path.open("ab") as file:
            file.write(b"0 zzz")
        assert b"0 zzz" not in [*SortedLines(path).find(b"0 "), *growing.find(b"0 ")]
        assert growing.last() == (lines[-1] if lines else b"")


def test_growing_lines_over_steps(tmp_path: Path) -> None:
    """What lies across the border of two reads is found too."""
    path = tmp_path / "lines"
    lines = [b"%d %s" % (number % 997, b"x" * (number % 300)) for number in range(20_000)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    for key in (0, 1, 500, 996):
        prefix = b"%d " % key
        wanted = [line for line in lines if line.startswith(prefix)]
        assert list(GrowingLines(path).find(prefix)) == wanted


def test_sorting_more_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In runs that are merged; a line without an end is left out."""
    monkeypatch.setattr("scrapy_spider_suite.packs.cdxj.CHUNK", 500)
    draws = random.Random(4)
    lines = [b"%d\n" % draws.randrange(10**9) for _ in range(2000)]
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"".join(lines) + b"12")
    sort_lines(source, target)
    assert target.read_bytes() == b"".join(sorted(lines))
    assert sorted(tmp_path.iterdir()) == [source, target]


def listed(folder: Path) -> list[str]:
    """The URLs in the indexes that count."""
    lines = (line for run in index_runs(folder) for line in run_lines(run))
    return [cdxj.parse_entry(line).url for line in lines]


def test_merging_keeps_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every page is found once, in all of them."""
    monkeypatch.setattr("scrapy_spider_suite.packs.folder_index._SMALLEST", 1)
    index = FolderIndex(tmp_path)
    for number in range(40):
        write(tmp_path, number, 100)
        files = merge_indexes(tmp_path)
        assert files <= 3 * 3
    assert [run.merged for run in index_runs(tmp_path)].count(True) >= 2
    for number in range(40):
        assert [entry.url for entry in index.find(url(number))] == [url(number)]
    assert len(index.find(url(100))) == 40
    assert len(listed(tmp_path)) == 80
    for run in index_runs(tmp_path):
        assert list(run_lines(run)) == sorted(run_lines(run))


def test_an_interrupted_merge_counts_nothing_twice(tmp_path: Path) -> None:
    """A kill before the old files were removed; the next merge removes them."""
    for number in range(8):
        write(tmp_path, number)
    assert merge_indexes(tmp_path) == 1
    [old] = tmp_path.glob("merged-*")
    data = old.read_bytes()
    for number in range(8, 16):
        write(tmp_path, number)
    assert merge_indexes(tmp_path) == 1
    assert not old.exists()
    old.write_bytes(data)
    assert sorted(listed(tmp_path)) == sorted(map(url, range(16)))
    merge_indexes(tmp_path)
    assert not old.exists()
    assert len(listed(tmp_path)) == 16


def test_one_merges_at_a_time(tmp_path: Path) -> None:
    """Another one returns at once."""
    for number in range(4):
        write(tmp_path, number)
    with (tmp_path / "merging.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert merge_indexes(tmp_path) == 4
    assert merge_indexes(tmp_path) == 1


def test_damaged_lines_are_named_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other pages are found."""
    write(tmp_path, *range(20))
    [path] = tmp_path.glob("*.cdxj")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[7] = lines[7].replace(b'"length"', b'"lengti"')
    path.write_bytes(b"".join(lines))
    lost = json.loads(lines[7].split(b" ", 2)[2])["url"]
    index = FolderIndex(tmp_path)
    found = [number for number in range(20) if index.find(url(number))]
    assert [number for number in range(20) if url(number) != lost] == found
    assert path.name in caplog.text
    build_index(path.with_suffix(""))
    assert index.find(lost)


def test_a_damaged_merged_index_is_not_used(tmp_path: Path) -> None:
    """Those of the packs are there."""
    for number in range(4):
        write(tmp_path, number)
    merge_indexes(tmp_path)
    [path] = tmp_path.glob("merged-*")
    for data in (b"", b"! {}\n", b"! [1]\n", b"\xff\n", b'! {"packs": 3}\n'):
        path.write_bytes(data)
        assert len(FolderIndex(tmp_path).find(url(2))) == 1
    merge_indexes(tmp_path)
    assert len(listed(tmp_path)) == 4


def test_merging_in_a_process(tmp_path: Path) -> None:
    """Started where there is something to do; what is cut short is done by the next."""
    merging = IndexMerger(tmp_path)
    assert merging.finish(20) == ""
    for number in range(4):
        write(tmp_path, number)
    merging.notify()
    assert merging.finish(0) == ""
    assert len(index_runs(tmp_path)) == 4
    merging.notify()
    assert merging.poll() == ""
    assert merging.finish(20) == ""
    assert [run.merged for run in index_runs(tmp_path)] == [True]
    merging.notify()
    assert merging.finish(0) == ""  # there is nothing to start


def test_a_merge_that_fails_is_said(tmp_path: Path) -> None:
    """In a line, which the process left."""
    for number in range(4):
        write(tmp_path, number)
    (tmp_path / "merging.lock").mkdir()
    assert "Is a directory" in IndexMerger(tmp_path).finish(20)


def test_many_packs_need_few_files(tmp_path: Path) -> None:
    """Not even before they are merged: a process may have 1,024 files open."""
    for number in range(200):
        name = f"n-20261122000000-{number:05}-a.warc.gz"
        entry = cdxj.IndexEntry(cdxj.line_key(url(number)), "20261122000000", url(number), "",
                                200, "", name, RecordPlace(0, 1, 0, 0))  # fmt: skip
        (tmp_path / f"{name}.cdxj").write_bytes(entry.line() + b"\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = min(120 + len(os.listdir("/dev/fd")), soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        index = FolderIndex(tmp_path)
        assert [entry.url for entry in index.find(url(150))] == [url(150)]
        assert merge_indexes(tmp_path) < 64
        assert [entry.url for entry in index.find(url(199))] == [url(199)]
        assert len(listed(tmp_path)) == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_pack_without_an_index_is_read(tmp_path: Path) -> None:
    """As when only packs were copied; once it has one, by that."""
    write(tmp_path, 1, 2)
    write(tmp_path, 3)
    first, second = sorted(tmp_path.glob("*.lzo"))
    for index in tmp_path.glob("*.cdxj"):
        index.unlink()
    packs = open_packs(tmp_path)
    page = packs.get(url(2))
    assert page is not None
    assert page.url == url(2)
    assert [entry.url for entry in packs.history(url(3))] == [url(3)]
    assert packs.get(url(4)) is None
    assert build_index(str(first)) == 2
    again = open_packs(tmp_path)
    assert again.get(url(2)) is not None
    assert again._indexes[0].unindexed == [second]


@pytest.mark.parametrize("form", ["lzo", "gz"])
@pytest.mark.parametrize("fault", ["garbage", "empty", "cut"])
def test_a_damaged_index_hides_no_page(
    fault: str, form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pack is read, with a line that says so; `mend` makes the index as it was."""
    write(tmp_path, 1, 2, 3, 2, form=form)
    [path] = tmp_path.glob("*.cdxj")
    data = path.read_bytes()
    changed = {"garbage": b"\0nonsense\n" * 9, "empty": b"", "cut": data[:-20]}[fault]
    path.write_bytes(changed)
    packs = open_packs(tmp_path)
    for number in (1, 2, 3):
        assert packs.get(url(number)) is not None
    assert len(packs.history(url(2))) == 2
    assert packs.get(url(4)) is None
    assert f"{path.name[:-5]} has no index that serves" in caplog.text
    assert caplog.text.count("it is read whole; `scrapy packs merge` makes one") == 1
    assert repair_indexes(tmp_path) == 1
    assert path.read_bytes() == data
    assert (repair_indexes(tmp_path), len(open_packs(tmp_path).history(url(2)))) == (0, 2)


def test_an_index_of_nothing_is_sound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As of a pack of which every page was redacted, or one that is not here."""
    write(tmp_path, 1)
    redact(tmp_path, RedactionTarget(url=url(1)), NOW, print)
    (tmp_path / "n-20261122000000-00009-a.warc.gz.cdxj").touch()
    assert open_packs(tmp_path).get(url(1)) is None
    assert [len(run.lines) for run in index_runs(tmp_path)] == [0, 0]
    assert (repair_indexes(tmp_path), caplog.text) == (0, "")


def test_packs_without_an_index_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pages are asked for."""
    write(tmp_path, 1, 2, 3)
    next(tmp_path.glob("*.cdxj")).unlink()
    passes: list[Path] = []
    read = index_entries

    def counted(pack: Path, name: str) -> Iterator[cdxj.IndexEntry]:
        passes.append(pack)
        return read(pack, name)

    monkeypatch.setattr("scrapy_spider_suite.packs.folder_index.index_entries", counted)
    packs = open_packs(tmp_path)
    for number in (1, 2, 3, 4):
        assert (packs.get(url(number)) is not None) is (number < 4)
    assert len(passes) == 1
    write(tmp_path, 4)
    assert packs.get(url(4)) is not None
