"""Folders, forms and names of packs that change while pages are under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Site, links, running

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.operate.executors.running_crawl import change_setting
from scrapy_spider_suite.packs import open_items, open_packs
from scrapy_spider_suite.spiders import BroadSpider

Run = Callable[[Any], Crawled]
PAGES = 60
LATER = 32
"""The first of those pages that are asked for when all changes have been made: a fast server, and a
slow callback, could have had all of them under way before."""


@pytest.fixture
def site() -> Iterator[Site]:
    """Some pages."""
    with running(Site({f"/{n}": links(title=f"page {n}") for n in range(PAGES)})) as server:
        yield server


class Items(Spider):
    """An item of each page; at some of them a setting changes, with others under way."""

    name = "items"
    site = ""
    changes: dict[int, list[tuple[str, str]]] = {}  # noqa: RUF012
    made = 0

    async def start(self) -> AsyncIterator[Any]:
        """Many at once."""
        for request in self.requests(0, LATER):
            yield request

    def requests(self, first: int, end: int) -> Iterator[Request]:
        """For those pages."""
        for n in range(first, end):
            yield Request(f"{self.site}/{n}", cb_kwargs={"n": n})

    def parse(self, response: Response, n: int) -> Iterator[Any]:
        """Change what is to be changed there."""
        for name, value in self.changes.get(n, ()):
            change_setting(get_crawl(self.crawler), name, value)
        yield {"url": response.url}
        self.made += n in self.changes
        if n in self.changes and self.made == len(self.changes):
            yield from self.requests(LATER, PAGES)


def crawled(site: Site, run: Run, folder: Path, changes: Any, **more: Any) -> Crawled:
    """A crawl in a job, in which SUITE_PACKS_DIR and _ITEMS_DIR are not set unless *more* does."""
    return run(
        crawl_here(
            Items, within=60, arguments={"site": site.url, "changes": changes},
            JOBDIR=str(folder / "job"), ROBOTSTXT_OBEY=False, SUITE_ALLOW_PRIVATE_ADDRESSES=True,
            SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_HOST_CONCURRENCY=8, **more,
        )
    )  # fmt: skip


def test_nothing_is_lost_when_packs_change(site: Site, run: Run, tmp_path: Path) -> None:
    """Every page is in one pack, and every item in one file, whichever it is, and none is open."""
    a, b, c, d = (str(tmp_path / name) for name in "abcd")
    done = crawled(
        site, run, tmp_path,
        {
            10: [("SUITE_PACKS_DIR", b), ("SUITE_ITEMS_DIR", d)],
            20: [("SUITE_PACKS_FORMAT", "gz")],
            30: [("SUITE_PACKS_DIR", a), ("SUITE_CRAWL_NAME", "other")],
            31: [("SUITE_ITEMS_DIR", c), ("SUITE_OPERATOR", "Us")],
        },
        SUITE_PACKS_DIR=a, SUITE_ITEMS_DIR=c,
    )  # fmt: skip
    assert done.reason == "finished"
    expected = Counter(f"{site.url}/{n}" for n in range(PAGES))
    assert Counter(page.url for page in chain(open_packs(a), open_packs(b))) == expected
    assert Counter(item["url"] for item in chain(open_items(c), open_items(d))) == expected
    names = [path.name for path in tmp_path.glob("[abcd]/*")]
    assert not [name for name in names if name.endswith(".open")]
    assert {"other", "items"} <= {name.partition("-")[0] for name in names}
    for kind in (".warc.lzo", ".warc.gz", ".jsonl.gz", ".jsonl.zst"):
        assert any(name.endswith(kind) for name in names), kind
    stats = done.crawler.stats
    assert stats.get_value("suite/packs/answers") == PAGES
    assert stats.get_value("suite/packs/recovered") is None
    assert stats.get_value("suite/items/recovered") is None
    assert stats.get_value("log_count/ERROR") is None
    packs = [name for name in names if name.endswith((".warc.lzo", ".warc.gz"))]
    assert stats.get_value("suite/packs/closed") == len(packs)


class Broad(BroadSpider):
    """Follows links; with some of the answers a setting changes."""

    name = "broad"
    changes: dict[int, str] = {}  # noqa: RUF012

    def parse(self, response: Response) -> None:
        """Change what is to be changed there."""
        value = self.changes.get(int(response.url.rpartition("/")[2]))
        if value is not None:
            change_setting(get_crawl(self.crawler), "SUITE_SEEN_STORE", value)


def test_what_was_seen_is_known_however_it_is_kept(run: Run, tmp_path: Path) -> None:
    """Rows, a sieve, a trie, and a sieve again: no page is left out, and none is fetched twice."""
    pages = {f"/{n}": links(*(f"/{m}" for m in range(n + 3)), "/0") for n in range(PAGES - 2)}
    with running(Site(pages | {f"/{n}": "" for n in (PAGES - 2, PAGES - 1)})) as site:
        done = run(
            crawl_here(
                Broad, within=60, JOBDIR=str(tmp_path / "job"), ROBOTSTXT_OBEY=False,
                SUITE_SEEN_STORE="plain",
                SUITE_ALLOW_PRIVATE_ADDRESSES=True, SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0,
                arguments={
                    "seeds": f"{site.url}/0",
                    "changes": {10: "sieve", 25: "trie", 35: "sieve", 45: "plain"},
                },
            )
        )  # fmt: skip
    assert done.reason == "finished"
    assert Counter(each.url for each in done.responses) == Counter(
        f"{site.url}/{n}" for n in range(PAGES)
    )


def test_packs_are_switched_on_and_off(site: Site, run: Run, tmp_path: Path) -> None:
    """What was asked for while they were off is in none; each change holds for what comes next."""
    a, c = str(tmp_path / "a"), str(tmp_path / "c")
    bad = tmp_path / "file"
    bad.touch()
    refused: list[str] = []

    class Careful(Items):
        async def start(self) -> AsyncIterator[Any]:
            yield Request(f"{self.site}/0", cb_kwargs={"n": 0})

        def parse(self, response: Response, n: int) -> Iterator[Any]:
            if n == 30:
                for name in ("SUITE_PACKS_DIR", "SUITE_ITEMS_DIR"):
                    with pytest.raises(SettingsError, match=name) as caught:
                        change_setting(get_crawl(self.crawler), name, str(bad / "x"))
                    refused.append(str(caught.value))
            yield from super().parse(response, n)
            if n + 1 < PAGES:
                yield Request(f"{self.site}/{n + 1}", cb_kwargs={"n": n + 1})

    done = run(
        crawl_here(
            Careful, within=60, JOBDIR=str(tmp_path / "job"), ROBOTSTXT_OBEY=False,
            SUITE_ALLOW_PRIVATE_ADDRESSES=True, SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0,
            SUITE_LINK_STATS="",
            arguments={"site": site.url, "changes": {
                15: [("SUITE_PACKS_DIR", a), ("SUITE_ITEMS_DIR", c), ("SUITE_LINK_STATS", "links")],
                45: [("SUITE_PACKS_DIR", "default"), ("SUITE_ITEMS_DIR", "default"),
                     ("SUITE_LINK_STATS", "default")],
            }},
        )
    )  # fmt: skip
    assert done.reason == "finished"
    assert len(refused) == 2
    packed = sorted(int(page.url.rpartition("/")[2]) for page in open_packs(a))
    written = sorted(int(item["url"].rpartition("/")[2]) for item in open_items(c))
    # The page that brought the change, and those that are out then, go with what was before.
    assert packed == written == list(range(16, 46))
    assert done.crawler.stats.get_value("suite/link_stats/pages") == 30
    assert not list(tmp_path.glob("[ac]/*.open"))
