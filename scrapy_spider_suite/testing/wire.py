"""What a script answers through, where an answer is more than some bytes at once."""

from __future__ import annotations

import asyncio
import socket
import struct
from time import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_spider_suite.testing.connection import Connection
    from scrapy_spider_suite.testing.http import Request

_STATUS_END = len(b"HTTP/1.1 200")


class Wire:
    """Raw bytes, pauses, and ways to break off.

    ``keep`` may be set to let the connection be used again afterwards; ``status`` is what the
    first bytes sent claimed; ``acted`` when the last thing was done, 0 if a pause followed it, as
    the client waits for the end of the connection then.
    """

    def __init__(
        self, transport: asyncio.Transport, connection: Connection, request: Request
    ) -> None:
        self.request = request
        self.keep = False
        self.status = 0
        self.acted = 0.0
        self._transport = transport
        self._connection = connection
        self._first = b""
        self._drained: asyncio.Future[None] | None = None

    async def send(self, data: bytes) -> None:
        """Write *data* and wait until the kernel has taken it."""
        if self._transport.is_closing():
            raise ConnectionResetError
        if len(self._first) < _STATUS_END:
            self._note_status(data)
        self.acted = time()
        self._transport.write(data)
        if self._connection.paused:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
            self.acted = time()
        else:
            # A turn of the loop for the others: an endless answer must not stop the server.
            await asyncio.sleep(0)

    async def rest(self, seconds: float) -> None:
        """Do nothing for *seconds*, or until the client has gone."""
        self.acted = 0.0
        await asyncio.sleep(seconds)

    def _note_status(self, data: bytes) -> None:
        """Read the status out of the first bytes, which may come one at a time."""
        self._first += data[:_STATUS_END]
        code = self._first[9:_STATUS_END]
        if self._first.startswith(b"HTTP/") and len(code) == 3 and code.isdigit():
            self.status = int(code)
            self._connection.saw(self.status)

    def flushed(self) -> None:
        """The transport's buffer is empty again."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def reset(self) -> None:
        """Break the connection off with a TCP reset instead of an orderly end."""
        peer = self._transport.get_extra_info("socket")
        self.acted = time()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
