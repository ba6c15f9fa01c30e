"""Seeds on the command line: lists, tags and bad lines, and what ``urls`` and ``report`` say."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
from backports import zstd
from scrapy.exceptions import UsageError
from support.frontier_command import Frontier
from support.websites import Answer, Site, running

from scrapy_spider_suite.operate.verbs import enqueue
from scrapy_spider_suite.store.job_directory import FOLDER


def seeds(frontier: Frontier, job: Path) -> dict[str, str | None]:
    """Seeds and their tags, without those of the crawl before."""
    rows = frontier("report", "seeds", "-j", str(job), "--json").rows
    return {row["seed"]: row["tag"] for row in rows if "fake.test" not in row["seed"]}


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, zstd.compress])
def test_a_list_compressed_or_not(
    compress: type[bytes], job: Path, frontier: Frontier, tmp_path: Path
) -> None:
    """With comments and tags; lines that are no seeds are told with their numbers."""
    path = tmp_path / "seeds"
    text = b"# head\nhttp://a.test/ #tag=news\nb.test\nno seed\nftp://a.test/\nhttp://a.test/2\n"
    path.write_bytes(compress(text))
    said = frontier("add", str(path), "c.test", "--tag", "mine", "-j", str(job), "--json").rows[0]
    assert (said["urls"], said["new"], said["no_web_addresses"]) == (6, 4, 2)
    first = f"{path}:4 'no seed': neither a URL nor a host name"
    assert said["first_bad"] == [first, f"{path}:5 'ftp://a.test/': no web address"]
    assert first in said["said"]
    assert seeds(frontier, job) == {
        "http://a.test/": "news", "https://b.test/": "mine", "http://a.test/2": "mine",
        "https://c.test/": "mine",
    }  # fmt: skip
    bad = frontier("report", "bad-seeds", "-j", str(job), "--json").rows
    assert [(row["origin"], row["line"], row["text"]) for row in bad] == [
        (str(path), 4, "no seed"), (str(path), 5, "ftp://a.test/"),
    ]  # fmt: skip
    assert frontier("report", "bad-seeds", "--limit", "1", "-j", str(job), "--json").rows == bad[:1]
    urls = frontier("urls", "a.test", "-j", str(job), "--json").rows
    assert [(row["url"], row["tag"]) for row in urls] == [
        ("http://a.test/", "news"), ("http://a.test/2", "mine"),
    ]  # fmt: skip
    assert frontier("check", "-j", str(job)).code == 0


def test_a_list_from_the_web(job: Path, frontier: Frontier) -> None:
    """Downloaded by the command; nothing is added if it cannot be."""
    with running(Site({"/list": Answer(gzip.compress(b"http://a.test/\n"))})) as site:
        agent = {"USER_AGENT": "me"}
        missing = frontier(
            "add", "http://b.test/", f"@{site.url}/missing", "-j", str(job), **agent
        )
        assert missing.code == 2
        assert "cannot be had: status 404" in missing.out
        said = frontier("add", f"@{site.url}/list", "-j", str(job), "--json", **agent).rows[0]
        assert said["new"] == 1
        assert {visit.headers["User-Agent"] for visit in site.visits} == {"me"}
    assert seeds(frontier, job) == {"http://a.test/": None}


@pytest.mark.parametrize("tag", ["two words", "", "x" * 101])
def test_what_is_no_tag(tag: str, finished: Path, frontier: Frontier) -> None:
    """A word, and not too long."""
    with pytest.raises(UsageError, match="expected a word of at most 100 characters"):
        frontier("add", "a.test", "--tag", tag, "-j", str(finished))


def test_portions(
    job: Path, frontier: Frontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written again and again, here after each piece: nothing is left of the position."""
    monkeypatch.setattr(enqueue, "_SCHEDULING", 0.0)
    path = tmp_path / "seeds"
    path.write_text("".join(f"http://h{n % 7}.test/{n}\n" for n in range(5_000)))
    said = frontier("add", str(path), "-j", str(job), "--json").rows[0]
    assert (said["urls"], said["new"]) == (5_000, 5_000)
    assert not list((job / FOLDER / "actions").iterdir())
    assert len(seeds(frontier, job)) == 5_000
    assert frontier("check", "-j", str(job)).code == 0
