"""Other programs fetch: an HTTP server by which they pop URLs, and report what came of them.

docs/url-server.md has its calls.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.utils.defer import deferred_from_coro
from twisted.internet import reactor as _reactor
from twisted.internet.defer import CancelledError
from twisted.internet.error import CannotListenError
from twisted.web import server as _server
from twisted.web.resource import Resource

from scrapy_spider_suite.crawl.assembly import open_crawl
from scrapy_spider_suite.crawl.outside_fetches import (
    COUNT_MAX,
    HOSTS_MAX,
    WAIT_MAX,
    BusyError,
    FetchResult,
    OutsideFetches,
    PushedUrl,
)
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.runtime.refusal import refuse_crawl
from scrapy_spider_suite.settings.project import is_crawl, uses_suite_scheduler
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.settings.values import endpoint
from scrapy_spider_suite.url_client import FILE

logger = logging.getLogger(__name__)
reactor: Any = _reactor
server: Any = _server  # whose classes have no types

_BODY_MAX: Final = 64 << 20  # bytes of a call
_IDLE: Final = 3_600.0  # seconds for which a silent connection is kept
_LATER: Final = frozenset({b"/pop", b"/push", b"/fetch"})  # calls that a crawl refuses as it ends


class Pop(msgspec.Struct, forbid_unknown_fields=True):
    """``POST /pop``; *wait*: seconds for the first URL."""

    count: int = 1
    wait: float = 1.0
    hosts: list[str] = []


class Complete(msgspec.Struct, forbid_unknown_fields=True):
    """``POST /complete``."""

    results: list[FetchResult]


class Push(msgspec.Struct, forbid_unknown_fields=True):
    """``POST /push``."""

    urls: list[PushedUrl]


class FetchUrl(PushedUrl):
    """``POST /fetch``; *body*: whether the answer has it."""

    wait: float = 60.0
    body: bool = False


class Extract(msgspec.Struct, forbid_unknown_fields=True):
    """``POST /extract``."""

    hosts: list[str]


class UrlServer:
    """Serves SUITE_URL_SERVER while the crawl runs."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._port: Any = None
        self._file: Path | None = None
        self._outside: OutsideFetches | None = None
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Refuses a crawl without JOBDIR, or of another scheduler."""
        settings = suite_settings(crawler)
        if not (is_crawl(crawler) and settings.url_server):
            raise NotConfigured
        if not (crawler.settings["JOBDIR"] and uses_suite_scheduler(crawler)):
            allowed = "JOBDIR, and the suite's SCHEDULER, to be set with it"
            refuse_crawl(
                crawler, SettingsError.of("SUITE_URL_SERVER", settings.url_server, allowed)
            )
        return cls(crawler)

    def _opened(self) -> None:
        parts = open_crawl(self._crawler)
        crawl, job = parts.crawl, parts.crawl.job
        if crawl.engine is None or job is None:
            return  # it was refused
        parts.outside = self._outside = OutsideFetches(parts, crawl.engine)
        self._file = job.folder / FILE
        token = _known_token(self._file) or secrets.token_urlsafe(24)
        host, port = endpoint(crawl.settings.url_server)
        api = _Api(self._outside, token, lambda: crawl.engine is None or crawl.engine.closing)
        try:
            site = server.Site(api, requestFactory=api.make_request, timeout=_IDLE)
            interface = "127.0.0.1" if host == "localhost" else host
            self._port = reactor.listenTCP(port, site, interface=interface)
        except CannotListenError as error:
            logger.error("SUITE_URL_SERVER = %r: %s", crawl.settings.url_server, error)
            crawl.engine.stop("refused")
            return
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{self._port.getHost().port}"
        _write_secret(self._file, json.dumps({"url": url, "token": token}))
        logger.info("Other programs fetch: %s, with the token in %s", url, self._file)

    def _closed(self) -> Any:
        if self._outside is not None:
            self._outside.close()
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink()
        return None if self._port is None else self._port.stopListening()


def _known_token(path: Path) -> str:
    """The token of a process that was killed."""
    try:
        found = json.loads(path.read_text())["token"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""


def _write_secret(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


class _Request(server.Request):  # type: ignore[misc]
    """Reads no body without the token, and no more than `_BODY_MAX` bytes of one."""

    def __init__(self, *arguments: Any, token: bytes) -> None:
        super().__init__(*arguments)
        self._token = token
        self._size = 0
        self.refused: tuple[int, str] | None = None

    def gotLength(self, length: int | None) -> None:
        scheme, _, given = (self.getHeader(b"authorization") or b"").partition(b" ")
        known = hmac.compare_digest(given.strip(), self._token)
        if scheme.lower() != b"bearer" or not known:
            self.refused = 401, "expected Authorization: Bearer TOKEN"
        elif (length or 0) > _BODY_MAX:
            self._refuse_size()
        super().gotLength(0 if self.refused else length)

    def handleContentChunk(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _BODY_MAX and self.refused is None:  # it had no length
            self._refuse_size()
        if self.refused is None:
            super().handleContentChunk(data)

    def _refuse_size(self) -> None:
        self.refused = 413, f"expected {_BODY_MAX >> 20} MiB at most"


class _Api(Resource):
    isLeaf = True

    def __init__(self, outside: OutsideFetches, token: str, closing: Callable[[], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._outside = outside
        self.make_request = partial(_Request, token=token.encode())
        self._closing = closing
        self._calls: dict[bytes, tuple[Any, Callable[[Any], Awaitable[Any]]]] = {
            b"/pop": (Pop, self._pop), b"/complete": (Complete, self._complete),
            b"/push": (Push, self._push), b"/fetch": (FetchUrl, self._fetch),
            b"/extract": (Extract, self._extract),
        }  # fmt: skip

    def render_GET(self, request: Any) -> bytes:
        if request.refused is not None:
            return _answer(request, *request.refused)
        if request.path == b"/status":
            return _answer(request, 200, self._outside.status())
        return _answer(request, 404, "expected /status, or a POST")

    def render_POST(self, request: Any) -> Any:
        if request.refused is not None:
            return _answer(request, *request.refused)
        if request.path not in self._calls:
            return _answer(request, 404, f"expected one of {b', '.join(self._calls).decode()}")
        if self._closing() and request.path in _LATER:
            return _answer(request, 503, "the crawl is being stopped")
        kind, call = self._calls[request.path]
        try:
            given = msgspec.json.decode(request.content.read(), type=kind)
        except (ValueError, RecursionError) as error:
            return _answer(request, 400, str(error))
        work = deferred_from_coro(call(given))
        over: list[Any] = []  # not empty once the caller has gone
        request.notifyFinish().addBoth(over.append)
        request.notifyFinish().addErrback(lambda _: work.cancel())
        work.addCallbacks(
            partial(self._give, request, over), partial(self._complain, request, over)
        )  # fmt: skip
        return server.NOT_DONE_YET

    def _give(self, request: Any, over: list[Any], found: Any) -> None:
        if over:
            if request.path == b"/pop":
                self._outside.take_back(row["id"] for row in found)
            return
        request.write(_answer(request, 200, found))
        request.finish()

    def _complain(self, request: Any, over: list[Any], failure: Any) -> None:
        if over or failure.check(CancelledError, asyncio.CancelledError):
            return
        status = 400 if failure.check(ValueError) else 503 if failure.check(BusyError) else 500
        if status == 500:
            logger.error("a call of another program failed: %s", failure.getTraceback())
        request.write(_answer(request, status, failure.getErrorMessage()))
        request.finish()

    async def _pop(self, given: Pop) -> Any:
        if not (0 < given.count <= COUNT_MAX and 0 <= given.wait <= WAIT_MAX):
            raise ValueError(f"count: 1 to {COUNT_MAX}; wait: 0 to {WAIT_MAX:g} seconds")
        if len(given.hosts) > HOSTS_MAX:
            raise ValueError(f"hosts: {HOSTS_MAX} at most")
        return await self._outside.pop(given.count, given.wait, given.hosts)

    async def _complete(self, given: Complete) -> Any:
        return self._outside.complete(_few(given.results))

    async def _push(self, given: Push) -> Any:
        return self._outside.push(_few(given.urls))

    async def _fetch(self, given: FetchUrl) -> Any:
        if not 0 <= given.wait <= WAIT_MAX:
            raise ValueError(f"wait: 0 to {WAIT_MAX:g} seconds")
        fetched = await self._outside.fetch(given, given.wait)
        if fetched is None:
            return {"url": given.url, "status": None, "error": "no program has fetched it in time"}
        found = {"url": fetched.url, "status": fetched.status or None, "error": fetched.error}
        return found | ({"body": fetched.body} if given.body else {})

    async def _extract(self, given: Extract) -> Any:
        return self._outside.extract(_few(given.hosts))


def _few(items: list[Any]) -> list[Any]:
    if len(items) > COUNT_MAX:
        raise ValueError(f"{len(items)} in one call: expected {COUNT_MAX} at most")
    return items


def _answer(request: Any, status: int, found: Any) -> bytes:
    if status != 200:
        found = {"error": found}
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json")
    return msgspec.json.encode(found)
