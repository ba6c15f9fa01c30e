"""One TCP connection of the in-vitro web, and the state that all connections share.

An answer ends when the kernel takes its last byte: the high-water mark is 0. Where one write does
it, the clock is read before: else a polite crawler might look impolite.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from time import time
from typing import TYPE_CHECKING, cast

from scrapy_spider_suite.testing.arrivals import Arrival, ArrivalLog
from scrapy_spider_suite.testing.http import (
    HEAD_LIMIT,
    AnswerWriter,
    BadRequest,
    Request,
    ServerReply,
    make_reply,
    parse_head,
)

if TYPE_CHECKING:
    from scrapy_spider_suite.testing.http import Script

_REFUSED = 400
_TOO_LARGE = 431


class OpenConnections:
    """The route to an answer, the arrival log, the connections.

    Invariant: a connection is in *idle* if and only if it is open without a request; longest idle
    first.
    """

    def __init__(
        self,
        route: Callable[[Request], ServerReply],
        log: ArrivalLog,
        *,
        keep_alive: float = 15.0,
        limit: int = 10_000,
    ) -> None:
        self.route = route
        self.log = log
        self.keep_alive = keep_alive
        self.limit = limit
        self.open: set[ServerConnection] = set()
        self.idle: dict[ServerConnection, float] = {}
        self.accepted = 0
        self.turned_away = 0

    def enter(self, connection: ServerConnection) -> int:
        """Add a connection and return its number.

        Beyond the limit the longest idle one is closed, or else the new one reset.
        """
        self.accepted += 1
        self.open.add(connection)
        self.idle[connection] = time()
        if len(self.open) > self.limit:
            self.turned_away += 1
            next(iter(self.idle)).abort()
        return self.accepted

    def leave(self, connection: ServerConnection) -> None:
        self.open.discard(connection)
        self.idle.pop(connection, None)

    def sweep(self) -> None:
        """Close connections idle for *keep_alive*; call once a second."""
        oldest = time() - self.keep_alive
        for connection, since in list(self.idle.items()):
            if since > oldest:
                break
            connection.close()

    def close_all(self) -> None:
        """Abort every connection; answers in progress are logged as ended."""
        for connection in list(self.open):
            connection.abort()


class ServerConnection(asyncio.Protocol):
    def __init__(self, reception: OpenConnections, address: str) -> None:
        self._reception = reception
        self._address = address
        self._number = 0
        self._transport = cast(asyncio.Transport, None)
        self._buffer = b""
        self._skip = 0
        self._first = self._latest = self._started = 0.0
        self._request: Request | None = None
        self._status = 0
        self._keep = True
        self._paused = False
        self._wire: AnswerWriter | None = None
        self._waiting: asyncio.TimerHandle | asyncio.Task[None] | None = None

    # -- what the transport calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        self._number = self._reception.enter(self)

    def data_received(self, data: bytes) -> None:
        self._latest = time()
        if self._buffer:
            self._buffer += data
        else:
            self._first, self._buffer = self._latest, data
        if self._request is None:
            self._advance()

    def eof_received(self) -> bool:
        """A client that has sent all still gets its answer, unless a script plays it: scripts may
        be endless.
        """
        self._keep = False
        return self._request is not None and self._wire is None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._wire is not None:
            self._wire.flushed()
        elif self._request is not None:
            self._finish(time())
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reception.leave(self)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._request is not None:
            self._record(time())

    # -- requests ------------------------------------------------------------------------------

    def close(self) -> None:
        self._reception.idle.pop(self, None)
        self._transport.close()

    def abort(self) -> None:
        """Close at once, with a reset where bytes are outstanding."""
        self._reception.idle.pop(self, None)
        self._transport.abort()

    def _advance(self) -> None:
        while self._request is None and self._buffer and not self._transport.is_closing():
            if self._skip:
                skipped = min(self._skip, len(self._buffer))
                self._skip -= skipped
                self._buffer = self._buffer[skipped:]
                self._first = self._latest
                continue
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_LIMIT:
                    self._refuse(_TOO_LARGE, "the head is too long")
                return
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            try:
                request = parse_head(head)
            except BadRequest as error:
                self._refuse(_REFUSED, str(error))
                return
            self._begin(request)

    def _refuse(self, status: int, reason: str) -> None:
        self._buffer = b""
        self._take(Request("", "", "", "", False, 0))
        self._send(make_reply(status, reason + "\n"))

    def _take(self, request: Request) -> None:
        self._request = request
        self._started, self._first = self._first, self._latest
        self._reception.idle.pop(self, None)
        self._status = 0
        self._keep = self._keep and request.keep and self._reception.keep_alive > 0

    def _begin(self, request: Request) -> None:
        self._take(request)
        self._skip = request.body
        answer = self._reception.route(request)
        loop = asyncio.get_running_loop()
        if answer.script is not None:
            self._waiting = loop.create_task(self._play(answer.script, request))
        elif answer.delay > 0:
            self._waiting = loop.call_later(answer.delay, self._send_late, answer)
        else:
            self._send(answer)

    def _send_late(self, answer: ServerReply) -> None:
        self._send(answer)
        self._advance()

    def _send(self, answer: ServerReply) -> None:
        data = answer.data
        self._status = answer.status
        self._keep = self._keep and answer.keep
        if self._request is not None and self._request.method == "HEAD":
            data = data[: data.index(b"\r\n\r\n") + 4]
        if not self._keep:
            data = data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        # Read before the write: the client may have the answer before this process runs again.
        handed = time()
        self._transport.write(data)
        if not self._paused:
            self._finish(handed)

    def _finish(self, ended: float | None = None) -> None:
        self._record(time() if ended is None else ended)
        self._request = None
        if not self._keep:
            self._transport.close()
        elif not self._transport.is_closing():
            self._reception.idle[self] = self._latest

    def _record(self, ended: float) -> None:
        request = cast(Request, self._request)
        self._reception.log.add(
            Arrival(
                self._started,
                ended,
                request.host,
                self._address,
                request.target,
                self._status,
                self._number,
            )
        )

    # -- scripts -------------------------------------------------------------------------------

    async def _play(self, script: Script, request: Request) -> None:
        self._wire = wire = AnswerWriter(self._transport, self, request)
        try:
            with contextlib.suppress(ConnectionError):
                await script(wire)
        except BaseException:
            # Cancelled because the connection is lost, or a fault: the client must not wait. A
            # task that is cancelled once it is over would keep its fault to itself.
            self._waiting = None
            self._transport.abort()
            raise
        self._status, self._wire = wire.status, None
        self._keep = self._keep and wire.keep
        self._finish(wire.acted or time())
        self._advance()

    @property
    def paused(self) -> bool:
        return self._paused

    def saw(self, status: int) -> None:
        self._status = status
