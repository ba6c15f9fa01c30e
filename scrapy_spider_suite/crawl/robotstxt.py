"""How a robots.txt is fetched: with its redirects, paced as any request is, and never too large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from scrapy.exceptions import CannotResolveHostError, IgnoreRequest
from scrapy.http import Request, Response
from scrapy.http.request import NO_CALLBACK

from scrapy_spider_suite.crawl.events import StoppedError
from scrapy_spider_suite.downloadermiddlewares.redirect import redirect_target
from scrapy_spider_suite.errors import SuiteError
from scrapy_spider_suite.exceptions import HostBarred, RedirectRefused
from scrapy_spider_suite.frontier.robots_rules import BODY_MAX, REDIRECTS_MAX, max_age

if TYPE_CHECKING:
    from scrapy.core.engine import ExecutionEngine
    from scrapy.statscollectors import StatsCollector

DOWNLOAD_MAX: Final = 8 << 20
"""Bytes after which a download handler that cannot cut a body gives up, and what decompression
may come to. A robots.txt beyond it counts as unreachable."""


class Answer(NamedTuple):
    """What came of *request*. *age*: seconds for which it may be kept, if it says so."""

    request: Request
    status: int | None
    """None: there was no answer."""
    body: bytes
    age: float | None
    why: object
    """Why there are no rules in it, if there are none."""


class RobotsFetcher:
    """Fetches one robots.txt after the other, and counts them.

    *maxsize* is the project's ``DOWNLOAD_MAXSIZE``. What failed is tried again by Scrapy's
    ``RetryMiddleware`` if it *retries*, else by whoever asks again later. ``suite_truncate`` has
    the suite's download handlers stop reading there and take it for the end.
    """

    def __init__(
        self, stats: StatsCollector, *, priority: int, maxsize: int, retries: bool
    ) -> None:
        self._stats = stats
        self._priority = priority
        self._meta = {
            "allow_offsite": True,
            "dont_obey_robotstxt": True,
            "dont_redirect": True,
            "download_maxsize": min(maxsize or DOWNLOAD_MAX, DOWNLOAD_MAX),
            "download_warnsize": 0,
            "suite_truncate": BODY_MAX,
        }
        if not retries:
            self._meta["dont_retry"] = True

    async def fetch(self, engine: ExecutionEngine, origin: str) -> Answer:
        """Return the answer of *origin*, or why there is none.

        Raises `SuiteError`, `CannotResolveHostError`, `HostBarred` and `StoppedError`: a rule of
        ours says nothing of the host, nor does a crawl that is being stopped.
        """
        request = self._request(f"{origin}/robots.txt")
        try:
            response = await self._download(engine, request)
        except (SuiteError, CannotResolveHostError, HostBarred, StoppedError) as exc:
            self._count_failure(exc)
            raise
        except Exception as exc:  # of any download handler or middleware: all mean no answer
            self._count_failure(exc)
            return Answer(request, None, b"", None, exc or type(exc).__name__)
        finally:
            self._stats.inc_value("robotstxt/request_count")
        status = response.status
        self._stats.inc_value("robotstxt/response_count")
        self._stats.inc_value(f"robotstxt/response_status_count/{status}")
        return Answer(request, status, response.body, _age(response), f"status {status}")

    async def _download(self, engine: ExecutionEngine, request: Request) -> Response:
        """Return the answer to *request*, or to the last redirect that is followed.

        Every hop goes through the downloader, so it is paced like any other request.

        Raises:
            RedirectRefused: a redirect led to a host without a usable address.
            Exception: whatever a download raises.
        """
        response = await engine.download_async(request)
        for _ in range(REDIRECTS_MAX):
            target = redirect_target(request.url, response)
            if target is None:
                break
            request = self._request(target)
            try:
                response = await engine.download_async(request)
            except (SuiteError, CannotResolveHostError, HostBarred) as exc:
                raise RedirectRefused(f"redirected to {target}: {exc}") from exc
        return response

    def _request(self, url: str) -> Request:
        return Request(url, callback=NO_CALLBACK, priority=self._priority, meta=dict(self._meta))

    def _count_failure(self, exc: Exception) -> None:
        if not isinstance(exc, IgnoreRequest):
            self._stats.inc_value(f"robotstxt/exception_count/{type(exc)}")


def _age(response: Response) -> float | None:
    """Return how long *response* may be kept, in seconds, or None."""
    return max_age(b",".join(response.headers.getlist(b"Cache-Control")).decode("latin-1"))
