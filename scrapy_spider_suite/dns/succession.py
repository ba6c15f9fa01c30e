"""One channel after another, which bounds what c-ares keeps and follows the system's settings."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Sequence

import pycares
from pycares.errno import (
    ARES_EBADRESP,
    ARES_ECANCELLED,
    ARES_ECONNREFUSED,
    ARES_ENOTINITIALIZED,
    ARES_ETIMEOUT,
)

from scrapy_spider_suite.dns.channel import Answer, Channel

MAX_AGE = 60.0
"""Seconds after which the next question opens a new channel, which reads ``resolv.conf`` again."""

MIN_AGE = 1.0
"""Seconds that a channel is used at least, even if outdated: it repeats nothing older than that."""

MAX_ASKED = 4096
"""Questions after which the next one opens a new channel; c-ares keeps some 650 bytes of each."""

ALONE = 32
"""Questions that are asked on a channel of their own at the same time."""


class Succession:
    """The channel in use and those before it, each until its last question is answered.

    Invariant: an answer is repeated from a channel's own cache only within `MAX_AGE` seconds, and
    within `MIN_AGE` after `outdate`. Opening a channel takes some 40 µs and no socket.

    Args:
        servers, timeout: as for `Channel`.
        now: the clock, in seconds, for the ages.
    """

    def __init__(self, servers: Sequence[str], timeout: float, now: Callable[[], float]) -> None:
        self._servers = tuple(servers)
        self._timeout = timeout
        self._now = now
        self._current: Channel | None = None
        self._opened = 0.0
        self._asked = 0
        self._outdated = False
        self._retired: set[Channel] = set()
        self._alone = asyncio.Semaphore(ALONE)
        self._closed = False

    def __repr__(self) -> str:
        return f"<Succession: {self._current}, {len(self._retired)} retired>"

    async def ask(self, host: str, family: socket.AddressFamily, seconds: float) -> Answer:
        """Return the addresses of *host*, or the code of a failure, after at most *seconds*."""
        deadline = asyncio.get_running_loop().time() + seconds
        answer = await self._ask_in(self._channel, host, family, seconds)
        if answer.code == ARES_EBADRESP and not self._closed:
            # c-ares lets one datagram that makes no sense fail every question that is open with
            # the server, so that one hostile name took all others with it.
            return await self._ask_alone(host, family, deadline)
        if answer.code == ARES_ECONNREFUSED:
            # Out of files, c-ares cannot read resolv.conf and takes this machine for the server.
            self.outdate()
        return answer

    async def _ask_in(
        self, channel: Callable[[], Channel], host: str, family: socket.AddressFamily,
        seconds: float,
    ) -> Answer:  # fmt: skip
        if self._closed:
            return Answer((), 0, ARES_ECANCELLED)
        try:
            question = channel().ask(host, family)
        except pycares.AresError:
            return Answer((), 0, ARES_ENOTINITIALIZED)
        try:
            return await asyncio.wait_for(question, max(0.0, seconds))
        except TimeoutError:
            return Answer((), 0, ARES_ETIMEOUT)

    async def _ask_alone(
        self, host: str, family: socket.AddressFamily, deadline: float
    ) -> Answer:
        """Ask on a channel with no other question: what comes is about *host*."""
        async with self._alone:
            try:
                channel = Channel(self._servers, self._timeout)
            except pycares.AresError:
                return Answer((), 0, ARES_ENOTINITIALIZED)
            self._retired.add(channel)  # so that `close` finds it
            try:
                left = deadline - asyncio.get_running_loop().time()
                return await self._ask_in(lambda: channel, host, family, left)
            finally:
                self._bury(channel)

    def reconfigure(self, servers: Sequence[str], timeout: float) -> None:
        """Ask other *servers* from the next question on; open ones are answered by the old."""
        self._servers, self._timeout = tuple(servers), timeout
        self._opened = -math.inf

    def outdate(self) -> None:
        """Let the next question have an answer from the servers, not one that c-ares keeps."""
        self._outdated = True

    def close(self) -> None:
        """Cancel every open question."""
        self._closed = True
        for channel in (self._current, *self._retired):
            if channel is not None:
                channel.close()
        self._current = None
        self._retired.clear()

    def _channel(self) -> Channel:
        age = self._now() - self._opened
        worn = age >= MAX_AGE or self._asked >= MAX_ASKED or (self._outdated and age >= MIN_AGE)
        if self._current is None or worn:
            successor = Channel(self._servers, self._timeout)
            self._retire()
            self._current = successor
            self._opened = self._now()
            self._asked = 0
            self._outdated = False
        self._asked += 1
        return self._current

    def _retire(self) -> None:
        """Close the channels that are idle, the current one at the latest when its time is up."""
        channel = self._current
        if channel is not None:
            self._retired.add(channel)
            asyncio.get_running_loop().call_later(self._timeout, self._bury, channel)
        for idle in [each for each in self._retired if each.idle]:
            self._bury(idle)

    def _bury(self, channel: Channel) -> None:
        self._retired.discard(channel)
        channel.close()
