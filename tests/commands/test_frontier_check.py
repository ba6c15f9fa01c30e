"""``frontier check --repair`` on stores of seen URLs: of a crawl, and of dupefilters."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy import Request
from scrapy.utils.test import get_crawler
from support.frontier_command import Frontier, Said
from support.trie_stores import build_at_once

from scrapy_spider_suite.dupefilter import SieveDupeFilter, StoredDupeFilter, TrieDupeFilter
from scrapy_spider_suite.seen.sieve import SieveSet
from scrapy_spider_suite.seen.trie_store import TrieStore

URLS = [f"http://host{n % 3}.t/{n}" for n in range(31)]


def make_trie(folder: Path) -> Path:
    """A store with a segment of 20 URLs, and 11 that are fresh; return the segment."""
    with TrieStore(folder) as store:
        store.add(URLS[:20])
        store.flush()
        store.add(URLS[20:])
    return next(folder.glob("segment-*"))


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)


def expect_repair(frontier: Frontier, job: Path, text: str) -> Said:
    """*text* is wrong, is mended when that is asked for, and is right then."""
    found = frontier("check", "-j", str(job))
    assert (found.code, "1 thing is wrong" in found.out) == (1, True), found.out
    assert text in found.out
    repaired = frontier("check", "--repair", "-j", str(job))
    assert (repaired.code, "1 thing was repaired" in repaired.out) == (0, True), repaired.out
    again = frontier("check", "-j", str(job))
    assert (again.code, again.out) == (0, "everything agrees\n")
    return repaired


def test_trie_of_a_dupefilter(
    frontier: Frontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_at_once(monkeypatch)
    segment = make_trie(tmp_path / "seen-trie")
    damage(segment)
    repaired = expect_repair(frontier, tmp_path, f"{segment.name} is not as it was written")
    assert "20 URLs" in repaired.out
    with TrieStore(tmp_path / "seen-trie", readonly=True) as store:
        assert len(store) == 11


@pytest.mark.parametrize("kind", [TrieDupeFilter, SieveDupeFilter])
def test_dupefilter_without_damage(
    frontier: Frontier, tmp_path: Path, kind: type[StoredDupeFilter]
) -> None:
    made = kind.from_crawler(get_crawler(settings_dict={"JOBDIR": str(tmp_path)}))
    made.open()
    made.request_seen(Request("http://a.t/"))
    made.close("finished")
    for options in ([], ["--repair"]):
        checked = frontier("check", *options, "-j", str(tmp_path))
        assert (checked.code, checked.out) == (0, "everything agrees\n")
    made.open()
    assert made.request_seen(Request("http://a.t/"))
    made.close("finished")


def test_sieve_of_a_dupefilter(frontier: Frontier, tmp_path: Path) -> None:
    sieve = SieveSet(tmp_path / "seen-sieve")
    for url in URLS:
        sieve.add(url.encode())
    sieve.flush()
    sieve.close()
    damage(next((tmp_path / "seen-sieve").glob("*.rows")))
    expect_repair(frontier, tmp_path, "is damaged")


def test_sieve_before_its_first_flush(frontier: Frontier, tmp_path: Path) -> None:
    SieveSet(tmp_path / "seen-sieve").close()
    assert frontier("check", "--repair", "-j", str(tmp_path)).code == 0


def test_store_in_use(
    frontier: Frontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking is allowed, repair is refused."""
    build_at_once(monkeypatch)
    make_trie(tmp_path / "seen-trie")
    with TrieStore(tmp_path / "seen-trie"):
        assert frontier("check", "-j", str(tmp_path)).code == 0
        refused = frontier("check", "--repair", "-j", str(tmp_path))
    assert (refused.code, "open in another process" in refused.out) == (2, True)


def test_neither_job_nor_store(frontier: Frontier, tmp_path: Path) -> None:
    """Nothing is made."""
    refused = frontier("check", "--repair", "-j", str(tmp_path / "none"))
    assert (refused.code, "holds no job" in refused.out) == (2, True)
    assert not (tmp_path / "none").exists()
