"""A crawl of given requests by plain Scrapy, with whatever handler its settings name.

Usage: ``python probe_crawl.py SETTINGS REQUESTS [FILES]``: JSON of settings, JSON of a list of
arguments for Request, the most files that the process may open. Prints one line of JSON: responses,
names of the errors, stats, and Scrapy's version. Run by test_crawl.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import scrapy
from scrapy.crawler import CrawlerProcess

REPORT: dict[str, Any] = {"responses": [], "errors": [], "scrapy": scrapy.__version__}


class Probe(scrapy.Spider):
    """Fetches what it was given."""

    name = "probe"

    async def start(self) -> AsyncIterator[Any]:
        """Yield all requests at once."""
        for arguments in json.loads(sys.argv[2]):
            yield scrapy.Request(**arguments, errback=self.failed, dont_filter=True)

    def parse(self, response: Any) -> None:
        """Note a response."""
        row = [response.status, response.text, str(response.ip_address), response.flags]
        REPORT["responses"].append(row)

    def failed(self, failure: Any) -> None:
        """Note an error."""
        REPORT["errors"].append(failure.type.__name__)


def main() -> None:
    """Crawl and report."""
    if len(sys.argv) > 3:
        import resource

        files = int(sys.argv[3])
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 100), files))
    process = CrawlerProcess(json.loads(sys.argv[1]))
    crawler = process.create_crawler(Probe)
    process.crawl(crawler)
    process.start()
    stats = crawler.stats.get_stats() if crawler.stats else {}
    REPORT["stats"] = {key: value for key, value in stats.items() if isinstance(value, int)}
    print(json.dumps(REPORT))


if __name__ == "__main__":
    main()
