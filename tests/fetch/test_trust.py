"""Trust in a host that the operator named ends for good once it is found outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.assembly import open_crawl
from scrapy_spider_suite.crawl.context import Crawl, get_crawl
from scrapy_spider_suite.errors import PrivateAddressError
from scrapy_spider_suite.fetch.resolver import suite_resolver


class Named(Spider):
    """Any."""

    name = "any"


async def _addresses(crawl: Crawl, host: str) -> tuple[str, ...] | None:
    """Where *host* may be fetched from; None where that is refused."""
    resolver = suite_resolver(crawl.crawler)
    resolver.forget(host)
    try:
        return (await resolver.resolve(host)).addresses
    except PrivateAddressError:
        return None


@pytest.fixture
def use_job(nameserver: Any, tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario with the core of a job, the same one each time, and ends it."""

    def use(scenario: Callable[[Crawl], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            job = {"JOBDIR": str(tmp_path / "job"), "SUITE_DNS_SERVERS": [nameserver.address]}
            crawler = get_crawler(Named, job)
            crawler.crawling = True
            crawl = get_crawl(crawler)
            open_crawl(crawler)
            try:
                await scenario(crawl)
                crawl.frontier.close()
            finally:
                suite_resolver(crawler).close()
                crawl.close_job()

        asyncio.run(main())

    return use


def test_a_job_remembers_whom_it_trusts_no_more(
    nameserver: Any, use_job: Callable[..., None]
) -> None:
    """A name that was outside in one run must not lead inside in the next (DNS rebinding)."""
    nameserver.add("shop.example", "1.1.1.1")
    nameserver.add("intranet.example", "10.0.0.1")

    async def before(crawl: Crawl) -> None:
        for host in ("shop.example", "intranet.example"):
            open_crawl(crawl.crawler).trusted.add(host)
            assert await _addresses(crawl, host)

    async def after(crawl: Crawl) -> None:
        open_crawl(crawl.crawler).trusted.add("shop.example")
        assert await _addresses(crawl, "shop.example") is None
        assert await _addresses(crawl, "intranet.example") == ("10.0.0.1",)

    use_job(before)
    nameserver.add("shop.example", "10.0.0.1")
    use_job(after)
    use_job(after)
