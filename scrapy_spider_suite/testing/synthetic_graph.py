"""The synthetic web as pure functions of (seed, host, page): no sockets, no state, no files.

A page's draws are SHAKE-128 of its three numbers. Hosts and pages are trees: every page links to
its children, every ``/`` also to the ``/`` of its host's children; random links fill the degree.
Invariants: all pages of a host can be reached from its ``/`` (only leaves answer anything but 200),
all hosts from host 0 under robots.txt (only leaf hosts have a failing one, no rule covers a ``/``).
"""

from __future__ import annotations

import re
import sys
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import shake_128
from math import exp, log
from statistics import NormalDist
from struct import unpack
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from scrapy_spider_suite.testing.config import FakeWebConfig

QUANTILES = 1024  # entries of a table of equally likely values


def words(data: bytes) -> Sequence[int]:
    numbers = array("Q", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def quantiles(mean: int, sigma: float, least: int) -> tuple[int, ...]:
    """Return equally likely values of a log-normal distribution, at most 20 times its mean."""
    if sigma == 0 or mean == 0:
        return (max(least, mean),) * QUANTILES
    normal = NormalDist(log(mean) - sigma * sigma / 2, sigma)
    draws = (exp(normal.inv_cdf((k + 0.5) / QUANTILES)) for k in range(QUANTILES))
    return tuple(min(20 * mean, max(least, round(draw))) for draw in draws)


def branching(pages: int, depth: int) -> int:
    children = max(1, int(pages ** (1 / depth)) - 2)
    while not _fits(pages, children, depth):
        children += 1
    return children


def _fits(pages: int, children: int, depth: int) -> bool:
    total = level = 1
    for _ in range(depth):
        if total >= pages:
            break
        level *= children
        total += level
    return total >= pages


HOST_FANOUT = 16

_ONE = 1 << 16
_CACHED = 1 << 16
_PATH = re.compile(r"/((?:[0-9]+/)*[0-9]+)\.html")
_REDIRECTS = (301, 302, 307, 308)
_ERRORS = (404, 404, 500, 503)


class RobotsReply(NamedTuple):
    status: int
    body: str


class HostTraits(NamedTuple):
    """*address*: an index. *crawl_delay*: 0 for none. *retry_after_requests*: pages refused."""

    pages: int
    address: int
    latency: float
    jitter: float
    robots_status: int
    disallow: bool
    crawl_delay: float
    retry_after_requests: int
    retry_after_delay: float
    images: int
    sitemap: bool


class PagePlan(NamedTuple):
    """*hrefs*: absolute paths or URLs, in order, repeated ones too; empty unless *status* is 200.

    *salt*: below 2**16. *wait*: from -1 to 1.
    """

    status: int
    location: str
    hrefs: list[str]
    size: int
    salt: int
    wait: float


class SyntheticWeb:
    """The graph of *config*; raises LookupError for a foreign URL or host."""

    def __init__(self, config: FakeWebConfig, ports: Sequence[int] = (80,)) -> None:
        self.config = config
        self._ports = tuple(ports)
        self._host = re.compile(rf"h([0-9]{{6,}})\.{re.escape(config.domain)}")
        self._branching = branching(config.pages, config.depth)
        self._page_counts = quantiles(config.pages, config.pages_sigma, 1)
        self._degrees = quantiles(config.degree, config.degree_sigma, 0)
        self._sizes = quantiles(config.page_size, config.page_size_sigma, 0)
        self._external = int(config.external * _ONE)
        # Bounded caches of what is cheap to compute again: memory does not grow with the web.
        self.path = lru_cache(_CACHED)(self._path)
        self.traits = lru_cache(_CACHED)(self._traits)
        self.base = lru_cache(_CACHED)(self._base)

    def __len__(self) -> int:
        return self.config.hosts

    def host_name(self, host: int) -> str:
        return f"h{host:06d}.{self.config.domain}"

    def host_index(self, name: str) -> int:
        match = self._host.fullmatch(name)
        index = int(match[1]) if match else -1
        if not 0 <= index < self.config.hosts or self.host_name(index) != name:
            raise LookupError(f"no synthetic host is called {name}")
        return index

    def address_index(self, host: int) -> int:
        """Return the index of the address of *host*; hosts are dealt out in turn."""
        return self.traits(host).address % self.config.addresses

    def _base(self, host: int) -> str:
        port = self._ports[self.address_index(host) % len(self._ports)]
        return self.config.origin(self.host_name(host), port)

    def roots(self, count: int | None = None) -> list[str]:
        wanted = self.config.hosts if count is None else min(count, self.config.hosts)
        return [self.base(host) + "/" for host in range(wanted)]

    def page_index(self, host: int, path: str) -> int:
        if path == "/":
            return 0
        match = _PATH.fullmatch(path)
        page = 0
        for step in match[1].split("/") if match else ():
            page = page * self._branching + int(step) + 1
            if page >= self.traits(host).pages:
                break
        if match is None or page >= self.traits(host).pages or self.path(page) != path:
            raise LookupError(f"{self.host_name(host)} has no page at {path}")
        return page

    def _path(self, page: int) -> str:
        steps: list[str] = []
        while page:
            page -= 1
            steps.append(str(page % self._branching))
            page //= self._branching
        return "/" + "/".join(reversed(steps)) + ".html" if steps else "/"

    def images(self, host: int, page: int) -> list[str]:
        count = self.traits(host).images
        return [f"/img/{page * count + number}.png" for number in range(count)]

    def _traits(self, host: int) -> HostTraits:
        config = self.config
        pages, slow, robots, rules, crawl, retry, named, _ = unpack(
            "<8H", shake_128(b"%d %d" % (config.seed, host)).digest(16)
        )
        status = 404 if robots < config.robots_missing * _ONE else 200
        if host and host * HOST_FANOUT + 1 >= config.hosts:
            # Leaves of the host tree, drawn from the other end so that both shares are met.
            status = 503 if robots >= (1 - config.robots_error) * _ONE else status
        drawn = HostTraits(
            pages=self._page_counts[pages % QUANTILES],
            address=host,
            latency=config.slow_latency if slow < config.slow * _ONE else config.latency,
            jitter=config.jitter,
            robots_status=status,
            disallow=rules < config.robots_disallow * _ONE,
            crawl_delay=config.crawl_delay if crawl < config.robots_crawl_delay * _ONE else 0.0,
            retry_after_requests=(
                config.retry_after_requests if retry < config.retry_after * _ONE else 0
            ),
            retry_after_delay=config.retry_after_delay,
            images=config.images,
            sitemap=named < config.sitemaps * _ONE,
        )
        return drawn._replace(**cast(Any, config.overrides.get(host, {})))

    def plan(self, host: int, page: int) -> PagePlan:
        pages = self.traits(host).pages
        shake = shake_128(b"%d %d %d" % (self.config.seed, host, page))
        fate, kind, wide, size, salt, wait, _, _ = unpack("<8H", shake.digest(16))
        status, location, hrefs = 200, "", []
        if page and page * self._branching + 1 >= pages:
            status, location = self._fate(host, fate, kind, shake.digest(32)[16:])
        if status == 200:
            hrefs = self._tree_links(host, page, pages)
            extra = self._degrees[wide % QUANTILES] - len(hrefs)
            if extra > 0:
                hrefs += self._random_links(pages, words(shake.digest(16 + 8 * extra)[16:]))
        length = self._sizes[size % QUANTILES]
        return PagePlan(status, location, hrefs, length, salt, wait / (_ONE // 2) - 1)

    def _fate(self, host: int, fate: int, kind: int, draws: bytes) -> tuple[int, str]:
        config = self.config
        if fate < config.errors * _ONE:
            return _ERRORS[kind % 4], ""
        if fate >= (config.errors + config.redirects) * _ONE:
            return 200, ""
        across, other, page = unpack("<IIQ", draws)
        if across < config.redirects_across * (1 << 32):
            host = other % config.hosts
        # Only inner pages are led to, so that redirects make neither chains nor loops.
        inner = (self.traits(host).pages - 2) // self._branching + 1
        return _REDIRECTS[kind % 4], self.base(host) + self.path(page % max(1, inner))

    def _tree_links(self, host: int, page: int, pages: int) -> list[str]:
        first = page * self._branching + 1
        hrefs = [self.path(child) for child in range(first, min(first + self._branching, pages))]
        if page == 0:
            first = host * HOST_FANOUT + 1
            children = range(first, min(first + HOST_FANOUT, self.config.hosts))
            hrefs += [self.base(child) + "/" for child in children]
        return hrefs

    def _random_links(self, pages: int, numbers: Sequence[int]) -> list[str]:
        path, external, hosts = self.path, self._external, self.config.hosts
        hrefs = []
        for number in numbers:
            if (number & 0xFFFF) < external:
                host = (number >> 16 & 0xFFFFFF) % hosts
                hrefs.append(self.base(host) + path((number >> 40) % self.traits(host).pages))
            else:
                hrefs.append(path((number >> 16) % pages))
        return hrefs

    def locate(self, url: str) -> tuple[int, str]:
        parts = urlsplit(url)
        host = self.host_index(parts.hostname or "")
        if not url.startswith(self.base(host)):
            raise LookupError(f"{url} is not served here: the port of that host is another")
        return host, parts.path or "/"

    def status(self, url: str) -> int:
        """Return a page's status after any Retry-After; 404 for none."""
        host, path = self.locate(url)
        try:
            return self.plan(host, self.page_index(host, path)).status
        except LookupError:
            return 404

    def links(self, url: str) -> list[str]:
        host, path = self.locate(url)
        plan = self.plan(host, self.page_index(host, path))
        if plan.location:
            return [plan.location]
        base = self.base(host)
        return [base + href if href.startswith("/") else href for href in plan.hrefs]

    def robots(self, host: str) -> RobotsReply:
        index = self.host_index(host)
        traits = self.traits(index)
        if traits.robots_status != 200:
            return RobotsReply(traits.robots_status, "no robots.txt here\n")
        lines = ["User-agent: *", "Disallow: /private/"]
        lines += ["Disallow: /0"] if traits.disallow else []
        lines += [f"Crawl-delay: {traits.crawl_delay:g}"] if traits.crawl_delay else []
        lines += ["", f"Sitemap: {self.base(index)}/sitemap.xml"] if traits.sitemap else []
        lines += [""]
        return RobotsReply(200, "\n".join(lines))

    def allowed(self, url: str) -> bool:
        """Whether robots.txt allows *url* (5xx: no; RFC 9309 §2.3.1.4)."""
        host, path = self.locate(url)
        traits = self.traits(host)
        if traits.robots_status != 200:
            return traits.robots_status < 500
        return not (path.startswith("/private/") or (traits.disallow and path.startswith("/0")))

    def reachable(self, *, obey_robots: bool = False) -> Iterator[str]:
        """Yield every URL of a complete crawl from host 0, once."""
        overrides = self.config.overrides.items()
        if obey_robots and any(each.get("robots_status", 0) >= 500 for _, each in overrides):
            yield from self.walk(self.roots(1), obey_robots=True)
            return
        for host in range(self.config.hosts):
            base = self.base(host)
            for page in range(self.traits(host).pages):
                url = base + self.path(page)
                if not obey_robots or self.allowed(url):
                    yield url

    def walk(
        self, starts: Sequence[str], *, obey_robots: bool = False, max_depth: int | None = None
    ) -> Iterator[str]:
        """Yield the URLs found breadth-first from *starts*, once; a redirect adds no depth."""
        depths = dict.fromkeys(starts, 0)
        queue = deque(depths.items())
        while queue:
            url, depth = queue.popleft()
            if depths[url] != depth or (obey_robots and not self.allowed(url)):
                continue
            yield url
            hop = 300 <= self.status(url) < 400
            deeper = depth if hop else depth + 1
            if max_depth is not None and deeper > max_depth:
                continue
            links = dict.fromkeys(self.links(url))
            fresh = [link for link in links if depths.get(link, deeper + 1) > deeper]
            depths.update(dict.fromkeys(fresh, deeper))
            (queue.extendleft if hop else queue.extend)((link, deeper) for link in fresh)
