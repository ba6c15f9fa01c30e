"""Real crawls whose overrides file changes while they run, and rules as a server sees them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.crawls import Process, start
from support.inprocess_crawls import Crawled, crawl_here
from support.polite_crawls import TOLERANCE, Size, pages_of
from support.spiders import Ordinary
from support.webs import FakeWebProcess
from support.websites import Site, links, moved, running

from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader, wait_reason
from scrapy_spider_suite.testing import gaps
from scrapy_spider_suite.testing.fake_web import address_text

SIZE = Size(hosts=8, addresses=4, pages=12, host_delay=0.3, ip_delay=0.02)
NAMED = "h000001.fake.test"
RANGE = address_text(2)


class Live:
    """A crawl that is under way, with its log and its overrides file."""

    def __init__(self, folder: Path, process: Process) -> None:
        self.folder = folder
        self.process = process

    def until(self, what: Callable[[], bool]) -> None:
        """Wait until *what* holds, while the crawl runs."""
        end = time.monotonic() + 60
        while not what():
            assert time.monotonic() < end, self.log()[-3000:]
            assert self.process.poll() is None, self.log()[-3000:]
            time.sleep(0.05)

    def log(self) -> str:
        """What the crawl has said."""
        return (self.folder / "log").read_text()

    def rules(self, text: str, said: str) -> float:
        """Change the file; return when the crawl had *said* what it makes of it."""
        before = self.log().count(said)
        (self.folder / "rules").write_text(text)
        self.until(lambda: self.log().count(said) > before)
        return time.time()

    def done(self) -> int:
        """How many URLs are done."""
        try:
            status = (self.folder / "job" / FOLDER / "status.json").read_text()
            return int(json.loads(status).get("done", 0))
        except (OSError, ValueError):
            return 0

    def progress(self, pages: int) -> None:
        """Wait for so many more."""
        goal = self.done() + pages
        self.until(lambda: self.done() >= goal)


@pytest.mark.slow
def test_the_file_changes_while_the_crawl_runs(tmp_path: Path) -> None:
    """From when the crawl says so, nothing goes to blocked hosts, robots.txt and images too."""
    (tmp_path / "rules").write_text(f".fake.test max_pages=0\n{NAMED} blocked=yes\n")
    config = SIZE.web(tmp_path / "arrivals", redirects=0.0, images=1)
    with FakeWebProcess(config) as web:
        settings = SIZE.settings(
            web.ready, SUITE_OVERRIDES=str(tmp_path / "rules"), JOBDIR=str(tmp_path / "job"),
            ITEM_PIPELINES={"scrapy.pipelines.images.ImagesPipeline": 1},
            IMAGES_STORE=str(tmp_path / "images"),
        )  # fmt: skip
        process = start(
            "support.odd_spiders.Pictures", settings, tmp_path, seeds=str(config.seeds_file)
        )
        try:
            crawl = Live(tmp_path, process)
            crawl.until(lambda: crawl.done() >= 15)
            blocked = f"{NAMED} blocked=yes\n{RANGE} blocked=yes reason='asked by mail'\n"
            since = crawl.rules(blocked, "2 rules of")
            crawl.progress(10)
            crawl.rules(f"{NAMED} delay=0.5\n{NAMED} blocked=yes\n", "line 2: ")
            crawl.progress(5)
            lifted = time.time()
            crawl.rules(f"{NAMED} delay=0.5\n", "1 rule of")
            process.wait(90)
        finally:
            process.kill()
            process.wait()
        web.stop()
        arrivals = web.arrivals()
        reachable = set(web.web.reachable(obey_robots=True))
        port = web.ready.http_port
    assert crawl.log().count("the rules of before stay in force") == 1
    assert not [each for each in arrivals if each.host == NAMED and each.start < lifted]
    meanwhile = [each for each in arrivals if since <= each.start < lifted]
    assert len(pages_of(meanwhile)) >= 5
    assert RANGE not in {each.address for each in meanwhile}
    assert RANGE in {each.address for each in arrivals if each.start < since}
    assert gaps(arrivals)[NAMED].smallest >= 0.5 - TOLERANCE
    # Nothing was lost by any of it.
    fetched = {f"http://{each.host}:{port}{each.path}" for each in pages_of(arrivals)}
    assert reachable <= fetched
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        assert list(reader.check()) == []
        assert reader.counters().pending == 0


@pytest.fixture
def site() -> Iterator[Site]:
    """A site whose robots.txt allows one bot alone."""
    robots = "User-agent: night\nAllow: /\nUser-agent: *\nDisallow: /\n"
    pages: dict[str, Any] = {
        "/robots.txt": robots, "/": links("/a", "/b"), "/a": "a", "/b": moved("/c"), "/c": "c",
    }  # fmt: skip
    with running(Site(pages)) as served:
        yield served


@pytest.fixture
def crawl(
    site: Site, tmp_path: Path, run: Callable[[Coroutine[Any, Any, Any]], Any]
) -> Callable[..., Crawled]:
    """Crawl the site with one rule for it."""

    def crawl_it(rule: str, **settings: Any) -> Crawled:
        (tmp_path / "rules").write_text(f"127.0.0.1 {rule}\n")
        given = {
            "ROBOTSTXT_OBEY": True, "SUITE_OVERRIDES": str(tmp_path / "rules"),
            "USER_AGENT": "day/1.0", "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "DOWNLOAD_DELAY": 0,
            **settings,
        }  # fmt: skip
        crawled: Crawled = run(crawl_here(Ordinary, arguments={"start": f"{site.url}/"}, **given))
        return crawled

    return crawl_it


def test_robots_are_for_the_user_agent_of_the_rule(site: Site, crawl: Callable[..., Any]) -> None:
    """It is sent with everything, robots.txt too, and decides which group holds."""
    crawl('user_agent="night/2.0 (+http://x.t/)"')
    assert set(site.paths()) == {"/robots.txt", "/", "/a", "/b", "/c"}
    assert {visit.headers["User-Agent"] for visit in site.visits} == {"night/2.0 (+http://x.t/)"}


def test_without_the_rule_nothing_is_allowed(site: Site, crawl: Callable[..., Any]) -> None:
    """The project's own User-Agent is not the one that may."""
    crawl("max_pages=0")
    assert site.paths() == ["/robots.txt"]


def test_robots_are_ignored_where_a_rule_says_so(site: Site, crawl: Callable[..., Any]) -> None:
    """They are not even asked for."""
    crawl("robots=ignore")
    assert set(site.paths()) == {"/", "/a", "/b", "/c"}


def test_robots_are_obeyed_where_a_rule_says_so(site: Site, crawl: Callable[..., Any]) -> None:
    """Though the project does not obey them elsewhere."""
    crawl("robots=obey", ROBOTSTXT_OBEY=False)
    assert site.paths() == ["/robots.txt"]


@pytest.mark.parametrize("rule", ["hours={}-{}", "blocked=yes"])
def test_only_barred_hosts_remain(
    rule: str, site: Site, crawl: Callable[..., Any], tmp_path: Path
) -> None:
    """The crawl ends as one that only waits, nothing was sent, and the job says why."""
    hour = int(time.time() // 3600) % 24
    rule = rule.format((hour + 3) % 24, (hour + 4) % 24)
    assert crawl(rule, JOBDIR=str(tmp_path / "job")).reason == "waiting"
    assert site.visits == []
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        record = reader.store.record("127.0.0.1")
        assert list(reader.check()) == []
    assert record is not None
    assert record.pending == 1
    if rule == "blocked=yes":
        assert wait_reason(record, time.time()).startswith("blocked (127.0.0.1, ")
    else:
        assert record.why.startswith("outside its hours (127.0.0.1, ")
        assert 3_600 < record.next_fetch - time.time() <= 3 * 3_600
    # A later run goes by the rules of its own.
    assert crawl("robots=ignore", JOBDIR=str(tmp_path / "job")).reason == "finished"
    assert set(site.paths()) == {"/", "/a", "/b", "/c"}
