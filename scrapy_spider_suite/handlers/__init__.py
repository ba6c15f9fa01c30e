"""The suite's HTTP/1.1 client: it connects to the address that a fetch was booked on.

``scrapy_spider_suite.handlers.http1.Http1Handler`` is named in Scrapy's ``DOWNLOAD_HANDLERS``, and
works alone.
"""
