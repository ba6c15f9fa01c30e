"""Download handlers that connect to the address a fetch was booked on.

``scrapy_spider_suite.handlers.http1.Http1Handler`` is the suite's own HTTP/1.1 client, close to
the wire; ``scrapy_spider_suite.handlers.pinned.PinnedHTTP11Handler`` is Scrapy's handler held to
the booked address. Each is named in Scrapy's ``DOWNLOAD_HANDLERS`` and works alone. This package
imports neither, since a crawl uses one of them.
"""
