"""Sitemaps in real crawls: found, fetched, read, and believed no further than they may be."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy.http import Response
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Answer, Site, links, moved, running

from scrapy_spider_suite.crawl import links as sitemaps
from scrapy_spider_suite.crawl.links import LinkFollower
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.frontier.entries import state_key
from scrapy_spider_suite.operate.explanations import trace
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.url_states import voucher_of_sitemap
from scrapy_spider_suite.urls.normalize import normalize

AT_ONCE = {
    "ROBOTSTXT_OBEY": True, "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0,
    "SUITE_IP_DELAY": 0, "SUITE_BACKOFF_BASE": 0.05,
}  # fmt: skip
XML = {"Content-Type": "application/xml"}
Run = Callable[[Any], Crawled]


class Seeing(BroadSpider):
    """Makes an item of every page that it is given."""

    name = "seeing"

    def parse_page(self, response: Response) -> Any:
        """See the class."""
        yield {"path": response.url.partition("/")[2].partition("/")[2].partition("/")[2]}


def listing(*urls: str, root: str = "urlset", lastmod: str = "") -> bytes:
    """A sitemap of *urls*."""
    name = "url" if root == "urlset" else "sitemap"
    when = f"<lastmod>{lastmod}</lastmod>" if lastmod else ""
    entries = "".join(f"<{name}><loc>{url}</loc>{when}</{name}>" for url in urls)
    return f'<{root} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{entries}</{root}>'.encode()


@pytest.fixture
def site() -> Iterator[Site]:
    """A site whose first page links to nothing."""
    with running(Site({"/": links(), "/a": links("/b"), "/b": links()})) as server:
        yield server


def name(site: Site, *paths: str) -> None:
    """Let the robots.txt of *site* name sitemaps."""
    site.pages["/robots.txt"] = "".join(f"Sitemap: {site.url}{path}\n" for path in paths)


def crawl(run: Run, site: Site, mode: str = "robots", **settings: Any) -> Crawled:
    """Crawl *site* from its first page on."""
    arguments = {"seeds": f"{site.url}/"}
    options = AT_ONCE | {"SUITE_SITEMAPS": mode} | settings
    return run(crawl_here(Seeing, arguments=arguments, **options))


def stats(done: Crawled) -> dict[str, int]:
    """What was counted of sitemaps."""
    prefix, every = "suite/sitemap/", done.crawler.stats.get_stats()
    return {key.removeprefix(prefix): n for key, n in every.items() if key.startswith(prefix)}


def test_off_unless_asked_for(site: Site, run: Run) -> None:
    """A sitemap may name fifty thousand pages of each host."""
    name(site, "/map.xml")
    site.pages["/map.xml"] = Answer(listing(f"{site.url}/a"), headers=XML)
    crawl(run, site, "off")
    assert site.paths() == ["/robots.txt", "/"]


def test_an_index_gzip_and_text(site: Site, run: Run, tmp_path: Path) -> None:
    """Whatever robots.txt names; pages are given to the spider, sitemaps are not."""
    name(site, "/index.xml", "/more.txt")
    site.pages["/index.xml"] = Answer(
        listing(f"{site.url}/1.xml.gz", f"{site.url}/2.xml", root="sitemapindex"), headers=XML
    )
    packed = gzip.compress(listing(f"{site.url}/a", lastmod="2024-05-01"))
    site.pages["/1.xml.gz"] = Answer(packed, headers={"Content-Type": "application/gzip"})
    site.pages["/2.xml"] = Answer(listing(f"{site.url}/c", f"{site.url}/none"), headers=XML)
    text = {"Content-Type": "text/plain"}
    site.pages["/more.txt"] = Answer(f"{site.url}/d\n".encode(), headers=text)
    site.pages |= {"/c": links(), "/d": links()}
    limits = {"SUITE_MEDIA_TYPES": ["text/html"], "SUITE_BODY_MAX": 90}
    done = crawl(run, site, JOBDIR=str(tmp_path), **limits)
    assert {item["path"] for item in done.items} == {"", "a", "b", "c", "d"}
    expected = {"/", "/a", "/b", "/c", "/d", "/none", "/index.xml", "/1.xml.gz", "/2.xml"}
    assert sorted(site.paths()) == sorted({*expected, "/more.txt", "/robots.txt"})
    assert stats(done) == {"named": 2, "nested": 2, "read": 4, "urls": 4, "followed": 4}
    with StoreReader(tmp_path / "suite") as reader:
        assert list(reader.check()) == []
        known = trace(reader, f"{site.url}/a", str(normalize(f"{site.url}/a")))
        other = trace(reader, f"{site.url}/c", str(normalize(f"{site.url}/c")))
    assert known is not None
    assert other is not None
    assert (known.lastmod, other.lastmod) == (1714521600, None)


def test_the_usual_names(site: Site, run: Run) -> None:
    """Asked for where robots.txt names none; those that are not there are harmless."""
    site.pages["/sitemap.txt"] = f"{site.url}/a"
    done = crawl(run, site, "all")
    assert set(site.paths()) == {"/robots.txt", "/", "/a", "/b", *sitemaps.SITEMAP_PATHS}
    assert stats(done) == {"guessed": 3, "read": 1, "urls": 1, "followed": 1}
    assert done.stat("suite/outcome/client_error") == 2


def test_what_a_sitemap_may_not_name(site: Site, run: Run) -> None:
    """Other people's URLs, what is no URL, and sitemaps of others."""
    name(site, "/map.xml", "/index.xml")
    urls = ["http://other.example/", "ftp://127.0.0.1/", "nonsense", f"{site.url}/a"]
    site.pages["/map.xml"] = Answer(listing(*urls), headers=XML)
    nested = listing("http://other.example/map.xml", root="sitemapindex")
    site.pages["/index.xml"] = Answer(nested, headers=XML)
    done = crawl(run, site)
    assert stats(done) == {
        "named": 2, "read": 2, "foreign": 2, "invalid": 2, "urls": 1, "followed": 1,
    }  # fmt: skip
    assert set(site.paths()) == {"/robots.txt", "/", "/map.xml", "/index.xml", "/a", "/b"}


def test_scope_robots_and_hooks_hold(site: Site, run: Run) -> None:
    """A sitemap is a source of links like any page."""
    name(site, "/map.xml", "/secret/map.xml")
    site.pages["/robots.txt"] = b"%s\nUser-agent: *\nDisallow: /secret\n" % (
        str(site.pages["/robots.txt"]).encode()
    )
    site.pages["/map.xml"] = Answer(listing(f"{site.url}/a", f"{site.url}/secret/b"), headers=XML)

    class Choosing(Seeing):
        """Wants no page whose path ends in b."""

        def choose_links(self, response: Response, urls: list[str]) -> list[str]:
            """See the class."""
            return [url for url in urls if not url.endswith("/b")]

    options = AT_ONCE | {"SUITE_SITEMAPS": "robots"}
    done = run(crawl_here(Choosing, arguments={"seeds": f"{site.url}/"}, **options))
    assert set(site.paths()) == {"/robots.txt", "/", "/map.xml", "/a"}
    assert stats(done)["followed"] == 1
    site.visits.clear()
    crawl(run, site, DEPTH_LIMIT=0, SUITE_FOLLOW_FILTER="false")
    assert set(site.paths()) == {"/robots.txt", "/", "/map.xml"}


@pytest.mark.parametrize(
    "answer",
    [Answer(b"gone", 404), Answer(b"", 500), Answer(b""), Answer(b"<html><p>not here</html>"),
     Answer(b"\x1f\x8bbroken"), Answer(b"<!DOCTYPE u [<!ENTITY a 'x'>]><u>&a;</u>", headers=XML),
     moved("/elsewhere.xml"), moved("/map.xml")],
    ids=["404", "500", "empty", "html", "gzip", "entities", "moved", "loop"],
)  # fmt: skip
def test_whatever_a_host_serves_the_crawl_goes_on(site: Site, run: Run, answer: Answer) -> None:
    """Its pages are fetched, and the crawl ends."""
    name(site, "/map.xml")
    site.pages |= {"/map.xml": answer, "/": links("/a"), "/c": ""}
    site.pages["/elsewhere.xml"] = f"{site.url}/c"
    done = crawl(run, site, SUITE_RETRY_TIMES=1)
    assert done.reason == "finished"
    moves = answer.headers.get("Location") == "/elsewhere.xml"
    assert {item["path"] for item in done.items} == {"", "a", "b"} | ({"c"} if moves else set())
    assert done.stat("log_count/ERROR") == 0


def test_indexes_of_indexes_end(site: Site, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that makes up sitemaps is believed only so far."""
    monkeypatch.setattr(sitemaps, "SITEMAPS_OF_HOST_MAX", 6)
    name(site, "/0.xml")
    for n in range(9):
        inner = [f"{site.url}/{n + 1}.xml", *(f"{site.url}/{n}/{m}.xml" for m in range(3))]
        site.pages[f"/{n}.xml"] = Answer(listing(*inner, root="sitemapindex"), headers=XML)
    done = crawl(run, site)
    assert {"/0.xml", "/1.xml", "/2.xml"} < set(site.paths())
    assert "/3.xml" not in site.paths()
    assert stats(done)["named"] + stats(done)["nested"] == 6


def test_a_large_one_comes_in_portions(site: Site, run: Run, tmp_path: Path) -> None:
    """The crawl goes on beside it: every page is queued, none is held in memory until the end."""
    name(site, "/map.xml")
    urls = [f"{site.url}/p{n}" for n in range(3_000)]
    site.pages["/map.xml"] = Answer(listing(*urls, lastmod="2024-05-01"), headers=XML)
    done = crawl(run, site, JOBDIR=str(tmp_path), CLOSESPIDER_PAGECOUNT=3, SUITE_HOST_DELAY=0.2)
    assert stats(done)["followed"] == 3_000
    with StoreReader(tmp_path / "suite") as reader:
        assert reader.counters().pending > 2_900
        assert list(reader.check()) == []


def test_one_served_as_a_page(site: Site, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As scripts serve them by default: no links are looked for in it, no trap is suspected."""
    learned: list[str] = []
    learn = LinkFollower.learn_traps

    def noted(self: LinkFollower, fetch: Fetch, page: Exchange, links: list[str]) -> None:
        learned.append(page.url)
        learn(self, fetch, page, links)

    monkeypatch.setattr(LinkFollower, "learn_traps", noted)
    name(site, "/map.php")
    body = listing(f"{site.url}/a") + b'<a href="/c">c</a>'
    site.pages["/map.php"] = Answer(body, headers={"Content-Type": "text/html"})
    done = crawl(run, site)
    assert set(site.paths()) == {"/robots.txt", "/", "/map.php", "/a", "/b"}
    assert stats(done)["followed"] == 1
    assert done.stat("suite/links/found") == 1
    assert sorted(learned) == [f"{site.url}/", f"{site.url}/a", f"{site.url}/b"]


@pytest.mark.parametrize("hook", ["choose_links", "link_priority"])
def test_hooks_that_fail_with_a_sitemap(site: Site, run: Run, hook: str) -> None:
    """They may expect a page: what the sitemap names is taken without them."""
    name(site, "/map.gz")
    packed = gzip.compress(listing(f"{site.url}/a"))
    site.pages["/map.gz"] = Answer(packed, headers={"Content-Type": "application/gzip"})

    def looking(self: Seeing, response: Response, links: Any) -> Any:
        return links if response.css("body") and hook == "choose_links" else 0

    spider = type("Looking", (Seeing,), {hook: looking})
    options = AT_ONCE | {"SUITE_SITEMAPS": "robots"}
    done = run(crawl_here(spider, arguments={"seeds": f"{site.url}/"}, **options))
    assert {"/a", "/b"} <= set(site.paths())
    assert stats(done) == {"named": 1, "read": 1, "urls": 1, "followed": 1, "hook_errors": 1}
    assert done.stat("log_count/ERROR") == 1


def test_one_that_has_moved_is_known_as_one(site: Site, run: Run, tmp_path: Path) -> None:
    """So that it is read as one when it is fetched again; a page that it leads to stays one."""
    name(site, "/map.xml", "/gone.xml")
    site.pages |= {"/map.xml": moved("/new.xml"), "/gone.xml": moved("/")}
    site.pages["/new.xml"] = Answer(listing(f"{site.url}/a"), headers=XML)
    crawl(run, site, JOBDIR=str(tmp_path))
    with StoreReader(tmp_path / "suite") as reader:
        vouchers = [
            voucher_of_sitemap(reader.store, state_key("127.0.0.1", f"{site.url}{path}"))
            for path in ("/map.xml", "/new.xml", "/")
        ]
    assert vouchers == ["127.0.0.1", "127.0.0.1", None]
