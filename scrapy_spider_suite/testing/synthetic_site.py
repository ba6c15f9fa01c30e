"""Serves the synthetic graph (changing pages, robots.txt, sitemaps, images), or a folder."""

from __future__ import annotations

import mimetypes
import os
import struct
import zlib
from datetime import UTC, datetime
from email.utils import formatdate
from functools import lru_cache
from hashlib import shake_128
from html import escape
from math import ceil, exp
from pathlib import Path
from random import Random
from statistics import NormalDist
from struct import unpack
from time import time
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

from scrapy_spider_suite.testing.http import (
    HTML,
    TEXT,
    Request,
    ServerReply,
    make_reply,
)
from scrapy_spider_suite.testing.synthetic_graph import HostTraits, PagePlan, SyntheticWeb

if TYPE_CHECKING:
    from scrapy_spider_suite.testing.config import FakeWebConfig


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
_ONE = 1 << 32
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
        spread = config.changes_sigma * _NORMAL.inv_cdf((wide + 0.5) / _ONE)
        return exp(spread) / config.changes

    def conditional(self, host: int, page: int) -> bool:
        return self._numbers(host, page)[1] < self._config.conditional * _ONE

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
