"""Which way the rows of a crawl take, and what the fetch loop does with them: decided once.

The loop stands for Scrapy's own middlewares and the suite's. Whatever else a project has enabled
is to see requests and responses: then all rows take the way through Scrapy's engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pydispatch.dispatcher import getAllReceivers, liveReceivers  # type: ignore[import-untyped]
from scrapy import Request, signals
from scrapy.downloadermiddlewares.httpcompression import ACCEPTED_ENCODINGS
from scrapy.http import Headers
from scrapy.utils.python import global_object_name, without_none_values

from scrapy_spider_suite.crawl.page_stages import own_hook
from scrapy_spider_suite.fetch.connections import make_ssl_context
from scrapy_spider_suite.fetch.http1 import Http1Handler, bind_address
from scrapy_spider_suite.fetch.http_messages import field_lines, split_url
from scrapy_spider_suite.urls.normalize import host_of

if TYPE_CHECKING:
    import ssl

    from scrapy.core.engine import ExecutionEngine

    from scrapy_spider_suite.crawl.assembly import CrawlParts
    from scrapy_spider_suite.crawl.queue.leases import Fetch
    from scrapy_spider_suite.fetch.http_messages import Origin

_SCRAPY = "scrapy.downloadermiddlewares."
_SUITE = "scrapy_spider_suite.downloadermiddlewares."
_ROBOTS = f"{_SUITE}robotstxt.RobotsMiddleware"
_USER_AGENT = f"{_SUITE}useragent.HostUserAgentMiddleware"
_COOKIES = f"{_SUITE}cookies.HostCookiesMiddleware"
_COMPRESSION = f"{_SCRAPY}httpcompression.HttpCompressionMiddleware"
_OFFSITE, _PROXY = f"{_SCRAPY}offsite.OffsiteMiddleware", f"{_SCRAPY}httpproxy.HttpProxyMiddleware"
_AUTH = f"{_SCRAPY}httpauth.HttpAuthMiddleware"
_KNOWN_DOWNLOADER = frozenset({
    _ROBOTS, _USER_AGENT, _COOKIES, _COMPRESSION, _OFFSITE, _PROXY, _AUTH,
    f"{_SCRAPY}defaultheaders.DefaultHeadersMiddleware",
    f"{_SCRAPY}httpcache.HttpCacheMiddleware",  # see `_SETTINGS_FOR_ENGINE`
    f"{_SCRAPY}downloadtimeout.DownloadTimeoutMiddleware",
    f"{_SCRAPY}redirect.RedirectMiddleware", f"{_SCRAPY}retry.RetryMiddleware",
    f"{_SCRAPY}stats.DownloaderStats", f"{_SCRAPY}useragent.UserAgentMiddleware",
})  # fmt: skip
"""Downloader middlewares that the loop stands for."""
_KNOWN_SPIDER = frozenset({
    *(f"scrapy.spidermiddlewares.{name}" for name in (
        "depth.DepthMiddleware", "httperror.HttpErrorMiddleware",
        "metacopy.MetaCopyDetectionMiddleware", "referer.RefererMiddleware",
        "start.StartSpiderMiddleware", "urllength.UrlLengthMiddleware",
    )),
    *(f"scrapy_spider_suite.spidermiddlewares.pages.{name}" for name in (
        "PageItemMiddleware", "PageMiddleware", "PageOutputMiddleware",
    )),
})  # fmt: skip
"""Spider middlewares that do nothing with a page without a callback, or with its one item."""
_ANNOUNCED: Final = (
    signals.request_reached_downloader, signals.request_left_downloader,
    signals.response_downloaded, signals.response_received,
)  # fmt: skip
"""Signals that the loop sends where somebody listens."""
_NOT_SENT: Final = {"headers_received": signals.headers_received,
                    "bytes_received": signals.bytes_received}  # fmt: skip
_SETTINGS_FOR_ENGINE: Final = (
    "AUTOTHROTTLE_ENABLED", "HTTPCACHE_ENABLED", "HTTPERROR_ALLOW_ALL", "HTTPERROR_ALLOWED_CODES",
)  # fmt: skip
_OF_ROWS: Final = frozenset({
    b"Connection", b"Content-Length", b"Cookie", b"Host", b"Proxy-Authorization", b"Referer",
    b"Transfer-Encoding",
})  # fmt: skip
"""Fields that differ from row to row, or that only a request of its own may have."""


def reasons_for_engine(parts: CrawlParts, engine: ExecutionEngine) -> Iterator[str]:
    """Why all URLs are to go through Scrapy's engine; none: they are fetched by the loop."""
    crawl = parts.crawl
    settings, spider = crawl.crawler.settings, crawl.crawler.spider
    if not crawl.settings.broad:
        yield "the profile is spider"
        return
    if crawl.engine is None or crawl.engine.gate is None:
        yield f"DOWNLOADER is {settings['DOWNLOADER']}"
        return
    handlers = engine.downloader.handlers
    for scheme in ("http", "https"):
        if type(handlers._get_handler(scheme)) is not Http1Handler:
            yield f"DOWNLOAD_HANDLERS[{scheme!r}] is not the suite's"
    for name, each in _middlewares(engine.downloader.middleware):
        if name not in _KNOWN_DOWNLOADER:
            yield f"{name} is enabled"
        elif name == _PROXY and each.proxies:
            yield "there is a proxy in the environment"
        elif name == _AUTH and getattr(each, "auth", None):
            yield "the spider has an http_user"
    for name in _SETTINGS_FOR_ENGINE:
        if settings[name] and settings[name] != "False":
            yield f"{name} is set"
    defaults = Headers(without_none_values(settings["DEFAULT_REQUEST_HEADERS"]))
    for field in sorted(_OF_ROWS.intersection(defaults)):
        yield f"DEFAULT_REQUEST_HEADERS has {field.decode()}"
    if getattr(spider, "handle_httpstatus_list", None):
        yield "the spider has a handle_httpstatus_list"
    for name, signal in _NOT_SENT.items():
        if _receivers(engine, signal):
            yield f"somebody listens to {name}"


def _middlewares(manager: Any) -> list[tuple[str, Any]]:
    found = getattr(manager, "middlewares", ())
    return [(global_object_name(type(each)), each) for each in found]


def _receivers(engine: ExecutionEngine, signal: object) -> list[Any]:
    return list(liveReceivers(getAllReceivers(engine.signals.sender, signal)))


Check = Callable[["Fetch", str], bool]
"""Raises `IgnoreRequest` if a row may not be fetched; true: the engine is to decide that."""
Header = Callable[["Fetch"], list[bytes]]
"""Pieces of a request's head, each line with a line break before it."""


class LoopPlan:
    """What the fetch loop does at each stage, by the components that are enabled."""

    def __init__(self, parts: CrawlParts, engine: ExecutionEngine) -> None:
        crawl = parts.crawl
        settings, spider = crawl.crawler.settings, crawl.crawler.spider
        self._crawl = crawl
        found = dict(_middlewares(engine.downloader.middleware))
        # Middlewares, or None.
        self.cookies: Any = found.get(_COOKIES)
        self.decoder: Any = found.get(_COMPRESSION)
        self._robots: Any = found.get(_ROBOTS)
        self._offsite: Any = found.get(_OFFSITE)
        self._on_site: set[str] = set()
        self.tls: ssl.SSLContext = make_ssl_context(settings)
        self.bind = bind_address(settings.get("DOWNLOAD_BIND_ADDRESS"))
        self.maxsize = settings.getint("DOWNLOAD_MAXSIZE")
        self.warnsize = settings.getint("DOWNLOAD_WARNSIZE")
        self.fail_on_dataloss = settings.getbool("DOWNLOAD_FAIL_ON_DATALOSS")
        self.download_timeout = float(getattr(spider, "download_timeout", 0.0))
        self.checks: list[Check] = []  # before a row gets a place
        if self._robots is not None:
            self.checks.append(self._check_robots)
        if self._offsite is not None and getattr(spider, "allowed_domains", None):
            self.checks.append(self._check_site)
        # Just before it is sent.
        self.last_checks: list[Check] = [self._check_exclusion, self._check_filter]
        if crawl.agent is not None:
            self.last_checks.insert(1, self._check_agent)
        user_agent: Any = found.get(_USER_AGENT)
        self._agent_name = getattr(spider, "user_agent", None) or settings["USER_AGENT"]
        by_host = user_agent is not None and crawl.settings.overrides is not None
        # The fields that all rows have, and those that differ from row to row.
        self._request_tail = self._make_tail(user_agent, by_host=by_host)
        self.headers: list[Header] = [self._referer]
        if by_host:
            self.headers.append(self._user_agent)
        if self.cookies is not None:
            self.headers.append(self._cookie)
        if crawl.settings.revisit != "off" or not crawl.frontier.commit.planner.revisits.idle:
            self._revisits = parts.revisits
            self.headers.append(self._conditions)
        spidermws = {name for name, _ in _middlewares(engine.scraper.spidermw)}
        self.sees_output = bool(crawl.settings.page_items or spidermws - _KNOWN_SPIDER)
        """Whether a spider middleware is to see what callbacks yield."""
        callbacks = (own_hook(spider, name) for name in ("_parse", "parse", "parse_page"))
        self.has_callback = self.sees_output or any(
            getattr(each, "__module__", _SCRAPYS) != _SCRAPYS for each in callbacks
        )
        self.logs_pages = any(
            handler.level <= logging.DEBUG and not isinstance(handler, logging.NullHandler)
            for handler in logging.root.handlers
        ) and logging.getLogger("scrapy.core.engine").isEnabledFor(logging.DEBUG)
        self.listen(engine)

    def listen(self, engine: ExecutionEngine) -> None:
        """Find out who listens to signals; extensions may begin, or end, at any time."""
        self.announces = False  # requests and responses
        self.page_counters = []  # of CloseSpider
        for receiver in (each for signal in _ANNOUNCED for each in _receivers(engine, signal)):
            module = getattr(receiver, "__module__", "")
            if module == "scrapy.extensions.closespider":
                self.page_counters.append(receiver)
            elif not module.startswith(("scrapy.extensions.corestats", "scrapy_spider_suite.")):
                self.announces = True

    def _check_robots(self, fetch: Fetch, server: str) -> bool:
        url, service = fetch.entry.url, self._robots.service
        if not service.obeys(url):
            return False
        rules = service.peek(url)
        if rules is None:
            return True
        self._robots.check(rules, url, service.agent_for(url, self._agent_name))
        return False

    def _check_site(self, fetch: Fetch, server: str) -> bool:
        entry = fetch.entry
        if entry.host in self._on_site or entry.hops_outside or self._crawl.filters.opens_scope:
            return False
        self._offsite.process_request(Request(entry.url))
        if len(self._on_site) > _ON_SITE_MAX:
            self._on_site.clear()
        self._on_site.add(entry.host)
        return False

    def _check_exclusion(self, fetch: Fetch, server: str) -> bool:
        self._crawl.policy_file.refuse_excluded(fetch.entry.host, fetch.entry.url, server)
        return False

    def _check_agent(self, fetch: Fetch, server: str) -> bool:
        agent, visit = self._crawl.agent, fetch.visit
        if agent is not None and visit is not None:
            delay = max(visit.host.gap(), visit.address.delay)
            agent.refuse_fetch(fetch.entry.host, fetch.entry.url, fetch, delay)
        return False

    def _check_filter(self, fetch: Fetch, server: str) -> bool:
        self._crawl.filters.refuse_fetch(fetch.entry.url, fetch.entry, server)
        return False

    def request(self, fetch: Fetch) -> tuple[Origin, bytes]:
        """Return the server of *fetch* and the request. Raises as `split_url`."""
        origin, target = split_url(fetch.entry.url)
        head = [b"GET ", target, b" HTTP/1.1\r\nHost: ", origin.header]
        for header in self.headers:
            head += header(fetch)
        head.append(self._request_tail)
        return origin, b"".join(head)

    def _make_tail(self, user_agent: Any, *, by_host: bool) -> bytes:
        settings = self._crawl.crawler.settings
        headers = Headers()
        if user_agent is not None and user_agent.mailbox:
            headers[b"From"] = user_agent.mailbox
        for name, value in without_none_values(settings["DEFAULT_REQUEST_HEADERS"]).items():
            headers.setdefault(name, value)
        if self._agent_name and not by_host:
            headers.setdefault(b"User-Agent", self._agent_name)
        if self.decoder is not None:
            headers.setdefault(b"Accept-Encoding", b", ".join(ACCEPTED_ENCODINGS))
        return b"\r\n" + b"\r\n".join([*field_lines(headers), b"\r\n"])

    def _referer(self, fetch: Fetch) -> list[bytes]:
        found = self._crawl.translator.referers.referer(fetch.entry)
        return [b"\r\nReferer: ", found.encode()] if found else _NOTHING

    def _user_agent(self, fetch: Fetch) -> list[bytes]:
        name = self._crawl.policy_file.user_agent(fetch.entry.url) or self._agent_name
        return [b"\r\n", *field_lines(Headers({"User-Agent": name}))] if name else _NOTHING

    def _cookie(self, fetch: Fetch) -> list[bytes]:
        if not (self.cookies.rows and self.cookies.knows(host_of(fetch.entry.url))):
            return _NOTHING
        request = Request(fetch.entry.url)
        self.cookies.process_request(request)
        found = {b"Cookie": request.headers.getlist(b"Cookie")}
        return [b"\r\n", *field_lines(found)] if found[b"Cookie"] else _NOTHING

    def _conditions(self, fetch: Fetch) -> list[bytes]:
        pieces: list[bytes] = []
        for name, value in self._revisits.conditions(fetch).items():
            pieces += (b"\r\n", name, b": ", value)
        return pieces


_NOTHING: Final[list[bytes]] = []
_ON_SITE_MAX: Final = 10_000  # hosts on site that are kept in mind
_SCRAPYS: Final = "scrapy.spiders"  # the module of callbacks that do nothing with a page
