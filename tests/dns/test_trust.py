"""Trust in a host that the operator named ends for good once it is found outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.context import CrawlCore, core_of
from scrapy_spider_suite.errors import PrivateAddressError
from scrapy_spider_suite.settings.changing import change_setting


class Named(Spider):
    """Any."""

    name = "any"


async def _addresses(core: CrawlCore, host: str) -> tuple[str, ...] | None:
    """Where *host* may be fetched from; None where that is refused."""
    core.resolver.invalidate(host)
    try:
        return (await core.resolver.resolve(host)).addresses
    except PrivateAddressError:
        return None


@pytest.fixture
def use_job(nameserver: Any, tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario with the core of a job, the same one each time, and ends it."""

    def use(scenario: Callable[[CrawlCore], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            job = {"JOBDIR": str(tmp_path / "job"), "SUITE_DNS_SERVERS": [nameserver.address]}
            crawler = get_crawler(Named, job)
            crawler.crawling = True
            core = core_of(crawler)
            try:
                await scenario(core)
                core.close()
            finally:
                core.resolver.close()
                core.let_go()

        asyncio.run(main())

    return use


def test_a_job_remembers_whom_it_trusts_no_more(
    nameserver: Any, use_job: Callable[..., None]
) -> None:
    """A name that was outside in one run must not lead inside in the next (DNS rebinding)."""
    nameserver.add("shop.example", "1.1.1.1")
    nameserver.add("intranet.example", "10.0.0.1")

    async def before(core: CrawlCore) -> None:
        for host in ("shop.example", "intranet.example"):
            core.trusted.add(host)
            assert await _addresses(core, host)

    async def after(core: CrawlCore) -> None:
        core.trusted.add("shop.example")
        assert await _addresses(core, "shop.example") is None
        assert await _addresses(core, "intranet.example") == ("10.0.0.1",)

    use_job(before)
    nameserver.add("shop.example", "10.0.0.1")
    use_job(after)
    use_job(after)


def test_trust_outlives_a_change_of_the_settings(
    nameserver: Any, use_job: Callable[..., None]
) -> None:
    """Whoever sets another time to live does not let anyone in, or keep anyone out, by that."""
    nameserver.add("shop.example", "1.1.1.1")
    nameserver.add("intranet.example", "10.0.0.1")

    async def scenario(core: CrawlCore) -> None:
        core.trusted.add("shop.example")
        core.trusted.add("intranet.example")
        await _addresses(core, "shop.example")
        nameserver.add("shop.example", "10.0.0.1")
        change_setting(core, "SUITE_DNS_TTL_MIN", "60")
        core.trusted.add("shop.example")
        assert await _addresses(core, "shop.example") is None
        assert await _addresses(core, "intranet.example") == ("10.0.0.1",)

    use_job(scenario)
