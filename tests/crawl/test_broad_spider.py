"""What a `BroadSpider` yields itself, beside the links that are followed for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.http import Response
from scrapy.utils.request import RequestFingerprinter as ScrapysFingerprinter
from support.crawls import ADDON, crawl
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Site, links, running

from scrapy_spider_suite.crawl import maintenance
from scrapy_spider_suite.crawl.queue.frontier import Commit
from scrapy_spider_suite.spiders import BroadSpider

AT_ONCE = {"SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0}


@pytest.fixture
def site() -> Iterator[Site]:
    """A running site whose start page is empty."""
    with running(Site({"/": links(), "/api": "{}", "/detail": links()})) as server:
        yield server


class Asking(BroadSpider):
    """Asks for more with the meta of its first page, as spiders do."""

    name = "asking"

    def parse_page(self, response: Response) -> Any:
        """See the class."""
        url = response.url
        yield Request(
            f"{url}api", self.parse_api, method="POST", body=b"x", meta=dict(response.meta)
        )
        assert response.request is not None
        yield response.request.replace(url=f"{url}detail", callback=self.parse_detail)

    def parse_api(self, response: Response) -> Any:
        """See the class."""
        yield {"api": response.meta.get("dont_retry")}

    def parse_detail(self, response: Response) -> Any:
        """See the class."""
        yield {"detail": response.meta.get("dont_retry")}


def test_copies_of_a_page_keep_their_callbacks_and_bodies(
    site: Site, run: Callable[[Any], Crawled]
) -> None:
    """A request with a page's meta is the spider's: method, callback, retries and all."""
    done = run(crawl_here(Asking, arguments={"seeds": f"{site.url}/"}, **AT_ONCE))
    assert {(v.method, v.path) for v in site.visits} == {
        ("GET", "/"), ("POST", "/api"), ("GET", "/detail"),
    }  # fmt: skip
    assert sorted(done.items, key=str) == [{"api": None}, {"detail": None}]


class Choosing(BroadSpider):
    """Has a callback for one of the links that are followed anyway."""

    name = "choosing"

    def parse_page(self, response: Response) -> Any:
        """See the class."""
        for _ in response.css("a"):
            yield response.follow("/detail", self.parse_detail)

    def parse_detail(self, response: Response) -> Any:
        """See the class."""
        yield {"detail": response.url}


class Ranking(Choosing):
    """Gives its links priorities, too."""

    def link_priority(self, response: Response, url: str) -> int:
        """See the class."""
        return 5


@pytest.mark.parametrize("spidercls", [Choosing, Ranking])
def test_a_request_wins_over_a_link_to_the_same_page(
    spidercls: type[BroadSpider], site: Site, run: Callable[[Any], Crawled]
) -> None:
    """What a page yields with a callback is not taken for a duplicate of its own link."""
    site.pages["/"] = links("/detail")
    done = run(crawl_here(spidercls, arguments={"seeds": f"{site.url}/"}, **AT_ONCE))
    assert site.paths() == ["/", "/detail"]
    assert len(done.items) == 1


class Insisting(BroadSpider):
    """Wants each page three times."""

    name = "insisting"

    def parse_page(self, response: Response) -> Any:
        """See the class."""
        assert response.request is not None
        yield get_retry_request(
            response.request, spider=self, reason="not enough", max_retry_times=2
        )


def test_a_spider_may_ask_again_as_often_as_it_says(
    site: Site, run: Callable[[Any], Crawled]
) -> None:
    """get_retry_request() counts in the page's meta, and so comes to its end."""
    done = run(crawl_here(Insisting, arguments={"seeds": f"{site.url}/"}, **AT_ONCE))
    assert site.paths() == ["/"] * 3
    assert done.stat("retry/max_reached") == 1


class RequestFingerprinter(ScrapysFingerprinter):
    """A project's own, called like Scrapy's: the query says nothing."""

    def fingerprint(self, request: Request) -> bytes:
        """See the class."""
        return super().fingerprint(request.replace(url=request.url.partition("?")[0]))


class Twice(BroadSpider):
    """Asks for two URLs that differ in their query."""

    name = "twice"

    def parse_page(self, response: Response) -> Any:
        """See the class."""
        for query in "12":
            yield response.follow(f"/detail?{query}", self.parse_detail)

    def parse_detail(self, response: Response) -> None:
        """See the class."""


def test_a_fingerprinter_of_the_same_name_is_the_projects_own(
    site: Site, run: Callable[[Any], Crawled]
) -> None:
    """What the project calls the same request is not told apart by its normal form."""
    site.pages |= {"/detail?1": links(), "/detail?2": links()}
    arguments = {"seeds": f"{site.url}/"}
    run(
        crawl_here(
            Twice, arguments=arguments, REQUEST_FINGERPRINTER_CLASS=RequestFingerprinter, **AT_ONCE
        )
    )
    assert site.paths() == ["/", "/detail?1"]


@pytest.mark.parametrize(
    "settings", [{}, {"ADDONS": ADDON, "SCHEDULER": "scrapy.core.scheduler.Scheduler"}]
)
def test_it_does_not_crawl_nothing_in_silence(settings: dict[str, Any], tmp_path: Path) -> None:
    """Without the suite's scheduler nobody would take the seeds."""
    done = crawl("scrapy_spider_suite.spiders.BroadSpider", settings, tmp_path, name="broad")
    assert done.code == 2
    assert done.log.count("CRITICAL") == 1
    assert "add scrapy_spider_suite.Addon to ADDONS" in done.log


@pytest.mark.parametrize("told", [True, False])
def test_it_says_that_it_has_no_seeds(
    *, told: bool, site: Site, run: Callable[[Any], Crawled], caplog: pytest.LogCaptureFixture
) -> None:
    """A crawl that ends at once says why; SUITE_SEEDS are seeds, too."""
    more = {} if told else {"SUITE_SEEDS": f"{site.url}/"}
    done = run(crawl_here(BroadSpider, arguments={"name": "bare"}, **more, **AT_ONCE))
    assert done.reason == ("no_pages" if told else "finished")
    assert ("no request was queued; seeds are" in caplog.text) == told


def test_a_page_that_another_one_brought_waits_for_nobody(
    site: Site, run: Callable[[Any], Crawled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a chain of pages each is fetched as soon as the one before it has been committed."""
    monkeypatch.setattr(maintenance, "_PULSE", 1e6)  # else it would help
    site.pages |= {f"/{number}": links(f"/{number + 1}") for number in range(12)}
    site.pages["/12"] = links()
    spider = {"arguments": {"name": "chain", "seeds": f"{site.url}/0"}}
    done = run(crawl_here(BroadSpider, **spider, **AT_ONCE, CLOSESPIDER_TIMEOUT=30))
    assert done.stat("finish_reason") == "finished"
    assert len(site.visits) == 13 + ("/robots.txt" in site.paths())


def test_a_fault_of_a_commit_ends_the_crawl(
    site: Site, run: Callable[[Any], Crawled], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """With its traceback in the log; the next run fetches the pages again."""
    site.pages["/"] = links("/detail")
    class Following(BroadSpider):
        name = "following"

    spider: Any = {"arguments": {"seeds": f"{site.url}/"}, "JOBDIR": str(tmp_path / "job")}
    with monkeypatch.context() as broken:
        broken.setattr(Commit, "settle", lambda *_: 1 // 0)
        done = run(crawl_here(Following, **spider, **AT_ONCE))
    assert done.stat("finish_reason") == "commit_failed"
    assert "ZeroDivisionError" in caplog.text
    assert run(crawl_here(Following, **spider, **AT_ONCE)).stat("finish_reason") == "finished"
    assert [path for path in site.paths() if path != "/robots.txt"] == ["/", "/", "/detail"]
