"""What a download handler of the suite raises beside the errors of ``scrapy.exceptions``.

::

    scrapy.exceptions.DownloadFailedError
    └── MalformedResponseError   what came back is not an HTTP/1 response
        └── ResponseBoundsError  it may be one, but it has more of something than is read
    SuiteError
    └── OutOfFilesError          this process or machine has no file left to connect with
    ValueError
    └── UnsendableRequestError   the request cannot be written as HTTP/1.1

The first two are failures of a server, so Scrapy's ``RETRY_EXCEPTIONS`` covers them. The last two
are not a server's fault and are not retried: running out of files must never count against a host.
"""

from __future__ import annotations

import errno

from scrapy.exceptions import DownloadFailedError

from scrapy_spider_suite.errors import SuiteError

OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What the system answers to ``socket`` and ``connect`` when we, not the server, ran short."""


class MalformedResponseError(DownloadFailedError):
    """The bytes that came back are not an HTTP/1 response."""


class ResponseBoundsError(MalformedResponseError):
    """The response has more of something than is read: head bytes, fields, interim responses, chunk
    headers."""


class OutOfFilesError(SuiteError):
    """No connection could be opened because this process or machine is out of file descriptors.

    The crawl should pause, or be given a higher limit (``ulimit -n``); the host is not to blame.
    """


class UnsendableRequestError(ValueError):
    """The URL, method or a header name of the request has characters that HTTP/1.1 cannot carry."""
