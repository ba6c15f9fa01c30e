"""Runs that fetched nothing, and crawls with another scheduler: how they end, and why.

With another scheduler the frontier counts nothing, so the gate reports what it sees.
"""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from scrapy import Request, signals
from scrapy.exceptions import CloseSpider
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK

from scrapy_spider_suite.crawl.context import Crawl, follows_links
from scrapy_spider_suite.crawl.preparation import TrustedPrivateHosts
from scrapy_spider_suite.crawl.requests import event_of_error, event_of_result
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.runtime.refusal import NO_PAGES, ExitCode, exit_code_for_reason
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.project import is_crawl

logger = logging.getLogger(__name__)

RUN_FACTS: Final = "start"
STARTED: Final = b"started"  # ``start()`` ran to its end, and something came of it
ANSWERED: Final = b"answered"  # a callback was given an answer that is no page by its status


def is_noted(crawl: Crawl, what: bytes) -> bool:
    return crawl.store.kv(RUN_FACTS).get(what) is not None


def note_fact(crawl: Crawl, what: bytes) -> None:
    crawl.store.kv(RUN_FACTS).put(what, b"1")


_PAGES = (
    Event.SUCCESS, Event.NOT_STORED, Event.NOT_PARSED, Event.CALLBACK_ERROR, Event.PIPELINE_ERROR,
    Event.UNREADABLE,
)  # fmt: skip
"""What concludes a URL of which a page has come."""
_NO_SEEDS = (
    "no request was queued; seeds are what start() yields (start_urls), what SUITE_SEEDS names, "
    "and `-a seeds=URL|FILE` of a BroadSpider"
)
_LEFT_OUT = "offsite/filtered", "urllength/request_ignored_count", "suite/filter/schedule/refused"
"""Stats of requests of start() that were not queued."""
_NAMES = "check the names; SUITE_DNS_SERVERS chooses the name servers"
_SERVERS = "check that the servers run"
_WAYS_OUT: Mapping[Event, str] = {
    Event.PRIVATE_ADDRESS: "SUITE_ALLOW_PRIVATE_ADDRESSES = ['127.0.0.0/8'] allows this machine, "
                           "True allows all addresses",
    Event.NO_SUCH_HOST: _NAMES, Event.DNS: _NAMES,
    Event.REFUSED: _SERVERS, Event.TIMEOUT: _SERVERS, Event.CONNECTION_LOST: _SERVERS,
    Event.HOST_DEAD: _SERVERS,
}  # fmt: skip


class EmptyRun:
    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl
        self._before = self._concluded
        self._started_before = is_noted(crawl, STARTED)

    @property
    def _concluded(self) -> tuple[int, int, int]:
        counters = self._crawl.frontier.counters
        # The last one tells what failed anew from what was left alone.
        return counters.done, counters.failed, counters.sequence

    @property
    def _had_nothing_to_do(self) -> bool:
        known = self._crawl.frontier.counters.has_urls
        job = self._crawl.job
        resumes = job is not None and job.resumed
        return resumes and known and self._concluded == self._before

    @property
    def has_no_pages(self) -> bool:
        """Whether the job has fetched no page, given a callback no answer, made no item.

        False for an agent, a start() that downloads by itself, items of an earlier run.
        """
        crawl, events = self._crawl, self._crawl.frontier.counters.events
        if crawl.agent is not None or not is_crawl(crawl.crawler):
            return False
        count = crawl.crawler.stats.get_value
        if not events and (self._started_before or count("downloader/response_count")):
            return False
        if count("item_scraped_count") or is_noted(crawl, ANSWERED):
            return False
        return not any(map(events.get, _PAGES))

    def explain(self, reason: str) -> None:
        """Warn if the run, which ended for *reason*, fetched nothing; say why."""
        done, failed, _ = self._before
        if reason == NO_PAGES:
            idle = "nothing was left to try in this run; " if self._had_nothing_to_do else ""
            logger.warning("no page was fetched: %s%s", idle, self._failures())
        elif (
            reason == "finished" and self._had_nothing_to_do and self._crawl.agent is None
            and (done or failed)
        ):  # fmt: skip
            pages = f"this job is complete: earlier runs fetched {counted(done, 'page')}"
            logger.warning(
                "%s (failed: %s), and nothing new was to be fetched; fetch pages again with "
                "`scrapy frontier refetch`, failed URLs with `retry`, give new seeds with `add`, "
                "or use another JOBDIR",
                pages if done else "earlier runs fetched no page", f"{failed:,}",
            )  # fmt: skip

    def _failures(self) -> str:
        crawl = self._crawl
        said = explain_no_page(crawl.frontier.counters.events)
        if said:
            return "; ".join((said, *self._in_the_job()))
        left_out = {name: crawl.crawler.stats.get_value(name) for name in _LEFT_OUT}
        return "; ".join((_NO_SEEDS, *(f"{name} = {n}" for name, n in left_out.items() if n)))

    def _in_the_job(self) -> Iterator[str]:
        crawl = self._crawl
        if crawl.job is None:
            return
        job = f"-j {shlex.quote(str(crawl.job.path))}"
        # Those are tried again by themselves.
        failures = _failures_of(crawl.frontier.counters.events)
        retried = Event.PRIVATE_ADDRESS if follows_links(crawl.crawler) else None
        left = [event for event, _ in failures if event is not retried]
        lines = [f"`scrapy frontier retry --reason {event.value} {job}`" for event in left]
        if lines and crawl.settings.broad:
            yield f"what failed stays failed in this JOBDIR until {', '.join(lines)}"
        elif lines:
            yield (
                "what failed stays failed in this JOBDIR, and of a spider's own requests no "
                "callback is kept: use another JOBDIR"
            )
        if self._had_nothing_to_do:
            yield f"new seeds are given with `scrapy frontier add URL {job}`"


def explain_no_page(events: Mapping[Event, int]) -> str:
    """Why requests that ended with *events* brought no page; "" if one came, or none was sent."""
    if any(map(events.get, _PAGES)):
        return ""
    failures = _failures_of(events)
    if not failures:
        return ""
    said = [f"{n:,} {e.value.replace('_', ' ')} ({e.outcome.meaning})" for e, n in failures]
    ways = dict.fromkeys(_WAYS_OUT[event] for event, _ in failures if event in _WAYS_OUT)
    return "; ".join((", ".join(said), *ways))


def _failures_of(events: Mapping[Event, int]) -> list[tuple[Event, int]]:
    counts = sorted(events.items(), key=lambda item: -item[1])
    # A request that another one replaced ended as that one did.
    return [(event, count) for event, count in counts if event is not Event.REPLACED]


_BEGUN = "suite_begun"
"""In the meta of a start request that was here: what has the key has copied that meta."""


class OtherSchedulerRun:
    """A crawl with another scheduler; *leave* sets the exit code of its command."""

    def __init__(
        self, crawl: Crawl, trusted: TrustedPrivateHosts, leave: Callable[[ExitCode], object]
    ) -> None:
        self._crawl = crawl
        self._trusted = trusted
        self._leave = leave
        self._answers = 0
        self._events: Counter[Event] = Counter()
        leave(ExitCode.INTERRUPTED)  # until it has ended otherwise
        crawl.closers.append(self._ended)
        crawl.crawler.signals.connect(self._idle, signals.spider_idle)

    def begin(self, request: Request) -> None:
        """Trust the host of *request* if ``start()`` has yielded it, not a copy of its meta."""
        if request.meta.get("is_start_request") and _BEGUN not in request.meta:
            request.meta[_BEGUN] = True
            self._trusted.add_start(request)

    def end(
        self, request: Request, result: Request | Response | None, error: BaseException | None
    ) -> None:
        if request.callback is NO_CALLBACK:
            return  # robots.txt and media: no page
        if error is not None:
            self._events[event_of_error(error)] += 1
        elif result is not None:
            self._events[event_of_result(result)] += 1
            self._answers += isinstance(result, Response)

    def _idle(self) -> None:
        crawl = self._crawl
        # Newer releases of Scrapy have a reason of their own for a start() that raised.
        raised = getattr(crawl.crawler.engine, "_start_error", False)
        # Other agents, and earlier runs, may have pages.
        others = crawl.agent is not None or (crawl.job is not None and crawl.job.resumed)
        if raised or others or not is_crawl(crawl.crawler):
            return
        count = crawl.crawler.stats.get_value
        # A callback asked for the others.
        heard = self._answers > count("httperror/response_ignored_count", 0)
        if not heard and not count("item_scraped_count") and explain_no_page(self._events):
            raise CloseSpider(NO_PAGES)

    def _ended(self, reason: str) -> None:
        if reason == NO_PAGES:
            logger.warning("no page was fetched: %s", explain_no_page(self._events))
        self._leave(exit_code_for_reason(reason))
