"""One request and its answer on one connection: limits, Scrapy's signals, and how it ended."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from pydispatch.dispatcher import getAllReceivers  # type: ignore[import-untyped]
from scrapy import signals
from scrapy.exceptions import (
    DownloadCancelledError,
    DownloadFailedError,
    ResponseDataLossError,
    StopDownload,
)
from scrapy.http import Headers
from twisted.python.failure import Failure
from twisted.web.iweb import UNKNOWN_LENGTH

from scrapy_spider_suite.fetch.http_messages import (
    MalformedResponseError,
    ResponseBoundsError,
    ResponseReader,
    StreamEnd,
)
from scrapy_spider_suite.runtime.http_fields import media_type

if TYPE_CHECKING:
    import asyncio

    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

ADDRESS = "suite_address"
KEEP_ALIVE = "suite_keep_alive"
DEPARTURE = "suite_departure"
TRUNCATE = "suite_truncate"
MEDIA_TYPES = "suite_media_types"
RECEIVED = "suite_received"
"""Keys of a request's meta; see `Http1Handler`."""
TRUNCATED = "truncated"
"""The flag of a response whose body was not read to its end."""


class BodyLimits(NamedTuple):
    """How much of a body is read."""

    maxsize: int  # bytes above which the download is cancelled; 0: no limit
    warnsize: int  # bytes above which a warning is logged; 0: never
    truncate: int | None  # bytes after which reading stops without an error
    fail_on_dataloss: bool  # a body that breaks off is an error, else a response with a flag
    media_types: tuple[str, ...] = ()  # of 2xx answers that are read; () for all

    def is_wanted(self, media_type: str) -> bool:
        """Whether a body of *media_type* (lower case, "" if unknown) is read."""
        kind = f"{media_type.partition('/')[0]}/*"
        wanted = self.media_types
        return not (wanted and media_type) or media_type in wanted or kind in wanted


class ByteSignals:
    """Scrapy's signals about bytes, sent only where a receiver is connected."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    def has_receiver(self, signal: object) -> bool:
        sender = self._crawler.signals.sender
        return next(iter(getAllReceivers(sender, signal)), None) is not None

    def ask_to_stop(self, signal: object, request: Request, **named: Any) -> StopDownload | None:
        """Send *signal*; return the first `StopDownload` that a receiver raised."""
        results = self._crawler.signals.send_catch_log(
            signal=signal, request=request, spider=self._crawler.spider, **named
        )
        for receiver, result in results:
            if isinstance(result, Failure) and isinstance(result.value, StopDownload):
                name = getattr(receiver, "__qualname__", repr(receiver))
                logger.debug("Download stopped for %s from signal handler %s", request, name)
                return result.value
        return None


class HttpExchange:
    """One request on one connection; a `ConnectionListener`.

    Invariant: *outcome* is set once: to None with a response, else to the error.

    Attributes:
        stop: the exception of a signal handler that stopped the download.
        unwanted: only the head was read, because of the media type.
        size: bytes received, head and framing included.
    """

    __slots__ = (
        "_head_seen", "_limits", "_request", "_signals", "_started", "_warned", "flags",
        "outcome", "reader", "size", "stop", "unwanted",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        limits: BodyLimits,
        byte_signals: ByteSignals,
        outcome: asyncio.Future[None],
        started: float,
    ) -> None:
        self._request = request
        self._limits = limits
        self._signals = byte_signals
        self._started = started  # time.monotonic() when the download began
        self._head_seen = self._warned = False
        self.reader = ResponseReader(request.method)
        self.outcome = outcome
        self.flags: list[str] = []
        self.stop: StopDownload | None = None
        self.unwanted = False
        self.size = 0

    @property
    def unanswered(self) -> bool:
        """Whether no byte of an answer came."""
        return not self.reader.touched

    @property
    def leaves_connection_usable(self) -> bool:
        return self.reader.keeps_alive and self.stop is None

    def headers(self) -> Headers:
        headers = Headers()  # filled past its methods: the reader has normalised the names
        dict.update(headers, self.reader.fields)
        return headers

    def received(self, data: bytes) -> None:
        reader = self.reader
        self.size += len(data)
        if self.outcome.done():
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
        if reader.size > known and not self.outcome.done():
            self._on_body(known)
        if reader.done:
            self._finish()

    def disconnected(self, error: Exception | None) -> None:
        if self.outcome.done():
            return
        end = self.reader.end()
        why = f": {error}" if error else ""
        if end is StreamEnd.CLOSED:
            self._finish("partial")
        elif self._head_seen:
            self._lose_data(f"connection closed before the end of the body{why}")
        elif end is StreamEnd.NOTHING:
            self._fail(DownloadFailedError(f"connection closed without an answer{why}"))
        else:
            self._fail(DownloadFailedError(f"connection closed within the head{why}"))

    def _on_head(self) -> None:
        self._head_seen = True
        request, limits, length = self._request, self._limits, self.reader.length
        request.meta["download_latency"] = monotonic() - self._started
        if self._signals.has_receiver(signals.headers_received):
            expected = UNKNOWN_LENGTH if length is None else length
            self._stop_if_asked(
                signals.headers_received, headers=self.headers(), body_length=expected
            )
            if self.outcome.done():
                self.reader.cut_body(0)  # what came along with the head was not asked for
                return
        if limits.media_types and not self._is_wanted():
            self.unwanted = True
            self._finish()
            self.reader.cut_body(0)
            return
        if length is None:
            return
        wanted = length if limits.truncate is None else min(length, limits.truncate)
        if limits.maxsize and wanted > limits.maxsize:
            self._cancel(wanted, "Expected to receive")
        elif limits.warnsize and wanted > limits.warnsize:
            self._warn(wanted, "Expected to receive")

    def _on_body(self, known: int) -> None:
        # The body from byte *known* on is new.
        reader, limits = self.reader, self._limits
        if self._signals.has_receiver(signals.bytes_received):
            self._stop_if_asked(signals.bytes_received, data=reader.body(known))
            if self.outcome.done():
                return
        if limits.truncate is not None and self._is_enough(limits.truncate):
            reader.cut_body(limits.truncate)
            self._finish(TRUNCATED)
        elif limits.maxsize and reader.size > limits.maxsize:
            self._cancel(reader.size, "Received")
        elif limits.warnsize and reader.size > limits.warnsize:
            self._warn(reader.size, "Received")

    def _is_wanted(self) -> bool:
        if not 200 <= self.reader.status < 300:
            return True
        types = self.reader.fields.get(b"Content-Type", [b""])
        return self._limits.is_wanted(media_type(types[-1].decode("latin-1")))

    def _is_enough(self, truncate: int) -> bool:
        reader = self.reader
        longer = reader.length is not None and reader.length > truncate
        return reader.size > truncate or (longer and reader.size >= truncate)

    def _on_malformed(self, error: MalformedResponseError) -> None:
        # The beginning of a broken body may be wanted.
        if self.reader.head_done and not isinstance(error, ResponseBoundsError):
            if not self._head_seen:
                self._on_head()
            self._lose_data(str(error))
        else:
            self._fail(error)

    def _stop_if_asked(self, signal: object, **named: Any) -> None:
        self.stop = self._signals.ask_to_stop(signal, self._request, **named)
        if self.stop is not None:
            self._finish("download_stopped")

    def _lose_data(self, why: str) -> None:
        if self._limits.fail_on_dataloss:
            self._fail(ResponseDataLossError(why))
        else:
            self._finish("dataloss")

    def _cancel(self, size: int, prefix: str) -> None:
        message = (
            f"{prefix} {size} bytes which is larger than download max size"
            f" ({self._limits.maxsize}) in request {self._request}."
        )
        logger.warning(message)
        self._fail(DownloadCancelledError(message))

    def _warn(self, size: int, prefix: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s %d bytes which is larger than download warn size (%d) in request %s.",
                prefix, size, self._limits.warnsize, self._request,
            )  # fmt: skip

    def _finish(self, flag: str | None = None) -> None:
        if not self.outcome.done():
            self.reader.release()
            if flag:
                self.flags.append(flag)
            self.outcome.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.outcome.done():
            self.reader.release()
            self.outcome.set_exception(error)
