"""``scrapy seen``: a look into a store of seen URLs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.exceptions import UsageError
from scrapy.utils.test import get_crawler
from support.frontier_command import Said
from support.loaded_modules import loaded_by
from support.trie_stores import build_at_once

from scrapy_spider_suite.dupefilter import SieveDupeFilter, StoredDupeFilter, TrieDupeFilter
from scrapy_spider_suite.seen.sieve import Sieve
from scrapy_spider_suite.seen.trie_store import TrieStore

URLS = [f"http://host{n % 3}.t/{n}" for n in range(30)] + ["http://a.t/line\nbreak"]
Seen = Callable[..., Said]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job with a store, in which something is fresh; segments are built in this process."""
    build_at_once(monkeypatch)
    with TrieStore(tmp_path / "suite" / "seen") as store:
        store.add(URLS[:20])
        store.flush()
        store.add(URLS[20:])
    return tmp_path


def test_stats(seen: Seen, job: Path) -> None:
    """Of the job's store, or of a folder."""
    row = seen("stats", "-j", str(job), "--json").rows[0]
    assert (row["urls"], row["fresh"], row["segments"]) == (31, 11, 1)
    assert row["bytes_a_url"] == pytest.approx(row["size"] / 31, abs=0.1)
    said = seen(str(job / "suite" / "seen"), "stats")
    assert said.code == 0
    assert "urls         31" in said.out


def test_there_and_back(seen: Seen, job: Path) -> None:
    """From a URL, in any spelling, to its id, and back; 1 if there is none."""
    said = seen("get", "HTTP://Host1.t:80/1", "-j", str(job), "--json")
    assert said.code == 0
    row = said.rows[0]
    assert row["url"] == "http://host1.t/1"
    assert seen("id", str(row["id"]), "-j", str(job), "--json").rows == [row]
    said = seen("get", "http://new.t/", "-j", str(job))
    assert said.code == 1
    assert "scrapy frontier why URL" in said.out  # the job may know it by a row
    with TrieStore(job / "seen-trie"):  # of a dupefilter: it has nothing else
        pass
    said = seen(str(job / "seen-trie"), "get", "http://new.t/")
    assert said.out == "http://new.t/ was not seen\n"
    said = seen("id", "7", "-j", str(job))
    assert said.code == 1
    assert "no URL with the id 7" in said.out


@pytest.mark.parametrize("filter_", [TrieDupeFilter, SieveDupeFilter])
def test_what_a_dupefilter_knows(
    seen: Seen, tmp_path: Path, filter_: type[StoredDupeFilter]
) -> None:
    """URLs as they are asked for, however the filter itself writes them down."""
    made = filter_.from_crawler(get_crawler(settings_dict={"JOBDIR": str(tmp_path)}))
    made.open()
    for path in ("?b=1&a=2", "~x", "y", "z"):
        made.request_seen(Request(f"http://a.t/{path}"))
        if path == "y" and isinstance(made, SieveDupeFilter):
            made._seen.flush()  # the others wait
    made.close("finished")
    for url in ("http://a.t/?a=2&b=1", "HTTP://a.t/%7Ex#top", "http://a.t/z"):
        assert seen("get", url, "-j", str(tmp_path)).code == 0, url
    said = seen("get", "http://a.t/new", "-j", str(tmp_path))
    assert (said.code, "http://a.t/new was not seen" in said.out) == (1, True)
    assert seen("get", "no URL", "-j", str(tmp_path)).code == 1


def test_ls(seen: Seen, job: Path) -> None:
    """By prefix, as many as asked for; what is no text cannot break a line."""
    assert len(seen("ls", "-j", str(job)).out.splitlines()) == 20
    said = seen("ls", "http://host1.t/", "-j", str(job), "--limit", "0")
    assert sorted(said.out.split()) == sorted(u for u in URLS if u.startswith("http://host1.t/"))
    assert seen("ls", "http://a.t/", "-j", str(job)).out == "http://a.t/line\\nbreak\n"
    with pytest.raises(SystemExit):
        seen("ls", "-j", str(job), "--limit", "-1")


def test_check(seen: Seen, job: Path) -> None:
    """It names what is damaged, mends it when asked to, and says what that cost."""
    said = seen("check", "-j", str(job))
    assert (said.code, said.out) == (0, "everything is as it was written\n")
    segment = next((job / "suite" / "seen").glob("segment-*"))
    segment.write_bytes(b"x" + segment.read_bytes()[1:])
    said = seen("check", "-j", str(job))
    assert said.code == 1
    assert f"{segment.name}: it is not as it was written; 20 URLs. --repair: " in said.out
    said = seen("check", "-j", str(job), "--repair", "--json")
    assert said.code == 0
    assert said.rows[0]["lost"] == 20
    assert seen("check", "-j", str(job)).code == 0
    assert seen("stats", "-j", str(job), "--json").rows[0]["urls"] == 11


def test_beside_a_crawl(seen: Seen, job: Path) -> None:
    """To look is allowed, to repair is not."""
    with TrieStore(job / "suite" / "seen"):
        assert seen("stats", "-j", str(job)).code == 0
        said = seen("check", "-j", str(job), "--repair")
    assert said.code == 2
    assert "open in another process" in said.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected one of stats, get, id, ls, check"),
        (["folder"], "expected one of"),
        (["stats"], "which store"),
        (["get", "-j", "x"], "get: expected 1 argument"),
        (["stats", "more", "-j", "x"], "stats: expected no argument"),
    ],
)
def test_wrong_usage(seen: Seen, arguments: list[str], said: str) -> None:
    """In a line."""
    with pytest.raises(UsageError, match=said):
        seen(*arguments)


def test_what_is_no_store_or_no_id(seen: Seen, tmp_path: Path, job: Path) -> None:
    """In a line, too, and nothing is made."""
    said = seen("stats", "-j", str(tmp_path / "none"))
    assert said.code == 2
    assert "has no store of seen URLs" in said.out
    said = seen(str(tmp_path / "none"), "stats")
    assert said.code == 2
    assert not (tmp_path / "none").exists()
    assert seen("id", "x", "-j", str(job)).code == 2


def test_a_sieve_before_its_first_flush(seen: Seen, tmp_path: Path) -> None:
    """It is a store, and says why there is nothing to see in it yet but what waits."""
    sieve = Sieve(tmp_path)
    sieve.offer(URLS)
    sieve.close()
    assert seen(str(tmp_path), "get", URLS[0]).code == 0
    assert seen(str(tmp_path), "get", "http://new.t/").code == 1
    for verb in (["stats"], ["ls"], ["id", "1"], ["check"]):
        said = seen(str(tmp_path), *verb)
        assert said.code == 2
        assert "not flushed yet" in said.out


def test_loading_it_imports_neither_numpy_nor_tries() -> None:
    """Scrapy does that at each start of any command."""
    loaded = loaded_by("import scrapy_spider_suite.commands.seen")
    assert not {"numpy", "marisa_trie", "xxhash", "ada_url"} & loaded
