"""`BroadSpider`: a spider that follows every link in bulk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, Self

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.http import Response

from scrapy_spider_suite.crawl.page_stages import default_hook
from scrapy_spider_suite.crawl.preparation import find_contact
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.runtime.refusal import refuse, refuse_crawl
from scrapy_spider_suite.settings.project import uses_suite_scheduler
from scrapy_spider_suite.store.job_directory import job_begun
from scrapy_spider_suite.urls.url_lists import check_sources


class BroadSpider(Spider):
    """Crawls many hosts; links are extracted, deduplicated and queued in bulk.

    A subclass may override (a hook that is not overridden costs nothing):

    - `parse_page` gets every page (a ``Response``, 2xx) and may yield items and requests like any
      callback;
    - `choose_links` narrows the links of a page;
    - `link_priority` gives a link its priority.

    ``allowed_domains``, DEPTH_LIMIT and URLLENGTH_LIMIT hold. Seeds are ``start_urls``, ``-a
    seeds=`` and SUITE_SEEDS: URLs, host names, files with one of these a line, plain or compressed,
    or ``@`` and the URL of such a file, separated by commas.

    Requests that a subclass yields go through Scrapy's redirect and retry middlewares; requests of
    the frontier are redirected as links and retried by the frontier.
    """

    suite_profile = "broad"
    suite_follow = True

    def __init__(self, name: str | None = None, seeds: str = "", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.seeds = seeds

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Make the spider. Raises `SettingsError` in a script if a file of seeds is missing.

        A command ends with one line and exit code 2.
        """
        spider = super().from_crawler(crawler, *args, **kwargs)
        if not job_begun(crawler):  # else start() checks, if it runs
            try:
                check_sources(spider._sources())
            except SettingsError as error:
                refuse_crawl(crawler, error)
        return spider

    def _sources(self) -> list[str]:
        return [*self.start_urls, *filter(None, self.seeds.split(","))]

    def start(self) -> AsyncIterator[Any]:
        """Schedule the seeds in bulk; progress is logged.

        Raises `SettingsError` in a script without the suite's scheduler; a command ends with one
        line and exit code 2. The iterator raises it if a list of seeds cannot be read: the next run
        tries again.
        """
        if not uses_suite_scheduler(self.crawler):
            refuse(SettingsError(
                f"spider {self.name!r} is a BroadSpider and needs the suite's scheduler: add "
                "scrapy_spider_suite.Addon to ADDONS, and leave SCHEDULER to it"
            ))  # fmt: skip
        return self._schedule_seeds()

    async def _schedule_seeds(self) -> AsyncIterator[Any]:
        from scrapy_spider_suite.crawl.context import get_crawl
        from scrapy_spider_suite.crawl.seeds import SeedIntake

        try:
            check_sources(self._sources())
        except SettingsError as error:
            refuse(error)
        wrong = await SeedIntake(get_crawl(self.crawler)).schedule_all(self._sources())
        if wrong:
            raise SettingsError("; ".join(wrong))
        nothing: tuple[Any, ...] = ()
        for each in nothing:  # makes this a generator, as Scrapy expects
            yield each

    @default_hook
    def parse(self, response: Response, **kwargs: Any) -> Any:
        """Scrapy's default callback; the links of the page are queued by then."""
        return self.parse_page(response)

    @default_hook
    def parse_page(self, response: Response) -> Iterable[Any] | AsyncIterator[Any] | None:
        """Make items or further requests of a page. Does nothing unless overridden."""

    @default_hook
    def choose_links(self, response: Response, links: list[str]) -> Iterable[str]:
        """Return the *links* (normal forms, in scope) that are to be followed."""
        return links

    @default_hook
    def link_priority(self, response: Response, url: str) -> int:
        """Return the priority of a link; higher goes first among the URLs of its host."""
        return 0


def require_contact(user_agent: str | None) -> None:
    """Refuse the crawl if *user_agent* gives no contact.

    Raises `SettingsError` in a script; a command ends with one line and exit code 2.
    """
    if not find_contact(user_agent):
        expected = (
            "the address of a page or a mailbox where a site's owner can reach you, "
            "e.g. 'mybot/1.0 (+https://example.org/bot)'"
        )
        refuse(SettingsError.of("USER_AGENT", user_agent, expected))
