"""Tests of the robots middleware on an engine that is told what to answer."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from scrapy import Spider, signals
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    IgnoreRequest,
    NotConfigured,
)
from scrapy.http import Request, Response
from scrapy.robotstxt import PythonRobotParser
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.crawl_policy import PolicyFile
from scrapy_spider_suite.downloadermiddlewares.robotstxt import RobotsMiddleware, RulesParser
from scrapy_spider_suite.errors import NoSuchHostError
from scrapy_spider_suite.exceptions import RobotsForbidden, RobotsUnavailable
from scrapy_spider_suite.frontier.robots_rules import BODY_MAX, RETRY_AFTER, TTL, RobotsVerdict
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.store.interface import KV, MemoryKV

CLOSED = b"User-agent: *\nDisallow: /private\nCrawl-delay: 7"
ROBOTS, PAGE, PRIVATE = (f"https://h.example/{p}" for p in ("robots.txt", "page", "private/x"))
T0 = 1_700_000_000.0
has_signal = pytest.mark.skipif(
    not hasattr(signals, "robots_parsed"), reason="robots_parsed is there since Scrapy 2.18"
)

Answer = Response | Exception


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Engine:
    """Answers downloads from a table; what is not in it is a 404."""

    spider: Spider | None = Spider("x")

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers = answers
        self.requests: list[Request] = []
        self.hold = asyncio.Event()
        self.hold.set()

    @property
    def urls(self) -> list[str]:
        """What was downloaded."""
        return [request.url for request in self.requests]

    async def download_async(self, request: Request) -> Response:
        """Answer *request* once nothing holds the engine."""
        self.requests.append(request)
        await self.hold.wait()
        answer = self.answers.get(request.url) or Response(request.url, 404)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Bench:
    """A middleware on a fake engine, with a clock that the test sets."""

    def __init__(
        self, answer: Answer | dict[str, Answer], kv: KV | None = None, **settings: Any
    ) -> None:
        self.crawler = get_crawler(Spider, {"ROBOTSTXT_OBEY": True, **settings})
        answers = answer if isinstance(answer, dict) else {ROBOTS: answer}
        self.engine = Engine(answers)
        self.crawler.engine = self.engine  # type: ignore[assignment]
        self.now = T0
        self.tested = RobotsMiddleware.from_crawler(self.crawler)
        self.tested.service._clock = lambda: self.now
        # Without a crawl, which nothing would close.
        self.tested.service._policy_file = PolicyFile(suite_settings(self.crawler))

    async def passes(self, url: str = PAGE, **kwargs: Any) -> bool:
        """Return whether a request gets through; other refusals than by rule are raised."""
        try:
            await self.tested.process_request(Request(url, **kwargs))
        except RobotsForbidden:
            return False
        return True

    @property
    def stats(self) -> dict[str, Any]:
        """What was counted, without the common prefix."""
        assert self.crawler.stats is not None
        counted = self.crawler.stats.get_stats().items()
        return {key.removeprefix("robotstxt/"): value for key, value in counted}


def ok(body: bytes = CLOSED, url: str = ROBOTS, **headers: str) -> Response:
    """Return a robots.txt."""
    return Response(
        url, 200, headers={k.replace("_", "-"): v for k, v in headers.items()}, body=body
    )


def to(location: str, url: str = ROBOTS) -> Response:
    """Return a redirect."""
    return Response(url, 301, headers={"Location": location})


@on_loop
async def test_obeys_and_fetches_once() -> None:
    """One fetch answers for all pages of an origin; the stats are Scrapy's."""
    bench = Bench(ok())
    assert await bench.passes()
    assert not await bench.passes(PRIVATE)
    assert not await bench.passes(PRIVATE)
    assert bench.engine.urls == [ROBOTS]
    assert bench.stats == {
        "request_count": 1, "response_count": 1, "response_status_count/200": 1, "forbidden": 2,
    }  # fmt: skip
    assert bench.tested.service.crawl_delay(PAGE) == 7.0


@on_loop
async def test_how_a_robots_txt_is_asked_for() -> None:
    """It is not obeyed itself, not redirected, cut at 500 KiB, and it is not off-site."""
    bench = Bench(ok())
    await bench.passes()
    (request,) = bench.engine.requests
    assert request.priority == 1000
    assert request.meta == {
        "allow_offsite": True, "dont_obey_robotstxt": True, "dont_redirect": True,
        "download_maxsize": 8 << 20, "download_warnsize": 0, "suite_truncate": BODY_MAX,
    }  # fmt: skip


@on_loop
async def test_the_frontier_and_the_retry_middleware_do_not_both_retry() -> None:
    """With the suite's scheduler RetryMiddleware is told to leave it."""
    bench = Bench(ok(), SCHEDULER="scrapy_spider_suite.scheduler.FrontierScheduler")
    await bench.passes()
    assert bench.engine.requests[0].meta["dont_retry"] is True


@on_loop
async def test_a_projects_smaller_size_limit_holds() -> None:
    """DOWNLOAD_MAXSIZE is only ever lowered; 0 is no limit."""
    for limit, used in ((1000, 1000), (0, 8 << 20), (1 << 30, 8 << 20)):
        bench = Bench(ok(), DOWNLOAD_MAXSIZE=limit)
        await bench.passes()
        assert bench.engine.requests[0].meta["download_maxsize"] == used


@on_loop
async def test_concurrent_requests_share_one_fetch() -> None:
    """The second waits for the first one's answer."""
    bench = Bench(ok())
    bench.engine.hold.clear()
    waiting = [asyncio.ensure_future(bench.passes(url)) for url in (PAGE, PRIVATE, PAGE)]
    await asyncio.sleep(0)
    assert bench.tested.service.peek(PAGE) is None
    assert bench.tested.service.crawl_delay(PAGE) is None
    bench.engine.hold.set()
    assert await asyncio.gather(*waiting) == [True, False, True]
    assert bench.engine.urls == [ROBOTS]


@on_loop
async def test_a_cancelled_request_does_not_take_the_fetch_with_it() -> None:
    """Others wait for the same answer."""
    bench = Bench(ok())
    bench.engine.hold.clear()
    first, second = (asyncio.ensure_future(bench.passes()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    bench.engine.hold.set()
    assert await second
    assert first.cancelled()
    assert bench.engine.urls == [ROBOTS]


@on_loop
async def test_origins_have_a_robots_txt_each() -> None:
    """Scheme and port make an origin; user, case and default port do not."""
    bench = Bench({})
    for url in (
        "http://h.example/", "https://h.example/", "https://h.example:8443/",
        "https://me:pw@H.example:443/x", "http://h.example./",
    ):  # fmt: skip
        assert await bench.passes(url)
    assert bench.engine.urls == [
        "http://h.example/robots.txt", ROBOTS, "https://h.example:8443/robots.txt"
    ]  # fmt: skip


@on_loop
async def test_a_missing_robots_txt_allows_everything() -> None:
    """Even if its error page reads like one."""
    bench = Bench(Response(ROBOTS, 404, body=b"User-agent: *\nDisallow: /"))
    assert await bench.passes(PRIVATE)
    assert bench.stats["response_status_count/404"] == 1


@pytest.mark.parametrize("status", [429, 500, 503])
@on_loop
async def test_an_error_allows_nothing_for_now(status: int) -> None:
    """Requests are refused until it is asked for again, and the refusal says when that is."""
    bench = Bench(Response(ROBOTS, status))
    for _ in range(2):
        with pytest.raises(RobotsUnavailable) as refused:
            await bench.passes()
        assert refused.value.retry_at == T0 + RETRY_AFTER[0]
    assert isinstance(refused.value, IgnoreRequest)
    assert bench.stats["unavailable"] == 2
    assert bench.engine.urls == [ROBOTS]
    bench.now = refused.value.retry_at
    bench.engine.answers[ROBOTS] = ok()
    assert await bench.passes()
    assert "forbidden" not in bench.stats


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (DownloadConnectionRefusedError(), True),
        (ValueError("odd"), True),
        (IgnoreRequest("too large once decompressed"), False),
    ],
)
@on_loop
async def test_no_answer_allows_nothing_for_now(error: Exception, counted: bool) -> None:
    """Whatever a handler or middleware raises; IgnoreRequest is not counted, as in Scrapy."""
    bench = Bench(error)
    with pytest.raises(RobotsUnavailable):
        await bench.passes()
    assert bench.stats["request_count"] == 1
    assert (f"exception_count/{type(error)}" in bench.stats) is counted


@pytest.mark.parametrize("error", [NoSuchHostError("h.example"), CannotResolveHostError()])
@on_loop
async def test_a_host_without_an_address_is_the_pages_own_affair(error: Exception) -> None:
    """The page fails of it under its own name, and no verdict is kept."""
    bench = Bench(error)
    for _ in range(2):
        with pytest.raises(type(error)):
            await bench.passes()
    assert bench.engine.urls == [ROBOTS, ROBOTS]
    assert bench.stats == {"request_count": 2, f"exception_count/{type(error)}": 2}


@on_loop
async def test_known_rules_hold_while_the_origin_is_unreachable() -> None:
    """After the day they are good for, the old ones go on to hold."""
    bench = Bench(ok())
    assert await bench.passes()
    bench.now += TTL
    bench.engine.answers[ROBOTS] = Response(ROBOTS, 503)
    assert await bench.passes()
    assert not await bench.passes(PRIVATE)
    assert len(bench.engine.requests) == 2


@on_loop
async def test_rules_expire() -> None:
    """After a day, and by a shorter max-age."""
    bench = Bench(ok(Cache_Control="max-age=7200"))
    await bench.passes()
    bench.now += 7199
    await bench.passes()
    assert len(bench.engine.requests) == 1
    bench.now += 1
    bench.engine.answers[ROBOTS] = ok(b"")
    assert await bench.passes(PRIVATE)
    bench.now += 86_400
    await bench.passes()
    assert len(bench.engine.requests) == 3


@on_loop
async def test_redirects_are_followed_to_other_hosts() -> None:
    """The rules hold for the origin that was asked; one request is counted, as by Scrapy."""
    there = "http://www.other.example/r.txt"
    bench = Bench({ROBOTS: to("/r"), "https://h.example/r": to(there), there: ok(url=there)})
    assert not await bench.passes(PRIVATE)
    assert bench.engine.urls == [ROBOTS, "https://h.example/r", there]
    assert all(request.meta["dont_obey_robotstxt"] for request in bench.engine.requests)
    assert bench.stats == {
        "request_count": 1, "response_count": 1, "response_status_count/200": 1, "forbidden": 1,
    }  # fmt: skip


@on_loop
async def test_five_redirects_are_followed_and_no_more() -> None:
    """RFC 9309 §2.3.1.2: then it counts as missing."""
    chain = [ROBOTS, *(f"https://h.example/{n}" for n in range(6))]
    answers: dict[str, Answer] = {a: to(b, a) for a, b in itertools.pairwise(chain)}
    answers[chain[5]] = ok(url=chain[5])
    assert not await Bench(answers).passes(PRIVATE)
    answers[chain[5]] = to(chain[6], chain[5])
    bench = Bench(answers)
    assert await bench.passes(PRIVATE)
    assert bench.engine.urls == chain[:6]


@pytest.mark.parametrize("location", ["", "ftp://h.example/", "http://", ROBOTS])
@on_loop
async def test_a_redirect_to_nowhere_counts_as_missing(location: str) -> None:
    """As does one to itself."""
    assert await Bench(to(location)).passes(PRIVATE)


@pytest.mark.parametrize("error", [NoSuchHostError("x"), DownloadConnectionRefusedError()])
@on_loop
async def test_a_redirect_to_an_unreachable_host_allows_nothing_for_now(error: Exception) -> None:
    """The page's own host is well, but what it allows is unknown."""
    bench = Bench({ROBOTS: to("http://gone.example/"), "http://gone.example/": error})
    with pytest.raises(RobotsUnavailable):
        await bench.passes()


@on_loop
async def test_what_needs_no_permission() -> None:
    """dont_obey_robotstxt, and URLs that are neither http nor https."""
    bench = Bench(ok())
    assert await bench.passes(PRIVATE, meta={"dont_obey_robotstxt": True})
    for url in ("data:,x", "file:///x", "s3://bucket/x", "ftp://h.example/x"):
        assert await bench.passes(url)
    assert (await bench.tested.service.rules_for("http://")).verdict is RobotsVerdict.ALLOW_ALL
    assert bench.engine.requests == []


def test_off_without_robotstxt_obey() -> None:
    """As Scrapy's middleware."""
    with pytest.raises(NotConfigured):
        RobotsMiddleware.from_crawler(get_crawler(Spider, {"ROBOTSTXT_OBEY": False}))


AGENTS = (
    b"User-agent: one\nDisallow: /1\nUser-agent: two\nDisallow: /2\nUser-agent: *\nDisallow: /3"
)


@pytest.mark.parametrize(
    ("settings", "header", "refused"),
    [
        ({"USER_AGENT": "one/1.0"}, None, 1),
        ({"USER_AGENT": "one/1.0"}, "Mozilla (two)", 2),
        ({"USER_AGENT": "one/1.0", "ROBOTSTXT_USER_AGENT": "two"}, "other", 2),
        ({}, "other", 3),
    ],
)
@on_loop
async def test_whose_rules_are_obeyed(
    settings: dict[str, Any], header: str | None, refused: int
) -> None:
    """ROBOTSTXT_USER_AGENT, else the request's header, else USER_AGENT."""
    bench = Bench(ok(AGENTS), **settings)
    headers = {"User-Agent": header} if header else None
    found = [await bench.passes(f"https://h.example/{n}", headers=headers) for n in (1, 2, 3)]
    assert found == [n != refused for n in (1, 2, 3)]


@on_loop
async def test_50_megabytes_count_as_their_beginning() -> None:
    """A handler that does not cut gives all of it; memory and time stay bounded."""
    bench = Bench(ok(CLOSED + b"\nDisallow: /x" * 4_000_000))
    assert not await bench.passes(PRIVATE)
    rules = bench.tested.service.peek(PAGE)
    assert rules is not None
    assert len(rules.body) == BODY_MAX


@on_loop
async def test_verdicts_outlive_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a job directory nothing is fetched again on resume, failures are not forgotten."""
    kv = MemoryKV()
    monkeypatch.setattr("scrapy_spider_suite.store.job_directory.job_kv", lambda crawler, name: kv)
    down = "https://down.example/robots.txt"
    first = Bench({ROBOTS: ok(), down: Response(down, 503)})
    assert await first.passes()
    with pytest.raises(RobotsUnavailable):
        await first.passes("https://down.example/")
    second = Bench({down: Response(down, 503)})
    assert not await second.passes(PRIVATE)
    assert second.engine.requests == []
    second.now = T0 + RETRY_AFTER[0]
    with pytest.raises(RobotsUnavailable) as refused:
        await second.passes("https://down.example/")
    assert refused.value.retry_at == second.now + RETRY_AFTER[1]


@on_loop
async def test_the_scheduler_asks_before_the_first_page() -> None:
    """fetch() and rules_for() give the rules; peek() has them from then on."""
    bench = Bench(ok())
    rules = await bench.tested.service.fetch("https://h.example")
    assert rules.verdict is RobotsVerdict.RULES
    assert bench.tested.service.peek(PAGE) is rules
    assert await bench.tested.service.rules_for(PAGE) is rules
    assert await bench.passes()
    assert bench.engine.urls == [ROBOTS]


@on_loop
async def test_a_stopped_crawl_is_no_failure_of_the_host() -> None:
    """What could not be asked is not kept as unreachable."""
    bench = Bench(ok())
    bench.engine.spider = None
    with pytest.raises(RobotsUnavailable):
        await bench.passes()
    bench.engine.spider = Spider("x")
    assert await bench.passes()


@on_loop
async def test_the_log_is_loud_only_where_requests_do_not_come_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A closed origin is a warning; the broad profile keeps its pages, so there it is none."""
    frontier: dict[str, Any] = {"SCHEDULER": "scrapy_spider_suite.scheduler.FrontierScheduler"}
    broad = frontier | {"SUITE_PROFILE": "broad"}
    for settings, level in ((dict[str, Any](), "WARNING"), (frontier, "WARNING"), (broad, "DEBUG")):
        caplog.clear()
        with caplog.at_level("DEBUG"), pytest.raises(RobotsUnavailable):
            await Bench(Response(ROBOTS, 503), **settings).passes()
        (line,) = [record for record in caplog.records if "cannot be had" in record.message]
        assert line.levelname == level
        assert line.message == (
            "robots.txt of https://h.example cannot be had (status 503): "
            "nothing is allowed for 300 s"
        )


class Own(PythonRobotParser):
    """A project's parser that allows nothing to anyone named b."""

    def allowed(self, url: str | bytes, user_agent: str | bytes) -> bool:
        """Refuse b."""
        return user_agent != "b"


class Broken(PythonRobotParser):
    """A parser whose library is missing."""

    @classmethod
    def from_crawler(cls, crawler: Any, robotstxt_body: bytes) -> Any:
        """Fail as an import would."""
        raise ImportError("no such library")


@on_loop
async def test_a_projects_own_parser_is_used() -> None:
    """ROBOTSTXT_PARSER keeps its meaning, for bodies of 2xx answers."""
    bench = Bench(ok(), ROBOTSTXT_PARSER=Own)
    assert await bench.passes(PRIVATE)
    assert not await bench.passes(headers={"User-Agent": "b"})
    assert bench.tested.service.crawl_delay(PAGE) == 7.0
    missing = Bench(Response(ROBOTS, 404), ROBOTSTXT_PARSER=Own)
    assert await missing.passes(headers={"User-Agent": "b"})


def test_a_parser_that_cannot_be_used_stops_the_start() -> None:
    """As with Scrapy's middleware."""
    with pytest.raises(ImportError, match="no such library"):
        Bench(ok(), ROBOTSTXT_PARSER=Broken)


@has_signal
@pytest.mark.parametrize("parser", [None, Own])
@on_loop
async def test_robots_parsed_is_sent(parser: Any) -> None:
    """With a parser of Scrapy's interface and the request that had it fetched."""
    bench = Bench(ok(), **({"ROBOTSTXT_PARSER": parser} if parser else {}))
    seen: list[tuple[Any, Request]] = []

    def note(robotparser: Any, request: Request) -> None:
        seen.append((robotparser, request))

    bench.crawler.signals.connect(note, signals.robots_parsed)
    request = Request(PAGE)
    await bench.tested.process_request(request)
    await bench.tested.service.fetch("http://other.example")
    (found, cause), (_, own) = seen
    assert cause is request
    assert own.url == "http://other.example/robots.txt"
    assert isinstance(found, parser or RulesParser)
    assert found.crawl_delay(b"mybot") == 7.0
    assert found.allowed(PRIVATE.encode(), b"mybot") is (parser is Own)


def test_rules_parser_parses_a_body() -> None:
    """It is a whole parser of Scrapy's interface."""
    parser = RulesParser.from_crawler(get_crawler(), CLOSED)
    assert not parser.allowed(PRIVATE, "mybot")
    assert parser.crawl_delay("mybot") == 7.0
