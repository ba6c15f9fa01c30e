"""One HTTP request and its answer: read off a connection within limits, or taken from Scrapy."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.exceptions import DownloadCancelledError, DownloadFailedError, ResponseDataLossError
from scrapy.http import Headers, HtmlResponse, Response
from scrapy.responsetypes import responsetypes

from scrapy_spider_suite.fetch.connections import Connection
from scrapy_spider_suite.fetch.http_messages import (
    MalformedResponseError,
    ResponseBoundsError,
    ResponseReader,
    StreamEnd,
)
from scrapy_spider_suite.runtime.text import media_type
from scrapy_spider_suite.urls.page_digests import sha1_of

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 15.0
"""How long an idle connection is kept if the server does not say how long it keeps it."""
SERVER_IDLE_SECONDS: Final = 5.0
"""How long such a server is believed to keep it (the default of Apache and Node)."""
MAX_IDLE_SECONDS: Final = 120.0  # most seconds that a connection is kept idle
TRUNCATED: Final = "truncated"  # the flag of an answer whose body was not read to its end


class BodyLimits(NamedTuple):
    """How much of a body is read."""

    maxsize: int  # bytes above which the download is cancelled; 0: no limit
    warnsize: int  # bytes above which a warning is logged; 0: never
    truncate: int | None  # bytes after which reading stops without an error
    fail_on_dataloss: bool  # a body that breaks off is an error, else an answer with a flag
    media_types: tuple[str, ...]  # of 2xx answers that are read; () for all


class ExchangeObserver(Protocol):
    """Hears of an exchange while it is under way; may end it."""

    def head_received(self, exchange: Exchange) -> None: ...
    def body_received(self, exchange: Exchange, known: int) -> None:
        """The body from byte *known* on is new."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Exchange:
    """One request, and its answer or the error; a `ConnectionListener`.

    Invariant: it is over once, with a *status* above 0 or with an *error*.
    """

    url: str
    request: bytes  # as sent; b"" if a handler of Scrapy's sent it
    _limits: BodyLimits
    _on_over: Callable[[Any], None]
    method: str = "GET"
    status: int = 0
    fields: dict[bytes, list[bytes]] = dataclasses.field(default_factory=dict)
    """Names in the case of Scrapy's ``Headers``, to values in order."""
    head: bytes = b""  # as received, with the empty line; b"" if not known
    body: bytes = b""  # as it was sent, content codings included
    error: BaseException | None = None
    over: bool = False
    unwanted: bool = False  # only the head was read, because of the media type
    flags: list[str] = dataclasses.field(default_factory=list)
    began: float = dataclasses.field(default_factory=time.time)  # seconds since the epoch
    seconds: float = 0.0
    size: int = 0  # bytes received, head and framing included
    address: str = ""  # numeric, of the server; "" if not known
    protocols: tuple[str, ...] = ()  # ``http/1.1``, and, over TLS, ``tls/1.3``
    observer: ExchangeObserver | None = None
    reader: ResponseReader = dataclasses.field(default_factory=ResponseReader)
    _certificate: Any = None
    _head_seen: bool = False
    _warned: bool = False
    _class: type[Response] | None = None
    _digest: bytes = b""
    _response: Response | None = None

    @classmethod
    def of_handler(cls, url: str, method: str, response: Response | None) -> Exchange:
        """Return the exchange that ended with *response*, of any download handler."""
        exchange = cls(url, b"", _NO_LIMITS, _ignore, method)
        exchange.over = True
        if response is None:
            return exchange
        exchange.status = response.status
        dict.update(exchange.fields, response.headers)
        exchange.body = response.body
        exchange.flags = response.flags
        exchange.address = str(response.ip_address or "")
        exchange.protocols = (response.protocol.lower(),) if response.protocol else ()
        exchange._response, exchange._class = response, type(response)
        return exchange

    def of_body(self, body: bytes) -> Exchange:
        """Return the same answer with *body*, its content codings undone."""
        page = Exchange(self.url, self.request, self._limits, _ignore, self.method)
        page.over, page.body, page.status = True, body, self.status
        page.fields = {name: value for name, value in self.fields.items() if name != _CODING}
        page.began, page.seconds, page.size = self.began, self.seconds, self.size
        page.head, page.flags, page.address = self.head, self.flags, self.address
        page.protocols, page._certificate = self.protocols, self._certificate
        return page

    def field(self, name: bytes) -> str:
        """Return the last value of the header field *name*; "" without one."""
        values = self.fields.get(name)
        return values[-1].decode("latin-1") if values else ""

    @property
    def digest(self) -> bytes:
        """SHA-1 of the body."""
        if not self._digest:
            self._digest = sha1_of(self.body)
        return self._digest

    @property
    def is_html(self) -> bool:
        """Whether Scrapy makes an `HtmlResponse` of it."""
        return issubclass(self.response_class, HtmlResponse)

    @property
    def response_class(self) -> type[Response]:
        """The class that Scrapy chooses for it."""
        if self._class is None:
            self._class = self._choose_class()
        return self._class

    @response_class.setter
    def response_class(self, found: type[Response]) -> None:
        self._class = found

    def _choose_class(self) -> type[Response]:
        types = self.fields.get(b"Content-Type")
        if types and _CODING not in self.fields:
            found = _class_of_type(types[-1])
            if found is not Response:
                return found
        url = self.url.partition("#")[0]
        try:
            return responsetypes.from_args(headers=self._headers(), url=url, body=self.body)
        except ValueError:  # Python 3.13: a file name that reads as a broken URL
            return Response

    def _headers(self) -> Headers:
        headers = Headers()  # filled past its methods: the reader has normalised the names
        dict.update(headers, self.fields)
        return headers

    def make_response(self) -> Response:
        """Return the answer as Scrapy's."""
        response = self.response_class(
            url=self.url.partition("#")[0], status=self.status, body=self.body,
            flags=self.flags, certificate=self._certificate,
            ip_address=ip_address(self.address) if self.address else None,
            protocol=self.protocols[0].upper() if self.protocols else None,
        )  # fmt: skip
        # As an argument they would be copied and normalised again: 10 µs.
        response.headers = self._headers()
        return response

    @property
    def response(self) -> Response:
        """The answer as Scrapy's, made at the first use."""
        if self._response is None:
            self._response = self.make_response()
        return self._response

    def idle_seconds(self, next_fetch: float | None) -> float:
        """Return how long the connection may idle now; 0: the server closes it before.

        *next_fetch*: seconds until the next request to the host; None if not known.
        """
        reader = self.reader
        if not reader.keeps_alive:
            return 0.0
        promised = reader.keep_alive_timeout
        if next_fetch is not None:
            kept = SERVER_IDLE_SECONDS if promised is None else promised
            if next_fetch > kept:
                return 0.0
        return IDLE_SECONDS if promised is None else min(promised, MAX_IDLE_SECONDS)

    def received(self, data: bytes) -> None:
        reader = self.reader
        self.size += len(data)
        if self.over:
            reader.excess = True
            return
        known = reader.size
        try:
            reader.feed(data)
        except MalformedResponseError as error:
            self._on_malformed(error)
            return
        if not self._head_seen:
            if not reader.head_done:
                return
            self._on_head()
        if reader.size > known and not self.over:
            self._on_body(known)
        if reader.done:
            self.finish()

    def disconnected(self, error: Exception | None) -> None:
        if self.over:
            return
        end = self.reader.close()
        why = f": {error}" if error else ""
        if end is StreamEnd.CLOSED:
            self.finish("partial")
        elif self._head_seen:
            self._lose_data(f"connection closed before the end of the body{why}")
        elif end is StreamEnd.NOTHING:
            self.fail(DownloadFailedError(f"connection closed without an answer{why}"))
        else:
            self.fail(DownloadFailedError(f"connection closed within the head{why}"))

    def _on_head(self) -> None:
        self._head_seen = True
        limits, length = self._limits, self.reader.length
        if self.observer is not None:
            self.observer.head_received(self)
            if self.over:
                return
        if limits.media_types and not self._is_wanted():
            self.unwanted = True
            self.reader.cut_body(0)
            self.finish()
        elif length is not None:
            wanted = length if limits.truncate is None else min(length, limits.truncate)
            self._check_size(wanted, "Expected to receive")

    def _on_body(self, known: int) -> None:
        reader, truncate = self.reader, self._limits.truncate
        if self.observer is not None:
            self.observer.body_received(self, known)
            if self.over:
                return
        if truncate is not None and (
            reader.size > truncate or reader.size == truncate < (reader.length or 0)
        ):
            reader.cut_body(truncate)
            self.finish(TRUNCATED)
        elif reader.length is None:  # else the head was checked
            self._check_size(reader.size, "Received")

    def _is_wanted(self) -> bool:
        if not 200 <= self.reader.status < 300:
            return True
        types = self.reader.fields.get(b"Content-Type", [b""])
        found, wanted = media_type(types[-1].decode("latin-1")), self._limits.media_types
        return not found or found in wanted or f"{found.partition('/')[0]}/*" in wanted

    def _on_malformed(self, error: MalformedResponseError) -> None:
        # The beginning of a broken body may be wanted.
        if self.reader.head_done and not isinstance(error, ResponseBoundsError):
            if not self._head_seen:
                self._on_head()
            self._lose_data(str(error))
        else:
            self.fail(error)

    def _lose_data(self, why: str) -> None:
        if self._limits.fail_on_dataloss:
            self.fail(ResponseDataLossError(why))
        else:
            self.finish("dataloss")

    def _check_size(self, size: int, prefix: str) -> None:
        limits = self._limits
        if limits.maxsize and size > limits.maxsize:
            message = (
                f"{prefix} {size} bytes which is larger than download max size"
                f" ({limits.maxsize}) in request <{self.method} {self.url}>."
            )
            logger.warning(message)
            self.fail(DownloadCancelledError(message))
        elif limits.warnsize and size > limits.warnsize and not self._warned:
            self._warned = True
            logger.warning(
                "%s %d bytes which is larger than download warn size (%d) in request <%s %s>.",
                prefix, size, limits.warnsize, self.method, self.url,
            )  # fmt: skip

    def finish(self, flag: str | None = None) -> None:
        """End it with what was received."""
        if self.over:
            return
        reader = self.reader
        reader.release()
        if flag:
            self.flags.append(flag)
        self.status, self.fields, self.head = reader.status, reader.fields, reader.head
        self.body = reader.body()
        self._end()

    def fail(self, error: BaseException) -> None:
        if not self.over:
            self.reader.release()
            self.error = error
            self._end()

    def _end(self) -> None:
        self.over = True
        self.seconds = max(0.0, time.time() - self.began)
        self.observer = None  # it knows the request, of which this is a value (`note_exchange`)
        self._on_over(self)

    def note_connection(self, connection: Connection) -> None:
        """Note the server that answered on *connection*."""
        self.address = connection.peer
        self._certificate = connection.certificate
        self.protocols = (self.reader.version.lower(), *connection.tls_protocols)


_exchanges: WeakKeyDictionary[Request, Exchange] = WeakKeyDictionary()


def note_exchange(request: Request, exchange: Exchange) -> None:
    _exchanges[request] = exchange


def pop_exchange(request: Request) -> Exchange | None:
    """Return the last exchange of *request*, once; None if another download handler sent it."""
    return _exchanges.pop(request, None)


_CODING: Final = b"Content-Encoding"
_NO_LIMITS: Final = BodyLimits(0, 0, None, False, ())


def _ignore(exchange: Exchange) -> None:
    pass


@lru_cache(1_024)
def _class_of_type(content_type: bytes) -> type[Response]:
    return responsetypes.from_content_type(content_type)
