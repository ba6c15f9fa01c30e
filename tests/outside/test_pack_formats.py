"""How other programs read what a crawl has packed, as its log and the commands say."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from backports import zstd
from fastwarc.warc import ArchiveIterator as FastIterator
from support.names import Setting
from support.projects import Project
from support.websites import Site, links, running
from warcio.archiveiterator import ArchiveIterator

PAGES = {"/": links("/1", "/2"), "/1": links(title="one"), "/2": links()}
SPIDER = """
import scrapy

class PageSpider(scrapy.Spider):
    name = "page"
    start_urls = ["{url}/"]

    def parse(self, response):
        yield from response.follow_all(css="a")
"""


class Crawled:
    """A project whose crawl has packed three pages in ``packs``, and its log."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder, SPIDER_MODULES=["project.spiders"])
        spiders = folder / "project" / "spiders"
        spiders.mkdir()
        (spiders / "__init__.py").touch()
        with running(Site(PAGES)) as site:
            (spiders / "page.py").write_text(SPIDER.format(url=site.local))
            done = self.project.scrapy(
                "crawl", "page", **{Setting.PACKS_DIR: "packs", Setting.HOST_DELAY: 0.1}
            )
        assert done.returncode == 0, done.stderr
        self.log = done.stderr
        self.pages = {f"{site.local}/", f"{site.local}/1", f"{site.local}/2"}

    def packs(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``scrapy packs``; it has to succeed."""
        done = self.project.scrapy("packs", *arguments)
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Crawled:
    """The crawl, made once."""
    return Crawled(tmp_path_factory.mktemp("crawled"))


def responses(data: bytes) -> tuple[set[str], set[str]]:
    """The URLs of the responses in the WARC *data*, as FastWARC and as warcio read them."""
    fast = {
        record.headers["WARC-Target-URI"] for record in FastIterator(io.BytesIO(data))
        if record.headers["WARC-Type"] == "response"
    }  # fmt: skip
    slow = {
        record.rec_headers["WARC-Target-URI"] for record in ArchiveIterator(io.BytesIO(data))
        if record.rec_type == "response"
    }  # fmt: skip
    return fast, slow


@pytest.mark.slow
@pytest.mark.parametrize("place", ["log", "ls"])
def test_a_pack_says_how_warc_tools_read_it(crawled: Crawled, place: str) -> None:
    """The log says it once, of the first pack, and ``packs ls`` with its table."""
    listed = crawled.packs("ls", "packs")
    text = crawled.log if place == "log" else listed.stdout + listed.stderr
    [line] = [line for line in text.splitlines() if "lzop -dc" in line]
    assert ".warc.lzo" in line
    assert "scrapy packs cat" in line
    assert re.search(r"scrapy packs export.* --warc-gz", line)
    assert "--warc-zst" not in line  # which not every tool opens


@pytest.mark.slow
@pytest.mark.parametrize("form", ["gz", "zst"])
@pytest.mark.parametrize("target", ["pages.warc.{}", "folder"])
def test_an_export_is_read_by_others(crawled: Crawled, form: str, target: str) -> None:
    """By all; zst by FastWARC, and decompressed by all. Each record is a frame of its own."""
    target = target.format(form)
    crawled.packs("export", "packs", f"--warc-{form}", target)
    path = crawled.project.folder / target
    if path.is_dir():
        path = next(path.glob(f"*.warc.{form}"))
    with path.open("rb") as file:
        fast = [record.headers["WARC-Type"] for record in FastIterator(file)]
    assert fast.count("response") >= 3
    if form == "zst":
        program = shutil.which("zstd")
        data = zstd.decompress(path.read_bytes())
        if program is not None:
            done = subprocess.run([program, "-dc", str(path)], capture_output=True, check=True)
            assert done.stdout == data
        assert path.read_bytes().count(b"\x28\xb5\x2f\xfd") == len(fast)
    else:
        data = path.read_bytes()
    found = responses(data)
    assert found[0] == found[1] >= crawled.pages
    crawled.packs("verify", target)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["gz", "zst"])
def test_an_export_has_the_name_of_its_form(crawled: Crawled, form: str) -> None:
    """Another name would deceive whoever opens it: one line, exit code 2, no file."""
    other = "gz" if form == "zst" else "zst"
    name = f"wrong.warc.{other}"
    done = crawled.project.scrapy("packs", "export", "packs", f"--warc-{form}", name)
    assert done.returncode == 2
    assert f".warc.{form}" in done.stderr
    assert not (crawled.project.folder / name).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["ls PATH", "ls PATH --json", "ls PATH --pages", "get http://one.test/ PATH", "cat PATH",
     "verify PATH", "links PATH", "merge PATH", "export PATH --dir out", "graph out PATH",
     "upload PATH --to elsewhere", "redact PATH --host one.test --yes"],
)  # fmt: skip
def test_a_folder_without_packs_is_no_answer(crawled: Crawled, words: str) -> None:
    """Such as the folder above: one line that names it, exit code 2, and nothing is written."""
    (crawled.project.folder / "none").mkdir(exist_ok=True)
    done = crawled.project.scrapy("packs", *words.replace("PATH", "none").split())
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr == "scrapy packs: no packs in none\n"
    assert not (crawled.project.folder / "out").exists()
    assert list((crawled.project.folder / "none").iterdir()) == []


@pytest.mark.slow
def test_one_folder_of_several_may_be_without_packs(crawled: Crawled) -> None:
    """Of an agent that has not begun, say: the others are answered for."""
    (crawled.project.folder / "later").mkdir(exist_ok=True)
    assert crawled.packs("ls", "later", "packs").stdout.count(".warc.lzo") == 1
