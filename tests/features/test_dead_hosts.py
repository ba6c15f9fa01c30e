"""Hosts that never answer: every request of an ordinary spider ends in its errback, and soon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from support.frontier_command import parsed
from support.inprocess_crawls import Crawling
from support.visiting_spider import Visitor, closed_port, visitor
from support.websites import Answer, Site, links, running

QUICK: dict[str, Any] = {"SUITE_BACKOFF_BASE": 0.05, "SUITE_MAX_WAIT": 60, "SUITE_BACKOFF_MAX": 600}


@pytest.mark.parametrize("job", [False, True], ids=["memory", "job"])
@pytest.mark.parametrize("retries", [0, 2])
def test_every_request_of_a_dead_host_gets_its_errback(
    retries: int, job: bool, site: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """However many there are; the back-off would take them ages one after the other."""
    port = closed_port()
    urls = [f"http://127.0.0.1:{port}/{n}" for n in range(40)]
    where = {"JOBDIR": str(tmp_path / "job")} if job else {}
    done = crawl(visitor(site, *urls), RETRY_TIMES=retries, **QUICK, **where)
    assert done.reason == "no_pages"
    assert sorted(f.request.url for f in done.spider.failed) == sorted(urls)
    kinds = [type(f.value).__name__ for f in done.spider.failed]
    # A few attempts condemn the host; now and then one more is made.
    assert set(kinds) <= {"DownloadConnectionRefusedError", "HostUnreachable"}
    assert kinds.count("HostUnreachable") > 20
    assert done.stat("suite/outcome/host_dead") == kinds.count("HostUnreachable")
    assert done.stat("suite/frontier/pending") == done.stat("suite/frontier/leased") == 0


def test_a_host_that_an_earlier_run_found_dead(
    site: Site, crawl: Crawling, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its robots.txt is asked for again; what fails is told once, and may be added once more."""
    port = closed_port()
    base = f"http://127.0.0.1:{port}"
    terms = {
        "ROBOTSTXT_OBEY": True, "JOBDIR": str(tmp_path / "job"), "RETRY_TIMES": 1,
    } | QUICK  # fmt: skip
    away = crawl(visitor(site, *(f"{base}/{n}" for n in range(4))), **terms)
    assert away.stat("suite/outcome/host_dead") == len(away.spider.failed) == 4
    assert away.stat("robotstxt/request_count") == 2  # one failure each, whoever waits for it
    said = [each.getMessage() for each in caplog.records if "as host_dead" in each.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("127.0.0.1 gives no robots.txt")
    caplog.clear()
    command, options, left = parsed(("add", f"{base}/new", f"{base}/0", "-j", terms["JOBDIR"]), {})
    command.run(left, options)
    with running(Site({"/new": links(), "/0": links()}, port=port)) as back:
        here = crawl(type("Parsing", (Visitor,), {"parse": Visitor.keep}), **terms)
        assert {visit.path for visit in back.visits} == {"/robots.txt", "/new", "/0"}
    assert {response.url for response in here.spider.came} == {f"{base}/new", f"{base}/0"}
    assert here.stat("suite/outcome/success") == 2
    assert "as host_dead" not in caplog.text


def test_a_dead_host_is_tried_again(site: Site, crawl: Crawling) -> None:
    """What comes after the back-off is sent; once it answers, the host is like any other."""
    site.pages |= {f"/{n}": links() for n in range(5)}

    class Patient(Visitor):
        def fail(self, failure: Any) -> Any:
            super().fail(failure)
            if len(self.failed) == 10:
                port = site.url.rpartition(":")[2]
                for n in range(5):
                    yield Request(f"http://127.0.0.1:{port}/{n}", self.keep, errback=self.again)

        def again(self, failure: Any) -> Any:
            yield failure.request.replace(dont_filter=True)

    port = closed_port()
    Patient.paths = tuple(f"http://127.0.0.1:{port}/{n}" for n in range(10))
    done = crawl(Patient, RETRY_ENABLED=False, **QUICK)
    assert done.reason == "finished"
    assert len(done.spider.came) == 5


def test_what_fails_together_is_one_failure(site: Site, crawl: Crawling) -> None:
    """Eight requests that fail at once make a host wait as one does, not 2 ** 7 times as long."""
    site.pages |= {"/": links()} | {f"/{n}": Answer(b"busy", 503) for n in range(8)}

    class Restarted(Visitor):
        def keep(self, response: Response) -> Any:
            super().keep(response)
            for n in range(8):
                yield Request(f"{site.url}/{n}", self.back, errback=self.back)

        def back(self, _: Any) -> Any:
            site.pages["/after"] = links()
            yield Request(f"{site.url}/after", super().keep)

    Restarted.site = site.url
    done = crawl(
        Restarted, RETRY_ENABLED=False, CONCURRENT_REQUESTS_PER_DOMAIN=8, SUITE_BACKOFF_BASE=1,
        SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0,
    )  # fmt: skip
    assert done.spider.came[-1].url.endswith("/after")
    failed = [each.ended for each in site.visits if each.path[1:].isdigit()]
    after = next(each.began for each in site.visits if each.path == "/after")
    assert 0.9 < after - failed[0] < 20


def test_a_host_that_has_answered_is_waited_for(site: Site, crawl: Crawling) -> None:
    """A page that does not come says nothing of the others: they wait for the back-off."""
    site.pages |= {"/": links(), "/slow": Answer(b"late", wait=2)}

    class Slow(Visitor):
        def keep(self, response: Response) -> Any:
            super().keep(response)
            for n in range(4):
                yield Request(f"{site.url}/slow?{n}", self.keep, errback=self.fail)

    Slow.site = site.url
    site.pages |= {f"/slow?{n}": Answer(b"late", wait=2) for n in range(4)}
    done = crawl(
        Slow, RETRY_ENABLED=False, DOWNLOAD_TIMEOUT=0.05, CONCURRENT_REQUESTS_PER_DOMAIN=1,
        **QUICK,
    )  # fmt: skip
    assert [type(f.value).__name__ for f in done.spider.failed] == ["DownloadTimeoutError"] * 4
