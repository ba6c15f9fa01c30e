"""``set``: live settings take effect in a crawl that runs; the others are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.downloadtimeout import DownloadTimeoutMiddleware
from support.inprocess_crawls import crawl_here
from support.webs import FakeWebProcess

from scrapy_spider_suite.crawl.assembly import open_crawl
from scrapy_spider_suite.crawl.context import Crawl, get_crawl
from scrapy_spider_suite.crawl.gate import Caps
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.extensions.fetch_recorder import FetchRecorder
from scrapy_spider_suite.extensions.quietlog import QuietLog
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.operate.executors.running_crawl import change_setting
from scrapy_spider_suite.settings.declarations import setting_name
from scrapy_spider_suite.settings.suite import DECLARATIONS, suite_settings
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_directory import FOLDER, JobHistory
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.testing import FakeWebConfig
from scrapy_spider_suite.urls.filters import Stage

T = TypeVar("T")


@dataclass
class Parts:
    """What a running crawl consists of."""

    crawler: Crawler

    @property
    def crawl(self) -> Crawl:
        """The core."""
        return get_crawl(self.crawler)

    @property
    def caps(self) -> Caps:
        """The caps of the job."""
        return open_crawl(self.crawler).visits.caps

    @property
    def policy(self) -> Policy:
        """The policy that the frontier goes by."""
        return self.crawl.frontier.policy

    @property
    def store(self) -> RocksStore:
        """The store on disk."""
        assert isinstance(self.crawl.store, RocksStore)
        return self.crawl.store

    @cached_property
    def evidence(self) -> FetchRecorder:
        """The extension in use."""
        found = self.crawler.get_extension(FetchRecorder)
        assert isinstance(found, FetchRecorder)
        return found

    @cached_property
    def quiet(self) -> QuietLog:
        """The extension in use."""
        found = self.crawler.get_extension(QuietLog)
        assert isinstance(found, QuietLog)
        return found

    def read(self, name: str) -> Any:
        """A setting that is read each time it is needed."""
        assert self.crawl.settings is suite_settings(self.crawler)
        return getattr(self.crawl.settings, name)


def _anew(name: str) -> Callable[[Parts], Any]:
    return lambda parts: parts.read(name)


def _revisiting(name: str) -> Callable[[Parts], Any]:
    def probe(parts: Parts) -> Any:
        open_crawl(parts.crawler).revisits.pulse()
        return getattr(parts.crawl.frontier.commit.planner.revisits.settings, name)

    return probe


Probe = Callable[[Parts], Any]
PROBES: dict[str, tuple[str, Any, Probe]] = {
    "host_delay": ("7s", 7.0, lambda p: p.policy.host.delay),
    "ip_delay": ("3", 3.0, lambda p: p.policy.for_address("192.0.2.1").delay),
    "host_concurrency": ("4", 4, lambda p: p.policy.for_host("a.test").concurrency),
    "ip_concurrency": ("6", 6, lambda p: p.policy.for_address("192.0.2.1").concurrency),
    "requests_per_visit": ("5", 5, lambda p: p.policy.for_host("a.test").burst),
    "backoff_base": ("2", 2.0, lambda p: p.policy.back_off.base),
    "backoff_max": ("1h", 3600.0, lambda p: p.policy.back_off.longest),
    "dead_host_failures": ("3", 3, lambda p: p.policy.back_off.dead_after),
    "retry_times": ("9", 9, lambda p: p.policy.retry_times),
    "retry_failed_after": ("2h", 7200.0, lambda p: p.policy.retry_failed_after),
    "retry_failed": ("dns", {Event.DNS}, lambda p: p.policy.retry_failed),
    "host_max_pages": ("11", 11, lambda p: p.policy.max_pages("a.test")),
    "host_max_depth": ("12", 12, lambda p: p.policy.host_max_depth),
    "domain_max_pages": ("21", 21, lambda p: p.policy.domain_max_pages),
    "domain_max_hosts": ("22", 22, lambda p: p.policy.domain_max_hosts),
    "max_pages": ("1000", 1000, lambda p: p.policy.job_max_pages),
    "max_bytes": ("1G", 1 << 30, _anew("max_bytes")),
    "max_time": ("1d", 86400.0, _anew("max_time")),
    "max_bandwidth": ("9M", 9 << 20, lambda p: (
        p.caps.pause(p.crawl.now()) * 0 or p.caps._bandwidth.rate
    )),
    "body_max": ("1M", 1 << 20, _anew("body_max")),
    "media_types": ("Text/*", ("text/*",), _anew("media_types")),
    **{
        f"{stage}_filter": (
            "TRUE", "TRUE", lambda p, stage=stage: str(p.crawl.filters.for_stage(stage))
        )
        for stage in Stage
    },
    "traps": ("same=fail", (24, 0), lambda p: (p.policy.traps.same, p.policy.traps.hosts)),
    "max_wait": ("0", 0.0, _anew("max_wait")),
    "stop_timeout": ("3", 3.0, _anew("stop_timeout")),
    "when_done": ("wait", "wait", _anew("when_done")),
    "min_free": ("1G", 1 << 30, _anew("min_free")),
    "stall_timeout": ("1h", 3600.0, _anew("stall_timeout")),
    "revisit_interval": ("2d", 172_800.0, _revisiting("seconds")),
    "fetch_log_max": ("1G", 1 << 30, lambda p: p.evidence._log and p.evidence._log.most),
    "quiet_log": ("false", [], lambda p: p.quiet._handlers),
    "handover_rate": ("1M", 1 << 20, _anew("handover_rate")),
}  # fmt: skip
"""Setting -> what is set, what is found then, and where."""


class Waiting(BroadSpider):
    """Waits for nothing to come."""

    name = "waiting"
    custom_settings: ClassVar[Any] = {"SUITE_WHEN_DONE": "wait", "ROBOTSTXT_OBEY": True}


@pytest.fixture(scope="module")
def web() -> Iterator[FakeWebProcess]:
    """One host."""
    with FakeWebProcess(FakeWebConfig(hosts=1, pages=1)) as web:
        yield web


def _beside(web: FakeWebProcess, tmp_path: Path, act: Callable[[Parts], None], run: Any) -> None:
    """Let *act* do something while a crawl runs."""
    met: list[BaseException] = []

    async def crawl() -> None:
        crawlers: list[Crawler] = []
        task = asyncio.ensure_future(
            crawl_here(
                Waiting, watch=crawlers.append, arguments={"seeds": web.ready.seeds[0]},
                JOBDIR=str(tmp_path / "job"), SUITE_PACKS_DIR=str(tmp_path / "packs"),
                USER_AGENT="x (+mailto:a@b.test)",
                SUITE_ALLOW_PRIVATE_ADDRESSES=["127.0.0.0/8"], SUITE_HOST_DELAY=0.01,
                SUITE_DNS_SERVERS=[f"127.0.0.1:{web.ready.dns_port}"],
            )
        )  # fmt: skip
        try:
            while not crawlers or not crawlers[0].stats.get_value("response_received_count"):
                assert not task.done()
                await asyncio.sleep(0.02)
            act(Parts(crawlers[0]))
        except BaseException as error:
            met.append(error)
        if not task.done():
            await crawlers[0].stop_async()
        await task

    run(crawl())
    if met:
        raise met[0]


def test_live_settings(web: FakeWebProcess, tmp_path: Path, run: Any) -> None:
    """One after the other in one crawl: refused, or in force where it is used."""

    def act(parts: Parts) -> None:
        for name, (text, expected, probe) in PROBES.items():
            change_setting(parts.crawl, setting_name(name), text)
            assert probe(parts) == expected, name
        for name in PROBES:
            change_setting(parts.crawl, setting_name(name), "default")
        for name, declared in DECLARATIONS.items():
            if declared.live:
                assert name in PROBES, f"{name}: where does it take effect?"
            else:
                with pytest.raises(SettingsError, match=r"holds from a start|fixed for the life"):
                    change_setting(parts.crawl, setting_name(name), "default")

    _beside(web, tmp_path, act, run)


@pytest.mark.filterwarnings("ignore:.*download_timeout:scrapy.exceptions.ScrapyDeprecationWarning")
def test_what_scrapy_keeps_of_its_own_is_live(
    web: FakeWebProcess, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places on the wire, and how long a download may take; ``default`` is what it began with."""
    monkeypatch.setattr(Waiting, "download_timeout", 45, raising=False)

    def act(parts: Parts) -> None:
        engine, crawl = parts.crawler.engine, parts.crawl
        assert engine is not None
        downloader = engine.downloader

        def places() -> int:
            out, downloader.active = downloader.active, set()
            while not downloader.needs_backout():
                downloader.active.add(Request(f"http://a.test/{len(downloader.active)}"))
            taken, downloader.active = len(downloader.active), out
            return taken

        def timeout() -> Any:
            request = Request("http://a.test/")
            found = parts.crawler.get_downloader_middleware(DownloadTimeoutMiddleware)
            assert found is not None
            found.process_request(request)
            assert crawl.settings.project.download_timeout == request.meta["download_timeout"]
            return request.meta["download_timeout"]

        for name, text, value, probe in (
            ("CONCURRENT_REQUESTS", "3", 3, places),
            ("DOWNLOAD_TIMEOUT", "2m", 120.0, timeout),
        ):
            before = probe()
            assert change_setting(crawl, name, text) == (before, value)
            assert probe() == value
            for bad in ("-1", "many"):
                with pytest.raises(SettingsError, match=f"{name} = '{bad}': expected a "):
                    change_setting(crawl, name, bad)
            assert change_setting(crawl, name, "default") == (value, before)
            assert probe() == before

    _beside(web, tmp_path, act, run)
    chronicle = JobHistory(tmp_path / "job" / FOLDER).rows()
    changed = [(row["name"], row["new"]) for row in chronicle if row["event"] == "changed"]
    assert changed == [
        ("CONCURRENT_REQUESTS", 3), ("CONCURRENT_REQUESTS", 200),
        ("DOWNLOAD_TIMEOUT", 120.0), ("DOWNLOAD_TIMEOUT", 45.0),
    ]  # fmt: skip


def test_what_is_refused_changes_nothing(
    web: FakeWebProcess, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown names, bad values, values that contradict others, a file that is none."""
    bad = tmp_path / "none.filter"

    def act(parts: Parts) -> None:
        before, revision = parts.crawl.settings, parts.policy.revision
        for name, value, said in (
            ("SUITE_HOST_DLAY", "4", "did you mean SUITE_HOST_DELAY"),
            ("DOWNLOAD_DELAY", "4", "use SUITE_HOST_DELAY"),
            ("SUITE_HOST_DELAY", "soon", "expected a number of seconds"),
            ("SUITE_BACKOFF_BASE", "2h", "at most SUITE_BACKOFF_MAX"),
            ("SUITE_FETCH_FILTER", f"@{bad}", "a file that exists"),
        ):
            with pytest.raises(SettingsError, match=said):
                change_setting(parts.crawl, name, value)
        assert parts.crawl.settings is before
        assert parts.policy.revision == revision
        assert parts.crawler.engine is not None

    _beside(web, tmp_path, act, run)
