"""The reader: pages by order, by URL and time, in processes, while they are written, damaged."""

from __future__ import annotations

import gzip
import multiprocessing
import zlib
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import brotli
import pytest
from backports import zstd
from support.loaded_modules import loaded_by
from support.packs import NOW, body, fetch, gzipped, hand_in, head, plan, resource, write_records

from scrapy_spider_suite.errors import PackDamagedError, PackError, PackMissingError
from scrapy_spider_suite.packs import (
    Capture,
    Link,
    Packs,
    PackWriter,
    Page,
    RefersTo,
    merge_indexes,
    open_packs,
)
from scrapy_spider_suite.packs.pack_file import FORMATS
from scrapy_spider_suite.packs.warc import NOT_MODIFIED, sha1_digest
from scrapy_spider_suite.packs.writer import GroupWriter, WriteJob

START = datetime.fromtimestamp(NOW, UTC)


def write(folder: Path, *fetches: Capture, form: str = "lzo", **more: object) -> None:
    """Write a pack of *fetches*."""
    writer = PackWriter(plan(folder, form, **more))
    for one in fetches:
        hand_in(writer, one)
    writer.close()


@pytest.mark.parametrize("form", FORMATS)
def test_a_page_has_what_was_fetched(form: str, tmp_path: Path) -> None:
    """From the pass over all of them and from the index alike."""
    fetches = fetch(1), gzipped(2), fetch(3, b"")
    stored = [one.body for one in fetches]
    write(tmp_path, *fetches, form=form)
    packs = open_packs(tmp_path)
    pages = list(packs)
    assert [page.url for page in pages] == [f"http://www.example.com/{n}" for n in (1, 2, 3)]
    for number, passed in enumerate(pages, 1):
        found = packs.get(passed.url)
        assert found is not None
        for page in (passed, found):
            assert page.body == (body(number) if number < 3 else b"")
            assert page.status == 200
            assert page.time is not None
            assert abs(page.time - START - timedelta(seconds=number)) < timedelta(milliseconds=2)
            assert page.links == [Link(f"http://www.example.com/{number + 1}"),
                                  Link("http://a.test/", "frame", True)]  # fmt: skip
            assert (page.via, page.hops) == ("http://www.example.com/", "L")
            assert page.digest == sha1_digest(stored[number - 1])
            assert "<Page http://www.example.com/" in repr(page)
        assert found.record == passed.record
        assert found.place[:3] == passed.place[:3]
        assert found.path == passed.path
    assert pages[0].headers["content-type"] == "text/html; charset=utf-8"
    assert pages[0].mime == "text/html"
    assert packs.get("http://www.example.com/4") is None
    assert packs.get("http://example.com/1") is None  # has the same key
    assert not packs.damage


def test_bodies_are_decoded(tmp_path: Path) -> None:
    """Every coding that servers use, several at once, and what is none in truth."""
    text = body(1, 5000)
    raw = zlib.compress(text)[2:-4]
    coded = {
        "gzip": gzip.compress(text),
        "x-gzip": gzip.compress(text[:100]) + gzip.compress(text[100:]) + b"\0\0padding",
        "deflate": zlib.compress(text),
        "Deflate": raw,
        "br": brotli.compress(text),
        "zstd": zstd.compress(text),
        "gzip, br": brotli.compress(gzip.compress(text)),
        "identity": text,
    }
    fetches = []
    for number, (name, data) in enumerate(coded.items()):
        lines = head(len(data), f"Content-Encoding: {name}\r\n")
        fetches.append(fetch(number, data, head=lines))
    write(tmp_path, *fetches)
    for page in open_packs(tmp_path):
        assert page.body == text, page.headers


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd", "compress"])
def test_bad_and_huge_bodies(name: str, tmp_path: Path) -> None:
    """Noise, a bomb, a coding that nobody knows: an error for that page."""
    zeros = bytes(3_000_000)
    bomb = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress,
            "zstd": zstd.compress, "compress": bytes}[name](zeros)  # fmt: skip
    lines = f"Content-Encoding: {name}\r\n"
    write(
        tmp_path,
        fetch(1, b"\xff\xfe" * 50, head=head(100, lines)),
        fetch(2, bomb[:60_000], head=head(len(bomb), lines)),
        fetch(3, b"", head=head(0, lines)),
    )
    noise, huge, empty = open_packs(tmp_path, limit=1_000_000)
    for page in (noise, huge):
        with pytest.raises(PackError):
            page.body  # noqa: B018
    assert empty.body == b""


def test_many_small_members_take_no_time(tmp_path: Path) -> None:
    """A hostile gzip body of 100,000 members is read in time that grows with its length."""
    data = gzip.compress(b"x", mtime=0) * 100_000
    write(tmp_path, fetch(1, data, head=head(len(data), "Content-Encoding: gzip\r\n")))
    [page] = open_packs(tmp_path)
    assert page.body == b"x" * 100_000


@pytest.mark.parametrize("form", FORMATS)
def test_a_revisit_has_the_body_of_its_original(form: str, tmp_path: Path) -> None:
    """Which may lie in another pack, of another agent."""
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    original = RefersTo(fetch(1).url, fetch(1).time, sha1_digest(body(1)))
    changed = fetch(1, body(77), time=NOW + 500)
    again = fetch(1, body(1), time=NOW + 900, original=original)
    other = fetch(8, body(1), original=original, profile=NOT_MODIFIED)
    lost = fetch(9, original=RefersTo("http://gone.test/", NOW, "sha1:X"))
    write(first, fetch(1), form=form)
    write(second, changed, again, other, lost, form=form)
    packs = open_packs(first, second)
    page = packs.get(fetch(1).url)
    assert page is not None
    assert page.is_revisit
    assert page.body == body(1)
    assert page.original is not None
    assert page.original.path.parent == first
    pages = list(packs)
    assert pages[3].body == body(1)
    with pytest.raises(PackError, match="not in these packs"):
        pages[4].body  # noqa: B018
    # As after a full disk, which the record it refers to did not survive: it was fetched again.
    late = RefersTo("http://gone.test/", NOW, sha1_digest(body(5)))
    write(second, fetch(5, original=late), fetch(5, body(5), time=NOW + 99), form=form)
    [revisit] = [page for page in packs if page.is_revisit and page.url == fetch(5).url]
    assert revisit.body == body(5)


def test_a_page_as_it_was_at_a_time(tmp_path: Path) -> None:
    """The last one before, none before the first; history has all of them."""
    packs = Packs([tmp_path])
    write(tmp_path, *[fetch(1, body(n), time=NOW + 100 * n) for n in (3, 1, 2)])
    url = fetch(1).url
    for seconds, number in ((99, None), (101, 1), (250, 2), (9000, 3), (None, 3)):
        at = None if seconds is None else START + timedelta(seconds=seconds)
        page = packs.get(url, at)
        assert (page and page.body) == (number and body(number))
        if at is not None:
            naive = packs.get(url, at.replace(tzinfo=None))
            assert (naive and naive.body) == (page and page.body)
    stamps = [entry.stamp for entry in packs.history(url)]
    assert len(stamps) == 3
    assert stamps == sorted(stamps)


@pytest.mark.parametrize("form", FORMATS)
def test_reading_while_it_is_written(form: str, tmp_path: Path) -> None:
    """What is on disk is found, in the open pack, in those just closed, and nothing half."""
    packs = Packs([tmp_path])
    assert list(packs) == []
    writer = PackWriter(plan(tmp_path, form, max_bytes=8000, wait=60))
    for number in range(30):
        hand_in(writer, fetch(number, body(number, 3000)))
        if number % 3 == 2:
            writer.flush().result(10)
            for old in (0, number // 2, number):
                page = packs.get(f"http://www.example.com/{old}")
                assert page is not None
                assert page.body == body(old, 3000)
                assert page.links
        pages = list(packs)
        assert len(pages) == number // 3 * 3 + 3 * (number % 3 == 2)
        assert all(page.links for page in pages)
    writer.close()
    assert len(list(packs)) == 30
    assert not packs.damage


@pytest.mark.parametrize("form", FORMATS)
def test_half_of_the_records_of_a_page_are_none(form: str, tmp_path: Path) -> None:
    """An open pack whose last page has no metadata yet does not show it."""
    packing = GroupWriter(plan(tmp_path, form, wait=60), print)
    for number in range(3):
        packing.add_job(WriteJob([fetch(number)], Future()), NOW)
        packing.write(NOW)
    packing.give_up(RuntimeError())
    [path] = tmp_path.glob("*.warc.*[oz4t].open")
    [notes] = tmp_path.glob("*.cdxj.open")
    notes.write_bytes(b"".join(notes.read_bytes().splitlines(keepends=True)[:2]) + b"com,exam")
    assert [page.url[-1] for page in open_packs(tmp_path)] == ["0", "1"]
    path.write_bytes(path.read_bytes()[:-30])
    assert [page.url[-1] for page in open_packs(path)] == ["0", "1"]
    notes.write_bytes(b"nonsense\n")
    assert list(open_packs(tmp_path)) == []
    notes.unlink()
    assert list(open_packs(tmp_path)) == []


def test_other_processes_read_a_file_each(tmp_path: Path) -> None:
    """Together all pages, once."""
    for number in range(5):
        write(tmp_path, *[fetch(n) for n in range(number * 10, number * 10 + 4 * number + 1)])
    packs = open_packs(tmp_path)
    urls = sorted(page.url for page in packs)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert sorted(chain.from_iterable(pool.map(urls_of, packs.files()))) == urls
    assert len(list(packs.records())) == 5 + 3 * len(urls)


def test_a_file_that_is_closed_meanwhile(tmp_path: Path) -> None:
    """It is read under the name that it had when the files were listed."""
    writer = PackWriter(plan(tmp_path))
    hand_in(writer, fetch(1))
    writer.flush().result(10)
    [path] = open_packs(tmp_path).files()
    writer.close()
    assert not path.exists()
    assert urls_of(path) == [fetch(1).url]


def urls_of(path: Path) -> list[str]:
    """What another process reads."""
    return [page.url for page in open_packs(path)]


@pytest.mark.parametrize("form", FORMATS)
def test_damage_is_named_and_passed_by(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a pass; asked for, the page that is hit raises."""
    write(tmp_path, *[fetch(number, body(number, 20_000 * number)) for number in range(9)],
          form=form, wait=0)  # fmt: skip
    packs = open_packs(tmp_path)
    [path] = packs.files()
    entry = packs.history("http://www.example.com/6")[0]
    with path.open("r+b") as file:
        file.seek(entry.place.offset + entry.place.length // 2)
        file.write(b"\0\xff\0")
    found = [page.url[-1] for page in packs]
    assert "6" not in found
    assert len(found) >= 5
    assert [where for where, _ in packs.damage] == [path]
    assert str(path) in caplog.text
    with pytest.raises(PackDamagedError):
        packs.get("http://www.example.com/6")
    assert packs.get(f"http://www.example.com/{found[-1]}") is not None


def test_what_did_not_come_by_http(tmp_path: Path) -> None:
    """A resource has no status; its body is all of it."""
    found = resource("ftp://a.test/x", b"\0\1", "text/plain; charset=x")
    write_records(tmp_path / "x.warc.lzo", [[found]])
    [page] = open_packs(tmp_path)
    assert (page.body, page.status, page.mime, page.links) == (b"\0\1", 0, "text/plain", [])
    assert open_packs(tmp_path).get("ftp://a.test/x") is not None


def test_what_is_no_answer(tmp_path: Path) -> None:
    """A server that speaks another protocol: the page is there, as it came."""
    write(tmp_path, fetch(1, b"hello", head=b"ICY 200 OK\r\n\r\n"))
    [page] = open_packs(tmp_path)
    assert (page.status, page.headers, page.mime) == (0, {}, "")
    assert page.body == b"ICY 200 OK\r\n\r\nhello"
    assert page.links


def test_decoded_pages_say_so(tmp_path: Path) -> None:
    """A body that a middleware decompressed is read as it is."""
    write(tmp_path, fetch(1, body(1), head=head(76, "Content-Encoding: gzip\r\n"),
                          decoded=True))  # fmt: skip
    [page] = open_packs(tmp_path)
    assert page.body == body(1)


def test_a_pack_that_is_gone(tmp_path: Path) -> None:
    """Its pages are known of still: which one it is is said, and what to do."""
    write(tmp_path, fetch(1))
    packs = open_packs(tmp_path)
    [path] = packs.files()
    [entry] = packs.history(fetch(1).url)
    path.unlink()
    for ask in (lambda: packs.get(fetch(1).url), lambda: packs.page_of(entry)):
        with pytest.raises(PackMissingError, match=f"{path.name}, which is not in .*bring it back"):
            ask()
    assert packs.missing() == [path]
    path.with_name(f"{path.name}.cdxj").unlink()
    assert packs.page_of(entry) is packs.get(fetch(1).url) is None
    assert packs.missing() == []


def test_what_is_no_pack(tmp_path: Path) -> None:
    """Said at once."""
    (tmp_path / "x.txt").touch()
    for path in (tmp_path / "x.txt", tmp_path / "none", tmp_path / "none.warc.gz"):
        with pytest.raises(PackError, match="neither a pack nor a folder"):
            open_packs(path)


def test_merged_indexes_are_read(tmp_path: Path) -> None:
    """Before, while and after they are merged."""
    packs = Packs([tmp_path])
    for number in range(9):
        write(tmp_path, fetch(number))
        merge_indexes(tmp_path)
        for old in range(number + 1):
            page = packs.get(f"http://www.example.com/{old}")
            assert page is not None
            assert page.body == body(old)
    assert len(list(packs)) == 9


def test_scrapy_is_not_imported(tmp_path: Path) -> None:
    """For notebooks: it takes a second, and installs a reactor."""
    write(tmp_path, fetch(1))
    loaded = loaded_by(
        "from scrapy_spider_suite.packs import open_packs\n"
        f"assert [page.status for page in open_packs({str(tmp_path)!r})] == [200]"
    )
    assert not {"scrapy", "twisted"} & loaded
    assert isinstance(next(iter(open_packs(tmp_path))), Page)


def test_a_time_in_words(tmp_path: Path) -> None:
    """A text is the last moment of it; what is none is said, not stumbled over."""
    write(tmp_path, fetch(1, b"old"), fetch(1, b"new", time=NOW + 400 * 86_400))
    packs, url = open_packs(tmp_path), "http://www.example.com/1"
    for at, text in (("2026", b"old"), ("2026-11-18", b"old"), ("2028", b"new")):
        page = packs.get(url, at=at)
        assert page is not None
        assert page.body == text
    assert packs.get(url, at="2025") is None
    for wrong in ("yesterday", "2026-13"):
        with pytest.raises(ValueError, match=wrong):
            packs.get(url, at=wrong)
