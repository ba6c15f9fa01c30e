"""Cookies over a restart, for Scrapy's middleware and for the suite's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import scrapy.downloadermiddlewares.cookies
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from scrapy.http.cookies import CookieJar
from scrapy.signalmanager import SignalManager
from scrapy.utils.test import get_crawler
from support.codec_values import in_a_loop, until

from scrapy_spider_suite.downloadermiddlewares.cookies import HostCookiesMiddleware
from scrapy_spider_suite.extensions import persistence as module
from scrapy_spider_suite.extensions.persistence import SavedCookies
from scrapy_spider_suite.store.interface import CookieJars, MemoryKV
from scrapy_spider_suite.urls import hosts

URL = "http://www.a.example/"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy's middleware would fetch the list of public suffixes."""
    monkeypatch.setattr(scrapy.downloadermiddlewares.cookies, "_split_domain", hosts._suffixes())


class StubCrawler:
    """As much of a crawler as the keeper uses."""

    def __init__(self, middleware: CookiesMiddleware | None) -> None:
        self.signals = SignalManager()
        self._middleware = middleware

    def get_downloader_middleware(self, cls: type) -> CookiesMiddleware | None:
        """The middleware, if there is one."""
        return self._middleware


def run(
    kv: MemoryKV | None,
    middleware: CookiesMiddleware | None,
    use: Callable[[Any], Any] = lambda middleware: None,
    period: float = 60,
    trade: Callable[[CookieJars], Any] = lambda jars: None,
) -> None:
    """Open a spider, *use* the middleware, *trade* cookies with other agents, close it."""
    store = SimpleNamespace(kv=lambda name: kv)
    job = None if kv is None else SimpleNamespace(store=store, cookies=None)

    async def crawl() -> None:
        crawler = cast(Crawler, StubCrawler(middleware))
        maintenance = SavedCookies(crawler)
        maintenance.spider_opened()
        used = use(middleware)
        if asyncio.iscoroutine(used):
            await used
        if job is not None and job.cookies is not None:
            trade(job.cookies)
        maintenance.spider_closed()

    with (
        patch.object(module, "job_of", lambda crawler: job),
        patch.object(module, "COOKIES_PERIOD", period),
    ):
        in_a_loop(crawl())


def receive(middleware: CookiesMiddleware, *cookies: str, url: str = URL, jar: Any = None) -> None:
    """A page of *url* sets *cookies*."""
    request = Request(url, meta={} if jar is None else {"cookiejar": jar})
    middleware.process_response(request, Response(url, headers={"Set-Cookie": list(cookies)}))


def sent(middleware: CookiesMiddleware, url: str = URL, jar: Any = None) -> str:
    """The cookies that a request for *url* carries."""
    request = Request(url, meta={} if jar is None else {"cookiejar": jar})
    middleware.process_request(request)
    return (request.headers.get("Cookie") or b"").decode()


both = pytest.mark.parametrize("make", [CookiesMiddleware, HostCookiesMiddleware])


@both
class TestBoth:
    """What holds for either middleware."""

    def test_kept_over_a_restart(self, make: type[CookiesMiddleware]) -> None:
        """Session cookies, lasting ones and those of other jars are sent again."""
        kv = MemoryKV()

        def use(middleware: CookiesMiddleware) -> None:
            receive(middleware, "session=1", "lasting=2; Max-Age=1000; Domain=a.example")
            receive(middleware, "user=b", jar=("login", 2))

        run(kv, make(), use)
        again = make()
        run(kv, again)
        assert sent(again) == "session=1; lasting=2"
        assert sent(again, "http://other.a.example/") == "lasting=2"
        assert sent(again, jar=("login", 2)) == "user=b"

    def test_other_agents_have_them(self, make: type[CookiesMiddleware]) -> None:
        """The cookies of a domain, of all its jars, and no others."""
        rows = dict[Any, tuple[float, bytes]]()

        def use(middleware: CookiesMiddleware) -> None:
            receive(middleware, "session=1", "all=2; Domain=a.example")
            receive(middleware, "user=b", jar=("login", 2))
            receive(middleware, "other=3", url="http://b.example/")

        def give(jars: CookieJars) -> None:
            keys = jars.by_domain()
            assert set(keys) == {"a.example", "b.example"}
            rows.update({key: jars.row(key) for key in keys["a.example"]})
            assert jars.changed(0.0) >= {"a.example"}
            assert not jars.changed(time.time() + 1)

        def take(jars: CookieJars) -> None:
            for key, (when, packed) in rows.items():
                jars.take(key, when, packed)

        run(MemoryKV(), make(), use, trade=give)
        kv, other = MemoryKV(), make()
        run(kv, other, lambda middleware: receive(middleware, "own=4"), trade=take)
        again = make()
        run(kv, again)
        for each in (other, again):
            assert sorted(sent(each).split("; ")) == ["all=2", "own=4", "session=1"]
            assert sent(each, "http://other.a.example/") == "all=2"
            assert sent(each, jar=("login", 2)) == "user=b"
            assert sent(each, "http://b.example/") == ""

    def test_the_later_session_stays(self, make: type[CookiesMiddleware]) -> None:
        """What another agent saved before, or after, the session here began."""
        packed = dict[str, bytes]()

        def save(name: str) -> None:
            def give(jars: CookieJars) -> None:
                [key] = jars.by_domain()["a.example"]
                _, packed[name] = jars.row(key) or (0.0, b"")

            run(MemoryKV(), make(), lambda each: receive(each, f"session={name}"), trade=give)

        save("old")
        save("new")
        key, now, middleware = (None, "a.example"), time.time(), make()

        def trade(jars: CookieJars) -> None:
            jars.by_domain()
            jars.take(key, now - 1_000, packed["old"])
            assert sent(middleware) == "session=own"
            jars.take(key, now + 1_000, packed["new"])
            assert sent(middleware) == "session=new"

        run(MemoryKV(), middleware, lambda each: receive(each, "session=own"), trade=trade)

    def test_expired_ones_are_dropped(
        self, make: type[CookiesMiddleware], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What ended while the crawl was down does not come back, nor does its row stay."""
        kv = MemoryKV()
        run(kv, make(), lambda middleware: receive(middleware, "a=1; Max-Age=100"))
        assert len(kv) == 1
        late = time.time() + 200
        monkeypatch.setattr(time, "time", lambda: late)
        again = make()
        run(kv, again)
        assert sent(again) == ""
        assert len(kv) == 0

    def test_deleted_ones_stay_deleted(self, make: type[CookiesMiddleware]) -> None:
        """A jar that was emptied leaves no row."""
        kv = MemoryKV()
        run(kv, make(), lambda middleware: receive(middleware, "a=1"))
        run(kv, make(), lambda middleware: receive(middleware, "a=1; Max-Age=0"))
        assert len(kv) == 0

    def test_saved_while_the_crawl_runs(self, make: type[CookiesMiddleware]) -> None:
        """A change is written within a period, and only a change."""
        puts: list[bytes] = []

        class Counting(MemoryKV):
            """Notes every write."""

            def put(self, key: bytes, value: bytes) -> None:
                puts.append(key)

        async def use(middleware: CookiesMiddleware) -> None:
            await asyncio.sleep(0.02)
            assert not puts
            receive(middleware, "a=1")
            await until(lambda: len(puts) == 1)
            receive(middleware, "a=2")
            await until(lambda: len(puts) == 2)
            await asyncio.sleep(0.03)

        run(Counting(), make(), use, period=0.002)
        assert len(puts) == 2

    def test_damaged_rows(
        self, make: type[CookiesMiddleware], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Rows that cannot be read cost a line each; the others are used."""
        kv = MemoryKV()
        run(kv, make(), lambda middleware: receive(middleware, "a=1"))
        prefix = b"jar\0" if make is CookiesMiddleware else b"host\0"
        for key, value in [(b"\xc1", b"\x90"), (b"\xa1x", b"\xc1"), (b"\x90", b"\x90")]:
            kv.put(prefix + key, value)
        again = make()
        run(kv, again)
        assert sent(again) == "a=1"
        assert caplog.text.count("cannot be read") == 3

    def test_a_jar_whose_key_cannot_be_stored(
        self, make: type[CookiesMiddleware], caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is used, but not kept; said once."""
        kv = MemoryKV()

        def use(middleware: CookiesMiddleware) -> None:
            for _ in range(2):
                receive(middleware, "a=1", jar=object())
            receive(middleware, "b=1")

        run(kv, make(), use)
        assert len(kv) == 1
        assert caplog.text.count("is not kept over a restart") == 1

    def test_many_jars_do_not_hold_up_the_crawl(
        self, make: type[CookiesMiddleware], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A period does a slice of the work; the end does all of it."""
        monkeypatch.setattr(module, "SLICE", 0.0)
        kv = MemoryKV()

        async def use(middleware: CookiesMiddleware) -> None:
            for number in range(50):
                receive(middleware, "a=1", jar=number)
            await until(lambda: len(kv) > 1)
            assert len(kv) < 50

        run(kv, make(), use, period=0.002)
        assert len(kv) == 50


def test_a_jar_that_the_spider_removed() -> None:
    """A jar that is no longer there is not there after the restart either."""
    kv = MemoryKV()
    run(kv, CookiesMiddleware(), lambda middleware: receive(middleware, "a=1", jar="x"))
    run(kv, CookiesMiddleware(), lambda middleware: middleware.jars.clear())
    assert len(kv) == 0


def test_a_jar_that_is_too_big(caplog: pytest.LogCaptureFixture) -> None:
    """A jar beyond what can be stored is said not to be kept."""
    kv = MemoryKV()
    big = "x" * (6 << 20)
    run(
        kv,
        CookiesMiddleware(),
        lambda middleware: receive(middleware, *(f"{n}={big}" for n in "abc")),
    )
    assert "is not kept over a restart" in caplog.text
    assert len(kv) == 0


def test_rows_beyond_this_runs_bounds() -> None:
    """Domains for which there is no room any more lose their rows."""
    kv = MemoryKV()

    def use(middleware: CookiesMiddleware) -> None:
        for number in range(5):
            receive(middleware, "a=1", url=f"http://h{number}.example/")

    run(kv, HostCookiesMiddleware(), use)
    assert len(kv) == 5
    with patch.object(HostCookiesMiddleware, "max_hosts", 2):
        run(kv, HostCookiesMiddleware())
    assert len(kv) == 2


def test_nothing_to_keep() -> None:
    """Without a job, or with a foreign cookies middleware, nothing is done."""
    run(None, CookiesMiddleware(), lambda middleware: receive(middleware, "a=1"))
    kv = MemoryKV()
    run(kv, None)
    assert len(kv) == 0
    assert isinstance(CookiesMiddleware().jars[None], CookieJar)


def test_from_crawler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs cookies and a job directory, and asks the job only when the spider opens."""
    monkeypatch.setattr(module, "job_of", lambda crawler: pytest.fail("it asks the job"))
    for settings in ({}, {"JOBDIR": str(tmp_path), "COOKIES_ENABLED": False}):
        crawler = get_crawler(settings_dict=settings)
        crawler.crawling = True
        with pytest.raises(NotConfigured):
            SavedCookies.from_crawler(crawler)
    crawler = get_crawler(settings_dict={"JOBDIR": str(tmp_path)})
    crawler.crawling = True
    assert isinstance(SavedCookies.from_crawler(crawler), SavedCookies)


def test_nobody_says_what_another_site_has_set() -> None:
    """Cookies of another domain than that of the row are left out."""
    other, middleware = CookiesMiddleware(), CookiesMiddleware()
    rows = list[bytes]()

    def give(jars: CookieJars) -> None:
        jars.by_domain()
        rows.append((jars.row((None, "a.example")) or (0.0, b""))[1])

    run(MemoryKV(), other, lambda each: receive(each, "session=1"), trade=give)
    run(MemoryKV(), middleware, trade=lambda jars: jars.take((None, "b.example"), 1.0, rows[0]))
    assert sent(middleware) == ""


def test_cookies_that_came_before_the_spider_was_open() -> None:
    """They lie in rows of their own, and are taken once."""
    kv, other, middleware = MemoryKV(), HostCookiesMiddleware(), CookiesMiddleware()
    run(kv, other, lambda each: receive(each, "session=1"))
    run(kv, middleware)
    assert sent(middleware) == "session=1"
    assert [key[:4] for key, _ in kv.items()] == [b"jar\0"]
