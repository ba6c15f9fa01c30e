"""SUITE_PACKS_DIR: every answer that came is packed, and no page is done before it is."""

from __future__ import annotations

import errno
import gzip
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count, product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.crawls import crawl, crawl_over_kills, web_settings
from support.inprocess_crawls import Crawled, crawl_here
from support.lzop import Lzop
from support.packs import all_accepted
from support.webs import FakeWebProcess
from support.websites import Answer, Site, links, running

from scrapy_spider_suite.operate import machine
from scrapy_spider_suite.packs import open_packs, verify
from scrapy_spider_suite.packs.pack_file import GroupFile
from scrapy_spider_suite.packs.warc import Capture, CaptureRecords, format_capture, warc_fields
from scrapy_spider_suite.packs.writer import recover_folder
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig
from scrapy_spider_suite.testing.http import Request
from scrapy_spider_suite.testing.synthetic_site import SyntheticSite


class Broad(BroadSpider):
    """Follows everything."""

    name = "broad"


def answers(packs: Path) -> Counter[tuple[str, int]]:
    """How often each URL came with each status, by what is packed."""
    return Counter((page.url, page.status) for page in open_packs(packs))


def arrived(web: FakeWebProcess) -> Counter[tuple[str, int]]:
    """The same by what the server says."""
    port = web.ready.http_port
    return Counter((f"http://{a.host}:{port}{a.path}", a.status) for a in web.arrivals())


def ways_of_pages(packs: Path, web: FakeWebProcess) -> set[tuple[str, bool]]:
    """In which codings pages came, and whether in chunks; each has the body that was served."""
    site, ways = SyntheticSite(web.web), set()
    for page in open_packs(packs):
        parts = urlsplit(page.url)
        request = Request("GET", parts.path, parts.path, parts.hostname or "", True, 0)
        assert page.body == site.answer(request).data.partition(b"\r\n\r\n")[2], page.url
        chunked = page.headers.get("x-crawler-transfer-encoding") == "chunked"
        ways.add((page.headers.get("content-encoding", ""), chunked))
    return ways


@pytest.mark.parametrize("form", ["lzo", "gz", "zst"])
def test_every_answer_is_packed(form: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Pages, redirects, errors and robots.txt, each once, as served, however they came; packs and
    indexes are as they must be, for the tools of others, too."""
    config = FakeWebConfig(
        hosts=8, pages=8, degree=6, redirects=0.1, errors=0.1, coded=0.8,
        log=tmp_path / "arrivals",
    )  # fmt: skip
    packs = tmp_path / "packs"
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_PACKS_DIR=str(packs),
            SUITE_PACKS_FORMAT=form, SUITE_AGENT_NAME="here", SUITE_RETRY_TIMES=1,
            SUITE_BACKOFF_BASE=0.01, SUITE_BACKOFF_MAX=0.01,
        )  # fmt: skip
        ended = crawl("support.spiders.Bulk", settings, tmp_path, seeds=web.ready.seeds[0])
        assert ended.reason == "finished", ended.log[-3000:]
        web.stop()
        expected = arrived(web)
        assert ways_of_pages(packs, web) == set(product(("", "gzip", "br"), (True, False)))
    assert answers(packs) == expected
    assert ended.stats["suite/packs/answers"] == expected.total()
    assert list(verify(packs)) == []
    assert [path.suffix for path in packs.glob("bulk-*-here.warc.*")] != []
    assert not list(packs.glob("*.open"))
    lzop = request.getfixturevalue("lzop") if form == "lzo" else None
    assert all_accepted(packs, lzop) == len(list(open_packs(packs).records()))


@pytest.fixture
def site() -> Iterator[Site]:
    """A running site."""
    body = gzip.compress(links("/plain").encode() + b"x" * 5000)
    pages = {
        "/": Answer(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "text/html"}),
        "/plain": links(),
    }
    with running(Site(pages)) as server:
        yield server


def test_what_is_packed_is_what_came(
    site: Site, run: Callable[[Any], Crawled], tmp_path: Path
) -> None:
    """Head and compressed body as on the wire, the request as it was sent, where its links lead."""
    done = run(
        crawl_here(
            Broad, arguments={"seeds": f"{site.url}/"}, SUITE_ALLOW_PRIVATE_ADDRESSES=True,
            SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_PACKS_DIR=str(tmp_path),
            SUITE_OPERATOR="Institute of Pages, Berlin", SUITE_CRAWL_NAME="news",
            USER_AGENT="mybot/1.0 (+https://example.org/bot)", ROBOTSTXT_OBEY=True,
        )
    )  # fmt: skip
    assert done.reason == "finished"
    packs = open_packs(tmp_path)
    said = dict(warc_fields(next(packs.records())))
    assert (said["operator"], said["isPartOf"]) == ("Institute of Pages, Berlin", "news")
    assert (said["http-header-from"], said["robots"]) == ("https://example.org/bot", "classic")
    assert said["settings-digest"].startswith("sha256:")
    assert said["software"].startswith("scrapy-spider-suite/")
    page = packs.get(f"{site.url}/")
    assert page is not None
    assert page.headers["content-encoding"] == "gzip"
    assert page.body.endswith(b"x" * 5000)
    assert int(page.headers["content-length"]) < 5000
    assert [(link.url, link.kind) for link in page.links] == [(f"{site.url}/plain", "a")]
    kinds = Counter(record.kind for record in packs.records())
    assert kinds["request"] == kinds["response"] == done.stat("suite/packs/answers")
    child = packs.get(f"{site.url}/plain")
    assert child is not None
    assert child.metadata is not None
    assert child.metadata.block.startswith(f"via: {site.url}/\r\n".encode())


def test_what_is_not_to_be_stored_is_not_packed(
    site: Site, run: Callable[[Any], Crawled], tmp_path: Path
) -> None:
    """SUITE_STORE_FILTER: of other pages nothing is kept."""
    run(
        crawl_here(
            Broad, arguments={"seeds": f"{site.url}/"}, SUITE_ALLOW_PRIVATE_ADDRESSES=True,
            SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_PACKS_DIR=str(tmp_path),
            SUITE_STORE_FILTER="URLMatchesRegex(.*plain)",
        )
    )  # fmt: skip
    packs = open_packs(tmp_path)
    assert packs.get(f"{site.url}/") is None
    assert packs.get(f"{site.url}/plain") is not None


@pytest.mark.slow
def test_kills_lose_no_page(lzop: Lzop, tmp_path: Path) -> None:
    """Killed twice: what is done is packed, packs verify, the rest is fetched again.

    What each kill has left is accepted by other people's tools once its packs are closed.
    """
    config = FakeWebConfig(hosts=8, pages=16, degree=8, addresses=8, errors=0.0, coded=0.8)
    job, packs, chance = tmp_path / "job", tmp_path / "packs", random.Random(5)
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(job), SUITE_HOST_DELAY=0.1, SUITE_IP_DELAY=0.01,
            SUITE_PACKS_DIR=str(packs), SUITE_AGENT_NAME="here",
        )  # fmt: skip
        times = [chance.uniform(0.2, 0.9) for _ in range(2)]
        kills = count()

        def close_and_check() -> None:
            if packs.exists():
                left = shutil.copytree(packs, tmp_path / f"left{next(kills)}")
                recover_folder(left)
                assert all_accepted(left, lzop) == len(list(open_packs(left).records()))

        crawl_over_kills(
            "support.spiders.Bulk", settings, tmp_path, times, close_and_check,
            seeds=web.ready.seeds[0],
        )  # fmt: skip
        assert all_accepted(packs, lzop) == len(list(open_packs(packs).records()))
        assert ways_of_pages(packs, web) == set(product(("", "gzip", "br"), (True, False)))
        reachable = set(web.web.reachable())
    assert list(verify(packs)) == []
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
        done = reader.counters().done
    packed = {url for url, status in answers(packs) if status == 200}
    assert packed >= {url for url in reachable if web.web.status(url) == 200}
    assert done >= len(reachable)


@pytest.mark.parametrize("broken", ["write", "thread"])
def test_what_cannot_be_packed_is_fetched_again(
    site: Site, run: Callable[[Any], Crawled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    broken: str,
) -> None:  # fmt: skip
    """A full disk, or a writer that has ended: the crawl pauses, the page is not done."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device") if broken == "write" else KeyError

    name = "pack_file.PackFile.append" if broken == "write" else "writer.GroupWriter.add_job"
    monkeypatch.setattr(f"scrapy_spider_suite.packs.{name}", refuse)
    job, packs = tmp_path / "job", tmp_path / "packs"
    settings: dict[str, Any] = {
        "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
        "SUITE_PACKS_DIR": str(packs), "JOBDIR": str(job),
    }  # fmt: skip
    arguments = {"seeds": f"{site.url}/"}
    done = run(crawl_here(Broad, arguments=arguments, CLOSESPIDER_TIMEOUT=3, **settings))
    assert done.reason == "closespider_timeout"
    assert done.stat("suite/packs/failed") >= 1
    assert done.stat("suite/job/done") == 0
    monkeypatch.undo()
    again = run(crawl_here(Broad, arguments=arguments, **settings))
    assert again.reason == "finished"
    assert {url for url, status in answers(packs) if status == 200} == {
        f"{site.url}/", f"{site.url}/plain",
    }  # fmt: skip


def test_a_page_of_which_no_record_can_be_made_fails(
    site: Site, run: Callable[[Any], Crawled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a pipeline had failed: it is not done, and the crawl neither waits nor pauses."""

    def made(fetch: Capture, ids: Iterator[str]) -> CaptureRecords:
        if fetch.url.endswith("/plain"):
            raise KeyError("not thought of")
        return format_capture(fetch, ids)

    monkeypatch.setattr("scrapy_spider_suite.packs.cdxj.format_capture", made)
    done = run(
        crawl_here(
            Broad, arguments={"seeds": f"{site.url}/"}, SUITE_ALLOW_PRIVATE_ADDRESSES=True,
            SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_RETRY_TIMES=0,
            SUITE_PACKS_DIR=str(tmp_path / "packs"), JOBDIR=str(tmp_path / "job"),
        )
    )  # fmt: skip
    assert done.reason == "finished"
    assert done.stat("suite/packs/refused") == 1
    assert done.stat("suite/disk/pauses") == 0
    assert (done.stat("suite/job/done"), done.stat("suite/job/failed")) == (1, 1)
    assert {url for url, status in answers(tmp_path / "packs") if status == 200} == {f"{site.url}/"}


def test_a_disk_that_has_room_again(
    site: Site, run: Callable[[Any], Crawled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crawl goes on by itself, and fetches again what could not be packed."""
    write, calls = GroupFile.add, count()

    def add(self: GroupFile, parts: Iterable[bytes]) -> None:
        if next(calls) in (1, 2):  # the first of all is who crawls
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, parts)

    monkeypatch.setattr(GroupFile, "add", add)
    monkeypatch.setattr(machine, "_RETRY", 0.2)
    done = run(
        crawl_here(
            Broad, arguments={"seeds": f"{site.url}/"}, SUITE_ALLOW_PRIVATE_ADDRESSES=True,
            SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_PACKS_DIR=str(tmp_path / "packs"),
            JOBDIR=str(tmp_path / "job"),
        )
    )  # fmt: skip
    assert done.reason == "finished"
    assert done.stat("suite/packs/failed") >= 2
    assert done.stat("suite/disk/pauses") >= 1
    assert done.stat("suite/job/done") == 2
    assert list(verify(tmp_path / "packs")) == []
    found = answers(tmp_path / "packs")
    assert (found[f"{site.url}/", 200], found[f"{site.url}/plain", 200]) == (1, 1)
