"""From Scrapy's answers and exceptions to the `Event` that the outcome table knows."""

from __future__ import annotations

import errno
import zlib
from gzip import BadGzipFile

from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    IgnoreRequest,
    NotSupported,
    ResponseDataLossError,
    UnsupportedURLSchemeError,
)
from scrapy.http import Request, Response

from scrapy_spider_suite.errors import NoSuchHostError, PrivateAddressError, ResolveError
from scrapy_spider_suite.exceptions import (
    FilterRefused,
    HostBarred,
    HostUnreachable,
    NotModified,
    RedirectLoop,
    RobotsForbidden,
    RobotsUnavailable,
    TooManyHops,
    UnwantedMediaType,
)
from scrapy_spider_suite.fetch.http_messages import MalformedResponseError, OutOfFilesError
from scrapy_spider_suite.frontier.outcomes import Event, event_of_status

_EVENTS: tuple[tuple[type[BaseException], Event], ...] = (
    # The first that fits counts: the narrower class stands before the wider one.
    (RobotsForbidden, Event.ROBOTS),
    (RobotsUnavailable, Event.ROBOTS_UNAVAILABLE),
    (HostBarred, Event.BARRED),
    (UnwantedMediaType, Event.MEDIA_TYPE),
    (NotModified, Event.SUCCESS),
    (FilterRefused, Event.FILTERED),
    (TooManyHops, Event.TOO_MANY_HOPS),
    (RedirectLoop, Event.REDIRECT_LOOP),
    (PrivateAddressError, Event.PRIVATE_ADDRESS),
    (IgnoreRequest, Event.IGNORED),
    (NoSuchHostError, Event.NO_SUCH_HOST),
    (ResolveError, Event.DNS),
    (OutOfFilesError, Event.OUT_OF_FILES),
    (DownloadTimeoutError, Event.TIMEOUT),
    (DownloadConnectionRefusedError, Event.REFUSED),
    (CannotResolveHostError, Event.DNS),
    (DownloadCancelledError, Event.TOO_LARGE),
    (ResponseDataLossError, Event.DATA_LOSS),
    (MalformedResponseError, Event.BAD_RESPONSE),
    (HostUnreachable, Event.HOST_DEAD),
    (DownloadFailedError, Event.CONNECTION_LOST),
    # What Scrapy's HttpCompressionMiddleware lets through when a body is not what it says.
    (BadGzipFile, Event.BAD_RESPONSE),
    (zlib.error, Event.BAD_RESPONSE),
    (UnsupportedURLSchemeError, Event.UNSUPPORTED),
    (NotSupported, Event.UNSUPPORTED),
    (TimeoutError, Event.TIMEOUT),
    (ConnectionRefusedError, Event.REFUSED),
)

_SCRAPYS_ROBOTS = "Forbidden by robots.txt"
"""What Scrapy's own RobotsTxtMiddleware says: it raises nothing of its own."""

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


class StoppedError(IgnoreRequest):
    """The crawl is being stopped: the request is not sent any more, and stays pending."""


def event_of_error(error: BaseException) -> Event:
    """The event that an exception out of the downloader stands for."""
    if isinstance(error, StoppedError):
        return Event.INTERRUPTED
    if type(error) is IgnoreRequest and str(error) == _SCRAPYS_ROBOTS:
        return Event.ROBOTS
    if isinstance(error, CannotResolveHostError) and isinstance(error.__cause__, ResolveError):
        error = error.__cause__
    for kind, event in _EVENTS:
        if isinstance(error, kind):
            return event
    return Event.DOWNLOAD_ERROR


def event_of_result(result: Request | Response) -> Event:
    """The event that what the downloader returned stands for."""
    if isinstance(result, Response):
        return event_of_status(result.status)
    return Event.REPLACED  # or the engine refuses what a project's own downloader gave


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a pipeline or a feed failed because nothing more can be written."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL
