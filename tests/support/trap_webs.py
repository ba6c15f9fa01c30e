"""The traps of the in-vitro web in virtual time: for tests that need no sockets."""

from __future__ import annotations

from collections import Counter

from benchmarks.expected_pages import trap_of
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.frontier.outcomes import Pace
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.testing.http import Request
from scrapy_spider_suite.testing.trap_sites import NAMES, TrapSite, trap_hosts, trap_number
from scrapy_spider_suite.urls.extract import PageContext, extract
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.traps import DETECTORS, TrapLimits
from support.virtual_crawl import WALL, Crawl, Web

BROAD = TrapLimits.from_detectors(DETECTORS)
"""The defaults of the broad profile, and ``numbers=fail``, since the calendar has no end."""
YEAR = 2026


class _Addresses(dict[str, str]):
    """A trap's hosts share an address; whatever else there is has one of its own."""

    def __missing__(self, host: str) -> str:
        try:
            return f"10.0.0.{trap_number(host)}"
        except LookupError:
            return f"10.1.0.{len(self)}"


class TrapCrawl(Crawl):
    """A crawl of the traps that goes by *limits*; *resume* as for any crawl."""

    def __init__(self, store: Store, limits: TrapLimits, *, seats: int = 8, **more: object) -> None:
        policy = Policy(host=Pace(1.0), address=Pace(0.1), traps=limits)
        self.site = TrapSite(lambda host: f"http://{host}")
        web = Web(_Addresses(), self._links)
        super().__init__(store, web, policy, seats=seats, wall=WALL, **more)  # type: ignore[arg-type]

    def _links(self, url: str) -> list[str]:
        return extract(self.body(url), PageContext(url)).links

    def body(self, url: str) -> bytes:
        """What is answered at *url*."""
        host = host_of(url)
        target = url[url.index("/", 8) :]
        path = target.partition("?")[0]
        return self.site.answer(Request("GET", target, path, host, True, 0)).data

    def follow(self, fetch: Fetch) -> None:
        """As the bulk path does: learn from the page, then drop what leads into a trap."""
        traps, entry = self.frontier.traps, fetch.entry
        pages = self.frontier.residents.records.touch(entry.host).done
        body = self.body(entry.url)
        links = extract(body, PageContext(entry.url)).links
        fetch.links.extend(traps.passed(links, YEAR))
        traps.learn_page(entry.url, entry.host, body, links, pages=pages)

    def in_traps(self) -> Counter[str]:
        """How many pages were fetched of each trap."""
        trapped = [url for url in self.urls if "-trap.test" in url]
        names = (trap_of(host_of(url), url[url.index("/", 8) :]) for url in trapped)
        return Counter(name for name in names if name is not None)


def seeds() -> list[str]:
    """The ways into all traps."""
    return [f"http://{host}/" for host in trap_hosts()]


__all__ = ["BROAD", "NAMES", "YEAR", "TrapCrawl", "seeds"]
