"""The synthetic web as pure functions of (seed, host, page), and what serves it, or a folder.

A page's draws are SHAKE-128 of its three numbers. Hosts and pages are trees: every page links to
its children, every ``/`` also to the ``/`` of its host's children; random links fill the degree.
Invariants: all pages of a host can be reached from its ``/`` (only leaves answer anything but 200),
all hosts from host 0 under robots.txt (only leaf hosts have a failing one, no rule covers a ``/``).
"""

from __future__ import annotations

import mimetypes
import os
import re
import struct
import sys
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import formatdate
from functools import lru_cache
from hashlib import shake_128
from html import escape
from math import ceil, exp, log
from pathlib import Path
from random import Random
from statistics import NormalDist
from struct import unpack
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote, unquote_to_bytes, urlsplit

from scrapy_spider_suite.testing.http import HTML, TEXT, Request, ServerReply, make_reply

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


INDEXES = ("index.html", "index.htm")

_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


class FolderSite:
    """Answers with the files below *root*; 403 if one is unreadable.

    HTML has no charset, so the file's own declaration counts. Links out of *root* are 404s.
    """

    def __init__(self, root: Path | str, latency: float = 0.0) -> None:
        self._root = os.path.realpath(root)
        self._latency = latency
        # The built-in table only: the machine's own would make answers differ between machines.
        self._types = mimetypes.MimeTypes()

    def answer(self, request: Request) -> ServerReply:
        try:
            return self._answer(request)
        except OSError as error:
            return make_reply(403, f"{error.strerror}\n", delay=self._latency)

    def _answer(self, request: Request) -> ServerReply:
        found = self._find(request.path)
        if found is None:
            return make_reply(404, "no such file\n", delay=self._latency)
        if os.path.isdir(found):
            location = quote(unquote_to_bytes(request.path)) + "/"
            return make_reply(301, "", TEXT, f"Location: {location}", delay=self._latency)
        kind, encoding = self._types.guess_type(os.path.basename(found))
        if encoding is not None:
            kind = _COMPRESSED.get(encoding)
        body = Path(found).read_bytes()
        return make_reply(200, body, kind or "application/octet-stream", delay=self._latency)

    def _find(self, path: str) -> str | None:
        name = os.fsdecode(unquote_to_bytes(path))
        if "\0" in name or ".." in name.split("/"):
            return None
        candidates = [name + index for index in INDEXES] if name.endswith("/") else [name]
        for candidate in candidates:
            real = os.path.realpath(os.path.join(self._root, candidate.lstrip("/")))
            inside = os.path.commonpath((self._root, real)) == self._root
            folder = not name.endswith("/") and os.path.isdir(real)
            if inside and (folder or os.path.isfile(real)):
                return real
        return None


_WINDOW = 4.0  # mean changes in a window
_WHOLE = 1 << 32
_NORMAL = NormalDist()


class PageChanges:
    """Poisson processes as pure functions of web, host and page; times are wall seconds."""

    def __init__(self, config: FakeWebConfig) -> None:
        self._config = config
        # Bounded: what is asked for lately.
        self.rate = lru_cache(1 << 14)(self._rate)
        self._times = lru_cache(1 << 14)(self._draw)

    @property
    def any(self) -> bool:
        return self._config.changes > 0

    def _rate(self, host: int, page: int) -> float:
        config = self._config
        wide, _ = self._numbers(host, page)
        spread = config.changes_sigma * _NORMAL.inv_cdf((wide + 0.5) / _WHOLE)
        return exp(spread) / config.changes

    def conditional(self, host: int, page: int) -> bool:
        return self._numbers(host, page)[1] < self._config.conditional * _WHOLE

    def _numbers(self, host: int, page: int) -> tuple[int, int]:
        digest = shake_128(b"changes %d %d %d" % (self._config.seed, host, page)).digest(8)
        wide, conditional = unpack("<II", digest)
        return wide, conditional

    def last(self, host: int, page: int, now: float) -> float:
        window = int(now * self.rate(host, page) / _WINDOW)
        while not (times := [t for t in self._times(host, page, window) if t <= now]):
            window -= 1
        return times[-1]

    def next(self, host: int, page: int, now: float) -> float:
        window = int(now * self.rate(host, page) / _WINDOW)
        while not (times := [t for t in self._times(host, page, window) if t > now]):
            window += 1
        return times[0]

    def _draw(self, host: int, page: int, window: int) -> tuple[float, ...]:
        rate = self.rate(host, page)
        draw = Random(f"{self._config.seed} {host} {page} {window}")
        when, end = window * _WINDOW / rate, (window + 1) * _WINDOW / rate
        times = []
        while (when := when + draw.expovariate(rate)) < end:
            times.append(when)
        return tuple(times)


_FILLER_LENGTH = 1 << 17
_SITEMAP_PAGES = 50_000
_IMAGE_SIDE = 32
_HEADLINE = 60
_TAIL = "</p>\n</body></html>\n"
_HEAD = f"HTTP/1.1 200 OK\r\nServer: fakeweb\r\nContent-Type: {HTML}\r\nContent-Length: %d\r\n\r\n"


class SyntheticSite:
    """Answers for all hosts of *web*. Its only state: the pages that Retry-After hosts refused."""

    def __init__(self, web: SyntheticWeb) -> None:
        self._web = web
        self._filler = _filler(web.config.seed)
        self._changes = PageChanges(web.config)
        self._refusals: dict[int, int] = {}

    def answer(self, request: Request) -> ServerReply:
        host = self._web.host_index(request.host)
        traits = self._web.traits(host)
        path = request.path
        if path == "/robots.txt":
            robots = self._web.robots(request.host)
            return make_reply(robots.status, robots.body, TEXT, delay=traits.latency)
        if path == "/sitemap.xml" and traits.sitemap:
            return make_reply(200, self._sitemap(host), "application/xml", delay=traits.latency)
        if path.startswith("/img/"):
            return _image(path)._replace(delay=traits.latency)
        if traits.retry_after_requests:
            refused = self._refusals.get(host, 0)
            if refused < traits.retry_after_requests:
                self._refusals[host] = refused + 1
                return _refusal(host, traits)
        return self._page(host, request, traits)

    def _page(self, host: int, request: Request, traits: HostTraits) -> ServerReply:
        path = request.path
        try:
            page = self._web.page_index(host, path)
        except LookupError:
            return make_reply(404, "no such page\n", delay=traits.latency)
        plan = self._web.plan(host, page)
        delay = max(0.0, traits.latency + traits.jitter * plan.wait)
        if plan.status == 200 and self._changes.any:
            return self._changing(host, request, page, plan)._replace(delay=delay)
        if plan.status == 200:
            body = self._render(host, path, page, plan).encode("ascii")
            return ServerReply(200, (_HEAD % len(body)).encode("ascii") + body, delay)
        fields = (f"Location: {plan.location}",) if plan.location else ()
        return make_reply(plan.status, f"{plan.status}\n", TEXT, *fields, delay=delay)

    def _changing(self, host: int, request: Request, page: int, plan: PagePlan) -> ServerReply:
        last = self._changes.last(host, page, time())
        fields: tuple[str, ...] = ()
        if self._changes.conditional(host, page):
            tag, date = f'"{int(last * 1e6):x}"', formatdate(last, usegmt=True)
            fields = (f"ETag: {tag}", f"Last-Modified: {date}")
            if tag in request.tags if request.tags else request.since == date:
                return make_reply(304, b"", HTML, *fields)
        plan = plan._replace(salt=(plan.salt + int(last * 1e3)) % (1 << 16))
        return make_reply(200, self._render(host, request.path, page, plan), HTML, *fields)

    def _render(self, host: int, path: str, page: int, plan: PagePlan) -> str:
        title = self._web.host_name(host) + path
        messy, base = self._web.config.messy, self._web.base(host)
        links = "\n".join(
            _messy(base, href, plan.salt + k, messy) if messy else f'<a href="{href}">more</a>'
            for k, href in enumerate(plan.hrefs)
        )
        pictures = "".join(
            f'<img src="{source}" alt="">\n' for source in self._web.images(host, page)
        )
        # No two pages of a host say the same, however small they are.
        words = self._text(plan.salt, _HEADLINE)
        front = (
            f"<!DOCTYPE html>\n<html><head><title>{title}</title></head>\n"
            f"<body>\n<h1>{words}</h1>\n{pictures}<p>{links}</p>\n<p>"
        )
        missing = plan.size - len(front) - len(_TAIL)
        return front + self._text(plan.salt, missing) + _TAIL

    def _text(self, start: int, length: int) -> str:
        if length <= 0:
            return ""
        text = self._filler[start : start + length]
        if len(text) < length:
            text += self._filler * (length // _FILLER_LENGTH + 1)
        return text[:length]

    def _sitemap(self, host: int) -> str:
        base = self._web.base(host)
        pages = range(min(self._web.traits(host).pages, _SITEMAP_PAGES))
        urls = "".join(
            f"<url><loc>{base}{self._web.path(page)}</loc>{self._lastmod(host, page)}</url>\n"
            for page in pages
        )
        schema = "http://www.sitemaps.org/schemas/sitemap/0.9"
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{schema}">\n{urls}</urlset>\n'
        )

    def _lastmod(self, host: int, page: int) -> str:
        if not self._changes.any:
            return ""
        last = datetime.fromtimestamp(self._changes.last(host, page, time()), UTC)
        return f"<lastmod>{last:%Y-%m-%dT%H:%M:%SZ}</lastmod>"


def _refusal(host: int, traits: HostTraits) -> ServerReply:
    status = 429 if host & 1 else 503
    seconds = ceil(traits.retry_after_delay)
    when = formatdate(ceil(time() + seconds), usegmt=True) if host & 2 else str(seconds)
    return make_reply(status, "later\n", TEXT, f"Retry-After: {when}", delay=traits.latency)


def _image(path: str) -> ServerReply:
    name = path.removeprefix("/img/").removesuffix(".png")
    if not name.isdecimal() or not path.endswith(".png") or len(name) > 12:
        return make_reply(404, "no such image\n")
    return make_reply(200, png(int(name)), "image/png")


@lru_cache(1024)
def png(number: int) -> bytes:
    pixels = Random(number).randbytes(_IMAGE_SIDE)
    rows = b"".join(b"\0" + pixels[k:] + pixels[:k] for k in range(_IMAGE_SIDE))
    header = struct.pack(">IIBBBBB", _IMAGE_SIDE, _IMAGE_SIDE, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _filler(seed: int) -> str:
    draw = Random(seed)
    letters = ("bcdfgklmnprstvw", "aeiou")
    words = [
        "".join(draw.choice(letters[k % 2]) for k in range(draw.randint(2, 9))) for _ in range(999)
    ]
    lines = (" ".join(draw.choices(words, k=12)) for _ in range(_FILLER_LENGTH // 64))
    return "\n".join(lines)[:_FILLER_LENGTH]


def _messy(base: str, href: str, draw: int, share: float) -> str:
    plain = f'<a href="{href}">more</a>'
    draw = (draw * 40503) & 0xFFFF
    if draw >= share * (1 << 16):
        return plain
    url = base + href if href.startswith("/") else href
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    forms = (
        f'<a href="{url}#part-{draw}">more</a>',
        f"<A HREF='{scheme.upper()}://{host.upper()}/{path}'>more</A>",
        f"<a\n  class=x  href = \n{url}>more</a>",
        f'<a href=" \t{url}\n">more</a>',
        f'<a href="{scheme}://{host}/./gone/../{path}">more</a>',
        f'<a href="{escape(url).replace("/", "&#x2F;")}" title=">">more</a>',
        f'<a href="//{host}/{path}">more</a>',
        plain.replace("<a ", '<a rel="next" data-href="/wrong.html" '),
    )
    return forms[draw % len(forms)]
