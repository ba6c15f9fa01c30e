"""The five filters in crawls: what each keeps out, what of it is counted, and their live change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.statscollectors import StatsCollector
from scrapy.utils.test import get_crawler
from support.crawls import crawl, web_settings
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Answer, Site, links, moved, running
from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.crawl_policy import FILTER_SETTINGS, CrawlFilters
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.exceptions import FilterRefused
from scrapy_spider_suite.operate.executors.running_crawl import change_setting
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.urls.filters import ATOMS, AtomKind, Stage, register

AT_ONCE = {"SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0}
PDF = Answer(b"%PDF", headers={"Content-Type": "application/pdf"})
PAGES: dict[str, Any] = {
    "/": links("/a", "/b", "/doc.pdf", "/go"), "/a": links("/a/deep"), "/b": links("/b/deep"),
    "/doc.pdf": PDF, "/go": moved("/target"), "/target": links(), "/a/deep": links(),
    "/b/deep": links(),
}  # fmt: skip


class Everything(BroadSpider):
    """Makes an item of every page."""

    name = "everything"

    def parse_page(self, response: Response) -> Any:
        """See the class."""
        yield {"path": response.url.partition("/")[2].partition("/")[2].partition("/")[2]}


@pytest.fixture
def site() -> Iterator[Site]:
    """A small site."""
    with running(Site(PAGES)) as served:
        yield served


Filtered = Callable[..., Crawled]


@pytest.fixture
def filtered(site: Site, tmp_path: Path, run: Any) -> Filtered:
    """Crawl the site with filters; the states of its URLs can be looked up afterwards."""

    def crawl_it(spidercls: type[Spider] = Everything, **filters: Any) -> Crawled:
        given = {f"SUITE_{name.upper()}": text for name, text in filters.items()}
        arguments = {"seeds": f"{site.url}/"} if issubclass(spidercls, BroadSpider) else {
            "start": f"{site.url}/"
        }
        done: Crawled = run(
            crawl_here(
                spidercls, arguments=arguments, JOBDIR=str(tmp_path / "job"), **AT_ONCE, **given
            )
        )
        assert done.reason == ("finished" if site.visits else "no_pages")
        return done

    return crawl_it


def reason(tmp_path: Path, site: Site, path: str) -> str | None:
    """Why the URL of *path* came to its end."""
    with StoreReader(tmp_path / "job" / FOLDER) as reader:
        rows = {row.url: row.state for row in reader.urls("127.0.0.1")}
    event = rows[f"{site.url}{path}"].event
    return None if event is None else event.value


# Stages


def test_schedule(site: Site, filtered: Filtered) -> None:
    """Links and redirect targets that it does not want are not queued; the seed is."""
    done = filtered(schedule_filter="PathEndsWithOneOf(/a, /b, /go)")
    assert sorted(site.paths()) == ["/", "/a", "/b", "/go"]
    # /doc.pdf, /target, /a/deep, /b/deep
    assert done.stat("suite/filter/schedule/refused") == 4


def test_fetch(site: Site, filtered: Filtered, tmp_path: Path) -> None:
    """Asked of what is queued, seeds too; what it does not want fails, and is not sent."""
    done = filtered(fetch_filter="not PathEndsWithOneOf(/a)")
    assert "/a" not in site.paths()
    assert {"/b", "/doc.pdf", "/target"} <= set(site.paths())
    assert done.stat("suite/filter/fetch/refused") == 1
    assert done.stat("suite/outcome/filtered") == 1
    assert reason(tmp_path, site, "/a") == "filtered"


def test_parse(site: Site, filtered: Filtered, tmp_path: Path) -> None:
    """What it does not want is fetched, and that is all: no callback, no links."""
    done = filtered(parse_filter="ContentTypeStartsWith(text/html) and not PathEndsWithOneOf(/b)")
    assert {"/b", "/doc.pdf", "/a/deep"} <= set(site.paths())
    assert "/b/deep" not in site.paths()
    assert {item["path"] for item in done.items} == {"", "a", "a/deep", "target"}
    assert done.stat("suite/filter/parse/refused") == 2
    assert reason(tmp_path, site, "/doc.pdf") == "not_parsed"
    assert reason(tmp_path, site, "/a") == "success"
    assert done.stat("spider_exceptions/FilterRefused") == 0


def test_follow(site: Site, filtered: Filtered) -> None:
    """It is asked of every link, and knows the page that it stands on."""
    site.pages["/a"] = Answer(b'<a href="/a/deep">x</a>', headers={"Content-Language": "fr"})
    done = filtered(follow_filter="not LanguageEqualsOneOf(fr) and not FileTypeEqualsOneOf(pdf)")
    assert not {"/doc.pdf", "/a/deep"} & set(site.paths())
    assert {"/b/deep", "/target"} <= set(site.paths())
    assert done.stat("suite/filter/follow/refused") == 2


def test_store(site: Site, filtered: Filtered, tmp_path: Path) -> None:
    """The items of pages that it does not want are dropped; their links are followed."""
    done = filtered(store_filter="DepthLessThan(2) and IsHttpResponse()")
    assert {"/a/deep", "/b/deep"} <= set(site.paths())
    # A redirect's target has the depth of the link.
    assert {item["path"] for item in done.items} == {"", "a", "b", "doc.pdf", "target"}
    assert done.stat("suite/filter/store/refused") == 2
    assert done.stat("suite/filter/store/items") == 2
    assert reason(tmp_path, site, "/a/deep") == "not_stored"
    assert reason(tmp_path, site, "/a") == "success"


class Asking(Spider):
    """An ordinary spider with callbacks and errbacks."""

    name = "asking"
    failures: ClassVar[list[Any]] = []

    def __init__(self, start: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = start

    async def start(self) -> Any:
        """The seed."""
        yield Request(self.url, self.parse, errback=self.failed)

    def parse(self, response: Response) -> Any:
        """See the class."""
        yield {"path": response.url[len(self.url) :]}
        for each in response.css("a::attr(href)").getall():
            yield response.follow(each, self.parse, errback=self.failed)

    def failed(self, failure: Failure) -> Any:
        """See the class."""
        self.failures.append(failure.value)
        yield {"failed": failure.request.url[len(self.url) :]}


def test_a_spiders_own_requests(site: Site, filtered: Filtered) -> None:
    """In the spider profile as well, but for the links that are followed in bulk."""
    Asking.failures.clear()
    site.pages["/doc.pdf"] = links()  # or Asking could not parse it
    done = filtered(
        Asking, schedule_filter="not URLContainsOneOf(go)", fetch_filter="not URLContainsOneOf(b)",
        parse_filter="not FileTypeEqualsOneOf(pdf)", store_filter="not URLContainsOneOf(deep)",
    )  # fmt: skip
    assert sorted(site.paths()) == ["/", "/a", "/a/deep", "/doc.pdf"]
    assert done.item_set() == {
        repr([("path", "")]), repr([("path", "a")]), repr([("failed", "b")]),
        repr([("failed", "doc.pdf")]),
    }  # fmt: skip
    assert [type(each) for each in Asking.failures] == [FilterRefused, FilterRefused]
    assert {each.response and each.response.status for each in Asking.failures} == {None, 200}
    assert done.urls("request_dropped") == [f"{site.url}/go"]
    assert done.stat("scheduler/enqueued") == 5


def test_a_seed_is_past_the_schedule_filter(site: Site, filtered: Filtered) -> None:
    """And so is what is asked for again."""
    done = filtered(Asking, schedule_filter="FALSE")
    assert site.paths() == ["/"]
    assert done.stat("suite/filter/schedule/refused") == 4


class Near(Everything):
    """Within one host; 127.0.0.2 and 127.0.0.3 are beyond."""

    allowed_domains: ClassVar[Any] = ["127.0.0.1"]


def test_hops_beyond_the_scope(run: Any, site: Site) -> None:
    """So many links out of the scope are followed, and back in it they are counted anew."""
    with (
        running(Site(host="127.0.0.2")) as second,
        running(Site(host="127.0.0.3")) as third,
    ):
        site.pages.update({
            "/": links(f"{second.url}/1", "/away"), "/in": links(f"{second.url}/in"),
            "/away": moved(f"{third.url}/moved"),
        })  # fmt: skip
        second.pages = {
            "/1": links(f"{third.url}/2", "/1b"), "/1b": links(f"{third.url}/3"),
            "/in": links(f"{site.url}/b"),
        }  # fmt: skip
        third.pages = {
            "/2": links(f"{second.url}/no", f"{site.url}/in"), "/moved": links("/moved/on"),
            "/moved/on": links("/moved/no"),
        }  # fmt: skip
        done = run(
            crawl_here(
                Near, arguments={"seeds": f"{site.url}/"},
                SUITE_SCHEDULE_FILTER="HopsBeyondScopeLessThan(3)", **AT_ONCE,
            )
        )  # fmt: skip
        paths = (site.paths(), second.paths(), third.paths())
    assert set(paths[0]) == {"/", "/in", "/b", "/b/deep", "/away"}
    assert set(paths[1]) == {"/1", "/1b", "/in"}
    assert set(paths[2]) == {"/2", "/moved", "/moved/on"}
    assert done.stat("suite/filter/schedule/refused") == 3
    assert done.stat("suite/links/refused/off_site") == 0


def test_countries(site: Site, filtered: Filtered, tmp_path: Path) -> None:
    """By the address that would be connected to."""
    table = tmp_path / "countries.csv"
    table.write_text("127.0.0.0/8,DE\n")
    done = filtered(countries=str(table), fetch_filter="not CountryEqualsOneOf(DE)")
    assert site.paths() == []
    assert done.stat("suite/outcome/filtered") == 1


def test_a_filter_that_fails(site: Site, filtered: Filtered, caplog: Any) -> None:
    """An atom of a project's own raises at some URL: it is not wanted, once with a traceback."""

    def test(url: str, subject: object) -> bool:
        if url.endswith(("a", "b")):
            raise ZeroDivisionError
        return True

    register(AtomKind("Fails()", "", "", frozenset(), lambda argument, given: test))
    try:
        done = filtered(schedule_filter="Fails()")
    finally:
        del ATOMS["Fails"]
    assert sorted(site.paths()) == ["/", "/doc.pdf", "/go", "/target"]
    assert done.stat("suite/filter/schedule/errors") == 2
    assert done.stat("suite/filter/schedule/refused") == 2
    assert caplog.text.count("the schedule filter failed at") == 1


# Live


class Slowly(Everything):
    """Pages without end, each with a link to the next and to one beside it."""

    name = "slowly"


def endless(visit: Any) -> Answer:
    """See `Slowly`."""
    number = int(visit.path[2:] or 0)
    return Answer(links(f"/n{number + 1}", f"/m{number}").encode(), wait=0.01)


@pytest.mark.parametrize("by", ["set", "file"])
def test_live(by: str, site: Site, tmp_path: Path, run: Any, caplog: Any) -> None:
    """Changed while the crawl runs, a filter holds from then on; a broken one changes nothing."""
    caplog.set_level("INFO")
    site.pages = {"/": links("/n1")} | {
        f"/{letter}{n}": endless if letter == "n" else links()
        for letter in "nm" for n in range(2_000)
    }  # fmt: skip
    path = tmp_path / "schedule.filter"
    path.write_text("TRUE")

    async def crawl_and_change() -> Crawled:
        crawlers: list[Crawler] = []
        task = asyncio.ensure_future(
            crawl_here(
                Slowly, watch=crawlers.append, arguments={"seeds": f"{site.url}/"},
                SUITE_SCHEDULE_FILTER=f"@{path}" if by == "file" else "TRUE", SUITE_TRAPS=(),
                **AT_ONCE,
            )
        )  # fmt: skip

        async def until(what: Callable[[], bool]) -> None:
            while not what():
                assert not task.done()
                await asyncio.sleep(0.01)

        await until(lambda: "/m3" in site.paths())
        its_crawl = get_crawl(crawlers[0])
        if by == "set":
            with pytest.raises(SettingsError, match="line 1, column 5: no atom is called Wrong"):
                change_setting(its_crawl, "SUITE_SCHEDULE_FILTER", "not Wrong()")
            with pytest.raises(SettingsError, match="expected a filter such as"):
                change_setting(its_crawl, "SUITE_SCHEDULE_FILTER", "@nowhere.filter")
        else:
            path.write_text("TRUE or\nWrong()")
            await until(lambda: "the filter of before stays in force" in caplog.text)
        seen = len(site.paths())
        await until(lambda: any(path.startswith("/m") for path in site.paths()[seen:]))
        if by == "set":
            change_setting(its_crawl, "SUITE_SCHEDULE_FILTER", "URLContainsOneOf(/n)")
        else:
            path.write_text("URLContainsOneOf(/n)")
            await until(lambda: "is in force" in caplog.text)
        known = its_crawl.frontier.counters.pending
        seen = len(site.paths())
        await until(lambda: len(site.paths()) > seen + known + 10)
        assert not any(path.startswith("/m") for path in site.paths()[-8:])
        change_setting(its_crawl, "SUITE_SCHEDULE_FILTER", "FALSE")
        return await task

    done: Crawled = run(crawl_and_change())
    assert done.reason == "finished"
    if by == "file":
        assert f"{path}, line 2, column 1: no atom is called Wrong" in caplog.text


# At the start


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("HostEndWith(.it)", "line 1, column 1: no atom is called HostEndWith; did you mean"),
        ("@broken.filter", "broken.filter, line 2, column 4: expected 'and', 'or'"),
    ],
)
def test_a_bad_filter_stops_the_start(value: str, words: str, tmp_path: Path) -> None:
    """The last line of a script's log names the setting and the place."""
    (tmp_path / "broken.filter").write_text("TRUE # yes\n   TRUE\n")
    settings = web_settings(9, SUITE_FETCH_FILTER=value, JOBDIR=str(tmp_path / "job"))
    done = crawl("support.spiders.Ordinary", settings, tmp_path, start="http://a.test/")
    assert done.code == 2
    assert f"SUITE_FETCH_FILTER: {words}" in done.log.splitlines()[-1]
    assert not (tmp_path / "job" / FOLDER / "store").exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("StatusCategory(2)", "SCHEDULE_FILTER: line 1, column 1: StatusCategory asks for a resp"),
        ("@nowhere.filter", "SCHEDULE_FILTER = '@nowhere.filter': expected a filter such as"),
        (5, "SCHEDULE_FILTER = 5: expected a filter such as"),
    ],
)
def test_a_bad_setting(value: object, words: str) -> None:
    """It is refused where settings are read."""
    with pytest.raises(SettingsError, match=words):
        SuiteSettings.from_settings(Settings({"SUITE_SCHEDULE_FILTER": value}))


def test_a_country_without_a_table(tmp_path: Path) -> None:
    """The crawl does not begin; nor with a table that is none."""
    given = {"SUITE_FETCH_FILTER": "CountryEqualsOneOf(DE)"}
    with pytest.raises(SettingsError, match=r"FETCH_FILTER: line 1, column 19: .*SUITE_COUNTRIES"):
        CrawlFilters(SuiteSettings.from_settings(Settings(given)), StatsCollector(get_crawler()))
    table = tmp_path / "countries.csv"
    table.write_text("10.0.0.0/8,DE\n10.1.2.3,DE\n")
    given["SUITE_COUNTRIES"] = str(table)
    with pytest.raises(SettingsError, match=r"countries\.csv, line 2: overlaps another range"):
        CrawlFilters(SuiteSettings.from_settings(Settings(given)), StatsCollector(get_crawler()))


def test_every_stage_has_a_setting() -> None:
    """By name."""
    assert list(FILTER_SETTINGS.values()) == [
        "schedule_filter", "fetch_filter", "parse_filter", "follow_filter", "store_filter",
    ]  # fmt: skip
    assert list(FILTER_SETTINGS) == list(Stage)
