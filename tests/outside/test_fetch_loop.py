"""The fetch loop and the way through Scrapy's engine: the same crawl, seen from outside."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.crawls import loopback_settings
from support.names import Setting
from support.projects import Project
from support.websites import Answer, Page, Site, Visit, links, moved, running

OWN = "project.own.Nothing"
"""A downloader middleware of a project: rows have to go through Scrapy's engine for it."""
WAY = "URLs are fetched this way: "
LOOP, ENGINE = f"{WAY}fetch loop", f"{WAY}engine path: {OWN} is enabled"
_FREE = re.compile(r"time|memusage|elapsed|items_per|responses_per|_bytes|/bytes|_max|log_count"
                   r"|connections|cache_|python/|start|finish_t|scheduler_empty")  # fmt: skip
"""Stats that differ from run to run."""


_OWN = '''
"""What a project has of its own."""

import asyncio
from contextvars import ContextVar
from scrapy import Request
from scrapy.exceptions import CloseSpider, DropItem
from scrapy_spider_suite.spiders import BroadSpider


PAGE = ContextVar("page", default="none")


class Nothing:
    pass


class Pipeline:
    async def process_item(self, item):
        if "drop" in item:
            raise DropItem("not wanted")
        if "fail" in item:
            raise ValueError("no item")
        if "slow" in item:
            await asyncio.sleep(0.05)
        return item


class Kinds(BroadSpider):
    """Yields by each page's name."""

    name = "kinds"
    custom_settings = {"ITEM_PIPELINES": {Pipeline: 100}}

    def parse_page(self, response):
        kind = response.url.rpartition("/")[2].partition("?")[0]
        return getattr(self, f"page_{kind}", self.page_none)(response)

    def item(self, response, **more):
        assert response.request.url == response.url and response.request.callback is None
        return {"url": response.url, **more}

    def page_none(self, response):
        return None

    def page_one(self, response):
        yield None
        yield self.item(response)
        yield None

    def page_several(self, response):
        for number in range(3):
            yield self.item(response, number=number, slow=True)

    def page_slow(self, response):
        yield self.item(response, slow=True)

    def page_request(self, response):
        yield Request(response.urljoin("/asked?1"), self.page_of_request)

    def page_late(self, response):
        yield self.item(response)
        yield Request(response.urljoin("/asked?2"), self.page_of_request)

    def page_of_request(self, response):
        yield {"url": response.url, "depth": response.meta["depth"]}

    def page_list(self, response):
        return [self.item(response)]

    def page_dict(self, response):
        return self.item(response)

    async def page_generator(self, response):
        yield self.item(response)

    async def page_coroutine(self, response):
        return [self.item(response)]

    def page_raises(self, response):
        raise ValueError("at once")

    def page_stumbles(self, response):
        yield self.item(response)
        raise ValueError("later")

    def page_drop(self, response):
        yield self.item(response, drop=True)

    def page_fail(self, response):
        yield self.item(response, fail=True)

    def page_context(self, response):
        before = PAGE.get()
        PAGE.set(response.url)
        yield self.item(response, before=before)
        assert PAGE.get() == response.url

    def page_enough(self, response):
        yield self.item(response)
        raise CloseSpider("enough")
'''
KINDS = ("none", "one", "several", "slow", "request", "late", "list", "dict", "generator",
         "coroutine", "raises", "stumbles", "drop", "fail", "context", "context?2", "context?3")


def _member(visit: Visit) -> Answer:
    return Answer(b"in", 200 if "member=yes" in visit.headers.get("Cookie", "") else 403)


def _pages() -> dict[str, Page]:
    return {
        "/robots.txt": "User-agent: *\nDisallow: /private\n",
        "/": Answer(
            links("/a", "/b?x=1", "/moved", "/loop", "/private/1", "/gone", "/member", "/image",
                  "/busy", "/zipped", "/broken", "/canonical", "/quiet").encode(),
            headers={"Set-Cookie": "member=yes; Path=/"},
        ),
        "/a": links("/", "/a", "/deep"),
        "/b?x=1": links("/a#part", "/deep"),
        "/deep": links("/deeper"),
        "/deeper": "<p>nothing",
        "/moved": moved("/target", 301),
        "/target": links("/found"),
        "/found": "x",
        "/loop": moved("/loop"),
        "/member": _member,
        "/image": Answer(b"\x89PNG\r\n\x1a\n" + b"\0" * 50, headers={"Content-Type": "image/png"}),
        "/busy": Answer(status=500),
        "/zipped": Answer(gzip.compress(links("/unzipped").encode(), mtime=0),
                          headers={"Content-Encoding": "gzip"}),
        "/unzipped": "y",
        "/broken": Answer(b"\x1f\x8b not gzip", headers={"Content-Encoding": "gzip"}),
        "/canonical": '<link rel="canonical" href="/a"><a href="/nofollow">x</a>',
        "/quiet": Answer(b'<meta name="robots" content="nofollow"><a href="/never">x</a>'),
    }  # fmt: skip


class Seen:
    """What a crawl left behind, without times and ports."""

    def __init__(
        self, folder: Path, engine_path: bool, spider: str, pages: dict[str, Page] | None = None,
        closed: bool = False, **settings: Any,
    ) -> None:  # fmt: skip
        with running(Site()) as site:
            site.pages = _pages() if pages is None else pages
            given: dict[str, Any] = {
                Setting.HOST_DELAY: 0.001, Setting.IP_DELAY: 0.001, "ROBOTSTXT_OBEY": True,
                Setting.PACKS_DIR: str(folder / "packs"), Setting.FETCH_LOG: str(folder / "log"),
                Setting.BACKOFF_BASE: 0.01, "RETRY_TIMES": 1, **settings,
            }  # fmt: skip
            if engine_path:
                given["DOWNLOADER_MIDDLEWARES"] = {OWN: 999}
            project = Project(folder / "project", **loopback_settings(**given))
            (project.folder / "project" / "own.py").write_text(_OWN)
            self.end = project.scrapy(
                "crawl", spider, "-a", f"seeds={site.url}/", "-s", f"JOBDIR={folder / 'job'}",
                "-O", f"{folder / 'items.jsonl'}",
            )  # fmt: skip
            assert bool(self.end.returncode) == closed, self.end.stderr[-3000:]
            self.visits = Counter((visit.method, visit.path) for visit in site.visits)
            self.headers = {
                visit.path: {name: value for name, value in visit.headers.items()
                             if name not in ("Host", "Referer")}
                for visit in site.visits if visit.path != "/robots.txt"
            }  # fmt: skip
            text = self.end.stderr
            self.log = text
            dump = re.search(r"Dumping Scrapy stats:\n(\{.*?\n?\})\n", text, re.S)
            assert dump is not None
            self.stats = dict(re.findall(r"'([^']+)': (\d+)[,}]", dump[1]))
            self.stats = {k: v for k, v in self.stats.items() if not _FREE.search(k)}
            self.lines = sorted(
                [word for number, word in enumerate(line.split()) if number not in (0, 3)]
                for path in (folder / "log").glob("fetch*.log")
                for line in path.read_text().replace(site.url, "near:").splitlines()
                if not line.startswith("#")
            )  # fmt: skip
            packs = project.scrapy("packs", "ls", str(folder / "packs"), "--pages", "--json")
            self.records = sorted(
                (row["url"].replace(site.url, "near:"), row.get("status"), row.get("digest"))
                for row in map(json.loads, packs.stdout.splitlines())
            )  # fmt: skip
            items = (folder / "items.jsonl").read_text().replace(site.url, "near:")
            self.items = sorted(items.splitlines())


@pytest.mark.parametrize("spider", ["bulk", "bulkitems"])
def test_both_ways_are_one_crawl(tmp_path: Path, spider: str) -> None:
    """The same requests, outcomes, stats, lines of the log, records and items."""
    loop = Seen(tmp_path / "loop", False, spider)
    engine = Seen(tmp_path / "engine", True, spider)
    assert LOOP in loop.log
    assert ENGINE in engine.log
    assert loop.visits == engine.visits
    assert loop.headers == engine.headers
    assert loop.lines == engine.lines
    assert loop.records == engine.records
    assert loop.items == engine.items
    assert loop.stats == engine.stats


def test_whatever_a_callback_yields_is_the_same_both_ways(tmp_path: Path) -> None:
    """Items, requests, errors, and what pipelines do with them; a page is done after its items."""
    pages: dict[str, Page] = {f"/{kind}": kind for kind in KINDS}
    pages |= {"/": links(*pages), "/asked?1": "x", "/asked?2": "y"}
    given = {"SPIDER_MODULES": ["project.own"], "ROBOTSTXT_OBEY": False}
    loop, engine = (
        Seen(tmp_path / str(way), way, "kinds", pages, **given) for way in (False, True)
    )
    assert LOOP in loop.log
    assert ENGINE in engine.log
    assert loop.visits == engine.visits
    assert loop.items == engine.items
    assert len(loop.items) == 16
    assert sum('"before": "none"' in item for item in loop.items) == 3
    assert loop.stats == engine.stats
    for seen in (loop, engine):
        assert seen.stats["item_dropped_count"] == "1"
        assert seen.stats["spider_exceptions/ValueError"] == "2"
        assert seen.stats["suite/outcome/callback_error"] == "2"
        assert seen.stats["suite/outcome/pipeline_error"] == "1"
        assert seen.stats["suite/outcome/not_stored"] == "1"
        assert seen.log.count("Spider error processing") == 2
        assert seen.log.count("Error processing") == 1


@pytest.mark.parametrize("engine_path", [False, True])
def test_a_callback_may_close_the_spider(tmp_path: Path, engine_path: bool) -> None:
    """Its item is kept, and the crawl ends with its reason."""
    pages: dict[str, Page] = {"/": links("/enough"), "/enough": links("/a"), "/a": "x"}
    given = {"SPIDER_MODULES": ["project.own"], "ROBOTSTXT_OBEY": False}
    seen = Seen(tmp_path, engine_path, "kinds", pages, **given, closed=True)
    assert "Closing spider (enough)" in seen.log
    assert seen.items == ['{"url": "near:/enough"}']


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"AUTOTHROTTLE_ENABLED": True}, "AUTOTHROTTLE_ENABLED is set"),
        ({"AUTOTHROTTLE_ENABLED": True, "HTTPCACHE_ENABLED": True, "HTTPERROR_ALLOW_ALL": True},
         "AUTOTHROTTLE_ENABLED is set; HTTPCACHE_ENABLED is set; HTTPERROR_ALLOW_ALL is set"),
        ({"DOWNLOADER": "scrapy.core.downloader.Downloader"}, "DOWNLOADER is scrapy.core."),
        ({"DOWNLOAD_HANDLERS": {
            "http": "scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler",
         }}, "DOWNLOAD_HANDLERS['http'] is not the suite's"),
    ],
)  # fmt: skip
def test_why_rows_do_not_take_the_loop(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    """The log says it, and `scrapy frontier settings` of the job."""
    with running(Site()) as site:
        site.pages = {"/": links("/a"), "/a": "x"}
        given = {Setting.HOST_DELAY: 0.001, Setting.IP_DELAY: 0.001, "ROBOTSTXT_OBEY": False}
        project = Project(tmp_path / "project", **loopback_settings(**given, **settings))
        job = ("-s", f"JOBDIR={tmp_path / 'job'}")
        end = project.scrapy("crawl", "bulk", "-a", f"seeds={site.url}/", *job)
    assert f"{WAY}engine path: {why}" in end.stderr
    assert [visit.path for visit in site.visits] == ["/", "/a"]
    shown = project.scrapy("frontier", "settings", "-j", str(tmp_path / "job"))
    assert f"{WAY}engine path: {why}" in shown.stdout
