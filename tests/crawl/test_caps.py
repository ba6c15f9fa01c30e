"""Caps of a job, in real crawls: each ends, slows or cuts as it says, and is raised in a resume."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy.http import Response
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Answer, Page, Site, links, running

from scrapy_spider_suite.fetch.fetch_log import LOG_FOLDER, FetchLine, FetchLogReader, parse_line
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader

KB = 1_000
PAGES = 30
NOISE = random.Random(1).randbytes(200 * KB)


class Everything(BroadSpider):
    """Notes what it gets."""

    name = "everything"

    def parse_page(self, response: Response) -> Any:
        """One item for each page."""
        yield {"url": response.url, "flags": response.flags, "size": len(response.body)}


Broad = Callable[..., Crawled]


@pytest.fixture
def broad(run: Any, tmp_path: Path) -> Broad:
    """Run the spider in one job directory, without delays."""

    def crawl(site: Site, **settings: Any) -> Crawled:
        given = {
            "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
            "SUITE_HOST_CONCURRENCY": 8, "SUITE_IP_CONCURRENCY": 8, "ROBOTSTXT_OBEY": False,
            "USER_AGENT": "x (+mailto:a@b.test)", "JOBDIR": str(tmp_path / "job"), **settings,
        }  # fmt: skip
        crawled: Crawled = run(
            crawl_here(Everything, arguments={"seeds": f"{site.url}/"}, within=60, **given)
        )
        return crawled

    return crawl


@pytest.fixture
def site() -> Iterator[Site]:
    """A page that leads to `PAGES` more, each of 20 KB."""
    paths = [f"/{n}" for n in range(PAGES)]
    pages: dict[str, Page] = dict.fromkeys(paths, NOISE[:20 * KB])
    with running(Site({"/": links(*paths), **pages})) as server:
        yield server


def log_of(folder: Path) -> dict[str, FetchLine]:
    """The fetch log of the job in *folder*, by path."""
    lines = map(parse_line, FetchLogReader(folder / "job" / FOLDER / LOG_FOLDER).lines())
    return {"/" + line.url.split("/", 3)[3]: line for line in lines}


# The job


def test_pages_of_a_job(broad: Broad, site: Site) -> None:
    """It ends with just so many, says which cap it was, and goes on when that is raised."""
    first = broad(site, SUITE_MAX_PAGES=12)
    assert first.reason == "max_pages"
    assert len(first.items) == first.stat("suite/job/done") == len(site.visits) == 12
    again = broad(site, SUITE_MAX_PAGES=12)
    assert (again.reason, len(site.visits)) == ("max_pages", 12)
    last = broad(site, SUITE_MAX_PAGES=100)
    assert last.reason == "finished"
    assert last.stat("suite/job/done") == len(set(site.paths())) == PAGES + 1


def test_bytes_of_a_job(broad: Broad, site: Site) -> None:
    """Counted over its runs, heads and all."""
    first = broad(site, SUITE_MAX_BYTES="200K", SUITE_HOST_CONCURRENCY=1, SUITE_HOST_DELAY=0.05)
    assert first.reason == "max_bytes"
    assert first.stat("suite/job/bytes") >= 200 << 10
    assert 10 < first.stat("suite/job/done") <= PAGES
    asked = len(site.visits)
    assert broad(site, SUITE_MAX_BYTES="200K").reason == "max_bytes"
    assert len(site.visits) == asked
    last = broad(site)
    assert last.reason == "finished"
    assert last.stat("suite/job/bytes") > PAGES * 20 * KB


def test_time_of_a_job(broad: Broad, site: Site) -> None:
    """Likewise: the second run has nothing left of what the first has used."""
    first = broad(site, SUITE_MAX_TIME=1.5, SUITE_HOST_CONCURRENCY=1, SUITE_HOST_DELAY=0.5)
    assert first.reason == "max_time"
    assert first.stat("suite/frontier/pending") > 0
    asked = len(site.visits)
    assert broad(site, SUITE_MAX_TIME=1.5).reason == "max_time"
    assert len(site.visits) == asked


def test_bandwidth(broad: Broad, site: Site) -> None:
    """All that is received takes its time, the first second's apart, and nothing is cut."""
    crawled = broad(site, SUITE_MAX_BANDWIDTH=200 * KB, SUITE_TRAPS=())  # they look alike
    assert crawled.reason == "finished"
    assert crawled.stat("suite/outcome/success") == PAGES + 1
    begun = [visit.began for visit in site.visits]
    assert max(begun) - min(begun) > (PAGES * 20 - 200) / 200 * 0.75


# A page


def test_early_abort(broad: Broad, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A body that is not wanted is not read, whatever led there; what was read of it is counted,
    and nobody is told of an error. robots.txt is always read."""
    image = Answer(NOISE * 100, headers={"Content-Type": "image/png"})
    text = {"Content-Type": "text/plain"}
    pages: dict[str, Page] = {
        "/": links("/big", "/moved", "/page", "/gone", "/no"), "/big": image,
        "/moved": Answer(status=302, headers={"Location": "/other", **image.headers}),
        "/other": image, "/page": "a page",
        "/gone": Answer(b"x", 404, headers=image.headers), "/no": "nobody may read this",
        "/robots.txt": Answer(b"User-agent: *\nDisallow: /no\n", headers=text),
    }  # fmt: skip
    with running(Site(pages)) as site:
        crawled = broad(site, SUITE_MEDIA_TYPES="text/html", ROBOTSTXT_OBEY=True)
        assert "/no" not in site.paths()
    assert crawled.reason == "finished"
    assert {item["url"].rpartition("/")[2] for item in crawled.items} == {"", "page"}
    assert crawled.stat("suite/outcome/media_type") == 2
    assert crawled.stat("suite/outcome/client_error") == 1
    assert crawled.stat("suite/job/bytes") < len(image.body) / 2
    told = log_of(tmp_path)["/big"]
    assert (told.status, told.reason, told.type, told.bytes) == (200, "media_type", "image/png", 0)
    assert "rror" not in caplog.text
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        states = {row.url.rpartition("/")[2]: row.state for row in reader.urls("127.0.0.1")}
    big = states["big"]
    assert (big.state, big.event, big.status) == (State.FAILED, Event.MEDIA_TYPE, 200)


@pytest.mark.parametrize("packed", [False, True])
def test_a_page_that_is_cut(broad: Broad, tmp_path: Path, packed: bool) -> None:
    """It is marked as such everywhere, and the links of its beginning are followed."""
    page = f"{links('/early')}{NOISE.hex()}{links('/late')}".encode()
    headers = {"Content-Encoding": "gzip"} if packed else {}
    body = gzip.compress(page) if packed else page
    pages: dict[str, Page] = {
        "/": Answer(body, headers=headers), "/early": "early", "/late": "late",
    }  # fmt: skip
    with running(Site(pages)) as site:
        crawled = broad(site, SUITE_BODY_MAX="50K")
        assert site.paths() == ["/", "/early"]
    flags = {item["url"].rpartition("/")[2]: item["flags"] for item in crawled.items}
    assert ("truncated" in flags[""], "truncated" in flags["early"]) == (True, False)
    assert crawled.stat("suite/response/truncated") == 1
    assert crawled.stat("suite/outcome/success") == 2
    log = log_of(tmp_path)
    assert ("truncated" in log["/"].remarks, log["/"].bytes) == (True, 50 << 10)
    assert log["/early"].remarks == ()
