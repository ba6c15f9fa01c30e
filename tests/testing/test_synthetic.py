"""The synthetic site: what is served is what the graph says, as a browser would read it."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urldefrag, urlsplit
from xml.etree import ElementTree

import lxml.html
import pytest
from ada_url import URL

from scrapy_spider_suite.testing import FakeWeb, FakeWebConfig, SyntheticWeb
from scrapy_spider_suite.testing.http import Request, ServerReply
from scrapy_spider_suite.testing.synthetic_site import SyntheticSite, png

Ask = Callable[..., Any]


def site(**knobs: Any) -> tuple[SyntheticWeb, SyntheticSite]:
    """A web without sockets."""
    web = SyntheticWeb(FakeWebConfig(**knobs), (8080,))
    return web, SyntheticSite(web)


def get(served: SyntheticSite, url: str) -> ServerReply:
    """What the site answers to a GET of *url*."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return served.answer(Request("GET", parts.path, parts.path, host, True, 0))


def body(answer: ServerReply) -> bytes:
    """The body of an answer, whose length must be the announced one."""
    head, _, content = answer.data.partition(b"\r\n\r\n")
    assert f"\r\nContent-Length: {len(content)}".encode() in head
    return content


def links_in(url: str, html: bytes) -> list[str]:
    """Links of a page as lxml and a browser's URL parser read them, without fragments."""
    hrefs = [anchor.get("href") for anchor in lxml.html.fromstring(html).iter("a")]
    return [urldefrag(URL(href, base=url).href).url for href in hrefs]


@pytest.mark.parametrize("messy", [0.0, 1.0])
def test_pages_hold_the_links_of_the_graph(messy: float) -> None:
    """All of them, in order, whatever form they are written in."""
    web, served = site(hosts=20, pages=20, messy=messy, images=2)
    for url in list(web.reachable())[::7]:
        html = body(get(served, url))
        assert links_in(url, html) == web.links(url)
    assert not messy or b"HTTP://H" in html


def test_statuses_are_those_of_the_graph() -> None:
    """Errors and redirects too."""
    web, served = site(hosts=10, pages=30, errors=0.3, redirects=0.3)
    for url in web.reachable():
        answer = get(served, url)
        assert answer.status == web.status(url)
        assert answer.data[9:12] == str(answer.status).encode()
        if 300 <= answer.status < 400:
            assert f"\r\nLocation: {web.links(url)[0]}\r\n".encode() in answer.data


def test_answers_over_the_wire(small: FakeWeb, ask: Ask) -> None:
    """The same through sockets."""
    for url in list(small.web.reachable())[::5]:
        answer = ask(small, url)
        assert (answer.status, answer.body[:15]) == (200, b"<!DOCTYPE html>")
        assert answer.fields["content-type"] == "text/html; charset=utf-8"
        assert links_in(url, answer.body) == small.web.links(url)


def test_pages_have_their_size() -> None:
    """Exactly the mean without spread, filled up however long; more if the links need it."""
    for size in (6000, 300_000):
        web, served = site(hosts=1, page_size=size)
        assert len(body(get(served, web.base(0) + "/1.html"))) == size
    web, served = site(hosts=1, page_size=0)
    assert len(body(get(served, web.base(0) + "/1.html"))) > 1000
    web, served = site(hosts=1, pages=200, degree=5, page_size=6000, page_size_sigma=0.5)
    sizes = [len(body(get(served, url))) for url in web.reachable()]
    assert len(set(sizes)) > 100
    assert abs(sum(sizes) / len(sizes) - 6000) < 600


def test_robots_and_sitemap_are_served() -> None:
    """robots.txt as the graph has it; the sitemap names every page."""
    web, served = site(hosts=2, pages=15, robots_disallow=1.0)
    assert (
        body(get(served, web.base(1) + "/robots.txt")).decode() == web.robots(web.host_name(1)).body
    )
    sitemap = ElementTree.fromstring(body(get(served, web.base(1) + "/sitemap.xml")))
    named = {location.text for location in sitemap.iterfind(".//{*}loc")}
    assert named == {url for url in web.reachable() if url.startswith(web.base(1))}


def test_some_hosts_have_no_sitemap() -> None:
    """Their robots.txt names none, and none is there."""
    web, served = site(hosts=100, sitemaps=0.5)
    named = ["Sitemap:" in web.robots(web.host_name(n)).body for n in range(100)]
    there = [get(served, web.base(n) + "/sitemap.xml").status == 200 for n in range(100)]
    assert named == there
    assert 30 < sum(named) < 70


def test_images_are_served() -> None:
    """Each page shows its own, and they are correct PNG files."""
    web, served = site(hosts=1, pages=5, images=3)
    tree = lxml.html.fromstring(body(get(served, web.base(0) + "/1.html")))
    sources = [image.get("src") for image in tree.iter("img")]
    assert sources == ["/img/6.png", "/img/7.png", "/img/8.png"]
    images = [body(get(served, web.base(0) + source)) for source in sources]
    assert len(set(images)) == 3
    assert struct.unpack(">II", images[0][16:24]) == (32, 32)
    length = struct.unpack(">I", images[0][33:37])[0]
    assert len(zlib.decompress(images[0][41 : 41 + length])) == 32 * 33
    for other in ("/img/x.png", "/img/1.gif", "/img/.png"):
        assert get(served, web.base(0) + other).status == 404


def test_pngs_are_the_same_each_time() -> None:
    """Image pipelines store them by their hash."""
    first = png(5)
    png.cache_clear()
    assert png(5) == first


def test_retry_after_hosts_refuse_at_first() -> None:
    """429 or 503, with seconds or a date, a few times a host; robots.txt is served meanwhile."""
    web, served = site(hosts=8, retry_after=1.0, retry_after_requests=2, retry_after_delay=3)
    seen = set()
    for host in range(8):
        url = web.base(host) + "/"
        assert get(served, web.base(host) + "/robots.txt").status == 200
        answers = [get(served, url) for _ in range(3)]
        assert [each.status for each in answers] in ([429, 429, 200], [503, 503, 200])
        text = answers[0].data.partition(b"Retry-After: ")[2].partition(b"\r\n")[0].decode()
        if text == "3":
            seen.add((answers[0].status, "seconds"))
        else:
            assert 2 < parsedate_to_datetime(text).timestamp() - time.time() < 5
            seen.add((answers[0].status, "date"))
    assert len(seen) == 4


def test_slow_hosts_and_jitter() -> None:
    """Delays come from the host, spread around its mean, never below 0."""
    web, served = site(hosts=40, slow=0.5, latency=0.1, jitter=0.2, slow_latency=5.0)
    delays = [get(served, url).delay for url in web.roots()]
    slow = [delay for delay in delays if delay > 1]
    quick = [delay for delay in delays if delay <= 1]
    assert 10 < len(slow) < 30
    assert all(4.8 <= delay <= 5.2 for delay in slow)
    assert min(quick) == 0.0
    assert 0.2 < max(quick) <= 0.3
