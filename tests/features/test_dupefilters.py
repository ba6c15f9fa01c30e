"""The dupefilters, under Scrapy's own scheduler: as Scrapy's, but with what was seen on disk."""

from __future__ import annotations

import logging
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler
from support.crawls import crawl as crawl_alone
from support.inprocess_crawls import Crawling
from support.visiting_spider import Visitor, visitor
from support.websites import Site, links

from scrapy_spider_suite import dupefilter
from scrapy_spider_suite.dupefilter import SieveDupeFilter, StoredDupeFilter, TrieDupeFilter
from scrapy_spider_suite.errors import JobDamagedError, SettingsError
from scrapy_spider_suite.runtime.files import TEMPORARY_PREFIX

BOTH = [SieveDupeFilter, TrieDupeFilter]
both = pytest.mark.parametrize("filter_", BOTH)

FULL = OSError(28, "No space left on device")


@pytest.fixture
def plain(site: Site, crawl: Crawling) -> Crawling:
    """Crawl without the add-on; the site has three pages."""
    site.pages |= {f"/{name}": links() for name in ("", "1", "2", "3")}
    return partial(crawl, addon=False)


def made(filter_: type[StoredDupeFilter], folder: Path | None, **given: Any) -> StoredDupeFilter:
    """A dupefilter, and its crawler's stats."""
    given["JOBDIR"] = None if folder is None else str(folder)
    dupefilter = filter_.from_crawler(get_crawler(Visitor, given))
    dupefilter.open()
    return dupefilter


@both
def test_duplicates(
    filter_: type[StoredDupeFilter], site: Site, plain: Crawling, caplog: Any
) -> None:
    """Dropped, counted and told of once; dont_filter is Scrapy's to honour."""
    with caplog.at_level("DEBUG"):
        done = plain(visitor(site, "/1", "/1", "/2", "/1#here"), DUPEFILTER_CLASS=filter_)
    assert sorted(site.paths()) == ["/1", "/2"]
    assert done.stat("dupefilter/filtered") == 2
    assert caplog.text.count("Filtered duplicate request: <GET") == 1
    assert "no more duplicates will be shown" in caplog.text
    assert done.stat("suite/seen/known") == 2
    plain(visitor(site, "/3", "/3", dont_filter=True), DUPEFILTER_CLASS=filter_)
    assert sorted(site.paths())[2:] == ["/3", "/3"]


@both
def test_each_is_told_of(
    filter_: type[StoredDupeFilter], site: Site, plain: Crawling, caplog: Any
) -> None:
    """With DUPEFILTER_DEBUG."""
    with caplog.at_level("DEBUG"):
        plain(visitor(site, "/", "/", "/"), DUPEFILTER_CLASS=filter_, DUPEFILTER_DEBUG=True)
    assert caplog.text.count("Filtered duplicate request: <GET") == 2


@both
def test_a_job_is_resumed(
    filter_: type[StoredDupeFilter], site: Site, plain: Crawling, tmp_path: Path
) -> None:
    """What was seen by a run with the same JOBDIR is known; its folder is the filter's own."""
    options = {"DUPEFILTER_CLASS": filter_, "JOBDIR": str(tmp_path)}
    plain(visitor(site, "/1", "/2"), **options)
    done = plain(visitor(site, "/2", "/3", "/1"), **options)
    assert sorted(site.paths()) == ["/1", "/2", "/3"]
    assert done.stat("suite/seen/known") == 3
    assert (tmp_path / filter_.folder).is_dir()


@both
def test_without_a_job_nothing_is_left(
    filter_: type[StoredDupeFilter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are temporary."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made_ = made(filter_, None)
    made_.request_seen(Request("http://a.example/"))
    (folder,) = tmp_path.glob(f"{TEMPORARY_PREFIX}*")
    assert (folder / filter_.folder).is_dir()
    made_.close("finished")
    assert not folder.exists()


REQUESTS = st.builds(
    lambda path, query, method, body: Request(
        f"http://a.example/{path}{query}", method=method, body=body
    ),
    st.sampled_from(["", "x", "x/../y", "%7Ex", "~x", "x y", "ä"]),
    st.sampled_from(["", "?", "?b=1&a=2", "?a=2&b=1", "?a=2&b=1#c", "?a=&b"]),
    st.sampled_from(["GET", "GET", "GET", "POST", "HEAD"]),
    st.sampled_from([b"", b"", b"body"]),
)


@both
@settings(max_examples=15)
@given(requests=st.lists(REQUESTS, max_size=30))
def test_the_same_requests_as_scrapys(
    filter_: type[StoredDupeFilter], requests: list[Request]
) -> None:
    """Query order, fragments, escapes, methods, bodies: Scrapy's own dupefilter says so too."""
    ours, scrapys = made(filter_, None), RFPDupeFilter(fingerprinter=RequestFingerprinter())
    assert [*map(ours.request_seen, requests)] == [*map(scrapys.request_seen, requests)]
    ours.close("finished")


class PathFingerprinter(RequestFingerprinter):
    """Takes requests for one that differ in the query only."""

    def fingerprint(self, request: Request) -> bytes:
        """See the class."""
        return super().fingerprint(request.replace(url=request.url.partition("?")[0]))


def test_the_projects_fingerprinter(site: Site, plain: Crawling) -> None:
    """REQUEST_FINGERPRINTER_CLASS says what is the same request."""
    plain(
        visitor(site, "/1?a", "/1?b", "/2"), DUPEFILTER_CLASS=SieveDupeFilter,
        REQUEST_FINGERPRINTER_CLASS=PathFingerprinter,
    )  # fmt: skip
    assert sorted(site.paths()) == ["/1?a", "/2"]


def test_a_fingerprinter_that_a_trie_cannot_honour() -> None:
    """It is refused, with the way out, before anything is crawled."""
    with pytest.raises(SettingsError) as refused:
        made(TrieDupeFilter, None, REQUEST_FINGERPRINTER_CLASS=PathFingerprinter)
    why = str(refused.value)
    assert "REQUEST_FINGERPRINTER_CLASS = '" in why
    assert "PathFingerprinter': TrieDupeFilter knows requests by their URLs" in why
    assert "use scrapy_spider_suite.dupefilter.SieveDupeFilter" in why


def test_refused_as_a_whole(tmp_path: Path) -> None:
    """A crawl whose files another one has ends at once, and says why."""
    other = made(SieveDupeFilter, tmp_path / "job")
    name = "scrapy_spider_suite.dupefilter.SieveDupeFilter"
    refused = crawl_alone(
        "support.visiting_spider.Visitor",
        {"JOBDIR": str(tmp_path / "job"), "DUPEFILTER_CLASS": name}, tmp_path,
    )
    other.close("finished")
    assert refused.code == 5
    assert "is open in another process" in refused.log


@both
def test_a_full_disk(
    filter_: type[StoredDupeFilter], tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    """Nothing is asked for twice; it is said once; and it is written as soon as there is room."""
    monkeypatch.setattr(dupefilter, "_UPKEEP_AFTER", 10)
    ours = made(filter_, tmp_path)
    if isinstance(ours, SieveDupeFilter):
        ours._seen._capacity = ours._seen._patience = 2
    requests = [Request(f"http://a.example/{number}") for number in range(40)]
    with monkeypatch.context() as broken:
        for module in ("fingerprints.write_all", "fresh_log.os.write"):
            broken.setattr(f"scrapy_spider_suite.seen.{module}", _full)
        assert not any(map(ours.request_seen, requests[:20]))
        assert all(map(ours.request_seen, requests[:20]))
    assert caplog.text.count("No space left on device") == 1
    assert not any(map(ours.request_seen, requests[20:]))
    ours.close("finished")
    again = made(filter_, tmp_path)
    assert all(map(again.request_seen, requests))
    again.close("finished")


def _full(*args: Any) -> int:
    raise FULL


def test_damaged_files(tmp_path: Path, caplog: Any) -> None:
    """A file that cannot be read is named, and the rest serves; without the manifest none does."""
    ours = made(SieveDupeFilter, tmp_path)
    requests = [Request(f"http://a.example/{number}") for number in range(20)]
    assert not any(map(ours.request_seen, requests))
    assert isinstance(ours, SieveDupeFilter)
    ours._seen.flush()
    (rows,) = (tmp_path / "seen-sieve").glob("*.rows")
    ours.request_seen(Request("http://a.example/last"))
    ours.close("finished")
    rows.write_bytes(rows.read_bytes()[:-1])
    again = made(SieveDupeFilter, tmp_path)
    assert f"What was seen is known in part only: {rows} is damaged" in caplog.text
    assert again.request_seen(Request("http://a.example/last"))
    assert not any(map(again.request_seen, requests))
    again.close("finished")
    (tmp_path / "seen-sieve" / "sieve.manifest").write_bytes(b"x")
    with pytest.raises(JobDamagedError, match=r"sieve\.manifest is damaged"):
        made(SieveDupeFilter, tmp_path)


@both
def test_beside_the_suites_scheduler(
    filter_: type[StoredDupeFilter], site: Site, crawl: Crawling, caplog: Any
) -> None:
    """It is not used, and the log says so: the frontier knows what was seen."""
    site.pages["/1"] = links()
    with caplog.at_level(logging.WARNING):
        done = crawl(visitor(site, "/1", "/1"), DUPEFILTER_CLASS=filter_)
    assert f"{filter_.__name__}' is not used" in caplog.text
    assert sorted(site.paths()) == ["/1"]
    assert done.stat("suite/seen/known") == 0
