"""Scrapy's downloader middlewares, handlers and politeness settings under the suite."""

from __future__ import annotations

import base64
import gzip
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from support.inprocess_crawls import Crawling
from support.scrapy_versions import NEWEST
from support.visiting_spider import Visitor, closed_port, visitor
from support.websites import Answer, Site, Visit, links, running


def gaps(site: Site) -> list[float]:
    """Seconds between the end of each visit and the beginning of the next."""
    visits = sorted(site.visits, key=lambda visit: visit.began)
    return [b.began - a.ended for a, b in pairwise(visits)]


def basic(login: str) -> str:
    """The header of a login by name and password."""
    return "Basic " + base64.b64encode(login.encode()).decode()


def test_the_delay_is_kept_once(site: Site, crawl: Crawling) -> None:
    """DOWNLOAD_DELAY is the pause between two requests to a host, and is not waited for twice."""
    site.pages |= {f"/{n}": links() for n in range(4)}
    crawl(visitor(site, "/0", "/1", "/2", "/3"), DOWNLOAD_DELAY=0.3)
    assert min(gaps(site)) >= 0.29
    assert site.visits[-1].ended - site.visits[0].began < 3 * 0.3 + 0.5


def test_scrapys_new_project_values(site: Site, crawl: Crawling) -> None:
    """CONCURRENT_REQUESTS_PER_DOMAIN = 1 and a delay, as in a new project, hold together."""
    site.pages |= {f"/{n}": Answer(b"", wait=0.05) for n in range(3)}
    crawl(
        visitor(site, "/0", "/1", "/2"), DOWNLOAD_DELAY=0.2, CONCURRENT_REQUESTS_PER_DOMAIN=1
    )  # fmt: skip
    assert min(gaps(site)) >= 0.19


def most_at_once(site: Site) -> int:
    """How many visits were under way at the same time."""
    return max(
        sum(other.began <= visit.began < other.ended for other in site.visits)
        for visit in site.visits
    )


def test_concurrency_per_domain(site: Site, crawl: Crawling) -> None:
    """CONCURRENT_REQUESTS_PER_DOMAIN and CONCURRENT_REQUESTS bound what is under way."""
    site.pages |= {f"/{n}": Answer(b"", wait=0.15) for n in range(8)}
    paths = [f"/{n}" for n in range(8)]
    crawl(visitor(site, *paths), CONCURRENT_REQUESTS_PER_DOMAIN=3)
    assert most_at_once(site) == 3
    site.visits.clear()
    crawl(visitor(site, *paths), CONCURRENT_REQUESTS=2)
    assert most_at_once(site) == 2


def test_download_slots(site: Site, crawl: Crawling) -> None:
    """DOWNLOAD_SLOTS and meta['download_slot'] give requests a clock of their own."""
    site.pages |= {f"/{n}": links() for n in range(6)}
    slots = {"slow": {"concurrency": 1, "delay": 0.25}}
    paths = [f"/{n}" for n in range(3)]
    crawl(visitor(site, *paths, meta={"download_slot": "slow"}), DOWNLOAD_SLOTS=slots)
    assert min(gaps(site)) >= 0.24
    site.visits.clear()
    crawl(visitor(site, *paths), DOWNLOAD_SLOTS={"127.0.0.1": {"concurrency": 1, "delay": 0.2}})
    assert min(gaps(site)) >= 0.19


def test_autothrottle(site: Site, either: Crawling) -> None:
    """AutoThrottle measures, and what it finds is the host's delay."""
    site.pages |= {f"/{n}": Answer(b"", wait=0.05) for n in range(6)}
    done = either(
        visitor(site, *(f"/{n}" for n in range(6))), AUTOTHROTTLE_ENABLED=True,
        AUTOTHROTTLE_START_DELAY=0.4, AUTOTHROTTLE_DEBUG=True,
    )  # fmt: skip
    slot = done.crawler.engine.downloader.slots["127.0.0.1"]
    assert 0.0 < slot.delay < 0.3
    assert max(gaps(site)) > 0.1


def test_what_autothrottle_found_outlives_a_collection(site: Site, either: Crawling) -> None:
    """Once a minute Scrapy drops slots that were not used for a minute, and no others."""
    site.pages |= {f"/{n}": links() for n in range(4)}

    class Collecting(Visitor):
        paths = tuple(site.url + path for path in site.pages)

        def keep(self, response: Response) -> Any:
            self.crawler.engine.downloader._slot_gc()

    done = either(Collecting, AUTOTHROTTLE_ENABLED=True, AUTOTHROTTLE_START_DELAY=0.4)
    assert done.crawler.engine.downloader.slots["127.0.0.1"].delay < 0.1


def test_a_broad_crawl_forgets_slots(site: Site, crawl: Crawling) -> None:
    """Of many hosts they are many; those of AutoThrottle, which keep what it found, stay."""
    site.pages["/"] = links()
    kept = {
        throttled: list(
            crawl(
                visitor(site, "/"), SUITE_PROFILE="broad", AUTOTHROTTLE_ENABLED=throttled
            ).crawler.engine.downloader.slots
        )
        for throttled in (False, True)
    }
    assert kept == {False: [], True: ["127.0.0.1"]}


def test_dont_throttle_is_known(site: Site, either: Crawling) -> None:
    """autothrottle_dont_adjust_delay leaves the delay as it was."""
    site.pages["/"] = links()
    meta = {"autothrottle_dont_adjust_delay": True}
    done = either(
        visitor(site, "/", meta=meta), AUTOTHROTTLE_ENABLED=True, AUTOTHROTTLE_START_DELAY=0.2
    )
    assert done.crawler.engine.downloader.slots["127.0.0.1"].delay == 0.2


def test_cache_hits_cost_no_delay(site: Site, crawl: Crawling, tmp_path: Any) -> None:
    """HTTPCACHE answers without a pause, and sends nothing."""
    site.pages |= {f"/{n}": links() for n in range(4)}
    spider = visitor(site, *(f"/{n}" for n in range(4)))
    cache: dict[str, Any] = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path)}
    crawl(spider, **cache)
    done = crawl(spider, DOWNLOAD_DELAY=3600, within=100, **cache)
    assert len(site.visits) == 4
    assert done.stat("httpcache/hit") == 4
    assert all("cached" in response.flags for response in done.spider.came)


def test_the_cache_by_rfc9111(site: Site, either: Crawling, tmp_path: Any) -> None:
    """RFC2616Policy revalidates: the 304 of the server is answered from the cache."""

    def page(visit: Visit) -> Answer:
        if visit.headers.get("If-None-Match") == '"1"':
            return Answer(status=304, headers={"ETag": '"1"'})
        return Answer(b"once", headers={"ETag": '"1"', "Cache-Control": "max-age=0"})

    site.pages["/"] = page
    cache: dict[str, Any] = {
        "HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path),
        "HTTPCACHE_POLICY": "scrapy.extensions.httpcache.RFC2616Policy",
    }  # fmt: skip
    either(visitor(site, "/"), **cache)
    done = either(visitor(site, "/"), **cache)
    assert done.spider.came[0].body == b"once"
    assert done.stat("httpcache/revalidate") == 1


def test_dont_cache(site: Site, either: Crawling, tmp_path: Any) -> None:
    """meta['dont_cache'] keeps a request out of the cache."""
    site.pages["/"] = links()
    spider = visitor(site, "/", meta={"dont_cache": True})
    for _ in range(2):
        either(spider, HTTPCACHE_ENABLED=True, HTTPCACHE_DIR=str(tmp_path))
    assert len(site.visits) == 2


def test_cookies(site: Site, either: Crawling, caplog: Any) -> None:
    """Cookies are kept by session, sent back, merged with a request's own, and logged if asked."""

    def page(visit: Visit) -> Answer:
        return Answer(b"", headers={"Set-Cookie": "seen=1; Path=/"})

    class Returning(Visitor):
        def keep(self, response: Response) -> Any:
            yield Request(f"{site.url}/again", self.parse, cookies={"own": "2"})
            yield Request(f"{site.url}/other", self.parse, meta={"cookiejar": "other"})
            yield Request(f"{site.url}/none", self.parse, meta={"dont_merge_cookies": True})

        def parse(self, response: Response) -> Any:
            return None

    Returning.site = site.url
    site.pages |= dict.fromkeys(("/", "/again", "/other", "/none"), page)
    with caplog.at_level("DEBUG"):
        either(Returning, COOKIES_DEBUG=True)
    assert "Received cookies from: <200" in caplog.text
    sent = {visit.path: visit.headers.get("Cookie") for visit in site.visits}
    assert sent["/again"] == "seen=1; own=2"
    assert sent["/other"] is None
    assert sent["/none"] is None
    site.visits.clear()
    either(Returning, COOKIES_ENABLED=False)
    assert {visit.headers.get("Cookie") for visit in site.visits} == {None}


def test_compression(site: Site, either: Crawling) -> None:
    """Packed bodies come out unpacked; COMPRESSION_ENABLED = False leaves them."""
    packed = gzip.compress(b"<p>text</p>")
    site.pages["/"] = Answer(packed, headers={"Content-Encoding": "gzip"})
    assert either(visitor(site, "/")).spider.came[0].body == b"<p>text</p>"
    assert either(visitor(site, "/"), COMPRESSION_ENABLED=False).spider.came[0].body == packed


def test_default_headers_and_user_agent(site: Site, either: Crawling) -> None:
    """DEFAULT_REQUEST_HEADERS and USER_AGENT are sent."""
    site.pages["/"] = links()
    either(visitor(site, "/"), DEFAULT_REQUEST_HEADERS={"X-Mine": "1"}, USER_AGENT="me/1.0")
    assert site.visits[0].headers["X-Mine"] == "1"
    assert site.visits[0].headers["User-Agent"] == "me/1.0"


@NEWEST
def test_http_authentication(site: Site, either: Crawling) -> None:
    """HTTPAUTH_USER, HTTPAUTH_PASS and HTTPAUTH_DOMAIN, and the meta keys that win over them."""
    login: dict[str, Any] = {
        "HTTPAUTH_USER": "me", "HTTPAUTH_PASS": "pw", "HTTPAUTH_DOMAIN": site.url[7:],
    }  # fmt: skip
    site.pages["/"] = links()
    either(visitor(site, "/"), **login)
    other = {"http_user": "you", "http_pass": "pw", "http_auth_domain": site.url[7:]}
    either(visitor(site, "/", meta=other), **login)
    either(visitor(site, "/"), **(login | {"HTTPAUTH_DOMAIN": "far.example"}))
    sent = [visit.headers.get("Authorization") for visit in site.visits]
    assert sent == [basic("me:pw"), basic("you:pw"), None]


def test_proxies(site: Site, either: Crawling) -> None:
    """meta['proxy'] sends a request, its login included, to the proxy and not to the host."""

    def relay(visit: Visit) -> Answer:
        return Answer(b"by proxy " + visit.path.encode())

    url = "http://far.example/page"
    site.pages[url] = relay
    meta = {"proxy": f"http://me:pw@127.0.0.1:{site.server_port}"}
    done = either(visitor(site, url, meta=meta))
    assert done.spider.came[0].body == b"by proxy http://far.example/page"
    assert site.visits[0].headers["Proxy-Authorization"] == basic("me:pw")


def test_proxies_of_the_environment(
    site: Site, either: Crawling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """http_proxy of the environment is used, unless HTTPPROXY_ENABLED is off."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{site.server_port}")
    monkeypatch.setenv("no_proxy", "")
    site.pages["http://far.example/"] = "by proxy"
    done = either(visitor(site, "http://far.example/"), DOWNLOAD_DELAY=0.01)
    assert done.spider.came[0].text == "by proxy"
    assert len(either(visitor(site, "http://far.invalid/"), HTTPPROXY_ENABLED=False,
                      RETRY_ENABLED=False).spider.failed) == 1  # fmt: skip


def test_proxied_hosts_keep_their_delay(site: Site, crawl: Crawling) -> None:
    """Through a proxy the delay of each host still holds."""
    urls = [f"http://{host}.example/{n}" for host in "ab" for n in range(3)]
    site.pages |= dict.fromkeys(urls, "")
    meta = {"proxy": site.url}
    crawl(visitor(site, *urls, meta=meta), DOWNLOAD_DELAY=0.6)
    visits = {
        host: sorted(v.began for v in site.visits if f"{host}.example" in v.path) for host in "ab"
    }
    for times in visits.values():
        assert len(times) >= 3
        assert all(b - a >= 0.59 for a, b in pairwise(times))


def test_download_timeout(site: Site, either: Crawling) -> None:
    """DOWNLOAD_TIMEOUT and meta['download_timeout'] end what takes too long."""
    site.pages["/"] = Answer(b"late", wait=5)
    by_setting = either(visitor(site, "/"), DOWNLOAD_TIMEOUT=0.4, RETRY_ENABLED=False)
    by_meta = either(visitor(site, "/", meta={"download_timeout": 0.4}), RETRY_ENABLED=False)
    for done in (by_setting, by_meta):
        assert type(done.spider.failed[0].value).__name__ == "DownloadTimeoutError"


@NEWEST
def test_sizes(site: Site, either: Crawling, caplog: Any) -> None:
    """DOWNLOAD_MAXSIZE refuses, DOWNLOAD_WARNSIZE warns; the meta keys win over them."""
    site.pages["/"] = Answer(b"x" * 5000)
    done = either(visitor(site, "/"), DOWNLOAD_MAXSIZE=1000)
    assert type(done.spider.failed[0].value).__name__ == "DownloadCancelledError"
    wide = either(visitor(site, "/", meta={"download_maxsize": 9000}), DOWNLOAD_MAXSIZE=1000)
    assert len(wide.spider.came) == 1
    with caplog.at_level("WARNING"):
        either(visitor(site, "/"), DOWNLOAD_WARNSIZE=1000)
        either(visitor(site, "/", meta={"download_warnsize": 2000}))
    assert caplog.text.count("warn size") == 2


def test_data_loss(site: Site, either: Crawling) -> None:
    """DOWNLOAD_FAIL_ON_DATALOSS and its meta key say whether a body that was cut short is used."""
    site.pages["/"] = Answer(b"short", headers={"Content-Length": "50"})
    failed = either(visitor(site, "/"), RETRY_ENABLED=False)
    assert type(failed.spider.failed[0].value).__name__ == "ResponseDataLossError"
    kept = either(visitor(site, "/"), DOWNLOAD_FAIL_ON_DATALOSS=False)
    by_meta = either(visitor(site, "/", meta={"download_fail_on_dataloss": False}))
    for done in (kept, by_meta):
        assert done.spider.came[0].body == b"short"
        assert "dataloss" in done.spider.came[0].flags


@NEWEST
def test_latency_and_address_are_noted(site: Site, either: Crawling) -> None:
    """meta['download_latency'] and response.ip_address are set."""
    site.pages["/"] = Answer(b"", wait=0.1)
    (response,) = either(visitor(site, "/")).spider.came
    assert response.meta["download_latency"] >= 0.09
    assert str(response.ip_address) == "127.0.0.1"


def test_bind_address(site: Site, either: Crawling) -> None:
    """DOWNLOAD_BIND_ADDRESS and meta['bindaddress'] choose where connections come from."""
    seen: list[str] = []
    site.pages["/"] = links()
    original = site.get_request

    def watched() -> Any:
        connection, address = original()
        seen.append(address[0])
        return connection, address

    site.get_request = watched  # type: ignore[method-assign]
    either(visitor(site, "/", meta={"bindaddress": ("127.0.0.7", 0)}))
    either(visitor(site, "/"), DOWNLOAD_BIND_ADDRESS="127.0.0.8")
    assert seen == ["127.0.0.7", "127.0.0.8"]


def test_stop_download(site: Site, either: Crawling) -> None:
    """StopDownload in a headers_received handler gives the callback what had come by then."""
    from scrapy import signals
    from scrapy.exceptions import StopDownload

    def stop() -> None:
        raise StopDownload(fail=False)

    site.pages["/"] = Answer(b"x" * 100)
    done = either(
        visitor(site, "/"),
        watch=lambda crawler: crawler.signals.connect(stop, signals.headers_received, weak=False),
    )
    (response,) = done.spider.came
    assert response.body == b""
    assert "download_stopped" in response.flags


def test_robots(site: Site, either: Crawling) -> None:
    """ROBOTSTXT_OBEY, ROBOTSTXT_USER_AGENT and dont_obey_robotstxt, with Scrapy's stats."""
    site.pages |= {
        "/robots.txt": "User-agent: mine\nDisallow: /a\n\nUser-agent: *\nDisallow: /b\n",
        "/a": links(), "/b": links(),
    }  # fmt: skip
    done = either(visitor(site, "/a", "/b"), ROBOTSTXT_OBEY=True, ROBOTSTXT_USER_AGENT="mine")
    assert [r.url for r in done.spider.came] == [f"{site.url}/b"]
    assert done.stat("robotstxt/forbidden") == 1
    assert done.stat("robotstxt/request_count") == 1
    free = either(visitor(site, "/b", meta={"dont_obey_robotstxt": True}), ROBOTSTXT_OBEY=True)
    assert len(free.spider.came) == 1


def test_scrapys_own_robots_middleware_still_works(site: Site, crawl: Crawling) -> None:
    """Put back, it does its work, slower: no deadlock with the page that waits for it."""
    own = "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware"
    site.pages |= {"/robots.txt": "User-agent: *\nDisallow: /b", "/a": links(), "/b": links()}
    done = crawl(
        visitor(site, "/a", "/b"), ROBOTSTXT_OBEY=True, DOWNLOADER_MIDDLEWARES={own: 100},
        DOWNLOAD_DELAY=0.1,
    )  # fmt: skip
    assert len(done.spider.came) == 1


def test_downloader_stats(site: Site, either: Crawling) -> None:
    """downloader/* is counted; DOWNLOADER_STATS = False counts nothing."""
    site.pages["/"] = links()
    assert either(visitor(site, "/")).stat("downloader/response_status_count/200") == 1
    assert either(visitor(site, "/"), DOWNLOADER_STATS=False).stat("downloader/request_count") == 0


class Swapping:
    """Answers one URL without the wire, replaces another request, and passes the rest."""

    def process_request(self, request: Request) -> Request | Response | None:
        """See the class."""
        if request.url.endswith("/made"):
            return Response(request.url, body=b"made")
        if request.url.endswith("/old"):
            return request.replace(url=request.url.replace("/old", "/new"))
        return None


def test_middlewares_answer_and_replace(site: Site, either: Crawling) -> None:
    """A middleware's own response costs no delay; its replacement goes by the scheduler."""
    site.pages["/new"] = links()
    done = either(
        visitor(site, "/made", "/old"), DOWNLOADER_MIDDLEWARES={Swapping: 10}, DOWNLOAD_DELAY=0.1
    )
    assert {r.url.removeprefix(site.url) for r in done.spider.came} == {"/made", "/new"}
    assert site.paths() == ["/new"]


class Teapot:
    """A download handler of the project's own."""

    lazy = False

    @classmethod
    def from_crawler(cls, crawler: Any) -> Teapot:
        """See Scrapy."""
        return cls()

    async def download_request(self, request: Request) -> Response:
        """Brew."""
        return Response(request.url, status=418, body=b"short")

    async def close(self) -> None:
        """Nothing to do."""


def test_download_handlers_of_the_project(site: Site, either: Crawling) -> None:
    """DOWNLOAD_HANDLERS wins, for schemes of its own and for http."""
    meta = {"handle_httpstatus_all": True}
    for url, scheme in (("coffee://pot/", "coffee"), ("http://127.0.0.1/", "http")):
        done = either(visitor(site, url, meta=meta), DOWNLOAD_HANDLERS={scheme: Teapot})
        assert [r.status for r in done.spider.came] == [418]


def test_refused_connections_are_retried(site: Site, either: Crawling) -> None:
    """RETRY_EXCEPTIONS: a refused connection is tried again by RetryMiddleware."""
    done = either(
        visitor(site, f"http://127.0.0.1:{closed_port()}/"), RETRY_TIMES=1, SUITE_BACKOFF_BASE=0.1
    )
    assert done.stat("retry/count") == 1
    assert len(done.spider.failed) == 1


def test_unknown_names_are_retried(site: Site, either: Crawling) -> None:
    """A name without an address is tried again as in Scrapy, without holding up anything."""
    done = either(visitor(site, "http://nowhere.invalid/"), RETRY_TIMES=1)
    assert done.stat("retry/count") == 1


def test_localhost_needs_no_setting(crawl: Crawling) -> None:
    """A spider whose start URL is on localhost crawls as before: its operator named the host."""
    with running(Site({"/": links("/next"), "/next": links()}, host="127.0.0.1")) as site:

        class Home(Spider):
            name = "home"
            start_urls = [f"{site.local}/"]  # noqa: RUF012

            def parse(self, response: Response) -> Any:
                for link in response.css("a::attr(href)").getall():
                    yield response.follow(link, self.parse)

        crawl(Home)
        assert site.paths() == ["/", "/next"]


def test_downloads_of_a_component_go_by_the_same_clock(site: Site, crawl: Crawling) -> None:
    """engine.download_async inside a callback keeps the host's delay, and does not deadlock."""

    class Nested(Visitor):
        async def keep(self, response: Response) -> AsyncIterator[Any]:
            engine = self.crawler.engine
            for n in range(2):
                await engine.download_async(Request(f"{site.url}/{n}"))
            yield {"done": True}

    Nested.site = site.url
    site.pages |= {"/": links(), "/0": links(), "/1": links()}
    done = crawl(Nested, DOWNLOAD_DELAY=0.2)
    assert done.items == [{"done": True}]
    assert min(gaps(site)) >= 0.19
