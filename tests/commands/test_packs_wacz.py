"""``scrapy packs export --wacz``: by the reference validator, and by what the standard says."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.packs import body, fetch, warcio_records
from support.packs_command import Packs, write

from scrapy_spider_suite.packs.cdxj import parse_entry
from scrapy_spider_suite.packs.containers import GzipContainer
from scrapy_spider_suite.packs.export import title_of


@pytest.fixture
def wacz(packs: Packs, folders: list[Path], tmp_path: Path) -> Path:
    """The packs of two agents in one file."""
    target = tmp_path / "pages.wacz"
    said = packs("export", *folders, "--wacz", target, "--json")
    assert (said.code, said.rows[0]["pages"]) == (0, 5)
    assert {path.name for path in tmp_path.iterdir()} == {"packs", "pages.wacz"}
    return target


def test_every_file_is_as_the_package_says(wacz: Path) -> None:
    """Stored, not compressed again, with its digest, and nothing else is there."""
    with zipfile.ZipFile(wacz) as archive:
        assert archive.testzip() is None
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        data = archive.read("datapackage.json")
        package = json.loads(data)
        assert (package["profile"], package["wacz_version"]) == ("data-package", "1.1.1")
        for row in package["resources"]:
            content = archive.read(row["path"])
            assert row["bytes"] == len(content)
            assert row["hash"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert set(archive.namelist()) == {row["path"] for row in package["resources"]} | {
            "datapackage.json", "datapackage-digest.json"
        }  # fmt: skip
        digest = json.loads(archive.read("datapackage-digest.json"))
        assert digest["hash"] == f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_the_index_leads_to_the_pages(wacz: Path) -> None:
    """From the block that its own index names to the record in the archive."""
    with zipfile.ZipFile(wacz) as archive:
        first, *blocks = archive.read("indexes/index.idx").splitlines()
        assert json.loads(first.split(b" ", 2)[2])["format"] == "cdxj-gzip-1.0"
        packed = archive.read("indexes/index.cdx.gz")
        warc = archive.read("archive/data.warc.gz")
        pages = archive.read("pages/pages.jsonl").splitlines()
    lines = []
    for block in blocks:
        place = json.loads(block.split(b" ", 2)[2])
        end = place["offset"] + place["length"]
        lines += gzip.decompress(packed[place["offset"] : end]).splitlines()
        assert block.startswith(b" ".join(lines[-5].split(b" ", 2)[:2]))
    assert lines == sorted(lines)
    for entry in map(parse_entry, lines):
        place = entry.place
        data = GzipContainer().decode(warc[place.offset : place.offset + place.length])
        assert f"WARC-Target-URI: {entry.url}\r\n".encode() in data
    assert len(list(warcio_records(warc))) == 16
    listed = [json.loads(line) for line in pages[1:]]
    assert {(row["url"], row["title"]) for row in listed} == {
        ("http://www.example.com/1", "1"), ("http://www.example.com/3", "3")
    }  # fmt: skip


def test_the_reference_validator_accepts_it(wacz: Path) -> None:
    """Of the package wacz, which has dependencies without wheels: where it is installed."""
    pytest.importorskip("wacz", reason="wacz is not installed")
    command = [sys.executable, "-W", "ignore", "-m", "wacz.main", "validate", "-f", str(wacz)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Version detected as 1.1.1" in done.stdout


def test_no_half_file(packs: Packs, tmp_path: Path) -> None:
    """Nothing is written over, or for nothing."""
    write(tmp_path / "packs", "gz", fetch(1))
    target = tmp_path / "x.wacz"
    said = packs("export", tmp_path / "packs", "--wacz", target, "--host", "none.test")
    assert said.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["packs"]
    target.write_bytes(b"mine")
    assert packs("export", tmp_path / "packs", "--wacz", target).code == 2
    assert target.read_bytes() == b"mine"


def test_titles() -> None:
    """As a reader sees them."""
    assert title_of(body(1), "text/html") == "1"
    latin = b"<TITLE lang=de>\n A &amp;\xfc </TITLE>"
    assert title_of(latin, "text/html; charset=latin1") == "A &ü"
    assert title_of(b"<title></title>", "") == title_of(b"\xff" * 9, "") == ""
