"""The address and the robots.txt of a host, before its visit; trusted private hosts; contacts."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.exceptions import CannotResolveHostError
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.httpobj import urlparse_cached

from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.requests import StoppedError, event_of_error, hostname
from scrapy_spider_suite.errors import PrivateAddressError, ResolveError, SuiteError
from scrapy_spider_suite.exceptions import HostExcluded, RobotsUnavailable
from scrapy_spider_suite.fetch.address_rules import pacing_key as address_key
from scrapy_spider_suite.fetch.address_rules import special_kind
from scrapy_spider_suite.fetch.resolver import Resolution, suite_resolver
from scrapy_spider_suite.frontier.entries import Flag
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.robots_rules import RobotsRules, RobotsVerdict, origin_of
from scrapy_spider_suite.frontier.workbench import FOREVER, HostState
from scrapy_spider_suite.urls.normalize import host_of

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.assembly import CrawlParts
    from scrapy_spider_suite.crawl.context import Crawl
    from scrapy_spider_suite.crawl.robots import RobotsService

logger = logging.getLogger(__name__)

_CONTACT = re.compile(r"https?://[^\s/$.?#]+\.[^\s]+|[^\s@<>()]+@[^\s@<>()]+\.[a-z]{2,}", re.I)
_URL = re.compile(r"[a-z]+://\S*", re.I)
_MAILBOX = re.compile(r"[a-z0-9][\w.%+-]*@[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}", re.I | re.A)
_SCRAPYS = "+https://scrapy.org"


def find_contact(user_agent: str | None) -> str:
    """The web page or e-mail address in *user_agent*; "" for none, or for Scrapy's own."""
    text = user_agent or ""
    found = None if _SCRAPYS in text else _CONTACT.search(text)
    return "" if found is None else found[0].rstrip(").;,")


def find_mailbox(text: str | None) -> str:
    """The e-mail address in *text*; "" for none. The password in a URL is none."""
    found = _MAILBOX.search(_URL.sub(" ", text or ""))
    return "" if found is None else found[0]


class ContactWarning:
    """Warns, once, when a crawl whose *user_agent* gives no contact goes out to the Internet."""

    def __init__(self, user_agent: str | None) -> None:
        self._user_agent = user_agent
        self._missing = not find_contact(user_agent)

    def check_address(self, address: str) -> None:
        if self._missing and special_kind(ipaddress.ip_address(address)) is None:
            self._missing = False
            logger.warning(
                "USER_AGENT = %r gives no address where a site's owner could reach you: name a "
                "page or a mailbox before you crawl the sites of others", self._user_agent,
            )  # fmt: skip


_LOOKUPS = 500  # names that are looked up at the same time
_AT_ONCE = 10  # hosts that are seen to before anyone else has a turn again
_WAITING = 2_000
"""Robots.txt whose fetches may be under way, those included that wait for their hosts."""


class HostPreparation:
    """Resolves names and fetches robots.txt, without download places."""

    def __init__(self, parts: CrawlParts) -> None:
        self._crawl = crawl = parts.crawl
        self._visits = parts.visits
        self._sitemaps = parts.sitemaps
        self._resolver = parts.trusted.resolver
        self._robots = robots = crawl.robots
        self._wake = crawl.wake
        self._lookups = 0
        self._fetches = 0
        self._asking: set[str] = set()  # origins whose robots.txt somebody is waiting for
        self._tasks: set[asyncio.Task[None]] = set()
        user_agent = crawl.crawler.settings["USER_AGENT"]
        self._introduction = ContactWarning(user_agent) if crawl.settings.broad else None
        if robots is not None:
            robots.listener = self._heard_robots

    def __len__(self) -> int:
        return len(self._tasks)

    def _run(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(errand)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def finish(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def resolve(self) -> bool:
        """Give hosts with work their addresses; True if a host is ready at once."""
        crawl = self._crawl
        ready = False
        now = crawl.now()
        room = min(_AT_ONCE, _LOOKUPS - self._lookups)
        for host in crawl.frontier.unresolved_hosts(now, room):
            room -= 1
            entry = host.front[0][1]
            if host.record.failures:
                self._resolver.forget(host.key)  # it may have moved, and not be down
            web = entry.url.startswith(("http://", "https://"))
            if entry.flags & Flag.PROXIED or not web or host_of(entry.url) != host.key:
                crawl.frontier.set_address(host, "", "", FOREVER, now)
                ready = True
            elif (known := self._resolver.cached(host.key) or self._stored(host)) is not None:
                self._place(host, known.addresses, known.expires_in)
                ready = True
            else:
                self._lookups += 1
                self._run(self._look_up(host))
        if not room and self._lookups < _LOOKUPS:
            asyncio.get_running_loop().call_soon(self._wake)
        return ready

    def _stored(self, host: HostState) -> Resolution | None:
        # The answer in its record, which an earlier run may have got.
        crawl, record = self._crawl, host.record
        left = record.resolved_until - crawl.frontier.wall(crawl.now())
        if not record.address or record.failures or left <= 0:
            return None
        return self._resolver.restore(host.key, record.address, left)

    async def _look_up(self, host: HostState) -> None:
        crawl = self._crawl
        try:
            found = await self._resolver.resolve(host.key)
        except (ResolveError, PrivateAddressError) as error:
            if crawl.frontier.workbench.hosts.get(host.key) is host:
                self._refused(host, error)
        else:
            if crawl.frontier.workbench.hosts.get(host.key) is host:
                self._place(host, found.addresses, found.expires_in)
        finally:
            self._lookups -= 1
            self._wake()

    def _place(self, host: HostState, addresses: tuple[str, ...], expires_in: float) -> None:
        crawl = self._crawl
        # After failures, another of its addresses may answer.
        address = addresses[host.record.failures % len(addresses)]
        if self._introduction is not None:
            self._introduction.check_address(address)
        now = crawl.now()
        crawl.frontier.set_address(host, address, address_key(address), now + expires_in, now)

    def _refused(self, host: HostState, error: Exception) -> None:
        crawl, now = self._crawl, self._crawl.now()
        crawl.crawler.stats.inc_value(f"suite/dns/{event_of_error(error).value}")
        if any(entry.flags & Flag.USER for _, entry in host.front):
            # A spider's own requests fail where it expects them to: in the downloader.
            crawl.frontier.set_address(host, "", "", now + 60.0, now)
            return
        logger.debug("%s: %s", host.key, error)
        crawl.frontier.health.no_address(host, event_of_error(error), now)

    def robots_first(self, fetches: list[Fetch]) -> bool:
        """Whether *fetches* have to wait for robots.txt; if so, this object keeps them."""
        robots = self._robots
        entry = fetches[0].entry
        if robots is None or entry.flags & Flag.NO_ROBOTS or not entry.url.startswith("http"):
            return False
        if not robots.obeys(entry.url):
            return False
        rules = robots.peek(entry.url)
        visit = fetches[0].visit
        dead = self._visits.dead_hosts
        if visit and rules and rules.silent and dead.without_robots(visit.host, rules.checked_at):
            return False  # its requests fail where their spider expects them to
        forgot = False
        if rules is not None and visit is not None:
            record = visit.host.record
            unknown = not (record.crawl_delay or record.done or record.failed)
            forgot = unknown and self._crawl_delay(rules.origin) > visit.host.delay
        if rules is None or rules.silent or forgot:
            # A host that does not answer is asked again by its back-off, and given up in the end.
            self._fetches += 1
            again = rules is not None and not forgot
            self._run(self._fetch_robots(robots, fetches, again=again))
            return True
        if rules.verdict is not RobotsVerdict.DISALLOW_FOR_NOW:
            return False
        if visit is not None:
            frontier = self._crawl.frontier
            until = rules.expires_at - frontier.wall_offset
            frontier.health.postpone(visit.host, until, "robots.txt unavailable")
        self._put_back(fetches)
        return True

    @property
    def full(self) -> bool:
        """Whether as many robots.txt are being fetched as there may be requests."""
        if not self._fetches:
            return False
        limit = self._crawl.settings.project.most_requests
        # Those that wait, as behind a redirect of many hosts to one host, do not count.
        on_the_wire = self._fetches - self._visits.outside_waiting
        return on_the_wire >= limit or self._fetches >= _WAITING

    async def _fetch_robots(
        self, robots: RobotsService, fetches: list[Fetch], *, again: bool
    ) -> None:
        url, visit = fetches[0].entry.url, fetches[0].visit
        known, silence, origin = True, None, origin_of(url)
        first = origin not in self._asking
        self._asking.add(origin)
        try:
            rules = await (robots.fetch(origin) if again else robots.rules_for(url))
            if visit is not None and rules.silent:
                # They share one fetch, which is one failure, however many wait for it.
                silence = self._visits.silent(visit.host) if first else Event.CONNECTION_LOST
            elif visit is not None:
                self._keep_to(visit.host, url)
        except (SuiteError, CannotResolveHostError):
            known = False  # its pages fail of the same, where whoever wants them expects it
        except (RobotsUnavailable, HostExcluded, StoppedError) as error:
            logger.debug("%s: %s", url, error)
        finally:
            self._fetches -= 1
            if first:
                self._asking.discard(origin)
            if known:
                self._put_back(fetches, silence)
            else:
                self._visits.ready.append(self._visits.hand_out(fetches))
            self._wake()

    def _heard_robots(self, rules: RobotsRules) -> None:
        if not rules.silent:
            frontier, now = self._crawl.frontier, self._crawl.now()
            key = host_of(rules.origin)
            host = frontier.residents.visitor(key, now)
            self._keep_to(host, rules.origin)
            self._sitemaps.schedule_named(rules, host.record)

    def _keep_to(self, host: HostState, url: str) -> None:
        frontier = self._crawl.frontier
        crawl_delay = self._crawl_delay(url)
        frontier.residents.set_crawl_delay(host, crawl_delay)
        # With the verdict in one batch: after a kill robots.txt is known, and not read again.
        asks = crawl_delay > host.delay
        until = self._crawl.now() + crawl_delay if asks else host.next_fetch
        frontier.health.postpone(host, until, "Crawl-delay")

    def _crawl_delay(self, url: str) -> float:
        robots, name = self._robots, host_of(url)
        if robots is None:
            return 0.0
        origins = (url, f"http://{name}/", f"https://{name}/")
        return max(robots.crawl_delay(origin) or 0.0 for origin in origins)

    def _put_back(self, fetches: list[Fetch], silence: Event | None = None) -> None:
        frontier, now = self._crawl.frontier, self._crawl.now()
        for fetch in fetches[1:]:
            fetch.visit = None
        for fetch in reversed(fetches):
            if silence is not None and frontier.commit.guesses.is_wrong(fetch.entry, silence):
                # Nobody answers by the scheme that was guessed: there is another.
                fetch.event = silence
                frontier.commit.settle([fetch], now)
                frontier.leases.release(fetch, now, heard=Event.IGNORED)
            else:
                frontier.commit.put_back(fetch, now)


_MOST = 10_000
_NO_MORE = b"no more"


class TrustedPrivateHosts:
    """Hosts that the operator named and may be at private addresses; spider profile only.

    The job stores them, and those that were found outside (DNS rebinding).
    """

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl
        self.resolver = resolver = suite_resolver(crawl.crawler)
        self._kv = kv = crawl.store.kv("trusted")
        self._number = 0
        resolver.listener = lambda host: kv.put(host.encode(), _NO_MORE)
        for name, word in kv.items():
            if word == _NO_MORE:
                resolver.withdraw(name.decode())
            elif resolver.trust(name.decode()):
                self._number += 1

    def add(self, host: str) -> None:
        """Trust *host*, unless 10,000 hosts are trusted."""
        if self._number < _MOST and self.resolver.trust(host):
            self._number += 1
            self._kv.put(host.encode(), b"")

    def add_start(self, request: Request) -> None:
        """Trust the host of *request*, which ``start()`` yielded, unless the scheduler does."""
        crawl = self._crawl
        foreign = crawl.engine is None and not crawl.settings.broad
        # Of a spider of scrapy-redis others may have pushed the requests.
        if foreign and not hasattr(crawl.crawler.spider, "redis_key"):
            self.add(hostname(request))


def warn_of_private_address(request: Request, error: BaseException) -> None:
    """Warn that *request* ended with *error*, if it has no errback; not for robots.txt."""
    if not isinstance(error, PrivateAddressError) or request.errback is not None:
        return
    if request.callback is not NO_CALLBACK or urlparse_cached(request).path != "/robots.txt":
        what = "Answer thrown away" if getattr(error, "answered", False) else "Not fetched"
        said = "%s: %s: %s (SUITE_ALLOW_PRIVATE_ADDRESSES)"
        logger.warning(said, what, request, error)
