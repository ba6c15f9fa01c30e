"""A job with pages whose links nobody has read yet, seen and asked from outside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.frontier_command import Frontier, small_crawl
from support.webs import FakeWebProcess

from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.unread_pages import NAME
from scrapy_spider_suite.urls.normalize import host_of


@pytest.fixture(scope="module")
def made(web: FakeWebProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job of a crawl that was stopped in the middle."""
    folder = tmp_path_factory.mktemp("on-demand")
    crawl = small_crawl(
        web, folder, SUITE_READ_LINKS="on-demand", SUITE_PACKS_DIR=str(folder / "packs"),
        CLOSESPIDER_PAGECOUNT=20, CONCURRENT_REQUESTS=1,
    )  # fmt: skip
    assert crawl.reason == "closespider_pagecount", crawl.log[-2000:]
    return folder / "job"


@pytest.fixture
def job(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(made, tmp_path / "job")
    return tmp_path / "job"


def unread(job: Path) -> list[str]:
    """The URLs of those pages."""
    with StoreReader(job / FOLDER) as reader:
        return [page.entry.url for page in reader.unextracted.everything()]


def test_what_is_told_of_it(job: Path, frontier: Frontier) -> None:
    """status, why and check."""
    on, urls = ("-j", str(job)), unread(job)
    assert urls
    [row] = frontier("status", "--json", *on).rows
    assert row["unextracted"] == len(urls)
    assert "not read yet" in frontier("why", urls[0], *on).out
    host = host_of(urls[0])
    [row] = frontier("why", host, "--json", *on).rows
    assert row["unextracted"] == sum(host_of(url) == host for url in urls)
    assert f"{len(urls)} stored pages" in frontier("why", f"http://{host}/never", *on).out
    assert "everything agrees" in frontier("check", *on).out


def test_check_finds_what_does_not_agree(job: Path, frontier: Frontier) -> None:
    """A page without a turn, a turn without a page, and a wrong count."""
    store = RocksStore(job / FOLDER / "store")
    rows = store.kv(NAME)
    [[turn, _], *_] = rows.items(b"n")
    rows.delete(turn)
    rows.put(b"n" + b"\xfe" * 8, b"\0" * 8)
    rows.put(b"c", bytes(7) + b"\1")
    store.close()
    said = frontier("check", "-j", str(job))
    assert said.code == 1
    for line in ("has no turn", "has no row", "counts 1 page "):
        assert line in said.out


def test_referrers_of_a_host_that_is_taken_out(job: Path, made: Path, packs: Frontier) -> None:
    """Where other hosts' pages were found is forgotten, too."""
    with StoreReader(job / FOLDER) as reader:
        pages = [page.entry for page in reader.unextracted.everything()]
    found_there = {host_of(each.referrer): each.url for each in pages if each.referrer
                   and host_of(each.referrer) != each.host}  # fmt: skip
    assert found_there
    gone = min(found_there)
    folder = shutil.copytree(made.parent / "packs", job.parent / "packs")
    said = packs("redact", folder, "--job", job, "--host", gone, "--mentions", "--yes", "--json")
    assert said.rows[0]["left"] == []
    with StoreReader(job / FOLDER) as reader:
        left = [page.entry for page in reader.unextracted.everything()]
        assert list(reader.check()) == []
    assert {each.url for each in left} == {each.url for each in pages if each.host != gone}
    assert not any(gone in each.referrer for each in left)


def test_drop(job: Path, frontier: Frontier) -> None:
    """Pages of a dropped host are not read any more; no byte of them is left in the store."""
    on, urls = ("-j", str(job)), unread(job)
    host = host_of(urls[0])
    [row] = frontier("drop", host, "--yes", "--json", *on).rows
    assert row["unread"] == sum(host_of(url) == host for url in urls)
    assert unread(job) == [url for url in urls if host_of(url) != host]
    assert "everything agrees" in frontier("check", *on).out
