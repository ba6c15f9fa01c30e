"""The one normaliser in crawls: options, servers that insist, a project's own, twins, resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from scrapy import Request, Spider
from scrapy.http import HtmlResponse, Response
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Answer, Site, links, moved, running

from scrapy_spider_suite.crawl.assembly import open_crawl
from scrapy_spider_suite.crawl.context import Crawl, get_crawl
from scrapy_spider_suite.crawl.crawl_policy import make_normalizer
from scrapy_spider_suite.crawl.links import LinkFollower
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.requests import LinkRedirects
from scrapy_spider_suite.errors import JobSettingsError, SettingsError
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.interface import MemoryKV
from scrapy_spider_suite.store.job_directory import Job

AT_ONCE = {"SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0}
ID = "0123456789abcdef"
Run = Callable[[Any], Crawled]


class Reading(BroadSpider):
    """Follows all links, and yields what it gets."""

    name = "reading"

    def parse_page(self, response: Response) -> Any:
        """See the class."""
        yield {"path": response.url.partition("://")[2].partition("/")[2]}


def crawled(run: Run, site: Site, spider: type[Spider] = Reading, **settings: Any) -> Crawled:
    """What became of a crawl of *site* from its start page."""
    seeds = {"seeds": f"{site.url}/"}
    return run(crawl_here(spider, arguments=seeds, **{**AT_ONCE, **settings}))


def test_one_page_is_fetched_once_however_it_is_linked(run: Run, tmp_path: Path) -> None:
    """Bulk links and redirects, by the options for all and by a rule for the host."""
    pages: dict[str, Any] = {
        "/": links("/a?utm_source=x&b=1", "/a?b=1", "/a?b=1&ref=me", "/index.html", "/c", "/d?q"),
        "/a?b=1": links(f"/?PHPSESSID={ID}"),
        "/c": moved("/d?utm_medium=x"),
        "/d": links(),
    }
    rules = tmp_path / "rules.txt"
    rules.write_text("# by hand\n127.0.0.1  index=yes keep=b\n.other.test index=no\n")
    with running(Site(pages)) as site:
        done = crawled(
            run, site, SUITE_NORMAL_FORM="tracking,sessions", SUITE_DROP_PARAMETERS=["ref"],
            SUITE_URL_RULES=str(rules),
        )  # fmt: skip
    assert sorted(site.paths()) == ["/", "/a?b=1", "/c", "/d"]
    assert done.stat("suite/links/respelled") == 5
    assert done.stat("suite/job/done") == 4


def test_a_server_may_insist(run: Run) -> None:
    """A redirect to a spelling that an option undoes is followed as it is: no page is lost."""
    asked = f"/x?sid={ID}"
    pages: dict[str, Any] = {
        "/": links("/x", "/y"),
        "/x": moved(asked),
        asked: links(asked),
        "/y": moved("/y/index.html"),
        "/y/index.html": links("/y/"),
        "/y/": moved("/y/index.html"),
    }
    with running(Site(pages)) as site:
        done = crawled(run, site, SUITE_NORMAL_FORM="sessions,index")
    assert sorted(site.paths()) == sorted(["/", "/x", asked, "/y", "/y/", "/y/index.html"])
    assert {item["path"] for item in done.items} == {"", asked[1:], "y/index.html"}


class Yielding(Reading):
    """Asks itself for some of what is linked, too."""

    name = "yielding"

    def parse_page(self, response: Response) -> Any:
        """See the class."""
        yield from super().parse_page(response)
        if response.url.endswith("/"):
            for path in ("/a?utm_source=x", "/b?utm_source=x"):
                yield response.follow(path, self.parse_own)

    def parse_own(self, response: Response) -> Any:
        """See the class."""
        yield {"own": response.url.partition("://")[2].partition("/")[2]}


def test_a_request_of_the_spider_is_known_by_its_normal_form_and_sent_as_it_is(run: Run) -> None:
    """So it is not fetched as a link, too; and what it is redirected to is its answer."""
    pages: dict[str, Any] = {
        "/": links("/a", "/b"),
        "/a?utm_source=x": links("/a"),
        "/b?utm_source=x": moved("/b?utm_source=y"),
        "/b?utm_source=y": links(),
    }
    with running(Site(pages)) as site:
        done = crawled(run, site, Yielding, SUITE_NORMAL_FORM="tracking")
    assert sorted(site.paths()) == sorted(pages)
    assert {"own": "a?utm_source=x"} in done.items
    assert {"own": "b?utm_source=y"} in done.items


# A normaliser of the project's own


def own(url: str) -> Any:
    """Does everything that a normaliser may do wrong."""
    if "/raise" in url:
        raise ZeroDivisionError("a mistake")
    if "/none" in url:
        return None
    if "/number" in url:
        return 7
    if "/nowhere" in url:
        return "mailto:a@b.test"
    if "/more" in url:
        return url + "/more"
    return url.replace("/amp/", "/") + "#fragment"


class Own:
    """The same as a class."""

    def __call__(self, url: str) -> Any:
        """See `own`."""
        return own(url)


class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no licence")


@pytest.mark.parametrize("name", ["own", "Own"])
def test_a_normalizer_of_the_projects_own(
    run: Run, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What it returns is asked for; whatever it does wrong is counted, and stops nothing."""
    paths = ["/amp/a", "/a", "/raise", "/raise2", "/none", "/number", "/nowhere", "/more"]
    pages: dict[str, Any] = {"/": links(*paths)}
    with running(Site(pages)) as site:
        done = crawled(run, site, SUITE_NORMALIZER=f"{__name__}.{name}")
    assert sorted(site.paths()) == sorted(
        ["/", "/a", "/raise", "/raise2", "/number", "/nowhere", "/more/more"]
    )
    counts = [done.stat(f"suite/normalizer/{stat}") for stat in ("errors", "invalid", "dropped")]
    assert counts == [2, 2, 1]
    told = [record for record in caplog.records if "SUITE_NORMALIZER" in record.getMessage()]
    assert len(told) == 2
    assert "ZeroDivisionError: a mistake" in caplog.text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no.such.module", "No module named"),
        ("tests.no_such_name", "SUITE_NORMALIZER = 'tests.no_such_name'"),
        (f"{__name__}.AT_ONCE", "expected a callable"),
        (f"{__name__}.Broken", "no licence"),
    ],
)
def test_one_that_cannot_be_had(path: str, said: str) -> None:
    """The crawl does not begin."""
    settings = read(SUITE_NORMALIZER=path)
    with pytest.raises(SettingsError, match=said):
        make_normalizer(settings, None)


def read(**values: Any) -> SuiteSettings:
    """Settings of the broad profile."""
    return SuiteSettings.from_settings(Settings({"SUITE_PROFILE": "broad", **values}))


def test_the_spider_profile_has_the_plain_form() -> None:
    """There requests are known by their fingerprints."""
    settings = read(SUITE_PROFILE="spider", SUITE_NORMAL_FORM="www", SUITE_PREFER_HTTPS=True)
    assert make_normalizer(settings, MemoryKV()).is_plain


# Rules in settings, and in a job


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"SUITE_NORMAL_FORM": "tracking,cookies"}, "SUITE_NORMAL_FORM = 'tracking,cookies': exp"),
        ({"SUITE_DROP_PARAMETERS": "a=b"}, "SUITE_DROP_PARAMETERS = 'a=b': expected a list of"),
        ({"SUITE_URL_RULES": "/no/such/file"}, "SUITE_URL_RULES = '/no/such/file': expected a"),
        ({"SUITE_URL_RULES": ["a.test indx=yes"]}, "SUITE_URL_RULES: rule 1, 'a.test indx=yes'"),
        ({"SUITE_NORMALIZER": "nodots"}, "SUITE_NORMALIZER = 'nodots': expected an import path"),
    ],
)
def test_settings_that_are_wrong(values: dict[str, Any], said: str) -> None:
    """One line says which, and what is allowed."""
    with pytest.raises(SettingsError) as caught:
        read(**values)
    assert str(caught.value).startswith(said)


def test_a_job_keeps_its_rules(tmp_path: Path) -> None:
    """They are fixed: a file that was moved or reordered is none the worse, a changed one is."""
    here, there = tmp_path / "rules", tmp_path / "moved"
    here.write_text("a.test  tracking=yes # why\nb.test index=yes\n")
    there.write_text("\nb.test index=yes\na.test tracking=yes\n")
    job = Job(tmp_path / "job", read(SUITE_URL_RULES=str(here)), "x")
    job.store.kv("x").put(b"key", b"value")
    job.close()
    Job(tmp_path / "job", read(SUITE_URL_RULES=str(there)), "x").close()
    there.write_text("\n".join(f"h{n}.test index=yes" for n in range(999)))
    with pytest.raises(JobSettingsError, match=r"SUITE_URL_RULES was .* and is .*…") as caught:
        Job(tmp_path / "job", read(SUITE_URL_RULES=str(there)), "x")
    assert len(str(caught.value)) < 600


# Twins


@pytest.fixture
def crawl(tmp_path: Path) -> Iterator[Crawl]:
    """That of a crawl with a job that looks for twins."""
    made = _crawl(tmp_path)
    yield made
    made.close_job()


def _crawl(folder: Path) -> Crawl:
    settings = {
        "SUITE_PROFILE": "broad", "SUITE_PREFER_HTTPS": True, "JOBDIR": str(folder / "job"),
        "REDIRECT_ENABLED": True,
    }  # fmt: skip
    crawler = get_crawler(Reading, settings)
    crawler.spider = crawler._create_spider("x")
    crawler.crawling = True
    return get_crawl(crawler)


def _redirected(crawl: Crawl, url: str, to: str, status: int = 301) -> str:
    """Where the redirect from *url* to *to* leads."""
    rows: list[Entry] = []
    engine: Any = SimpleNamespace(enqueue_entry=lambda entry, fetch: rows.append(entry))
    fetch, location = Fetch(Entry("a.test", url), None), to.encode()
    open_crawl(crawl.crawler).visits.note_answer(fetch, url, status, None, location)
    crawl.engine = engine
    assert LinkRedirects(crawl).follow(fetch, url, status, location)
    crawl.engine = None
    [row] = rows
    return row.url


def _followed(crawl: Crawl, url: str, *hrefs: str) -> list[str]:
    """The links of a page at *url*."""
    fetch = Fetch(Entry("a.test", url), None)
    body = "".join(f'<a href="{href}">' for href in hrefs).encode()
    spider = crawl.crawler.spider
    assert spider is not None
    follower = LinkFollower(crawl, spider, None, None)
    follower.follow(fetch, Exchange.of_handler(url, "GET", HtmlResponse(url, body=body)))
    return fetch.links


def test_redirects_make_twins(crawl: Crawl, tmp_path: Path) -> None:
    """Links are taken for the other form from then on, in the next run as well."""
    http, https = "http://a.test", "https://a.test"
    assert _followed(crawl, "http://b.test/", f"{http}/x") == [f"{http}/x"]
    for n in range(4):
        assert _redirected(crawl, f"{http}/{n}", f"{https}/{n}") == f"{https}/{n}"
    hrefs = (f"{http}/x", f"{https}/x", f"{http}:81/x", "http://c.test/x")
    merged = [f"{https}/x", f"{http}:81/x", "http://c.test/x"]
    assert _followed(crawl, "http://b.test/1", *hrefs) == merged
    assert crawl.crawler.stats.get_value("suite/twins/forms") == 1
    assert crawl.counts["suite/links/respelled"] == 1
    # What was queued before, and the server that wants http after all.
    assert _redirected(crawl, f"{http}/old", f"{https}/old") == f"{https}/old"
    assert _redirected(crawl, f"{https}/back", f"{http}/back") == f"{http}/back"
    crawl.frontier.flush()
    crawl.close_job()
    again = _crawl(tmp_path)
    try:
        assert _followed(again, "http://b.test/2", *hrefs) == merged
    finally:
        again.close_job()


def test_equal_pages_make_twins(crawl: Crawl) -> None:
    """Pages that are followed are compared."""
    for form in ("http://a.test", "http://www.a.test"):
        for n in range(3):
            _followed(crawl, f"{form}/{n}", "/x", f"/y{n}")
    assert _followed(crawl, "http://b.test/", "http://www.a.test/z") == ["http://a.test/z"]


class Making(Reading):
    """Chooses links, and makes one of its own."""

    name = "making"

    def choose_links(self, response: Response, links: list[str]) -> list[str]:
        """See the class."""
        return [*links[:1], f"{response.urljoin('/made')}/./?utm_source=x#top", "mailto:x@y.test"]


def test_links_that_a_spider_makes_are_brought_into_normal_form(run: Run) -> None:
    """Or each spelling would be a URL of its own."""
    pages = {"/": links("/a", "/b"), "/a": Answer(), "/made/": Answer()}
    with running(Site(pages)) as site:
        crawled(run, site, Making, SUITE_NORMAL_FORM="tracking")
    assert sorted(site.paths()) == sorted(pages)


class Canned:
    """A download handler that answers by itself: http sends on to https, where all is."""

    lazy = False
    asked: ClassVar[list[str]] = []

    async def download_request(self, request: Request) -> Response:
        """See the class."""
        self.asked.append(request.url)
        scheme, _, rest = request.url.partition("://")
        if scheme == "http":
            return Response(request.url, 301, headers={"Location": f"https://{rest}"})
        number = int(rest.partition("/")[2] or 0)
        paths = ("/", f"/{number + 1}", f"/{number + 2}") if number < 20 else ("/",)
        body = links(*(f"http://127.0.0.1{path}" for path in paths))
        return HtmlResponse(request.url, headers={"Content-Type": "text/html"}, body=body.encode())

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize("prefer", [False, True])
def test_a_site_that_moved_to_https(run: Run, prefer: bool) -> None:
    """Its links name http: without twins each is asked for twice, with them soon only once."""
    Canned.asked.clear()
    handlers = {"http": Canned, "https": Canned}
    done = run(
        crawl_here(
            Reading, arguments={"seeds": "http://127.0.0.1/"}, DOWNLOAD_HANDLERS=handlers,
            SUITE_PREFER_HTTPS=prefer, **AT_ONCE,
        )
    )  # fmt: skip
    pages = {f"https://127.0.0.1/{n or ''}" for n in range(22)}
    assert {url for url in Canned.asked if url.startswith("https")} == pages
    assert len(Canned.asked) == len(set(Canned.asked))
    redirects = len(Canned.asked) - len(pages)
    assert redirects == done.stat("suite/redirect/count")
    assert redirects < 8 if prefer else redirects == 22
