"""``set``: every setting that a job does not fix takes effect in a crawl that runs."""

from __future__ import annotations

import asyncio
import time
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

from scrapy_spider_suite.analysis.near_duplicates import NearIndex
from scrapy_spider_suite.crawl.context import Crawl, get_crawl
from scrapy_spider_suite.crawl.sinks.item_packs import ItemPacking, ItemPacks
from scrapy_spider_suite.crawl.sinks.page_packs import PagePacks
from scrapy_spider_suite.downloadermiddlewares.cookies import HostCookiesMiddleware
from scrapy_spider_suite.downloadermiddlewares.robots import RobotsMiddleware
from scrapy_spider_suite.errors import ActionError, SettingsError
from scrapy_spider_suite.extensions.fetch_recorder import FetchRecorder
from scrapy_spider_suite.extensions.persistence import SpiderState
from scrapy_spider_suite.extensions.quietlog import QuietLog
from scrapy_spider_suite.frontier.entries import BestFirst, Entry
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.revisit_rules import Mode
from scrapy_spider_suite.operate.actions import Action
from scrapy_spider_suite.operate.executors import running_crawl
from scrapy_spider_suite.operate.executors.running_crawl import RunningJob, change_setting
from scrapy_spider_suite.operate.verb import WAITING
from scrapy_spider_suite.operate.verbs.set import set_value
from scrapy_spider_suite.packs import PackPlan
from scrapy_spider_suite.packs.upload import UploadThread
from scrapy_spider_suite.pipelines import IndexPipeline
from scrapy_spider_suite.settings.declarations import Kind, full_name
from scrapy_spider_suite.settings.suite import DECLARATIONS, suite_settings
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_directory import FOLDER, JobHistory
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess
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
    def policy(self) -> Policy:
        """The policy that the frontier goes by."""
        return self.crawl.frontier.policy

    @property
    def store(self) -> RocksStore:
        """The store on disk."""
        assert isinstance(self.crawl.store, RocksStore)
        return self.crawl.store

    @cached_property
    def robots(self) -> RobotsMiddleware:
        """The middleware in use."""
        found = self.crawler.get_downloader_middleware(RobotsMiddleware)
        assert isinstance(found, RobotsMiddleware)
        return found

    @cached_property
    def cookies(self) -> HostCookiesMiddleware:
        """The middleware in use."""
        found = self.crawler.get_downloader_middleware(HostCookiesMiddleware)
        assert isinstance(found, HostCookiesMiddleware)
        return found

    @cached_property
    def state(self) -> SpiderState:
        """The extension in use."""
        found = self.crawler.get_extension(SpiderState)
        assert isinstance(found, SpiderState)
        return found

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

    @property
    def near(self) -> NearIndex:
        """What pages are compared with by what they nearly say."""
        assert self.crawl.duplicates._near is not None
        return self.crawl.duplicates._near

    def sink(self, kind: type[T]) -> T:
        """That of a kind."""
        assert self.crawler.engine is not None
        sinks = self.crawler.engine._slot.scheduler.sinks
        [found] = [each for each in sinks if isinstance(each, kind)]
        return found

    @property
    def plan(self) -> PackPlan:
        """What the writer of packs goes by."""
        packing = self.sink(PagePacks)._now
        assert packing is not None
        return packing._writer._packing._plan

    @property
    def items(self) -> ItemPacking | None:
        """Who writes items."""
        return self.sink(ItemPacks)._now

    @property
    def uploads(self) -> UploadThread | None:
        """Who uploads packs."""
        packing = self.sink(PagePacks)._now
        assert packing is not None
        return packing._closed._uploads

    @property
    def index(self) -> IndexPipeline:
        """What has packs indexed."""
        found = self.crawler.get_item_pipeline(IndexPipeline)
        assert isinstance(found, IndexPipeline)
        return found

    def score(self, entry: Entry) -> float:
        """By which it takes its place in the queue of its host."""
        order = self.crawl.ordering.key.__self__
        assert isinstance(order, BestFirst)
        return order._score(entry)

    def read(self, name: str) -> Any:
        """A setting that is read each time it is needed."""
        assert self.crawl.settings is suite_settings(self.crawler)
        return getattr(self.crawl.settings, name)


def _anew(name: str) -> Callable[[Parts], Any]:
    return lambda parts: parts.read(name)


def _revisiting(name: str) -> Callable[[Parts], Any]:
    def probe(parts: Parts) -> Any:
        parts.crawl.revisits.pulse()
        return getattr(parts.crawl.frontier.planner.revisits.settings, name)

    return probe


Probe = Callable[[Parts], Any]
PROBES: dict[str, tuple[str, Any, Probe]] = {
    "follow": ("true", True, _anew("follow")),
    "seeds": ("http://127.0.0.1:9/", True, lambda p: p.crawler.engine._slot.scheduler.starting),
    "host_delay": ("7s", 7.0, lambda p: p.policy.host.delay),
    "ip_delay": ("3", 3.0, lambda p: p.policy.of_address("192.0.2.1").delay),
    "host_concurrency": ("4", 4, lambda p: p.policy.of_host("a.test").concurrency),
    "ip_concurrency": ("6", 6, lambda p: p.policy.of_address("192.0.2.1").concurrency),
    "requests_per_visit": ("5", 5, lambda p: p.policy.of_host("a.test").burst),
    "overrides": ("OVERRIDES", 99.0, lambda p: p.policy.of_host("slow.test").delay),
    "backoff_base": ("2", 2.0, lambda p: p.policy.back_off.base),
    "backoff_max": ("1h", 3600.0, lambda p: p.policy.back_off.longest),
    "dead_host_failures": ("3", 3, lambda p: p.policy.back_off.dead_after),
    "retry_times": ("9", 9, lambda p: p.policy.retry_times),
    "retry_failed_after": ("2h", 7200.0, lambda p: p.policy.retry_failed_after),
    "retry_failed": ("dns", {Event.DNS}, lambda p: p.policy.retry_failed),
    "sitemaps": ("all", "all", _anew("sitemaps")),
    "host_max_pages": ("11", 11, lambda p: p.policy.max_pages("a.test")),
    "host_max_depth": ("12", 12, lambda p: p.policy.host_max_depth),
    "domain_max_pages": ("21", 21, lambda p: p.policy.domain_max_pages),
    "domain_max_hosts": ("22", 22, lambda p: p.policy.domain_max_hosts),
    "max_pages": ("1000", 1000, lambda p: p.policy.job_max_pages),
    "max_bytes": ("1G", 1 << 30, _anew("max_bytes")),
    "max_time": ("1d", 86400.0, _anew("max_time")),
    "max_bandwidth": ("9M", 9 << 20, lambda p: (
        p.crawl.caps.pause(p.crawl.now()) * 0 or p.crawl.caps._bandwidth.rate
    )),
    "prefer_https": ("true", True, lambda p: p.crawl.normalizer.twins is not None),
    "from_header": ("false", False, _anew("from_header")),
    "body_max": ("1M", 1 << 20, _anew("body_max")),
    "media_types": ("Text/*", ("text/*",), _anew("media_types")),
    **{
        f"{stage}_filter": ("TRUE", "TRUE", lambda p, stage=stage: str(p.crawl.filters.of(stage)))
        for stage in Stage
    },
    "traps": ("same=fail", (24, 0), lambda p: (p.policy.traps.same, p.policy.traps.hosts)),
    "guess_urls": ("both", "both", _anew("guess_urls")),
    "max_wait": ("0", 0.0, _anew("max_wait")),
    "when_done": ("finish", "finish", _anew("when_done")),
    "stop_timeout": ("3", 3.0, _anew("stop_timeout")),
    "min_free": ("1G", 1 << 30, _anew("min_free")),
    "stall_timeout": ("1h", 3600.0, _anew("stall_timeout")),
    "exit_codes": ("true", True, _anew("exit_codes")),
    "commit_survives": ("power", (True, True), lambda p: (
        p.store._write_options.sync, p.plan.power
    )),
    "memory": ("64M", (64 << 20, 10922), lambda p: (
        p.store._tuning.memory, p.crawl.frontier.residents.capacity
    )),
    "require_durable": ("true", True, _anew("require_durable")),
    "storable": ("pkg.mod", (True, True), lambda p: (
        "pkg.mod" in p.crawl._codec().values.classes.allowed,
        "pkg.mod" in p.state._values.classes.allowed,
    )),
    "dns_servers": ("127.0.0.1:5399", 1, lambda p: len(p.crawl.resolver._channels._servers)),
    "dns_ttl_max": ("1d", 86400.0, lambda p: p.crawl.resolver.limits.ttl_max),
    "ip_family": ("4", "4", lambda p: p.crawl.resolver.family),
    "allow_private_addresses": (
        "10.0.0.0/8", None, lambda p: p.crawl.resolver.policy.why_refused("10.1.2.3", "a.test")
    ),
    "follow_duplicates": ("false", False, _anew("follow_duplicates")),
    "revisit": ("adaptive", Mode.ADAPTIVE, _revisiting("mode")),
    "revisit_interval": ("2d", 172_800.0, _revisiting("seconds")),
    "revisit_least": ("1m", 60.0, _revisiting("least")),
    "revisit_most": ("9d", 777_600.0, _revisiting("most")),
    "revisit_weight": ("0.5", 0.5, _anew("revisit_weight")),
    "fetch_log_max": ("1G", 1 << 30, lambda p: p.evidence._log and p.evidence._log.most),
    "fetch_log": ("false", None, lambda p: p.evidence._log),
    "quiet_log": ("false", [], lambda p: p.quiet._handlers),
    "phases": ("3", 3, lambda p: p.policy.phases and p.policy.phases.count),
    "phase_seconds": ("20", 20.0, lambda p: p.policy.phases and p.policy.phases.seconds),
    "phase_guard": ("2", 2.0, lambda p: p.policy.phases and p.policy.phases.guard),
    "packs_size": ("2M", 2 << 20, lambda p: p.plan.max_bytes),
    "packs_age": ("9", 9.0, lambda p: p.plan.max_age),
    "score": (f"{__name__}.shallow", -3.0, lambda p: p.score(Entry("a.test", "", depth=3))),
    "window": ("top", 100, lambda p: p.crawl.frontier.residents.sliding._window.columns),
    "window_size": ("7", 7, lambda p: p.crawl.frontier.residents.sliding._window.columns),
    "countries": ("COUNTRIES", "DE", lambda p: (
        (of := p.crawl.filters._set.given.country_of) and of("192.0.2.1")
    )),
    # What several agents go by has tests of its own (tests/cluster).
    "agent_weight": ("2", 2.0, _anew("agent_weight")),
    "agent_address": ("192.0.2.1:7000", "192.0.2.1:7000", _anew("agent_address")),
    "agents": ("a=192.0.2.1:7000", ("a=192.0.2.1:7000",), _anew("agents")),
    "cluster_key": ("0123456789abcdef", True, lambda p: p.crawl.settings.cluster_key is not None),
    "shared_seeds": ("false", False, _anew("shared_seeds")),
    "handover_dir": ("FOLDER", "FOLDER", lambda p: p.crawl.settings.handover_dir.name),
    "handover_rate": ("1M", 1 << 20, _anew("handover_rate")),
    "rate_ledger": ("LEDGER", True, lambda p: p.crawl.frontier.permits.lender is p.crawl.sharing),
    "seen_store": ("sieve", (True, True), lambda p: (
        p.store.sieve is not None, p.crawl.frontier.sifter and p.crawl.frontier.sifter.active
    )),
    "redis_url": ("redis://127.0.0.1:9/3", "redis://127.0.0.1:9/3", lambda p: (
        p.crawl.settings.redis_url and p.crawl.settings.redis_url.url
    )),
    "compare_pages": ("near,payload", (True, True, False), lambda p: tuple(
        each is not None for each in
        (p.crawl.duplicates._near, p.crawl.duplicates._payloads, p.crawl.duplicates._structures)
    )),
    "packs_dir": ("FOLDER", "FOLDER", lambda p: p.plan.folder.name),
    "packs_format": ("zst", "zst", lambda p: p.plan.form),
    "crawl_name": ("mine", "mine", lambda p: p.plan.crawl.name),
    "agent_name": ("me", "me", lambda p: p.plan.agent),
    "operator": ("Us", "Us", lambda p: p.plan.crawl.operator),
    "packs_upload": ("memory://up", True, lambda p: p.uploads is not None),
    "packs_keep": ("false", False, lambda p: p.uploads and p.uploads._keep),
    "read_links": ("on-demand", "on-demand", _anew("read_links")),
    "items_dir": ("FOLDER", "FOLDER", lambda p: p.items and p.items._folder.name),
    "page_items": ("true", True, _anew("page_items")),
    "link_stats": ("hosts", True, lambda p: p.crawl.counting is not None),
    "index": ("true", True, lambda p: p.index._indexing is not None),
}  # fmt: skip
"""Setting -> what is set, what is found then, and where."""


NOT_WITHOUT = {"score"}
"""One of them is needed in the order that the crawl has."""


def shallow(url: str, depth: int, referrer: str) -> float:
    """A score such as a project might have."""
    return -depth


def deep(url: str, depth: int, referrer: str) -> float:
    """Another one."""
    return depth


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
                SUITE_ORDER="best-first", SUITE_SCORE=f"{__name__}.deep",
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


def test_every_setting_is_live(web: FakeWebProcess, tmp_path: Path, run: Any) -> None:
    """One after the other in one crawl: refused, or in force where it is used."""
    files = {
        "OVERRIDES": "slow.test delay=99\n", "SCORES": "http://a.test/\t0.5\n",
        "COUNTRIES": "192.0.2.0/24,DE\n", "FOLDER": "", "LEDGER": "",
    }  # fmt: skip
    for name, text in files.items():
        if text:
            (tmp_path / name).write_text(text)

    def act(parts: Parts) -> None:
        _ = parts.robots.store
        for name, (text, expected, probe) in PROBES.items():
            if text in files:
                text = str(tmp_path / text)
            change_setting(parts.crawl, full_name(name), text)
            assert probe(parts) == expected, name
            if name == "packs_keep":  # others make no sense with it
                change_setting(parts.crawl, full_name(name), "default")
        for name in [each for each in reversed(PROBES) if each not in NOT_WITHOUT]:
            change_setting(parts.crawl, full_name(name), "default")
        for name, declared in DECLARATIONS.items():
            if declared.kind is Kind.FIXED:
                with pytest.raises(SettingsError, match="fixed for the life of a job"):
                    change_setting(parts.crawl, full_name(name), "default")
            else:
                assert name in PROBES, f"{name}: where does it take effect?"

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
    bad = tmp_path / "bad.txt"
    bad.write_text("a.test delay=1\nb.test dealy=1\n")

    def act(parts: Parts) -> None:
        before, revision = parts.crawl.settings, parts.policy.revision
        for name, value, said in (
            ("SUITE_HOST_DLAY", "4", "did you mean SUITE_HOST_DELAY"),
            ("DOWNLOAD_DELAY", "4", "use SUITE_HOST_DELAY"),
            ("SUITE_HOST_DELAY", "soon", "expected a number of seconds"),
            ("SUITE_BACKOFF_BASE", "2h", "at most SUITE_BACKOFF_MAX"),
            ("SUITE_OVERRIDES", str(bad), "line 2"),
            ("SUITE_OVERRIDES", str(tmp_path / "none"), "a file that exists"),
        ):
            with pytest.raises(SettingsError, match=said):
                change_setting(parts.crawl, name, value)
        assert parts.crawl.settings is before
        assert parts.policy.revision == revision
        assert parts.crawler.engine is not None
        site = RunningJob(parts.crawl, parts.crawler.engine._slot.scheduler, lambda: None)

        def ask(path: Path) -> tuple[str, dict[str, Any]]:
            arguments = {"name": "SUITE_OVERRIDES", "value": str(path)}
            work = set_value(site, Action("1", "set", arguments, "", "me", 0.0))
            assert not isinstance(work, tuple), "a large file is read in a thread"
            try:
                while next(work) is WAITING:
                    time.sleep(0.001)
            except StopIteration as end:
                result: tuple[str, dict[str, Any]] = end.value
            return result

        with pytest.raises(ActionError, match="line 2"):
            ask(bad)
        assert parts.policy.revision == revision
        bad.write_text("a.test delay=77\n")
        monkeypatch.setattr(running_crawl, "change_setting", None)  # it has been read
        assert ask(bad)[1]["new"] == str(bad)
        assert parts.policy.of_host("a.test").delay == 77.0

    _beside(web, tmp_path, act, run)
