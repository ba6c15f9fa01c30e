"""Pages that are found again: in a pack that is written, closed, written anew, damaged, away."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from support.packs import NOW, body, fetch, hand_in, head, plan

from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs import Link, PackWriter, open_packs, pack_file
from scrapy_spider_suite.packs.pack_file import FORMATS, Uploaded, mark_uploaded
from scrapy_spider_suite.packs.redaction import RedactionTarget, redact
from scrapy_spider_suite.packs.stored_pages import StoredPage, StoredPageFinder
from scrapy_spider_suite.packs.warc import LINKS_READ_LATER

PAGES = range(5)


def written(folder: Path, form: str = "lzo", *, close: bool = True) -> list[StoredPage]:
    """Pages in a pack, which is closed or not."""
    writer = PackWriter(plan(folder, form))
    futures = [hand_in(writer, fetch(number)) for number in PAGES]
    writer.flush().result()
    stored = [StoredPage(fetch(n).url, fetch(n).time, n == 1, futures[n].result()) for n in PAGES]
    if close:
        writer.close()
    return stored


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("close", [True, False])
def test_found_where_they_were_put(form: str, close: bool, tmp_path: Path) -> None:
    """Whether the pack is still being written or not; and a row says where."""
    finder = StoredPageFinder([tmp_path / "none", tmp_path])
    for number, stored in enumerate(written(tmp_path, form, close=close)):
        again = StoredPage.from_bytes(stored.to_bytes())
        assert again == stored
        page = finder.find(again)
        assert (page.url, page.body) == (stored.url, body(number))


def test_pages_of_a_group_are_decompressed_once(tmp_path: Path) -> None:
    """As long as few groups were read since."""
    stored = written(tmp_path)
    finder = StoredPageFinder([tmp_path])
    with mock.patch.object(pack_file, "read_group", wraps=pack_file.read_group) as decoded:
        for each in stored * 2:
            finder.find(each)
    assert decoded.call_count == 1


def test_moved_and_gone(tmp_path: Path) -> None:
    """What is left of a pack that was redacted is found by the index; the rest is not there."""
    stored = written(tmp_path)
    finder = StoredPageFinder([tmp_path])
    finder.find(stored[0])
    redact(tmp_path, RedactionTarget(url=stored[1].url), NOW, lambda size: None)
    for number in (0, 2, 3, 4):
        assert finder.find(stored[number]).body == body(number)
    with pytest.raises(PackError, match=r"news-.*: "):
        finder.find(stored[1])


def test_a_folder_that_was_away(tmp_path: Path) -> None:
    """Once it is back, its index is read as ever."""
    stored = written(tmp_path / "packs")
    finder = StoredPageFinder([tmp_path / "packs"])
    (tmp_path / "packs").rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        finder.find(stored[0])
    (tmp_path / "away").rename(tmp_path / "packs")
    redact(tmp_path / "packs", RedactionTarget(url=stored[1].url), NOW, lambda size: None)
    assert finder.find(stored[2]).body == body(2)


def test_damaged_deleted_away(tmp_path: Path) -> None:
    """It is said what became of it; a folder that is not there may come back."""
    stored = written(tmp_path / "packs")[0]
    [pack] = (tmp_path / "packs").glob("*.lzo")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.write_bytes(data)
    with pytest.raises(PackError, match="damaged"):
        StoredPageFinder([tmp_path / "packs"]).find(stored)
    pack.unlink()
    with pytest.raises(PackError, match=f"{pack.name} is not there any more"):
        StoredPageFinder([tmp_path / "packs"]).find(stored)
    mark_uploaded(pack, Uploaded("s3://bucket/x", 1, "0", ""))
    with pytest.raises(PackError, match="uploaded to s3://bucket/x"):
        StoredPageFinder([tmp_path / "packs"]).find(stored)
    with pytest.raises(FileNotFoundError):
        StoredPageFinder([tmp_path / "packs", tmp_path / "elsewhere"]).find(stored)


@pytest.mark.parametrize("row", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\x01\x02"])
def test_rows_that_are_none(row: bytes) -> None:
    """One kind of error."""
    with pytest.raises(PackError, match="not known where"):
        StoredPage.from_bytes(row)


def test_links_of_a_page_that_was_packed_without(tmp_path: Path) -> None:
    """They are read from the page, by the rules for the robot that its record names."""
    page = b'<a href="/1">1</a><a href="/2" rel=nofollow>2</a><link rel=canonical href="/c">'
    lines = b"X-Robots-Tag: mybot: nofollow\r\nX-Robots-Tag: other: all\r\n"
    writer = PackWriter(plan(tmp_path))
    for number, robot in enumerate(("mybot", "")):
        later = fetch(
            number, page, head=head(len(page), lines.decode()), links=(),
            notes={LINKS_READ_LATER: f"later {robot}".rstrip()},
        )  # fmt: skip
        hand_in(writer, later)
    writer.close()
    first, second = open_packs(tmp_path)
    at = "http://www.example.com"
    assert second.links == [
        Link(f"{at}/1"), Link(f"{at}/2", "a", True), Link(f"{at}/c", "canonical"),
    ]  # fmt: skip
    assert [link.nofollow for link in first.links] == [True, True, False]
    assert first.via == f"{at}/"
