"""SUITE_ITEMS_DIR: items as compressed lines of JSON, in every kind of project."""

from __future__ import annotations

import errno
import gzip
import json
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import signals
from scrapy.exceptions import DropItem
from scrapy.http import Response
from support.inprocess_crawls import Crawling
from support.small_disks import tmpfs
from support.visiting_spider import Visitor, Walker, walker
from support.websites import Site, links

from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.packs import open_items
from scrapy_spider_suite.packs.item_file import ItemFile
from scrapy_spider_suite.signals import item_pack_closed
from scrapy_spider_suite.spiders import BroadSpider

FAST = {"SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0}


@pytest.fixture
def pages(site: Site) -> Site:
    """The site with three pages."""
    site.pages |= {"/": links("/1", "/2"), "/1": links("/2"), "/2": links()}
    return site


def paths(folder: Path) -> Counter[str]:
    """How often each page has an item."""
    return Counter("/" + item["url"].split("/", 3)[3] for item in open_items(folder))


EACH = Counter({"/": 1, "/1": 1, "/2": 1})


@pytest.mark.parametrize("job", [True, False])
def test_items_of_every_page(
    pages: Site, crawl: Crawling, tmp_path: Path, job: bool
) -> None:
    """Once each, in a file that has its name at the end of the crawl."""
    folder, closed = tmp_path / "items", []

    def watch(crawler: Any) -> None:
        def told(path: Path) -> None:
            closed.append(path)

        crawler.signals.connect(told, item_pack_closed, weak=False)

    more = {"JOBDIR": str(tmp_path / "job")} if job else {}
    done = crawl(
        walker(pages), SUITE_ITEMS_DIR=str(folder), watch=watch,
        SUITE_AGENT_NAME="here", **more, **FAST,
    )  # fmt: skip
    assert done.reason == "finished"
    assert paths(folder) == EACH
    (path,) = folder.iterdir()
    assert closed == [path]
    assert path.match("walker-*-00001-here.jsonl.gz")
    assert done.stat("suite/items/written") == 3
    assert done.stat("suite/items/closed") == 1


def test_a_file_is_what_zcat_opens(pages: Site, crawl: Crawling, tmp_path: Path) -> None:
    """Lines of JSON, in the order in which their pages were done."""
    crawl(walker(pages), SUITE_ITEMS_DIR=str(tmp_path), **FAST)
    (path,) = tmp_path.iterdir()
    text = subprocess.run(["zcat", path], capture_output=True, check=True).stdout
    assert list(map(json.loads, text.splitlines())) == list(open_items(path))


class Broad(BroadSpider):
    """Follows everything, with two items for each page."""

    name = "broad"

    def parse_page(self, response: Response) -> Iterator[Any]:
        """Yield the URL, twice."""
        yield {"url": response.url, "n": 1}
        yield {"url": response.url, "n": 2}


def test_a_broad_spider_with_packs(pages: Site, crawl: Crawling, tmp_path: Path) -> None:
    """Both are written before a page is done; pages as items are not among the items."""
    done = crawl(
        Broad, arguments={"seeds": f"{pages.url}/"}, SUITE_ITEMS_DIR=str(tmp_path / "items"),
        SUITE_PACKS_DIR=str(tmp_path / "packs"), SUITE_PAGE_ITEMS=True, **FAST,
    )  # fmt: skip
    assert done.stat("suite/job/done") == 3
    assert paths(tmp_path / "items") == Counter(dict.fromkeys(EACH, 2))
    assert sum(isinstance(item, PageItem) for item in done.items) == 3


def test_a_plain_project(pages: Site, crawl: Crawling, tmp_path: Path) -> None:
    """The pipeline alone, with Scrapy's scheduler."""
    pipelines = {"scrapy_spider_suite.pipelines.ItemPackPipeline": 300}
    done = crawl(
        walker(pages), addon=False, ITEM_PIPELINES=pipelines, SUITE_ITEMS_DIR=str(tmp_path)
    )
    assert done.reason == "finished"
    assert paths(tmp_path) == EACH
    assert not list(tmp_path.glob("*.open"))


class Dropping:
    """Drops the item of one page, and changes those of the others."""

    def process_item(self, item: Any) -> Any:
        """See the class."""
        if item["url"].endswith("/1"):
            raise DropItem
        return {**item, "changed": True}


def test_items_are_what_the_pipelines_leave(pages: Site, crawl: Crawling, tmp_path: Path) -> None:
    """Whichever comes first."""
    for order in (-1, 5_000):
        folder = tmp_path / str(order)
        crawl(
            walker(pages), SUITE_ITEMS_DIR=str(folder), ITEM_PIPELINES={Dropping: order}, **FAST
        )
        assert paths(folder) == Counter({"/": 1, "/2": 1})
        assert all(item["changed"] for item in open_items(folder))


class Odd(Walker):
    """One page has an item that is none, after one that is."""

    def keep(self, response: Response) -> Iterator[Any]:
        """Yield the URL, and an object beside it on one page."""
        yield from super().keep(response) or ()
        if response.url.endswith("/1"):
            yield {"url": response.url, "what": object()}


def test_what_is_no_json_fails_its_page(
    pages: Site, crawl: Crawling, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A clear line, a stat, and no half of a page's items."""
    done = crawl(
        type("Own", (Odd,), {"site": pages.url}), SUITE_ITEMS_DIR=str(tmp_path / "items"),
        JOBDIR=str(tmp_path / "job"), **FAST,
    )  # fmt: skip
    assert paths(tmp_path / "items") == Counter({"/": 1, "/2": 1})
    assert done.stat("suite/items/refused") == 1
    assert done.stat("suite/items/dropped") == 1
    assert done.stat("suite/job/failed") == 1
    assert f"An item of <200 {pages.url}/1> cannot be written as JSON: TypeError" in caplog.text


class Strange(Visitor):
    """Items with what text of pages may have, and of no page at all."""

    async def start(self) -> Any:
        """Yield an item before there is a page."""
        yield {"url": "http://a.test/start", "text": "\ud800 \n \u2028 é"}
        async for request in super().start():
            yield request

    def keep(self, response: Response) -> Iterator[Any]:
        """Yield more than lies in memory."""
        for number in range(40):
            yield {"url": response.url, "number": number, "text": "x" * 40_000}


def test_strange_items_and_large_ones(pages: Site, crawl: Crawling, tmp_path: Path) -> None:
    """Halves of surrogate pairs come back; a page's items may be larger than memory."""
    crawl(type("Own", (Strange,), {"site": pages.url}), SUITE_ITEMS_DIR=str(tmp_path), **FAST)
    first, *others = sorted(open_items(tmp_path), key=lambda item: item.get("number", -1))
    assert first["text"] == "\ud800 \n \u2028 é"
    assert [item["number"] for item in others] == list(range(40))
    (path,) = tmp_path.iterdir()
    with path.open("rb") as file:
        assert file.read().count(b"\x1f\x8b\x08") >= 10  # in blocks


@pytest.mark.parametrize("job", [True, False], ids=["job", "no job"])
def test_a_full_disk(
    pages: Site, crawl: Crawling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: bool
) -> None:
    """The crawl pauses; what was not written is fetched again, and is there once."""
    append, failures = ItemFile.append, [1]
    monkeypatch.setattr("scrapy_spider_suite.operate.machine._RETRY", 0.1)

    def fail(self: ItemFile, lines: Any) -> None:
        if failures:
            failures.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, lines)

    monkeypatch.setattr(ItemFile, "append", fail)
    more = {"JOBDIR": str(tmp_path / "job")} if job else {}
    done = crawl(walker(pages), SUITE_ITEMS_DIR=str(tmp_path / "items"), **more, **FAST)
    assert done.reason == "finished"
    assert paths(tmp_path / "items") == EACH
    assert done.stat("suite/items/failed") >= 1
    assert len(pages.paths()) > 3


class Bulky(Visitor):
    """Items that no compressor makes small, 1.2 MB of each page."""

    def keep(self, response: Response) -> Iterator[Any]:
        """Yield them."""
        chance = random.Random(response.url)
        for number in range(30):
            yield {"url": response.url, "number": number, "text": chance.randbytes(20_000).hex()}


def test_a_full_disk_loses_no_item_of_a_plain_project(
    pages: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """Nobody fetches their pages again: they wait in memory, however many."""
    with tmpfs(tmp_path / "disk", "8m") as folder:
        ballast = folder / "ballast"
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(bytes(9 << 20))

        def watch(crawler: Any) -> None:
            def idle() -> None:
                ballast.unlink(missing_ok=True)

            crawler.signals.connect(idle, signals.spider_idle, weak=False)

        done = crawl(
            type("Own", (Bulky,), {"site": pages.url}), addon=False, watch=watch,
            ITEM_PIPELINES={"scrapy_spider_suite.pipelines.ItemPackPipeline": 300},
            SUITE_ITEMS_DIR=str(folder),
        )  # fmt: skip
        assert done.stat("suite/items/refused") == 0
        assert paths(folder) == Counter({"/": 30})


def test_a_page_whose_items_cannot_be_kept_is_fetched_again(
    pages: Site, crawl: Crawling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the system says: it is no fault of the page."""
    monkeypatch.setattr("scrapy_spider_suite.operate.machine._RETRY", 0.1)
    make, failures = tempfile.TemporaryFile, [1]

    def fail(*args: Any, **kwargs: Any) -> Any:
        if failures:
            failures.pop()
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return make(*args, **kwargs)

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    done = crawl(
        type("Own", (Bulky,), {"site": pages.url}), SUITE_ITEMS_DIR=str(tmp_path / "items"),
        JOBDIR=str(tmp_path / "job"), **FAST,
    )  # fmt: skip
    assert done.stat("suite/job/failed") == 0
    assert paths(tmp_path / "items") == Counter({"/": 30})
    assert pages.paths().count("/") == 2


def test_what_another_job_left_open_is_left(pages: Site, crawl: Crawling, tmp_path: Path) -> None:
    """Only that job knows how far it is committed; it is read as far as it is whole."""
    left = tmp_path / "walker-20200101000000-00001-here.jsonl.gz.open"
    left.write_bytes(gzip.compress(b'{"url": "http://a.test/old"}\n') + b"\x1f\x8b\x08torn")
    crawl(walker(pages), SUITE_ITEMS_DIR=str(tmp_path), SUITE_AGENT_NAME="here", **FAST)
    assert left.exists()
    assert paths(tmp_path) == EACH + Counter({"/old": 1})
