"""Which host is where, and who answers for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scrapy_spider_suite.testing import ordinary, traps
from scrapy_spider_suite.testing.addresses import Endpoint
from scrapy_spider_suite.testing.coding import coded
from scrapy_spider_suite.testing.folders import FolderSite
from scrapy_spider_suite.testing.http import HTML, Reply, Request, Site, reply
from scrapy_spider_suite.testing.synthetic import SyntheticSite
from scrapy_spider_suite.testing.zone import SERVED, SpecialAddresses

if TYPE_CHECKING:
    from scrapy_spider_suite.testing.config import FakeWebConfig
    from scrapy_spider_suite.testing.graph import SyntheticWeb

REFUSED, HANGING = "refused.test", "hang.test"
MISDIRECTED = 421


def extra_endpoints(config: FakeWebConfig) -> int:
    """How many listening addresses there are beside those of the synthetic hosts."""
    count = 2 + len(config.sites) + (_hostile_count() if config.hostile else 0)
    return count + (len(traps.NAMES) + len(ordinary.host_names()) if config.traps else 0)


def _hostile_count() -> int:
    from scrapy_spider_suite.testing.hostile.site import address_count

    return address_count()


class PlainSite:
    """Three small pages, for the special names of the name server."""

    def answer(self, request: Request) -> Reply:
        """Answer with one of the three pages, or 404."""
        if request.path not in ("/", "/1.html", "/2.html"):
            return reply(404, "no such page\n")
        return reply(200, "<a href='/1.html'>1</a> <a href='/2.html'>2</a>\n", HTML)


class Directory:
    """All hosts, given the *endpoints* in their order: the pool that the synthetic hosts share,
    two for the special names, one a site, the hostile ones, those of the traps, those that only
    look like traps, one that refuses, one that hangs.
    """

    def __init__(
        self, config: FakeWebConfig, web: SyntheticWeb, endpoints: Sequence[Endpoint]
    ) -> None:
        self._web = web
        self._coded = config.coded
        self._pool = endpoints[: config.addresses]
        self._synthetic = SyntheticSite(web)
        rest = list(endpoints[config.addresses :])
        self._serving = rest[:2]
        self._sites: dict[str, Site] = dict.fromkeys(SERVED, PlainSite())
        self._places = dict.fromkeys(SERVED, rest[0])
        for (name, folder), place in zip(config.sites.items(), rest[2:], strict=False):
            self._sites[name] = FolderSite(folder, config.latency)
            self._places[name] = place
        self._places[REFUSED], self._places[HANGING] = rest[-2:]
        if config.hostile:
            self._add_hostile(config, rest[2 + len(config.sites) : -2])
        self._traps: Sequence[Endpoint] = ()
        if config.traps:
            self._add_traps(config, rest[:-2])

    def _add_traps(self, config: FakeWebConfig, places: Sequence[Endpoint]) -> None:
        names = ordinary.host_names()
        self._traps = places[-len(names) - len(traps.NAMES) : -len(names)]
        for host in traps.host_names():
            self._sites[host] = traps.TrapSite(self.base, config.seed)
        for host, place in zip(names, places[-len(names) :], strict=True):
            self._sites[host] = ordinary.OrdinarySite(config.seed)
            self._places[host] = place

    def _add_hostile(self, config: FakeWebConfig, places: Sequence[Endpoint]) -> None:
        from scrapy_spider_suite.testing.hostile import site

        hostile = site.HostileSite(
            self.base, pace=config.hostile_pace, seconds=config.hostile_seconds
        )
        for host in site.host_names():
            self._sites[host] = hostile
            self._places[host] = places[site.address_number(host)]

    def endpoint(self, host: str) -> Endpoint:
        """Where *host* is.

        Raises:
            LookupError: there is no such host.
        """
        place = self._places.get(host)
        if place is not None:
            return place
        if self._traps and host.endswith("-trap.test"):
            return self._traps[traps.trap_number(host)]
        return self._pool[self._web.address_index(self._web.host_index(host))]

    def address(self, host: str) -> str:
        """The address of *host*, for the name server; raises ``LookupError`` likewise."""
        return self.endpoint(host).address

    def base(self, host: str) -> str:
        """Scheme, name and port of *host*, without a slash; raises ``LookupError`` likewise."""
        port = self.endpoint(host).port
        return f"http://{host}" + (f":{port}" if port != 80 else "")

    @property
    def special(self) -> SpecialAddresses:
        """The addresses of the name server's special names."""
        first, second = (place.address for place in self._serving)
        refusing, hanging = self.address(REFUSED), self.address(HANGING)
        return SpecialAddresses((first, second), refusing, hanging)

    def route(self, request: Request) -> Reply:
        """Let the host that *request* names answer it; 421 if there is no such host."""
        site = self._sites.get(request.host, self._synthetic)
        if self._traps and request.host.endswith(".farm-trap.test"):
            site = self._sites["farm-trap.test"]
        try:
            return coded(site.answer(request), request, self._coded)
        except LookupError:
            return reply(MISDIRECTED, f"no host is called {request.host[:200]!r}\n")
