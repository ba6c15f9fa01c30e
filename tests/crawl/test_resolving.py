"""Tests of the resolver that each crawler gets."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
from scrapy import Spider, signals
from scrapy.utils.test import get_crawler
from support import forks
from support.projects import environment

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.fetch.resolver import resolver_from, suite_resolver
from scrapy_spider_suite.settings.suite import SuiteSettings

TWO_CRAWLERS = """
import warnings
import scrapy
from scrapy.crawler import AsyncCrawlerProcess
from scrapy_spider_suite.errors import SuiteError
from scrapy_spider_suite.fetch.resolver import suite_resolver

warnings.simplefilter("error")

class Allowed(scrapy.Spider):
    name = "allowed"
    custom_settings = {"SUITE_ALLOW_PRIVATE_ADDRESSES": ["localhost"]}

    async def start(self):
        resolver = suite_resolver(self.crawler)
        try:
            print(self.name, (await resolver.resolve("localhost")).addresses[0])
        except SuiteError as error:
            print(self.name, error)
        self.crawler.resolver_of_test = resolver
        return
        yield

class Refused(Allowed):
    name = "refused"
    custom_settings = {}

process = AsyncCrawlerProcess({"LOG_LEVEL": "WARNING"})
crawlers = [process.create_crawler(each) for each in (Allowed, Refused)]
for crawler in crawlers:
    process.crawl(crawler)
process.start()
assert crawlers[0].resolver_of_test is not crawlers[1].resolver_of_test
print(all(crawler.resolver_of_test.closed for crawler in crawlers))
"""


def test_one_resolver_per_crawler() -> None:
    """A crawler has one resolver, another crawler has another, and it goes with the crawler."""
    crawler = get_crawler(Spider)
    resolver = suite_resolver(crawler)
    assert suite_resolver(crawler) is resolver
    assert suite_resolver(get_crawler(Spider)) is not resolver
    reference = weakref.ref(resolver)
    del crawler, resolver
    gc.collect()
    assert reference() is None


def test_closed_with_the_engine() -> None:
    """The resolver is closed when the engine has stopped."""
    crawler = get_crawler(Spider)
    resolver = suite_resolver(crawler)
    crawler.signals.send_catch_log(signals.engine_stopped)
    assert resolver.closed


def test_settings_arrive() -> None:
    """Each setting reaches the part of the resolver that it is for."""
    settings = {
        "SUITE_DNS_SERVERS": ["127.0.0.1:5353", "[::1]:53"],
        "SUITE_DNS_TTL_MAX": 2,
        "DNS_TIMEOUT": 5,
        "SUITE_IP_FAMILY": "6",
        "SUITE_ALLOW_PRIVATE_ADDRESSES": ["10.0.0.0/8"],
    }
    resolver = suite_resolver(get_crawler(Spider, settings))
    limits = resolver.limits
    assert (limits.ttl_min, limits.ttl_max, limits.timeout) == (2, 2, 5)
    assert resolver.servers == ("127.0.0.1:5353", "[::1]:53")
    assert resolver.family == "6"
    assert resolver.policy.why_refused("10.0.0.1", "h") is None
    assert resolver.policy.why_refused("127.0.0.1", "h") is not None


def test_a_bad_setting_is_named() -> None:
    """A bad exception stops the start with the name of its setting."""
    with pytest.raises(SettingsError, match="SUITE_ALLOW_PRIVATE_ADDRESSES"):
        suite_resolver(get_crawler(Spider, {"SUITE_ALLOW_PRIVATE_ADDRESSES": ["10.0.0.0/40"]}))


def test_defaults() -> None:
    """Without settings the system's names and public addresses are used."""
    resolver = resolver_from(SuiteSettings.from_settings(get_crawler(Spider).settings))
    assert resolver.servers == ()
    assert resolver.policy.why_refused("1.1.1.1", "a.example") is None
    assert resolver.policy.why_refused("10.0.0.1", "a.example") is not None


def test_two_crawlers_in_one_process(tmp_path: Path) -> None:
    """Two crawls on one reactor resolve each with its own settings, and close what they opened."""
    done = forks.run(TWO_CRAWLERS, folder=tmp_path, environment=environment())
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "True",
        "allowed 127.0.0.1",
        "refused localhost: 127.0.0.1 is a loopback address",
    ]
