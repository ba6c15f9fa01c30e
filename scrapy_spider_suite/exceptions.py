"""Exceptions that the suite raises from Scrapy components; all are ``IgnoreRequest``.

::

    scrapy.exceptions.IgnoreRequest
    ├── RobotsForbidden     robots.txt does not allow the URL
    ├── RobotsUnavailable   nothing is allowed until robots.txt can be had
    ├── HostExcluded          the host is blocked, outside its hours, or another agent's
    ├── UnwantedMediaType   the answer is of a media type that is not read
    ├── PrivateAddressRefused  the host is at an address that is not allowed
    ├── FilterRefused       a filter does not want the URL, or its answer
    └── RedirectRefused     a redirect is not followed
        ├── TooManyHops     too many in a row
        └── RedirectLoop    a page that redirects to itself, again

Whoever catches ``IgnoreRequest``, as errbacks and Scrapy itself do, catches these. The suite's
other errors are in `scrapy_spider_suite.errors`, which knows nothing of Scrapy.
"""

from __future__ import annotations

from scrapy.exceptions import DownloadFailedError, IgnoreRequest
from scrapy.http import Response

from scrapy_spider_suite.errors import PrivateAddressError
from scrapy_spider_suite.runtime.http_fields import field_text


class RobotsForbidden(IgnoreRequest):
    """robots.txt does not allow the URL for this user agent."""


class RobotsUnavailable(IgnoreRequest):
    """robots.txt cannot be had, so that nothing of its origin is allowed for now.

    Attributes:
        retry_at: when robots.txt is asked for again, in seconds since the epoch.
    """

    def __init__(self, message: str, retry_at: float) -> None:
        super().__init__(message)
        self.retry_at = retry_at


class HostExcluded(IgnoreRequest):
    """Nothing may be sent to the host, or below the URL, for now.

    By the operator's rules; or, where several agents share a crawl, since another one has the host,
    or since the lease of this one has run out.

    Attributes:
        until: when it may, in seconds since the epoch; infinite where no end is known.
    """

    def __init__(self, message: str, until: float) -> None:
        super().__init__(message)
        self.until = until


class UnwantedMediaType(IgnoreRequest):
    """The answer is of a media type that SUITE_MEDIA_TYPES does not name, and was not read.

    Attributes:
        response: the head of the answer, with an empty body.
    """

    def __init__(self, response: Response) -> None:
        kind = field_text(response.headers, "Content-Type")[:100]
        super().__init__(f"{response.url} is {kind!r}, which SUITE_MEDIA_TYPES does not name")
        self.response = response


class NotModified(IgnoreRequest):
    """The page is as it was at the last visit (304): there is nothing to be parsed.

    Attributes:
        response: the answer, with an empty body.
    """

    def __init__(self, message: str, response: Response) -> None:
        super().__init__(message)
        self.response = response


class PrivateAddressRefused(PrivateAddressError, IgnoreRequest):
    """The host is at a private address, which ``SUITE_ALLOW_PRIVATE_ADDRESSES`` does not allow.

    Attributes:
        answered: a download handler that is not the suite's went there all the same.
    """

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


class FilterRefused(IgnoreRequest):
    """SUITE_FETCH_FILTER does not want the URL, or SUITE_PARSE_FILTER its answer.

    Attributes:
        response: the answer; None where nothing was fetched.
    """

    def __init__(self, message: str, response: Response | None = None) -> None:
        super().__init__(message)
        self.response = response


class HostUnreachable(DownloadFailedError):
    """The host never answered, and is not asked again for now; to errbacks, a failed download."""


class HostWaitsTooLong(Exception):
    """An image, or what else came without a visit, would wait longer than SUITE_MAX_WAIT.

    Whoever wants it waits with it: the item for its images, and the crawl for the item.
    """

    def __init__(self, host: str, seconds: float, why: str) -> None:
        super().__init__(
            f"{host} has to wait {seconds:.0f} s ({why or 'its delay'}), longer than SUITE_MAX_WAIT"
        )


class RedirectRefused(IgnoreRequest):
    """A redirect that is not followed."""


class TooManyHops(RedirectRefused):
    """The redirect is one more in a row than is followed."""


class RedirectLoop(RedirectRefused):
    """The page was fetched once more because it redirected to itself, and did it again."""
