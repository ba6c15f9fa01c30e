"""SUITE_REVISIT in real crawls: pages are asked for in time, if changed, and answers judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from support.crawls import ADDON, crawl
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Answer, Site, Visit, links, moved, running

from scrapy_spider_suite.frontier.entries import state_key
from scrapy_spider_suite.frontier.revisit_rules import RevisitPolicy
from scrapy_spider_suite.packs import open_packs, verify
from scrapy_spider_suite.packs.warc import IDENTICAL, NOT_MODIFIED
from scrapy_spider_suite.runtime.refusal import DAMAGED
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store import job_directory
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.revisit_plans import (
    ROWS,
    UNPACKED,
    RevisitPlan,
    RevisitPlans,
    plan_of,
)
from scrapy_spider_suite.store.rocks_store import RocksStore

SOON: dict[str, Any] = {
    "ROBOTSTXT_OBEY": False, "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0,
    "SUITE_IP_DELAY": 0, "SUITE_BACKOFF_BASE": 0.05, "SUITE_REVISIT": "fixed",
    "SUITE_REVISIT_INTERVAL": 0.4, "SUITE_RETRY_TIMES": 0,
}  # fmt: skip
Run = Callable[[Any], Crawled]
Again = Callable[..., Crawled]


class Broad(BroadSpider):
    """Makes an item of every page that it is given."""

    name = "broad"

    def parse_page(self, response: Response) -> Any:
        """See the class."""
        yield {"url": response.url, "status": response.status, "body": response.body}


def tagged(body: str, tag: str = '"1"', **headers: str) -> Callable[[Visit], Answer]:
    """A page with an ETag, which answers 304 to whoever knows it."""

    def answer(visit: Visit) -> Answer:
        fields = {"ETag": tag, **headers}
        if visit.headers.get("If-None-Match") == tag:
            return Answer(status=304, headers=fields)
        return Answer(body.encode(), headers=fields)

    return answer


@pytest.fixture
def site() -> Iterator[Site]:
    """A site of one page."""
    with running(Site({"/": tagged(links())})) as server:
        yield server


@pytest.fixture
def again(site: Site, run: Run) -> Again:
    """Crawl *site* until *path* was asked for *times* times."""

    def crawl_again(
        times: int = 3, path: str = "/", spider: type[Spider] = Broad, reason: str = "shutdown",
        **settings: Any,
    ) -> Crawled:
        def watch(crawler: Crawler) -> None:
            async def until() -> None:
                while site.paths().count(path) < times :
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.3)
                await crawler.stop_async()

            def opened() -> None:
                tasks.append(asyncio.get_running_loop().create_task(until()))

            def closed(reason: str) -> None:
                if reason != "shutdown":
                    tasks.pop().cancel()

            crawler.signals.connect(opened, signals.spider_opened, weak=False)
            crawler.signals.connect(closed, signals.spider_closed, weak=False)

        tasks: list[asyncio.Task[None]] = []
        arguments = {"seeds": f"{site.url}/"} if issubclass(spider, BroadSpider) else {}
        done: Crawled = run(
            crawl_here(spider, watch=watch, arguments=arguments, **(SOON | settings))
        )
        assert done.reason == reason
        return done

    return crawl_again


def plan(job: Path, url: str) -> RevisitPlan | None:
    """The plan of *url* in a job; everything else in it must agree."""
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
        host = url.partition("//")[2].partition(":")[0]
        return plan_of(reader.store.kv(ROWS), state_key(host, url))


def found(done: Crawled, name: str) -> int:
    """What revisits found, by the stats."""
    number: int = done.stat(f"suite/revisit/{name}")
    return number


def test_only_if_it_has_changed(site: Site, again: Again, tmp_path: Path) -> None:
    """A 304 is no page for the spider and no failure; the next visit is planned."""
    done = again(4, JOBDIR=str(tmp_path))
    assert len(done.items) == 1
    assert [visit.headers.get("If-None-Match") for visit in site.visits] == [None] + ['"1"'] * 3
    assert found(done, "unchanged") == 3
    assert done.stat("suite/job/done") == 1
    assert done.stat("suite/job/failed") == 0
    assert done.stat("downloader/exception_count") == 0
    assert done.stat("downloader/response_status_count/304") == 3
    gaps = [late.began - early.ended for early, late in pairwise(site.visits)]
    assert all(gap > 0.35 for gap in gaps)
    left = plan(tmp_path, f"{site.url}/")
    assert left is not None
    assert left.validators.etag == '"1"'
    assert left.history.quiet >= 2.9


def test_what_has_changed_is_a_page(site: Site, again: Again) -> None:
    """The spider is given it, and its new links are followed."""
    visits: list[Visit] = []

    def grows(visit: Visit) -> Answer:
        visits.append(visit)
        return Answer(links(*(f"/{n}" for n in range(len(visits)))).encode())

    site.pages |= {"/": grows, "/0": links(), "/1": links()}
    done = again(3)
    assert {item["url"].rpartition("/")[2] for item in done.items} == {"", "0", "1"}
    assert len([item for item in done.items if item["url"].endswith("/")]) == 3
    assert found(done, "changed") == 2


@pytest.mark.parametrize("form", ["lzo", "gz"])
def test_what_has_not_is_a_revisit_record(
    site: Site, again: Again, tmp_path: Path, form: str
) -> None:
    """By a 304, or by its digest; both lead to the body."""
    site.pages |= {"/": tagged(links("/same")), "/same": links(title="the same")}
    again(3, "/same", SUITE_PACKS_DIR=str(tmp_path), SUITE_PACKS_FORMAT=form)
    assert list(verify(tmp_path)) == []
    packs = open_packs(tmp_path)
    for path, profile in (("/", NOT_MODIFIED), ("/same", IDENTICAL)):
        pages = [page for page in packs if page.url == site.url + path]
        assert [page.is_revisit for page in pages[:3]] == [False, True, True]
        assert {page.record.get("WARC-Profile") for page in pages[1:]} == {profile}
        first = pages[0].record
        for page in pages[1:]:
            assert page.record.get("WARC-Refers-To-Date") == first.get("WARC-Date")
            assert page.record.get("WARC-Payload-Digest") == first.get("WARC-Payload-Digest")
            assert page.body == pages[0].body
        assert [page.status for page in pages[:2]] == [200, 304 if path == "/" else 200]


def test_what_is_gone_from_the_packs_is_packed_anew(
    site: Site, again: Again, tmp_path: Path
) -> None:
    """Somebody has deleted them: nothing refers to what is not there, and the page is asked for."""
    job, packs = tmp_path / "job", tmp_path / "packs"
    settings = {"JOBDIR": str(job), "SUITE_PACKS_DIR": str(packs)}
    again(2, **settings)
    for path in packs.iterdir():
        path.unlink()
    site.visits.clear()
    again(2, **settings)
    assert [visit.headers.get("If-None-Match") for visit in site.visits][:2] == [None, '"1"']
    pages = list(open_packs(packs))
    assert [page.is_revisit for page in pages[:2]] == [False, True]
    assert pages[1].body == pages[0].body


@pytest.mark.parametrize("name", ["SUITE_STORE_FILTER", "SUITE_PAGE_ITEMS"])
def test_what_is_not_to_be_packed(site: Site, again: Again, tmp_path: Path, name: str) -> None:
    """By a filter, or without an item: it is asked for only if it has changed, and no 304 packed.
    """
    job, packs = tmp_path / "job", tmp_path / "packs"
    own = type("Mine", (Own,), {"site": site.url, "failures": []})
    spider, value = {
        "SUITE_STORE_FILTER": (Broad, "URLMatchesRegex(.*/other)"), "SUITE_PAGE_ITEMS": (own, True),
    }[name]  # fmt: skip
    settings = {"JOBDIR": str(job), "SUITE_PACKS_DIR": str(packs), name: value}
    done = again(3, spider=spider, **settings)
    assert [visit.headers.get("If-None-Match") for visit in site.visits] == [None, '"1"', '"1"']
    assert found(done, "unchanged") == 2
    with StoreReader(job / FOLDER) as reader:
        plans = RevisitPlans(reader.store.kv(ROWS), RevisitPolicy()).planned()
        assert [each.packed for _, each in plans] == [UNPACKED]
    assert list(open_packs(packs)) == []


def test_packs_from_now_on(site: Site, again: Again, tmp_path: Path) -> None:
    """What was fetched without packs is asked for whole once, so that it is in them."""
    job, packs = str(tmp_path / "job"), tmp_path / "packs"
    again(1, JOBDIR=job)
    again(3, JOBDIR=job, SUITE_PACKS_DIR=str(packs))
    assert [visit.headers.get("If-None-Match") for visit in site.visits] == [None, None, '"1"']
    assert [page.is_revisit for page in open_packs(packs)] == [False, True]


def test_after_a_stop_the_plan_is_kept(site: Site, again: Again, tmp_path: Path) -> None:
    """What became due meanwhile is visited at once, only if it has changed."""
    again(1, JOBDIR=str(tmp_path), SUITE_REVISIT_INTERVAL=2)
    assert len(site.visits) == 1
    began = time.monotonic()
    again(2, JOBDIR=str(tmp_path), SUITE_REVISIT_INTERVAL=2)
    assert site.visits[1].began - began < 6
    assert site.visits[1].headers.get("If-None-Match") == '"1"'


def test_off_again(site: Site, run: Run, again: Again, tmp_path: Path) -> None:
    """Without SUITE_REVISIT the job is over; the plans wait for it."""
    again(2, JOBDIR=str(tmp_path))
    arguments = {"seeds": f"{site.url}/"}
    options = SOON | {"JOBDIR": str(tmp_path), "SUITE_REVISIT": "off"}
    before = len(site.visits)
    assert run(crawl_here(Broad, arguments=arguments, **options)).reason == "finished"
    assert len(site.visits) <= before + 1  # it may have been pending when the crawl was stopped
    assert plan(tmp_path, f"{site.url}/") is not None


@pytest.mark.parametrize("seen", ["sieve", "plain"])  # all others have a trie
def test_with_every_kind_of_seen(site: Site, again: Again, tmp_path: Path, seen: str) -> None:
    """However it is known what was seen."""
    site.pages["/"] = tagged(links("/a", "/b"))
    site.pages |= {"/a": links(), "/b": tagged(links("/"))}
    done = again(3, "/b", JOBDIR=str(tmp_path), SUITE_SEEN_STORE=seen)
    assert done.stat("suite/job/done") == 3 - done.stat("suite/frontier/pending")
    for path in ("/", "/a", "/b"):
        assert site.paths().count(path) >= 2
        assert plan(tmp_path, site.url + path) is not None


# Bad input


def test_304_to_whom_did_not_ask(site: Site, again: Again, tmp_path: Path) -> None:
    """Is no page: the visit was in vain, and after three such the page is given up."""
    visits: list[Visit] = []

    def answer(visit: Visit) -> Answer:
        visits.append(visit)
        return Answer(links().encode()) if len(visits) == 1 else Answer(status=304)

    site.pages["/"] = answer
    site.pages["/other"] = links()
    done = again(5, reason="finished", JOBDIR=str(tmp_path))
    assert len(site.visits) == 4
    assert len(done.items) == 1
    assert found(done, "missed") == 3
    assert found(done, "gone") == 1
    assert plan(tmp_path, f"{site.url}/") is None


@pytest.mark.parametrize(
    "header",
    [{"ETag": "no quotes"}, {"ETag": '"' + "x" * 600 + '"'}, {"Last-Modified": "yesterday"}, {}],
)
def test_no_validators(site: Site, again: Again, header: dict[str, str]) -> None:
    """What is none is not sent back; an equal body is no change."""
    site.pages["/"] = Answer(links().encode(), headers=header)
    done = again(3)
    assert all("If-None-Match" not in visit.headers for visit in site.visits)
    assert all("If-Modified-Since" not in visit.headers for visit in site.visits)
    assert found(done, "same") == 2


def test_tags_that_change_every_time(site: Site, again: Again) -> None:
    """The last one is sent; an equal body is no change."""
    visits: list[Visit] = []

    def answer(visit: Visit) -> Answer:
        visits.append(visit)
        future = formatdate(time.time() + 1e8, usegmt=True)
        headers = {"ETag": f'W/"{len(visits)}"', "Last-Modified": future}
        return Answer(links().encode(), headers=headers)

    site.pages["/"] = answer
    done = again(3)
    assert [visit.headers.get("If-None-Match") for visit in visits] == [None, 'W/"1"', 'W/"2"']
    assert found(done, "same") == 2
    assert found(done, "changed") == 0


def test_what_is_gone_is_visited_no_more(site: Site, again: Again, tmp_path: Path) -> None:
    """Three times in a row; a page that comes back meanwhile is visited on."""
    status = {"/": iter([200, 404, 200, 410, 404, 404, 200])}

    def answer(visit: Visit) -> Answer:
        return Answer(links().encode(), next(status["/"]))

    site.pages["/"] = answer
    done = again(7, reason="finished", JOBDIR=str(tmp_path))
    assert len(site.visits) == 6
    assert found(done, "missed") == 4
    assert found(done, "gone") == 1
    assert len(done.items) == 2
    assert plan(tmp_path, f"{site.url}/") is None


def test_a_page_that_moves(site: Site, again: Again) -> None:
    """The place that it moves to is asked for as a page of its own, without the old one's tag."""
    visits: list[Visit] = []

    def answer(visit: Visit) -> Answer:
        visits.append(visit)
        return tagged(links())(visit) if len(visits) == 1 else moved("/new")

    site.pages |= {"/": answer, "/new": tagged(links(title="new"), '"2"')}
    done = again(2, "/new")
    tags = [v.headers.get("If-None-Match") for v in site.visits if v.path == "/new"]
    assert tags == [None, '"2"']
    assert len([item for item in done.items if item["url"].endswith("/new")]) == 1


def test_plans_that_are_damaged(
    again: Again, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The crawl ends, and says so once; nothing of the rows is lost."""
    again(2, JOBDIR=str(tmp_path))
    folder = tmp_path / FOLDER / "store"
    store = RocksStore(folder)
    [(key, _)] = store.kv(ROWS).items(b"p")
    store.kv(ROWS).put(key, b"\xc1")
    store.close()
    job_directory.note_files(folder)
    caplog.clear()
    again(1_000, reason=DAMAGED, JOBDIR=str(tmp_path))
    [said] = [line for line in caplog.records if line.levelname == "CRITICAL"]
    assert "a row of the revisits is damaged" in said.message
    with StoreReader(tmp_path / FOLDER) as reader:
        assert reader.store.kv(ROWS).get(key) == b"\xc1"


# Requests of a spider


class Own(Spider):
    """An ordinary spider, with an errback."""

    name = "own"
    site = ""
    headers: dict[str, str] = {}  # noqa: RUF012
    failures: list[Any] = []  # noqa: RUF012

    async def start(self) -> Any:
        """One page."""
        yield Request(
            f"{self.site}/", self.parse, errback=self.failed, headers=self.headers,
            dont_filter=True, cb_kwargs={"number": 7},
        )  # fmt: skip

    def parse(self, response: Response, number: int = 0) -> Any:
        """An item."""
        yield {"body": response.body, "status": response.status, "number": number}

    def failed(self, failure: Any) -> None:
        """Nothing should fail."""
        self.failures.append(failure)


def test_requests_of_a_spider(site: Site, again: Again, tmp_path: Path) -> None:
    """They come back with their callbacks; a 304 calls neither callback nor errback."""
    site.pages["/"] = tagged("first")
    spider = type("Mine", (Own,), {"site": site.url, "failures": []})
    again(2, spider=spider, JOBDIR=str(tmp_path))
    assert spider.failures == []
    site.pages["/"] = tagged("second", '"2"')
    done = again(4, spider=spider, JOBDIR=str(tmp_path))
    assert [(item["body"], item["number"]) for item in done.items] == [(b"second", 7)]
    assert spider.failures == []


def test_headers_of_a_spider_are_its_own(site: Site, again: Again, tmp_path: Path) -> None:
    """Whoever asks for what he knows is asked nothing else, and gets his answer."""
    headers = {"If-None-Match": '"mine"'}
    spider = type("Mine", (Own,), {"site": site.url, "headers": headers, "failures": []})
    again(3, spider=spider, JOBDIR=str(tmp_path))
    assert {visit.headers.get("If-None-Match") for visit in site.visits} == {'"mine"'}


def test_without_a_job(tmp_path: Path) -> None:
    """In the spider profile plans need a job directory: one line says so."""
    settings = {"ADDONS": ADDON, "SUITE_REVISIT": "fixed"}
    ended = crawl("support.spiders.Ordinary", settings, tmp_path, start="http://127.0.0.1:9/")
    assert ended.code == 2
    assert "SUITE_REVISIT = 'fixed': expected 'off' in the spider profile" in ended.log


def test_sitemaps_make_pages_due(site: Site, again: Again, tmp_path: Path) -> None:
    """A lastmod after the last visit; the sitemap itself is visited again like a page."""

    def sitemap(visit: Visit) -> Answer:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(visit.began + lead))
        text = f"<urlset><url><loc>{site.url}/</loc><lastmod>{now}</lastmod></url></urlset>"
        # So late that it is another second than that of the page's last visit.
        return Answer(text.encode(), headers={"Content-Type": "application/xml"}, wait=1.2)

    lead = time.time() - time.monotonic() + 1.2
    site.pages |= {"/robots.txt": f"Sitemap: {site.url}/map.xml\n", "/map.xml": sitemap}
    done = again(
        3, "/map.xml", JOBDIR=str(tmp_path), SUITE_SITEMAPS="robots", ROBOTSTXT_OBEY=True,
        SUITE_REVISIT_INTERVAL=2,
    )  # fmt: skip
    assert done.stat("suite/revisit/claimed") >= 1
    with StoreReader(tmp_path / FOLDER) as reader:
        claims = RevisitPlans(reader.store.kv(ROWS), RevisitPolicy()).claims("127.0.0.1")
    assert claims.made >= 1
    assert claims.true == 0
