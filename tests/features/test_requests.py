"""Requests that a spider yields: order, identity, meta, callbacks, errbacks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from scrapy import Request, Spider, signals
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import DontCloseSpider, IgnoreRequest
from scrapy.http import FormRequest, JsonRequest, Response
from scrapy.utils.request import RequestFingerprinter
from support.inprocess_crawls import Crawling
from support.scrapy_versions import NEWEST
from support.visiting_spider import Visitor, closed_port, visitor
from support.websites import Answer, Site, links, moved


def test_duplicates_are_dropped_unless_dont_filter(site: Site, either: Crawling) -> None:
    """A URL is asked for once; with dont_filter as often as it is yielded."""
    site.pages["/"] = links()
    once = either(visitor(site, "/", "/", "/"))
    assert site.paths() == ["/"]
    assert once.stat("dupefilter/filtered") == 2
    either(visitor(site, "/", "/", dont_filter=True))
    assert site.paths() == ["/"] * 3


def test_duplicates_are_told_of(site: Site, either: Crawling, caplog: Any) -> None:
    """DUPEFILTER_DEBUG logs each of them; request_dropped is sent."""
    site.pages["/"] = links()
    with caplog.at_level("DEBUG"):
        done = either(visitor(site, "/", "/", "/"), DUPEFILTER_DEBUG=True)
    assert caplog.text.count("Filtered duplicate request: <GET") == 2
    assert len(done.requests["request_dropped"]) == 2


class EvenDupeFilter(BaseDupeFilter):
    """Takes every URL that ends with a 1 for seen."""

    def request_seen(self, request: Request) -> bool:
        """See the class."""
        return request.url.endswith("1")

    def log(self, request: Request, spider: Spider) -> None:
        """Say nothing."""


def test_the_projects_own_dupefilter_is_asked(site: Site, either: Crawling) -> None:
    """DUPEFILTER_CLASS decides alone, in both directions."""
    site.pages |= {"/1": links(), "/2": links()}
    either(visitor(site, "/1", "/2", "/2"), DUPEFILTER_CLASS=EvenDupeFilter)
    assert site.paths() == ["/2", "/2"]


class PathFingerprinter(RequestFingerprinter):
    """Takes requests for one that differ in the query only."""

    def fingerprint(self, request: Request) -> bytes:
        """See the class."""
        return super().fingerprint(request.replace(url=request.url.partition("?")[0]))


def test_the_projects_own_fingerprinter_is_asked(site: Site, either: Crawling) -> None:
    """REQUEST_FINGERPRINTER_CLASS says what is the same request."""
    site.pages |= {"/?a": links(), "/?b": links()}
    either(visitor(site, "/?a", "/?b"), REQUEST_FINGERPRINTER_CLASS=PathFingerprinter)
    assert len(site.visits) == 1


def test_higher_priority_comes_first(site: Site, either: Crawling) -> None:
    """Of what waits for a host, the request of the highest priority is sent first."""
    order = [3, 9, 1, 7]

    class Ranked(Visitor):
        def keep(self, response: Response) -> Any:
            for rank in order:
                yield Request(f"{site.url}/{rank}", self.parse, priority=rank)

        def parse(self, response: Response) -> Any:
            return None

    site.pages |= {"/": links(), **{f"/{rank}": links() for rank in order}}
    Ranked.site = site.url
    either(Ranked, CONCURRENT_REQUESTS=1)
    assert site.paths() == ["/", "/9", "/7", "/3", "/1"]


def test_objects_in_cb_kwargs_and_meta_are_shared(site: Site, either: Crawling) -> None:
    """Without a job directory the Request objects themselves are kept, with all that is in them."""
    site.pages |= {"/": links(), "/next": links()}
    basket: list[str] = []
    marker = object()

    class Sharing(Visitor):
        def keep(self, response: Response) -> Any:
            yield Request(
                f"{site.url}/next", lambda r, basket: basket.append(r.url),
                cb_kwargs={"basket": basket}, meta={"marker": marker},
            )  # fmt: skip

    Sharing.site = site.url
    done = either(Sharing)
    assert basket == [f"{site.url}/next"]
    assert [r.request.meta.get("marker") for r in done.responses if r.request] == [None, marker]


def test_bodies_methods_headers_and_forms_arrive(site: Site, either: Crawling) -> None:
    """POST, JSON and form requests arrive as they were made."""

    class Sender(Visitor):
        async def start(self) -> AsyncIterator[Any]:
            yield Request(f"{site.url}/put", method="PUT", body=b"x", headers={"X-Own": "yes"})
            yield JsonRequest(f"{site.url}/json", data={"a": [1]})
            yield FormRequest(f"{site.url}/form", formdata={"q": "ä b"})

    either(Sender)
    by_path = {visit.path: visit for visit in site.visits}
    assert by_path["/put"].method == "PUT"
    assert by_path["/put"].headers["X-Own"] == "yes"
    assert json.loads(by_path["/json"].body) == {"a": [1]}
    assert by_path["/form"].body == b"q=%C3%A4+b"


@NEWEST
def test_depth(site: Site, either: Crawling) -> None:
    """DEPTH_LIMIT, request_depth_max and meta['depth'] are Scrapy's; depth_reset starts anew."""
    site.pages |= {f"/{n}": links(f"/{n + 1}") for n in range(6)}

    class Deeper(Visitor):
        paths = ("/0",)
        reset = False

        def keep(self, response: Response) -> Any:
            super().keep(response)
            for link in response.css("a::attr(href)").getall():
                reset = response.url.endswith("/1") and self.reset
                meta = {"depth_reset": True} if reset else {}
                yield response.follow(link, self.keep, meta=meta)

    Deeper.site = site.url
    done = either(Deeper, DEPTH_LIMIT=2, DEPTH_STATS_VERBOSE=True)
    assert [r.meta["depth"] for r in done.spider.came] == [0, 1, 2]
    assert done.stat("request_depth_max") == 2
    assert done.stat("request_depth_count/1") == 1
    Deeper.reset = True
    assert len(either(Deeper, DEPTH_LIMIT=2).spider.came) == 5


def test_depth_priority(site: Site, either: Crawling) -> None:
    """DEPTH_PRIORITY lowers or raises the priority by depth."""
    site.pages |= {"/0": links("/1"), "/1": links()}

    class Deeper(Visitor):
        paths = ("/0",)

        def keep(self, response: Response) -> Any:
            super().keep(response)
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link, self.keep)

    Deeper.site = site.url
    done = either(Deeper, DEPTH_PRIORITY=5)
    assert [r.request.priority for r in done.spider.came] == [0, -5]


def test_errbacks_get_what_scrapy_gives_them(site: Site, crawl: Crawling) -> None:
    """404, refused, timeout, unknown host, IgnoreRequest: the same class of error in either."""
    site.pages["/slow"] = Answer(b"late", wait=3)
    paths = ("/404", f"http://127.0.0.1:{closed_port()}/", "/slow", "http://nowhere.invalid/",
             "/ignored")  # fmt: skip

    class Ignoring:
        def process_request(self, request: Request) -> None:
            if request.url.endswith("/ignored"):
                raise IgnoreRequest

    got = []
    for addon in (True, False):
        done = crawl(
            visitor(site, *paths), addon=addon, RETRY_ENABLED=False, DOWNLOAD_TIMEOUT=0.8,
            DOWNLOADER_MIDDLEWARES={Ignoring: 1}, LOG_LEVEL="CRITICAL",
        )  # fmt: skip
        kinds = {f.request.url: type(f.value).__name__ for f in done.spider.failed}
        got.append(kinds)
        assert done.spider.came == []
    assert got[0] == got[1]
    assert len(got[0]) == len(paths)


def test_errbacks_of_private_addresses(site: Site, crawl: Crawling) -> None:
    """A page's link to a private address ends in its errback, and nothing reaches the address."""
    other = "http://127.0.0.2:9/"

    class Lured(Visitor):
        def keep(self, response: Response) -> Any:
            yield Request(other, self.keep, errback=self.fail)

    site.pages["/"] = links(other)
    Lured.site = site.url
    done = crawl(Lured, RETRY_ENABLED=False)
    assert [type(f.value).__name__ for f in done.spider.failed] == ["PrivateAddressRefused"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_errback_is_not_the_operator(
    asynchronous: bool, site: Site, crawl: Crawling
) -> None:
    """What an errback yields may be a page's: no private address opens to it, nor to its copies."""

    class Lured(Visitor):
        paths = (f"http://127.0.0.1:{closed_port()}/",)

        def fail(self, failure: Any) -> Any:
            super().fail(failure)
            for number in (2, 3):
                yield failure.request.replace(url=f"http://127.0.0.{number}:9/", errback=self.note)

        def note(self, failure: Any) -> Any:
            super().fail(failure)

    class Later(Lured):
        async def fail(self, failure: Any) -> Any:
            await asyncio.sleep(0)
            for request in super().fail(failure):
                yield request

    done = crawl(Later if asynchronous else Lured, RETRY_ENABLED=False)
    errors = {f.request.url: type(f.value).__name__ for f in done.spider.failed}
    assert len(errors) == 3
    assert set(errors.values()) == {"DownloadConnectionRefusedError", "PrivateAddressRefused"}


def test_a_component_is_the_operator(site: Site, crawl: Crawling) -> None:
    """What is given to the engine by a part of the project may be inside; errbacks before it or
    not."""

    class Handing(Visitor):
        paths = (f"http://127.0.0.1:{closed_port()}/",)
        handed = 0

        def handing(self) -> None:
            self.handed += 1
            if self.handed < 3:
                url = f"http://localhost:{site.url.rpartition(':')[2]}/?{self.handed}"
                self.crawler.engine.crawl(Request(url, self.keep))
                raise DontCloseSpider

    def watch(crawler: Any) -> None:
        crawler.signals.connect(lambda spider: spider.handing(), signals.spider_idle, weak=False)

    site.pages |= {"/?1": links(), "/?2": links()}
    done = crawl(Handing, watch=watch, RETRY_ENABLED=False)
    assert (len(done.spider.failed), len(done.spider.came)) == (1, 2)


def test_handle_httpstatus_list(site: Site, either: Crawling) -> None:
    """Callbacks see the statuses that they ask for, in meta, on the spider, or in the settings."""
    site.pages["/teapot"] = Answer(b"short", 418)
    by_meta = either(visitor(site, "/teapot", meta={"handle_httpstatus_list": [418]}))
    all_of_them = either(visitor(site, "/teapot", meta={"handle_httpstatus_all": True}))
    by_setting = either(visitor(site, "/teapot"), HTTPERROR_ALLOWED_CODES=[418])
    allowed = either(visitor(site, "/teapot"), HTTPERROR_ALLOW_ALL=True)
    refused = either(visitor(site, "/teapot"))
    start = {"name": "plain", "start_urls": [f"{site.url}/teapot"]}
    unheard = either(type("Plain", (Spider,), start))
    assert [len(d.spider.came) for d in (by_meta, all_of_them, by_setting, allowed)] == [1] * 4
    assert [len(refused.spider.came), len(refused.spider.failed)] == [0, 1]
    assert unheard.stat("httperror/response_ignored_status_count/418") == 1


def test_offsite(site: Site, either: Crawling) -> None:
    """Requests out of allowed_domains are dropped before they are sent; allow_offsite is heard."""

    class Homely(Visitor):
        allowed_domains = ("example.com",)

        def keep(self, response: Response) -> Any:
            yield Request(f"{site.url}/far", self.parse)
            yield Request(f"{site.url}/near", self.parse, meta={"allow_offsite": True})

        def parse(self, response: Response) -> Any:
            return None

    Homely.site = site.url
    Homely.options = {"meta": {"allow_offsite": True}}
    site.pages |= {"/": links(), "/far": links(), "/near": links()}
    done = either(Homely)
    assert site.paths() == ["/", "/near"]
    assert done.stat("offsite/filtered") == 1


def test_redirects(site: Site, either: Crawling) -> None:
    """301, 302, 307 and meta refresh are followed, with their history in meta."""
    site.pages |= {
        "/301": moved("/302", 301),
        "/302": moved("/meta"),
        "/meta": '<meta http-equiv="refresh" content="0;url=/end">',
        "/end": links(),
    }
    done = either(visitor(site, "/301"))
    (response,) = done.spider.came
    assert response.url == f"{site.url}/end"
    history = [f"{site.url}{path}" for path in ("/301", "/302", "/meta")]
    assert response.meta["redirect_urls"] == history
    assert response.meta["redirect_reasons"] == [301, 302, "meta refresh"]
    assert site.paths() == ["/301", "/302", "/meta", "/end"]


def test_redirects_can_be_kept_off(site: Site, either: Crawling) -> None:
    """dont_redirect, REDIRECT_ENABLED, METAREFRESH_ENABLED and REDIRECT_MAX_TIMES."""
    site.pages |= {"/a": moved("/b"), "/b": moved("/c"), "/c": links()}
    meta = {"dont_redirect": True, "handle_httpstatus_list": [302]}
    assert either(visitor(site, "/a", meta=meta)).spider.came[0].status == 302
    assert either(visitor(site, "/a"), REDIRECT_ENABLED=False).spider.came == []
    assert either(visitor(site, "/a"), REDIRECT_MAX_TIMES=1).spider.came == []
    done = either(visitor(site, "/a"), REDIRECT_PRIORITY_ADJUST=4)
    assert done.spider.came[0].request.priority == 8


def test_redirects_to_a_page_that_is_known_are_followed(site: Site, either: Crawling) -> None:
    """A redirect goes by no dupefilter in Scrapy, if its request was dont_filter."""
    site.pages |= {"/login": moved("/"), "/": links()}
    done = either(visitor(site, "/", "/login", dont_filter=True), CONCURRENT_REQUESTS=1)
    assert len(done.spider.came) == 2


def test_retries(site: Site, either: Crawling) -> None:
    """RETRY_TIMES, max_retry_times, dont_retry, RETRY_HTTP_CODES; the wait is the suite's own."""
    site.pages["/500"] = Answer(b"", 500)
    done = either(visitor(site, "/500"), RETRY_TIMES=2)
    assert len(site.visits) == 3
    assert done.stat("retry/count") == 2
    assert done.stat("retry/max_reached") == 1
    assert len(done.spider.failed) == 1
    either(visitor(site, "/500", meta={"max_retry_times": 1}))
    assert len(site.visits) == 5
    either(visitor(site, "/500", meta={"dont_retry": True}))
    either(visitor(site, "/500"), RETRY_HTTP_CODES=[502])
    either(visitor(site, "/500"), RETRY_ENABLED=False)
    assert len(site.visits) == 8


def test_a_spider_retries_by_get_retry_request(site: Site, either: Crawling) -> None:
    """Scrapy's `get_retry_request` in a callback works as ever."""
    from scrapy.downloadermiddlewares.retry import get_retry_request

    class Insisting(Visitor):
        def keep(self, response: Response) -> Any:
            super().keep(response)
            assert response.request is not None
            again = get_retry_request(
                response.request, spider=self, reason="empty", max_retry_times=2
            )
            if again:
                yield again

    site.pages["/"] = links()
    Insisting.site = site.url
    done = either(Insisting)
    assert len(site.visits) == 3
    assert done.stat("retry/reason_count/empty") == 2


@pytest.mark.parametrize("scheme", ["file", "data"])
def test_what_goes_over_no_wire(scheme: str, site: Site, either: Crawling, tmp_path: Any) -> None:
    """``file:`` and ``data:`` URLs are read, whatever the politeness."""
    page = tmp_path / "page.html"
    page.write_text("<title>on disk</title>")
    url = page.as_uri() if scheme == "file" else "data:text/html,<title>on%20disk</title>"
    done = either(visitor(site, url), DOWNLOAD_DELAY=30)
    assert done.spider.came[0].css("title::text").get() == "on disk"


def test_the_signals_of_a_request(site: Site, either: Crawling) -> None:
    """request_scheduled, reached_downloader and left_downloader are sent once each."""
    site.pages["/"] = links()
    done = either(visitor(site, "/"))
    for name in ("request_scheduled", "request_reached_downloader", "request_left_downloader"):
        assert done.urls(name) == [f"{site.url}/"], name


def test_callbacks_may_be_coroutines_and_async_generators(site: Site, either: Crawling) -> None:
    """``async def`` callbacks may await, and fetch in the middle."""

    class Awaiting(Visitor):
        async def keep(self, response: Response) -> Any:
            await asyncio.sleep(0.01)
            inner = await self.crawler.engine.download_async(Request(f"{site.url}/inner"))
            yield {"inner": inner.status}
            yield response.follow("/next", self.last)

        async def last(self, response: Response) -> list[Any]:
            return [{"last": response.url}]

    site.pages |= {"/": links(), "/inner": links(), "/next": links()}
    Awaiting.site = site.url
    done = either(Awaiting)
    assert done.items == [{"inner": 200}, {"last": f"{site.url}/next"}]


def test_referer(site: Site, either: Crawling) -> None:
    """The Referer header is Scrapy's, by REFERER_ENABLED, REFERRER_POLICY and meta."""
    site.pages |= {"/": links(), "/next": links()}

    class Linked(Visitor):
        meta: dict[str, str] = {}  # noqa: RUF012

        def keep(self, response: Response) -> Any:
            yield response.follow("/next", self.parse, meta=self.meta)

        def parse(self, response: Response) -> Any:
            return None

    Linked.site = site.url

    def referer(meta: dict[str, str], **settings: Any) -> str | None:
        Linked.meta = meta
        either(Linked, **settings)
        return site.visits[-1].headers.get("Referer")

    assert referer({}) == f"{site.url}/"
    assert referer({}, REFERER_ENABLED=False) is None
    assert referer({}, REFERRER_POLICY="no-referrer") is None
    assert referer({"referrer_policy": "no-referrer"}) is None


def test_spiders_of_one_process_keep_apart(site: Site, either: Crawling) -> None:
    """A second crawl in the same process begins with nothing seen."""
    site.pages["/"] = links()
    either(visitor(site, "/"))
    either(visitor(site, "/"))
    assert site.paths() == ["/", "/"]


def test_verbatim_urls(site: Site, either: Crawling) -> None:
    """meta['verbatim_url'] keeps the URL as it is, where the installed Scrapy knows it."""
    url = f"{site.url}/a|b?q={{1}}"
    plain = Request(url).url
    wanted = Request(url, meta={"verbatim_url": True}).url
    either(visitor(site, "/a|b?q={1}", meta={"verbatim_url": True}))
    assert site.paths() == [wanted.removeprefix(site.url)]
    assert plain.startswith(site.url)
