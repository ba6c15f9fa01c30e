"""Exceptions that the suite raises from Scrapy components.

Other errors of the suite are in `scrapy_spider_suite.errors`, which does not import Scrapy.
"""

from __future__ import annotations

from scrapy.exceptions import DownloadFailedError, IgnoreRequest
from scrapy.http import Response

from scrapy_spider_suite.errors import PrivateAddressError


class RobotsForbidden(IgnoreRequest):
    """robots.txt does not allow the URL for this user agent."""


class RobotsUnavailable(IgnoreRequest):
    """robots.txt cannot be had: it is asked for again at *retry_at*, in seconds since the epoch."""

    def __init__(self, message: str, retry_at: float) -> None:
        super().__init__(message)
        self.retry_at = retry_at


class HostExcluded(IgnoreRequest):
    """Nothing may be sent to the host, or below the URL, for now.

    By the operator's rules; or, in a cluster, because another agent has the host or the lease of
    this agent has run out. *until*: seconds since the epoch; infinite if unknown.
    """

    def __init__(self, message: str, until: float) -> None:
        super().__init__(message)
        self.until = until


class UnwantedMediaType(IgnoreRequest):
    """SUITE_MEDIA_TYPES does not name the type of the answer; *response*: its head, no body."""

    def __init__(self, response: Response) -> None:
        kind = (response.headers.get(b"Content-Type") or b"").decode("latin-1")[:100]
        super().__init__(f"{response.url} is {kind!r}, which SUITE_MEDIA_TYPES does not name")
        self.response = response


class NotModified(IgnoreRequest):
    """The page has not changed since the last visit (304); *response* has an empty body."""

    def __init__(self, message: str, response: Response) -> None:
        super().__init__(message)
        self.response = response


class PrivateAddressRefused(PrivateAddressError, IgnoreRequest):
    """The host is at a private address, which ``SUITE_ALLOW_PRIVATE_ADDRESSES`` does not allow.

    *answered*: a download handler that is not the suite's sent the request all the same.
    """

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


class FilterRefused(IgnoreRequest):
    """SUITE_FETCH_FILTER rejects the URL, or SUITE_PARSE_FILTER its answer, the *response*."""

    def __init__(self, message: str, response: Response | None = None) -> None:
        super().__init__(message)
        self.response = response


class HostUnreachable(DownloadFailedError):
    """The host never answered, and is not asked again for now; to errbacks, a failed download."""


class HostWaitsTooLong(Exception):
    """A request without a visit, such as an image, would wait longer than SUITE_MAX_WAIT."""


class RedirectRefused(IgnoreRequest):
    """A redirect that is not followed."""


class TooManyHops(RedirectRefused):
    """More redirects in a row than are followed."""


class RedirectLoop(RedirectRefused):
    """The page redirected to itself, was fetched once more, and did it again."""


class PageRedirected(IgnoreRequest):
    """The answer leads elsewhere; that URL has its own place in the frontier."""
