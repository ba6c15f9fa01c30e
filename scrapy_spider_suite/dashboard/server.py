"""The web server of ``scrapy dashboard``: files of the page, answers, the live feed, acts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import json
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress
from twisted.internet.task import LoopingCall, deferLater
from twisted.internet.threads import deferToThread
from twisted.protocols.policies import WrappingFactory
from twisted.web import server
from twisted.web.resource import Resource

from scrapy_spider_suite.dashboard.access import Access, Request, Right, header_of
from scrapy_spider_suite.dashboard.acts import Act
from scrapy_spider_suite.dashboard.questions import (
    JSON,
    QUESTIONS,
    HttpAnswer,
    SharedAnswers,
    ViewThread,
    error_answer,
)
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.operate import actions
from scrapy_spider_suite.operate.alerts import FETCH_FAILURES

reactor: Any = _reactor

_CONNECTIONS: Final = 400  # at a time; further ones are closed
VIEWERS: Final = 100  # with a live feed at a time
_PULSE: Final = 1.0  # seconds
_BODY: Final = 1 << 20  # bytes of a request's body
ACTS: Final = 4  # under way at a time
_WRONG_TOKEN: Final = 1.0  # seconds until it is said
_STALE: Final = 30.0  # seconds after which a viewer that reads nothing is dropped
_IDLE: Final = 60.0  # seconds after which a silent connection is closed

_PAGE: Final = Path(__file__).parent / "page"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}  # fmt: skip
_PUBLIC: Final = {"/login": "/login.html", "/style.css": "/style.css", "/icon.svg": "/icon.svg"}
"""Paths that need no token, and their files."""
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, forms would have no Origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}  # fmt: skip


class _Viewer:
    """One live feed, a push producer; what is sent while its reader is slow is left out."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._paused_at: float | None = None
        request.registerProducer(self, True)

    def send(self, event: bytes, now: float) -> None:
        if self._paused_at is None:
            self._request.write(event)
        elif now > self._paused_at + _STALE:
            self._request.channel.forceAbortClient()

    def pauseProducing(self) -> None:
        self._paused_at = time.monotonic()

    def resumeProducing(self) -> None:
        self._paused_at = None

    def stopProducing(self) -> None:
        """The connection is lost, which `Request.notifyFinish` says, too."""


class LiveFeed:
    """Sends an overview a second to all viewers; without viewers none is made."""

    def __init__(self, thread: ViewThread) -> None:
        self._thread = thread
        self._viewers: set[_Viewer] = set()
        self._last: tuple[float, bytes] | None = None
        self._loop = LoopingCall(self._pulse)
        reactor.callWhenRunning(self._prepare)

    def _prepare(self) -> None:
        """Make an overview before the first viewer comes: that one loads modules, and connects."""
        self._thread.ask(lambda view: view.overview()).addErrback(lambda _: None)

    @property
    def is_full(self) -> bool:
        return len(self._viewers) >= VIEWERS

    def join(self, request: Request, first: bytes) -> None:
        """Make *request* a viewer, until its connection is lost; it gets the event *first*."""
        viewer, now = _Viewer(request), time.monotonic()
        self._viewers.add(viewer)
        request.notifyFinish().addBoth(lambda _: self._viewers.discard(viewer))
        viewer.send(first, now)
        if self._last is not None and now < self._last[0] + 2 * _PULSE:
            viewer.send(self._last[1], now)
        if not self._loop.running:
            self._loop.start(_PULSE)

    def _pulse(self) -> Deferred[None] | None:
        if not self._viewers:
            self._loop.stop()
            return None
        overview = self._thread.ask(lambda view: event_of("overview", json.encode(view.overview())))
        overview.addErrback(lambda it: event_of("trouble", error_answer(it).body))
        return overview.addCallback(self._send)

    def _send(self, event: bytes) -> None:
        now = time.monotonic()
        self._last = now, event
        for viewer in list(self._viewers):
            viewer.send(event, now)


def event_of(name: str, body: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), body)


class _Request(server.Request):
    """A request with a body of `_BODY` at most; with a longer one it loses its connection."""

    content: BinaryIO

    def handleContentChunk(self, data: bytes) -> None:
        if self.content.tell() + len(data) > _BODY:
            self.loseConnection()  # type: ignore[no-untyped-call]
        else:
            super().handleContentChunk(data)  # type: ignore[no-untyped-call]


class Dashboard(Resource):
    """Everything that the server answers; *act* does what a viewer asks of the job."""

    isLeaf = True

    def __init__(
        self, feed: LiveFeed, answers: SharedAnswers, access: Access,
        act: Callable[[Act], actions.Answer],
    ) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call]
        self._feed = feed
        self._answers = answers
        self._access = access
        self._act = act
        self._acting = 0
        self._files = {
            f"/{path.name}": HttpAnswer.of_bytes(path.read_bytes(), _TYPES[path.suffix])
            for path in _PAGE.iterdir() if path.suffix in _TYPES
        }  # fmt: skip

    def render(self, request: Request) -> int:
        for name, value in _HEADERS.items():
            request.setHeader(name, value)
        answer = self._answer(request)
        if isinstance(answer, HttpAnswer):
            _send(answer, request)
        elif answer is not None:
            answer.addCallback(_send, request)
        return server.NOT_DONE_YET

    def _answer(self, request: Request) -> HttpAnswer | Deferred[HttpAnswer] | None:
        """The answer, now or later; None: *request* is dealt with."""
        if foreign := self._access.why_foreign(request):
            return HttpAnswer.error(403, foreign)
        path, right = request.path.decode("latin-1"), self._access.right_of(request)
        if request.method == b"POST":
            return self._login(request) if path == "/login" else self._post(request, path, right)
        if request.method not in (b"GET", b"HEAD"):
            return HttpAnswer.error(405, "expected GET, HEAD or POST")
        if path in _PUBLIC:
            return self._files[_PUBLIC[path]]
        if right < Right.LOOK:
            form = replace(self._files["/login.html"], status=401)
            return form if path == "/" else HttpAnswer.error(401, "open / to give the token")
        if path == "/events":
            return self._open_feed(request, right)
        if path[1:] in QUESTIONS:
            words = {name.decode("latin-1"): values[-1].decode("utf-8", "replace")
                     for name, values in request.args.items()}  # fmt: skip
            return self._answers.get(path[1:], words)
        return self._files.get("/index.html" if path == "/" else path) or _NOT_FOUND

    def _open_feed(self, request: Request, right: Right) -> HttpAnswer | None:
        if self._feed.is_full:
            return HttpAnswer.error(503, f"{VIEWERS} viewers look at it already")
        request.setHeader("Content-Type", "text/event-stream")
        request.setHeader("X-Accel-Buffering", "no")  # nginx would keep events back
        acts = {"possible": self._access.allows_acts, "allowed": right is Right.ACT}
        hello = {"acts": acts, "errors": [*FETCH_FAILURES, Event.CALLBACK_ERROR]}
        self._feed.join(request, event_of("hello", json.encode(hello)))
        return None

    def _login(self, request: Request) -> Deferred[HttpAnswer]:
        """Exchange a token for a cookie."""
        token = request.args.get(b"token", [b""])[-1].decode("utf-8", "replace").strip()
        right = self._access.right_of_token(token)
        if right is not Right.NONE:
            self._access.give_cookie(request, right)
        request.setHeader("Location", "/login#wrong" if right is Right.NONE else "/")
        pause = _WRONG_TOKEN if right is Right.NONE else 0.0
        return deferLater(reactor, pause, HttpAnswer.of, {}, 303)

    def _post(self, request: Request, path: str, right: Right) -> HttpAnswer | Deferred[HttpAnswer]:
        if path != "/act":
            return _NOT_FOUND
        if right is not Right.ACT:
            return HttpAnswer.error(403, "this needs the token to act")
        if header_of(request, "content-type") != JSON:
            return HttpAnswer.error(415, "expected JSON")
        if self._acting >= ACTS:
            return HttpAnswer.error(503, f"{ACTS} acts are under way: wait for them")
        try:
            act = json.decode(request.content.read(), type=Act)
        except msgspec.MsgspecError as error:
            return HttpAnswer.error(400, str(error))
        self._acting += 1
        done = deferToThread(lambda: _act_answer(self._act(act)))
        return done.addErrback(error_answer).addCallback(self._acted)

    def _acted(self, answer: HttpAnswer) -> HttpAnswer:
        self._acting -= 1
        return answer


def _act_answer(answer: actions.Answer) -> HttpAnswer:
    return HttpAnswer.of({"ok": answer.ok, "said": answer.said})


_NOT_FOUND: Final = HttpAnswer.error(404, "there is no such page")


def _send(answer: HttpAnswer, request: Request) -> None:
    if request.channel is None:  # the client has gone
        return
    body = answer.body
    request.setResponseCode(answer.status)
    request.setHeader("Content-Type", answer.kind)
    request.setHeader("Vary", "Accept-Encoding")
    if answer.compressed and "gzip" in (header_of(request, "accept-encoding") or ""):
        request.setHeader("Content-Encoding", "gzip")
        body = answer.compressed
    request.setHeader("Content-Length", str(len(body)))
    request.write(body)
    request.finish()


class _Limited(WrappingFactory):
    """Closes connections beyond `_CONNECTIONS`."""

    def buildProtocol(self, addr: IAddress | None) -> Any:
        return None if len(self.protocols) >= _CONNECTIONS else super().buildProtocol(addr)


def listen(dashboard: Dashboard, host: str, port: int) -> int:
    """Serve *dashboard*, once the reactor runs; return the port. Raises `OSError`."""
    site: Any = server.Site
    limited: Any = _Limited
    factory = limited(site(dashboard, requestFactory=_Request, timeout=_IDLE))
    try:
        listening = reactor.listenTCP(port, factory, interface=host)
    except CannotListenError as error:
        raise OSError(f"cannot listen on {host}, port {port}: {error.socketError}") from None
    return int(listening.getHost().port)
