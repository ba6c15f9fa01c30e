"""Components of the suite, alone and together, in a project that has no add-on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from support import websites
from support.names import Component, Setting
from support.settings_crawls import crawl_with_each
from support.websites import Answer, Site, Visit, links, moved

SCRAPYS = "scrapy.downloadermiddlewares"
COMPONENTS: dict[str, dict[str, Any]] = {
    Component.SCHEDULER: {"SCHEDULER": Component.SCHEDULER},
    Component.DOWNLOADER: {"DOWNLOADER": Component.DOWNLOADER},
    Component.SIEVE_DUPEFILTER: {"DUPEFILTER_CLASS": Component.SIEVE_DUPEFILTER},
    Component.TRIE_DUPEFILTER: {"DUPEFILTER_CLASS": Component.TRIE_DUPEFILTER},
    Component.COOKIES: {
        "DOWNLOADER_MIDDLEWARES": {
            f"{SCRAPYS}.cookies.CookiesMiddleware": None, Component.COOKIES: 700,
        }
    },
    Component.ROBOTS: {
        "DOWNLOADER_MIDDLEWARES": {
            f"{SCRAPYS}.robotstxt.RobotsTxtMiddleware": None, Component.ROBOTS: 100,
        }
    },
    Component.HOST_USER_AGENT: {"DOWNLOADER_MIDDLEWARES": {Component.HOST_USER_AGENT: 90}},
    Component.PAGES: {"SPIDER_MIDDLEWARES": {Component.PAGES: 940}, Setting.FOLLOW: True},
    Component.PAGE_OUTPUT: {"SPIDER_MIDDLEWARES": {Component.PAGE_OUTPUT: 1}},
    Component.PAGE_ITEMS: {
        "SPIDER_MIDDLEWARES": {Component.PAGE_ITEMS: 960},
        Setting.FOLLOW: True, Setting.PAGE_ITEMS: True, Setting.PROFILE: "broad",
    },
    Component.INDEX_PIPELINE: {
        "ITEM_PIPELINES": {Component.INDEX_PIPELINE: 1000},
        Setting.INDEX: True, Setting.PACKS_DIR: "packs",
    },
    Component.ITEM_PACK_PIPELINE: {
        "ITEM_PIPELINES": {Component.ITEM_PACK_PIPELINE: 302}, Setting.ITEMS_DIR: "items",
    },
    Component.LINK_STATS_PIPELINE: {
        "ITEM_PIPELINES": {Component.LINK_STATS_PIPELINE: 301}, Setting.LINK_STATS: ["hosts"],
    },
    Component.PAGE_PACK_PIPELINE: {
        "ITEM_PIPELINES": {Component.PAGE_PACK_PIPELINE: 300}, Setting.PACKS_DIR: "packs",
    },
}  # fmt: skip
"""The settings that a project needs for each component."""
DOCS = Path(__file__).resolve().parents[2] / "docs"


def _member(visit: Visit) -> Answer:
    """A page for whoever brings the cookie that the first page has set."""
    return Answer(b"", 200 if "member=yes" in visit.headers.get("Cookie", "") else 403)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Ten pages in three levels, a redirect, a page that needs a cookie, a forbidden page."""
    leaves = [f"/leaf/{number}" for number in range(3)]
    pages: dict[str, websites.Page] = {
        "/robots.txt": "User-agent: *\nDisallow: /private\n",
        "/": Answer(
            links("/a", "/b", "/c", "/moved", "/private", "/gone").encode(),
            headers={"Set-Cookie": "member=yes"},
        ),
        "/a": links(*leaves[:2], "/"),
        "/b": links(*leaves[1:], "/member"),
        "/c": links("/a", "/b", "/c"),
        "/member": _member,
        "/moved": moved("/target"),
        "/target": links("/last"),
        "/last": links(),
        "/private": links(),
    }
    with websites.running(Site(pages | dict.fromkeys(leaves, links()))) as served:
        yield served


def name_of(components: tuple[str, ...]) -> str:
    """The names of the classes."""
    return "+".join(path.rpartition(".")[2] for path in components)


def settings_of(components: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """The settings of a project with *components*; its files go to a folder in *folder*."""
    own = folder / f"job of {name_of(components)}"
    made: dict[str, Any] = {
        "DOWNLOAD_DELAY": 0.01, "JOBDIR": str(own), "LOG_LEVEL": "INFO", "ROBOTSTXT_OBEY": True,
        "TELNETCONSOLE_ENABLED": False, "USER_AGENT": "tests/1.0 (+https://tests.example/)",
        Setting.ALLOW_PRIVATE_ADDRESSES: ["127.0.0.0/8"],
        Setting.HOST_DELAY: 0.01, Setting.IP_DELAY: 0.01, "SUITE_MEMORY": "16M",
    }  # fmt: skip
    for component in components:
        for name, value in COMPONENTS[component].items():
            if isinstance(value, dict):
                made[name] = {**made.get(name, {}), **value}
            else:
                made[name] = str(own / value) if name.endswith("_DIR") else value
    return made


def together() -> Iterator[tuple[str, ...]]:
    """Four components at a time, until each two have been together."""
    filters = {Component.SIEVE_DUPEFILTER, Component.TRIE_DUPEFILTER}  # there can be one of them
    left = dict.fromkeys(map(frozenset, combinations(COMPONENTS, 2)))
    left.pop(frozenset(filters))
    while left:
        some = set(next(iter(left)))
        while len(some) < 4:
            some.add(max(
                (each for each in COMPONENTS if each not in some and not filters <= some | {each}),
                key=lambda each: sum(frozenset((each, one)) in left for one in some),
            ))  # fmt: skip
        group = tuple(each for each in COMPONENTS if each in some)
        for pair in combinations(group, 2):
            left.pop(frozenset(pair), None)
        yield group


@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.long
def test_the_same_pages_as_without(alone: bool, site: Site, tmp_path: Path) -> None:
    """Each component, and each two of them: each page that plain Scrapy gets, once."""
    listed = [(), *(combinations(COMPONENTS, 1) if alone else together())]
    settings = {name_of(each): settings_of(each, tmp_path) for each in listed}
    found = crawl_with_each(settings, f"{site.url}/", tmp_path)
    plain = found.pop(name_of(()))
    assert (len(plain.pages), plain.reason) == (10, "finished")
    assert {name: crawl for name, crawl in found.items() if crawl != plain} == {}


def test_the_page_of_components_lists_each() -> None:
    """The table in the docs has a row for each component that is tested here, and no other."""
    page = (DOCS / "scrapy-features.md").read_text()
    table = page.partition("## Components alone")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| \w+ \| `([\w.]+)` \|", table, re.MULTILINE)) == set(COMPONENTS)


def test_the_downloader_alone_takes_no_more_than_concurrent_requests(tmp_path: Path) -> None:
    """Of twenty hosts that may be asked at once, four are: the scheduler keeps the others."""
    hosts = [f"127.0.1.{number}" for number in range(1, 21)]
    with websites.running(Site(host="0.0.0.0")) as site:
        urls = [f"http://{host}:{site.server_port}/page" for host in hosts]
        site.pages = {"/": links(*urls), "/page": Answer(wait=0.1)}
        seed = f"http://127.0.0.1:{site.server_port}/"
        settings = {**settings_of((Component.DOWNLOADER,), tmp_path), "CONCURRENT_REQUESTS": 4}
        found = crawl_with_each({"": settings}, seed, tmp_path)
        assert sorted(found[""].pages) == sorted([seed, *urls])
        visits = [visit for visit in site.visits if visit.path == "/page"]
        at_once = [sum(one.began <= other.began < one.ended for one in visits) for other in visits]
        assert max(at_once) <= 4
