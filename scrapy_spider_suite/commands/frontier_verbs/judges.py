"""What ``why`` and ``test`` have in common: by which terms a URL is judged."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from scrapy.spiderloader import get_spider_loader

from scrapy_spider_suite.crawl.crawl_policy import policy_fields
from scrapy_spider_suite.crawl.filters import FilterSet
from scrapy_spider_suite.errors import JobError, SettingsError
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.operate import restrictions
from scrapy_spider_suite.operate.judge import UrlJudge
from scrapy_spider_suite.operate.terms import CrawlTerms
from scrapy_spider_suite.operate.verb import Invocation
from scrapy_spider_suite.store.job_directory import JobFile
from scrapy_spider_suite.urls.host_patterns import HostPattern

if TYPE_CHECKING:
    from scrapy import Spider

    from scrapy_spider_suite.store.job_reader import StoreReader


def judge(
    terms: CrawlTerms, reader: StoreReader | None, addresses: Mapping[str, str] | None = None
) -> UrlJudge:
    """A judge by *terms*, with what the job of *reader* has stored, its blocks too."""
    policy = Policy(**policy_fields(terms.settings))
    try:
        policy.overrides = terms.overrides()
    except SettingsError as error:
        print(f"scrapy frontier: {error}: judged without its rules", file=sys.stderr)
    filters = FilterSet()
    try:
        filters = terms.filters()
    except SettingsError as error:
        print(f"scrapy frontier: {error}: judged without filters", file=sys.stderr)
    wall = time.time()
    if reader is None:
        return UrlJudge(terms, policy, None, wall, filters=filters)
    for each in restrictions.stored_blocks(reader.store.kv(restrictions.BLOCKS)):
        policy.blocks.put(HostPattern.parse(each.subject), each.block())
    return UrlJudge(terms, policy, reader.store, wall, addresses, filters)


def terms_of_job(call: Invocation, reader: StoreReader) -> CrawlTerms:
    """The terms of the last crawl of a job; of one that kept none, what can be told without it."""
    kept = CrawlTerms.load(reader.store.kv("terms"))
    if kept is not None:
        return kept
    job = JobFile.read(reader.folder)
    if job is None:
        raise JobError(f"{reader.folder.parent} holds no job of scrapy-spider-suite")
    settings = call.settings.copy()
    terms = CrawlTerms.of(settings, None)
    values = {name: job.settings.get(name.removeprefix("SUITE_").lower()) for name in terms.values}
    known = {name: value for name, value in values.items() if value is not None}
    return CrawlTerms({**terms.values, **known}, {}, job.spider)


def terms_of_spider(call: Invocation, name: str | None) -> CrawlTerms:
    """The terms of a crawl of the spider *name* (None: of none) that would begin now.

    Raises `JobError` if the project has no such spider.
    """
    settings = call.settings.copy()
    if name is None:
        return CrawlTerms.of(settings, None)
    try:
        spider: type[Spider] = get_spider_loader(settings).load(name)
    except KeyError as error:
        raise JobError(f"there is no spider {name!r} here") from error
    spider.update_settings(settings)
    return CrawlTerms.of(settings, spider)
