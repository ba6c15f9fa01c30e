"""SUITE_READ_LINKS = on-demand in real crawls: the pages, links and counts of eager (E4)."""

from __future__ import annotations

import asyncio
import gzip
import random
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.settings import Settings
from support.crawls import crawl, crawl_over_kills, web_settings
from support.inprocess_crawls import Crawled, crawl_here
from support.webs import FakeWebProcess
from support.websites import Answer, Page, Site, links, running

from scrapy_spider_suite.analysis.link_stats import ROWS, LinkStats
from scrapy_spider_suite.crawl import deferred_links
from scrapy_spider_suite.crawl.deferred_links import DeferredLinks
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.queue.traps import Traps
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.packs import open_packs, verify
from scrapy_spider_suite.packs.redaction import RedactionTarget, redact
from scrapy_spider_suite.packs.stored_pages import StoredPage, StoredPageFinder
from scrapy_spider_suite.runtime.refusal import DAMAGED
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store import job_directory
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.unread_pages import NAME as UNEXTRACTED
from scrapy_spider_suite.store.unread_pages import UnreadPage
from scrapy_spider_suite.testing import FakeWebConfig
from scrapy_spider_suite.urls.traps import Trap

Run = Callable[[Any], Crawled]

WEB = FakeWebConfig(hosts=5, pages=24, degree=8, addresses=5, errors=0.03, redirects=0.03)
TABLES = "links,hosts,statuses,types,sizes,languages,out"


class Broad(BroadSpider):
    """Follows everything."""

    name = "broad"


def settings_of(folder: Path, how: str, web: FakeWebProcess, **settings: Any) -> dict[str, Any]:
    """Of a crawl of *web* whose job and packs lie in *folder*."""
    return web_settings(
        web.ready.dns_port, JOBDIR=str(folder / "job"), SUITE_PACKS_DIR=str(folder / "packs"),
        SUITE_READ_LINKS=how, SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, CONCURRENT_REQUESTS=8,
        SUITE_RETRY_TIMES=0, SUITE_BACKOFF_BASE=0.01, SUITE_BACKOFF_MAX=0.01,
        SUITE_LINK_STATS=TABLES, **settings,
    )  # fmt: skip


def states(folder: Path) -> dict[str, Event | None]:
    """What the job in *folder* says of each URL; everything in it agrees."""
    with StoreReader(folder / "job" / FOLDER) as reader:
        assert list(reader.check()) == []
        found = [row for host, _ in reader.store.records() for row in reader.urls(host)]
        assert not len(reader.unextracted)
        return {row.url: row.state.event for row in found}


def counts(folder: Path) -> list[Any]:
    """The link statistics of the job in *folder*."""
    with StoreReader(folder / "job" / FOLDER) as reader:
        stats = LinkStats(reader.store.kv(ROWS), TABLES.split(","))
        tables = [sorted(stats.table(name)) for name in ("statuses", "types", "sizes", "out")]
        return [stats.totals(), sorted(stats.hosts()), sorted(stats.edges()), *tables]


def edges(folder: Path) -> set[tuple[Any, ...]]:
    """Where the pages in the packs in *folder* lead to."""
    return {(page.url, *link) for page in open_packs(folder / "packs") for link in page.links}


def test_the_same_as_eager(tmp_path: Path) -> None:
    """Pages, outcomes, statistics, and the links that packs tell; with a tenth of the frontier."""
    with FakeWebProcess(WEB) as web:
        peaks = {}
        for how in ("eager", "on-demand"):
            (tmp_path / how).mkdir()
            ended = crawl(
                "support.spiders.Bulk", settings_of(tmp_path / how, how, web), tmp_path / how,
                seeds=web.ready.seeds[0],
            )  # fmt: skip
            assert ended.reason == "finished", ended.log[-3000:]
            peaks[how] = ended.stats["suite/frontier/queued_max"]
        assert ended.stats["suite/extract/read"] > 90
        assert ended.stats["suite/extract/waiting"] == 0
        assert "suite/extract/at_once" not in ended.stats
    eager, late = tmp_path / "eager", tmp_path / "on-demand"
    assert states(eager) == states(late)
    assert counts(eager) == counts(late)
    assert edges(eager) == edges(late)
    assert list(verify(late / "packs")) == []
    assert peaks["on-demand"] < peaks["eager"]


@pytest.mark.slow
@pytest.mark.parametrize("seen", ["trie", "sieve"])
def test_kills_lose_nothing(seen: str, tmp_path: Path) -> None:
    """Killed several times: in the end all is as it is in a crawl that nobody has killed."""
    chance = random.Random(seen)
    with FakeWebProcess(replace(WEB, hosts=10, pages=40)) as web:
        settings = settings_of(
            tmp_path, "on-demand", web, SUITE_SEEN_STORE=seen, SUITE_MEMORY="1M"
        )
        times = [chance.uniform(0.2, 0.7) for _ in range(3)]
        last = crawl_over_kills(
            "support.spiders.Bulk", settings, tmp_path, times, seeds=web.ready.seeds[0]
        )
        reachable = set(web.web.reachable())
    assert last.log.count("Spider opened") >= 3
    assert list(verify(tmp_path / "packs")) == []
    assert reachable <= {page.url for page in open_packs(tmp_path / "packs")}
    if seen == "trie":
        assert reachable <= set(states(tmp_path))


# On a small site, in this process


@pytest.fixture
def site() -> Iterator[Site]:
    """A running site: six pages that lead to six others each, and those to a last one."""
    pages: dict[str, Page] = {"/": links(*(f"/{n}" for n in range(6)))}
    pages |= {f"/{n}": links(*(f"/{n}/{m}" for m in range(6))) for n in range(6)}
    pages |= {f"/{n}/{m}": links("/last") for n in range(6) for m in range(6)}
    with running(Site(pages | {"/last": links()})) as server:
        yield server


def crawl_site(
    run: Run, site: Site, folder: Path, spider: type[BroadSpider] = Broad, **settings: Any
) -> Crawled:
    """A crawl of it on demand, with the job in *folder*."""
    common: dict[str, Any] = {
        "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
        "JOBDIR": str(folder / "job"), "SUITE_PACKS_DIR": str(folder / "packs"),
        "SUITE_READ_LINKS": "on-demand", "SUITE_SEEN_STORE": "plain", "SUITE_TRAPS": "",
    }  # fmt: skip
    return run(crawl_here(spider, arguments={"seeds": f"{site.url}/"}, **(common | settings)))


def stopped(run: Run, site: Site, folder: Path) -> None:
    """A crawl that was stopped when it had fetched some pages whose links nobody has read."""
    crawl_site(run, site, folder, CLOSESPIDER_PAGECOUNT=4, CONCURRENT_REQUESTS=1)
    with StoreReader(folder / "job" / FOLDER) as reader:
        assert len(reader.unextracted) >= 3


def everything(site: Site) -> set[str]:
    """The URLs of the site."""
    return {f"{site.url}{path}" for path in site.pages}


def test_what_was_stored_is_read_when_eager_goes_on(run: Run, site: Site, tmp_path: Path) -> None:
    """In another folder for packs, and without one."""
    first, second = tmp_path / "first", tmp_path / "second"
    stopped(run, site, first)
    shutil.copytree(first, second)
    for folder, packs in ((first, str(tmp_path / "elsewhere")), (second, "")):
        done = crawl_site(run, site, folder, SUITE_READ_LINKS="eager", SUITE_PACKS_DIR=packs)
        assert done.reason == "finished"
        assert states(folder) == dict.fromkeys(everything(site), Event.SUCCESS)
        assert done.stat("suite/extract/read") >= 3


def test_packs_that_were_deleted(
    run: Run, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pages in them have failed, are named, and can be tried again; the crawl ends."""
    stopped(run, site, tmp_path)
    for path in (tmp_path / "packs").iterdir():
        path.unlink()
    done = crawl_site(run, site, tmp_path)
    assert done.reason == "finished"
    lost = {url for url, event in states(tmp_path).items() if event is Event.UNREADABLE}
    assert len(lost) == done.stat("suite/extract/lost") == done.stat("suite/job/failed") >= 3
    assert all(any(url in line for line in caplog.messages) for url in sorted(lost)[:1])


def test_packs_that_were_redacted(run: Run, site: Site, tmp_path: Path) -> None:
    """What is left in them is found, though it lies elsewhere; what was taken out stays out."""
    stopped(run, site, tmp_path)
    gone = f"{site.url}/"
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        waiting = [page.entry.url for page in reader.unextracted.everything()]
    taken = waiting[0]
    assert taken != gone
    for url in (gone, taken):
        redact(tmp_path / "packs", RedactionTarget(url=url), 0.0, lambda size: None)
    done = crawl_site(run, site, tmp_path)
    assert done.reason == "finished"
    found = states(tmp_path)
    assert found[taken] is Event.UNREADABLE
    assert done.stat("suite/extract/lost") == 1
    below = taken.removesuffix("/")
    assert set(found) == {url for url in everything(site) if not url.startswith(f"{below}/")}


def test_what_nobody_expected(
    run: Run, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a page fails with costs that page; one for which no thread could begin, nothing."""
    find, begin = StoredPageFinder.find, asyncio.BaseEventLoop.run_in_executor
    refused: list[Any] = []

    def failing(finder: StoredPageFinder, stored: StoredPage) -> Any:
        if stored.url == f"{site.url}/5":
            raise MemoryError
        return find(finder, stored)

    def beginning(loop: Any, executor: Any, call: Any, *args: Any) -> Any:
        if call is deferred_links._find and not refused:
            refused.append(args)
            raise RuntimeError("can't start new thread")
        return begin(loop, executor, call, *args)

    monkeypatch.setattr(StoredPageFinder, "find", failing)
    monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", beginning)
    monkeypatch.setattr(deferred_links, "_RETRY", 0.05)
    done = crawl_site(run, site, tmp_path)
    assert (done.reason, len(refused)) == ("finished", 1)
    found = states(tmp_path)
    below = {url for url in everything(site) if "/5/" in url}
    assert found.pop(f"{site.url}/5") is Event.UNREADABLE
    assert set(found) == everything(site) - below - {f"{site.url}/5"}
    assert set(found.values()) == {Event.SUCCESS}


def test_many_pages_hold_nobody_up(
    run: Run, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are taken out of packs up to so many bytes, and read for a moment; then come others."""
    find, go_on, reads, turns = deferred_links._find, DeferredLinks._read_some, [0], [0]

    def finding(
        finder: StoredPageFinder, pages: Sequence[UnreadPage]
    ) -> list[deferred_links.FoundPage]:
        found = find(finder, pages)
        reads.append(sum(each.answer is not None for each in found))
        return found

    def going_on(extractor: DeferredLinks, answers: deque[deferred_links.FoundPage]) -> None:
        before = len(answers)
        go_on(extractor, answers)
        turns.append(before - len(answers))

    monkeypatch.setattr(deferred_links, "_find", finding)
    monkeypatch.setattr(DeferredLinks, "_read_some", going_on)
    monkeypatch.setattr(deferred_links, "_WORK", 0.0)
    stopped(run, site, tmp_path)
    assert max(turns) <= 1
    monkeypatch.setattr(deferred_links, "_BYTES", 1)
    reads.clear()
    done = crawl_site(run, site, tmp_path, SUITE_READ_LINKS="eager")  # pages at a time
    assert done.reason == "finished"
    assert states(tmp_path) == dict.fromkeys(everything(site), Event.SUCCESS)
    assert (max(reads), max(turns)) == (1, 1)


@pytest.mark.parametrize("extract", ["eager", "on-demand"])
def test_rows_that_are_damaged(
    extract: str, run: Run, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The crawl ends, and says so once; nothing of the rows is lost."""
    stopped(run, site, tmp_path)
    store = RocksStore(tmp_path / "job" / FOLDER / "store")
    rows = store.kv(UNEXTRACTED)
    damaged = [key for key, _ in rows.items(b"h")]
    for key in damaged:
        rows.put(key, b"\xc1")
    store.close()
    job_directory.note_files(tmp_path / "job" / FOLDER / "store")
    caplog.clear()
    done = crawl_site(run, site, tmp_path, SUITE_READ_LINKS=extract)
    assert done.reason == DAMAGED
    said = [line for line in caplog.records if line.levelname == "CRITICAL"]
    assert len(said) == 1
    assert "waits for its links" in said[0].message
    assert not [line for line in caplog.records if line.exc_info]
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        assert len(reader.unextracted) == len(damaged)


@pytest.mark.slow
def test_a_folder_that_is_away_for_a_moment(
    run: Run, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is given up; and if it stays away, all is, and the crawl ends."""
    monkeypatch.setattr("scrapy_spider_suite.crawl.deferred_links._RETRY", 0.05)
    first, second, others = tmp_path / "first", tmp_path / "second", str(tmp_path / "others")
    stopped(run, site, first)
    shutil.copytree(first, second)
    back = (first / "packs").rename(tmp_path / "away")

    class Back(Broad):
        """Has it come back when something else was fetched."""

        def parse_page(self, response: Response) -> None:
            """See the class."""
            if back.exists():
                back.rename(first / "packs")

    done = crawl_site(run, site, first, Back, SUITE_PACKS_DIR=others)
    assert done.reason == "finished"
    assert states(first) == dict.fromkeys(everything(site), Event.SUCCESS)
    monkeypatch.setattr("scrapy_spider_suite.crawl.deferred_links._TRIES", 2)
    shutil.rmtree(first / "packs")  # where the copy's pages lie, too
    done = crawl_site(run, site, second, SUITE_PACKS_DIR=others)
    assert done.reason == "finished"
    assert done.stat("suite/extract/lost") >= 3


class Choosy(Broad):
    """Follows no link to a page with a 3, and fails at one page."""

    def choose_links(self, response: Response, links: list[str]) -> Iterable[str]:
        """Look at all that eager would give."""
        assert response.request is not None
        path = [part for part in urlsplit(response.url).path.split("/") if part]
        assert response.meta["depth"] == (3 if path == ["last"] else len(path))
        assert response.css("a") or path == ["last"]
        assert response.headers["Content-Type"] == b"text/html"
        if path == ["5"]:
            raise ValueError("never mind")
        return [link for link in links if "3" not in urlsplit(link).path]


def test_hooks_of_the_spider(run: Run, site: Site, tmp_path: Path) -> None:
    """They are asked with the page as it was; one that fails has its page end as ever.

    That page is counted: it was fetched, and it has links.
    """
    counted = []
    for how in ("eager", "on-demand"):
        job = tmp_path / how
        done = crawl_site(
            run, site, job, Choosy, SUITE_READ_LINKS=how, SUITE_LINK_STATS=TABLES
        )
        found = {url.removeprefix(site.url): event for url, event in states(job).items()}
        assert found.pop("/5") is Event.CALLBACK_ERROR
        assert "/3" not in found
        assert "/5/1" not in found
        assert {*found.values()} == {Event.SUCCESS}
        assert done.stat("suite/extract/hook_errors") == (how == "on-demand")
        counted.append(counts(job))
    assert counted[0] == counted[1]


@pytest.mark.parametrize("how", ["eager", "on-demand"])
def test_what_traps_are_told(
    how: str, run: Run, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which page was the first of its host; and late nothing of one that was visited again."""
    told: dict[str, int] = {}
    saw, settle = Traps.learn_page, DeferredLinks.settle

    def seeing(traps: Traps, url: str, *args: Any, pages: int, **more: Any) -> None:
        told[url.removeprefix(site.url)] = pages
        saw(traps, url, *args, pages=pages, **more)

    def settling(extractor: DeferredLinks, fetch: Fetch) -> None:
        again = fetch.entry.url.endswith("/3/3")
        fetch.plan = mock.Mock() if again else None
        settle(extractor, fetch)
        fetch.plan = None

    monkeypatch.setattr(Traps, "learn_page", seeing)
    monkeypatch.setattr(DeferredLinks, "settle", settling)
    # What a host has is counted at commits: without a delay all may be fetched before the first.
    monkeypatch.setattr(Trap.HOSTS, "threshold", 5)
    given = {"SUITE_TRAPS": "hosts=fail", "SUITE_READ_LINKS": how, "SUITE_HOST_DELAY": 0.05}
    crawl_site(run, site, tmp_path, **given)
    assert told["/"] == 0
    assert max(told.values()) > 0
    late = how == "on-demand"
    assert told.keys() ^ {url.removeprefix(site.url) for url in everything(site)} == (
        {"/3/3"} if late else set()
    )


def test_what_is_not_packed_is_read_at_once(run: Run, site: Site, tmp_path: Path) -> None:
    """SUITE_STORE_FILTER."""
    done = crawl_site(run, site, tmp_path, SUITE_STORE_FILTER="URLMatchesRegex(.*/last)")
    assert set(states(tmp_path)) == everything(site)
    assert done.stat("suite/extract/at_once") == len(everything(site)) - 1
    assert done.stat("suite/extract/read") == 1


def test_duplicates_are_read_at_once(run: Run, site: Site, tmp_path: Path) -> None:
    """Whether their links are followed is decided as with eager: pages with one link are alike."""
    done = crawl_site(
        run, site, tmp_path, SUITE_COMPARE_PAGES="payload", SUITE_FOLLOW_DUPLICATES=False
    )
    assert set(states(tmp_path)) == everything(site)
    assert done.stat("suite/extract/at_once") == 0
    assert done.stat("suite/duplicates/not_followed") == 35
    assert done.stat("suite/extract/read") == len(everything(site)) - 35


def test_compressed_pages(run: Run, tmp_path: Path) -> None:
    """They are decompressed as ever; what nobody can decompress is no page."""
    kinds = {"Content-Encoding": "gzip", "Content-Type": "text/html; charset=utf-8"}
    body = gzip.compress(links("/plain", "/é").encode())
    pages: dict[str, Page] = {
        "/": links("/gzip", "/strange"), "/gzip": Answer(body, headers=kinds),
        "/strange": Answer(body, headers=kinds | {"Content-Encoding": "rot13"}),
        "/plain": links(), "/%C3%A9": links(),
    }  # fmt: skip
    with running(Site(pages)) as site:
        done = crawl_site(run, site, tmp_path)
        assert set(states(tmp_path)) == everything(site)
    assert done.stat("suite/extract/read") == 4
    packs = open_packs(tmp_path / "packs")
    page = packs.get(f"{site.url}/gzip")
    assert page is not None
    assert [link.url for link in page.links] == [f"{site.url}/plain", f"{site.url}/%C3%A9"]
    strange = packs.get(f"{site.url}/strange")
    assert strange is not None
    assert strange.links == []


class Rewriting:
    """A middleware of a project: it has the page at /changed lead elsewhere, and the others not."""

    def process_response(self, request: Request, response: Response, spider: Any = None) -> Any:
        """See the class."""
        path = urlsplit(request.url).path
        if path == "/changed":
            return response.replace(body=links("/new").encode())
        if path == "/closed":
            response.headers["X-Robots-Tag"] = "nofollow"
        return response.replace(status=203) if path == "/status" else response


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_pages_that_a_middleware_has_changed(encoding: str, run: Run, tmp_path: Path) -> None:
    """They are read at once, compressed or not: packs have what came of the wire."""
    kinds = {"Content-Encoding": encoding, "Content-Type": "text/html; charset=utf-8"}
    body = links("/old").encode()
    page = Answer(gzip.compress(body) if encoding == "gzip" else body, headers=kinds)
    pages: dict[str, Page] = {
        "/": links("/changed", "/closed", "/status"),
        "/changed": page, "/closed": page, "/status": page, "/old": links(), "/new": links(),
    }  # fmt: skip
    with running(Site(pages)) as site:
        done = crawl_site(run, site, tmp_path, DOWNLOADER_MIDDLEWARES={Rewriting: 10})
        assert set(states(tmp_path)) == everything(site)
    assert done.stat("suite/extract/at_once") == 3
    assert done.stat("suite/extract/read") == 3
    assert done.stat("suite/links/nofollow_pages") == 1


# Settings


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "SUITE_PACKS_DIR"),
        ({"SUITE_PACKS_DIR": "packs", "SUITE_PROFILE": "spider"}, "spider profile"),
        (
            {"SUITE_PACKS_DIR": "packs", "SUITE_PACKS_UPLOAD": "/there", "SUITE_PACKS_KEEP": False},
            "SUITE_PACKS_KEEP",
        ),
        ({"SUITE_READ_LINKS": "lazy"}, "'eager' or 'on-demand'"),
    ],
)
def test_settings_that_make_no_sense(values: dict[str, Any], said: str) -> None:
    """One line, which names the setting, and what it needs."""
    settings = Settings({"SUITE_READ_LINKS": "on-demand", "SUITE_PROFILE": "broad", **values})
    with pytest.raises(SettingsError, match=said) as caught:
        SuiteSettings.from_settings(settings, Spider)
    assert str(caught.value).startswith("SUITE_READ_LINKS = ")
    assert "\n" not in str(caught.value)
