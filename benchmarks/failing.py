"""Download handlers for the benchmarks for which one download in a hundred fails on the wire.

Which ones follows from the URL. Instead of the page they ask for port 1 of the same host, where
nobody listens, so the error and its traceback are those of a real connection.
"""

from __future__ import annotations

import zlib
from typing import Any

from scrapy import Request
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.http import Response

from scrapy_spider_suite.fetch.http1 import Http1Handler

ONE_IN = 100


def bent(request: Request) -> Request:
    """*request*, or what is asked for in its place."""
    if zlib.crc32(request.url.encode()) % ONE_IN or request.url.endswith("/robots.txt"):
        return request
    host = request.url.split("/")[2].partition(":")[0]
    return request.replace(url=f"http://{host}:1/")


class Plain(HTTP11DownloadHandler):
    """Scrapy's own handler."""

    async def download_request(self, request: Request) -> Response:
        """See Scrapy's."""
        return await super().download_request(bent(request))


class Suite(Http1Handler):
    """The suite's handler of the broad profile."""

    async def download_request(self, request: Request) -> Any:
        """See the suite's."""
        return await super().download_request(bent(request))
