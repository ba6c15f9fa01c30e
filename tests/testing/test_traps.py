"""The traps of the in-vitro web: real pages that differ, and spaces that have no end."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.expected_pages import real_pages, trap_of
from scrapy_spider_suite.testing import FakeWebConfig, trap_sites
from scrapy_spider_suite.testing.fake_web import FakeWeb
from scrapy_spider_suite.testing.http import Request
from scrapy_spider_suite.testing.trap_sites import (
    NAMES,
    PAGES,
    TrapSite,
    trap_hosts,
    trap_number,
)
from scrapy_spider_suite.urls.extract import PageContext, extract
from scrapy_spider_suite.urls.normalize import host_of


def base_of(host: str) -> str:
    """A URL of *host*."""
    return f"http://{host}"


def links(url: str, seed: int = 1) -> list[str]:
    """Where the page at *url* leads."""
    host, target = host_of(url), url[url.index("/", 8) :]
    request = Request("GET", target, target.partition("?")[0], host, True, 0)
    answer = TrapSite(base_of, seed).answer(request)
    assert answer.status == 200, url
    return extract(answer.data.partition(b"\r\n\r\n")[2], PageContext(url)).links


@pytest.mark.parametrize("host", trap_hosts())
def test_real_pages_lead_to_one_another_and_into_the_trap(host: str) -> None:
    """The way in is on the first page, and every real page has a text of its own."""
    found = links(f"http://{host}/")
    real = {url for url in real_pages(base_of) if host_of(url) == host}
    assert len(real) == PAGES + 1
    assert real - {f"http://{host}/"} <= set(found)
    assert any(trap_of(host_of(url), url[url.index("/", 8) :]) for url in found)
    site = TrapSite(base_of)
    pages = [site.page(host, url[url.index("/", 8) :]) for url in real]
    assert len({page.text for page in pages if page}) == PAGES + 1


@pytest.mark.parametrize("host", trap_hosts())
def test_there_is_always_more(host: str) -> None:
    """Two hundred pages from the entrance there are still links that were never seen."""
    seen, queue = {f"http://{host}/"}, [f"http://{host}/"]
    for _ in range(200):
        for url in links(queue.pop(0)):
            if url not in seen:
                seen.add(url)
                queue.append(url)
    trapped = [url for url in queue if trap_of(host_of(url), url[url.index("/", 8) :])]
    assert len(trapped) > 50


@pytest.mark.parametrize("host", trap_hosts())
def test_the_same_seed_gives_the_same_web(host: str) -> None:
    """Another one gives other links or texts."""
    assert links(f"http://{host}/") == links(f"http://{host}/")
    page = [TrapSite(base_of, seed).page(host, "/page/1.html") for seed in (1, 1, 2)]
    assert page[0] == page[1] != page[2]


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("calendar-trap.test", "/calendar/2026/13"), ("calendar-trap.test", "/page/21.html"),
        ("facets-trap.test", "/nowhere"), ("sessions-trap.test", "/shop/item-6"),
        ("mirror-trap.test", "/mirror/d/"), ("lost-trap.test", "/found/"),
        ("x.farm-trap.test", "/page/1.html"), ("calendar-trap.test", "/robots.txt"),
    ],
)  # fmt: skip
def test_what_is_not_there(host: str, path: str) -> None:
    """404, as everywhere."""
    assert TrapSite(base_of).answer(Request("GET", path, path, host, True, 0)).status == 404


def test_whose_host_it_is() -> None:
    """Every name below the farm is one of its hosts."""
    assert [trap_number(host) for host in trap_hosts()] == list(range(len(NAMES)))
    assert trap_number("any.thing.farm-trap.test") == NAMES.index("farm")
    with pytest.raises(LookupError):
        trap_number("other.test")


def test_served() -> None:
    """Each trap at an address of its own, a whole farm at one; only where they are asked for."""

    async def ask(traps: bool) -> tuple[int, list[str | None]]:
        async with FakeWeb(FakeWebConfig(hosts=1, addresses=1, traps=traps)) as web:
            names = [*trap_hosts(), "any.farm-trap.test", "calendar-trapp.test"]
            found = [next(iter(web.names.look_up(name).v4), None) for name in names]
            return len(web.ready.seeds), found

    seeds, found = asyncio.run(ask(True))
    assert seeds == 1 + len(NAMES) + len(trap_sites.ordinary_hosts())
    assert len(set(found[: len(NAMES)])) == len(NAMES)
    assert found[-2] == found[len(NAMES) - 1]
    assert found[-1] is None
    assert asyncio.run(ask(False)) == (1, [None] * (len(NAMES) + 2))
