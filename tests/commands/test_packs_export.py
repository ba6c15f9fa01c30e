"""``scrapy packs export``: what comes out is what went in, as other programs see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scrapy.exceptions import UsageError
from support.packs import body, fastwarc_records, fetch, gunzip_all, warcio_records
from support.packs_command import Packs, write

from scrapy_spider_suite.packs import open_packs
from scrapy_spider_suite.packs.export import export_warc
from scrapy_spider_suite.packs.reader import Selection
from scrapy_spider_suite.packs.warc import CrawlInfo


def test_warc(packs: Packs, folders: list[Path], tmp_path: Path) -> None:
    """Other tools read it, every record is the same, and it is a pack itself."""
    target = tmp_path / "all.warc.gz"
    said = packs("export", *folders, "--warc-gz", target, "--json")
    assert (said.code, said.rows[0]["pages"]) == (0, 5)
    data = target.read_bytes()
    seen = list(warcio_records(data))
    assert seen == list(fastwarc_records(data))
    assert [kind for kind, _, _ in seen] == [
        "warcinfo", *["response", "request", "metadata"] * 2,
        "revisit", "request", "metadata", *["response", "request", "metadata"] * 2,
    ]  # fmt: skip
    records = [record for folder in folders for record in open_packs(folder).records()]
    whole = gunzip_all(data)
    assert all(record.to_bytes() in whole for record in records if record.kind != "warcinfo")
    assert packs("verify", target).code == 0
    assert packs("get", "http://www.example.com/1", target).out == body(1)
    said = packs("export", *folders, "--warc-gz", target)
    assert (said.code, target.read_bytes()) == (2, data)
    assert "there already" in said.err


def test_what_is_asked_for(packs: Packs, folders: list[Path], tmp_path: Path) -> None:
    """And nothing else, from wherever it lies in its group."""
    for number, (choice, count) in enumerate(
        [(["--host", "sub.other.test"], 1), (["--status", "200", "--from", "2026-11-18"], 4),
         (["--sample", "2"], 2), (["--to", "2025"], 0)]
    ):  # fmt: skip
        target = tmp_path / f"{number}.warc.gz"
        said = packs("export", *folders, "--warc-gz", target, *choice, "--json")
        assert said.rows[0]["pages"] == count
        if count:
            assert len(list(open_packs(target))) == count


def test_several_files(folders: list[Path], tmp_path: Path) -> None:
    """In a folder, each of a certain size."""
    told: list[int] = []
    done = export_warc(open_packs(*folders), Selection(), tmp_path,
                       CrawlInfo(name="x", software="y"),
                       0.0, told.append, file_max=2500)  # fmt: skip
    assert len(done.files) > 1
    assert sum(told) == done.pages == 5
    pages = [page for path in done.files for page in open_packs(path)]
    assert len(pages) == 5


def test_files(packs: Packs, folders: list[Path], tmp_path: Path) -> None:
    """One for each page, decompressed, with a list of them."""
    target = tmp_path / "pages"
    said = packs("export", *folders, "--dir", target, "--json")
    assert (said.code, said.rows[0]["failed"]) == (0, 0)
    listed = [json.loads(line) for line in (target / "pages.jsonl").read_text().splitlines()]
    files = {str(path.relative_to(target)) for path in target.rglob("*-*")}
    assert files == {row["file"] for row in listed}
    assert len(files) == 5
    found = {(row["url"], row["revisit"]): (target / row["file"]).read_bytes() for row in listed}
    one = "http://www.example.com/1"
    assert found[one, True] == found[one, False] == body(1)
    assert found["http://www.example.com/2", False] == body(2)
    assert found["https://sub.other.test/4?a=b", False] == b"gone"
    assert {Path(name).suffix for name in files} == {".html", ".bin", ".txt"}  # one has no type


def test_names_lead_nowhere_else(packs: Packs, tmp_path: Path) -> None:
    """Whatever a URL says."""
    urls = ["http://../../etc/passwd", "http://a.test/../../x", "http:///x", "http://[::1]/%2e%2e/",
            f"http://a.test/{'ä/' * 3000}", "data:text/plain,x", "http://a.test/\0\n/"]  # fmt: skip
    write(tmp_path / "packs", "lzo", *(fetch(n, url=url) for n, url in enumerate(urls)))
    assert packs("export", tmp_path / "packs", "--dir", tmp_path / "a" / "b").code == 0
    assert len(list((tmp_path / "a").rglob("*-*"))) == len(urls)
    assert {path.name for path in tmp_path.iterdir()} == {"packs", "a"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"b"}


def test_what_cannot_be_read_is_named(packs: Packs, tmp_path: Path) -> None:
    """A body that is not what its head says costs its own page only."""
    lines = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\n"
    write(tmp_path / "packs", "gz", fetch(1, b"noise", head=lines), fetch(2))
    said = packs("export", tmp_path / "packs", "--dir", tmp_path / "out", "--json")
    assert (said.code, said.rows[0]["pages"], said.rows[0]["failed"]) == (1, 1, 1)
    assert said.err.startswith("http://www.example.com/1: ")


def test_wrong_usage(packs: Packs, folders: list[Path], tmp_path: Path) -> None:
    """In a line."""
    with pytest.raises(UsageError, match="one of the arguments"):
        packs("export", *folders)
    said = packs("export", *folders, "--warc-gz", tmp_path / "x.warc")
    assert (said.code, said.err.count("\n")) == (2, 1)


def test_into_a_new_folder(packs: Packs, folders: list[Path], tmp_path: Path) -> None:
    """It is made, as ``--dir`` makes one."""
    said = packs("export", *folders, "--warc-gz", f"{tmp_path}/new/warcs/", "--json")
    assert (said.code, len(said.rows[0]["files"])) == (0, 1)
    assert len(list(open_packs(tmp_path / "new" / "warcs"))) == said.rows[0]["pages"]
