"""Reading a Redis stream as the one consumer of its one group, whatever becomes of either."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from redis.exceptions import ResponseError

_LOST: Final = "NOGROUP", "UNBLOCKED"
"""How a server's error begins when stream or group are gone: the second in some releases,
to a client that waited."""

GROUP: Final = "agents"
CONSUMER: Final = "agent"

Entry = tuple[bytes, dict[bytes, bytes]]
"""Its name in the stream, and its fields; none for one that was removed while it was pending."""


class GroupReader:
    """Reads the stream under *key*.

    Args:
        timeout: seconds for which an answer is waited for.
        block: seconds for which the server waits for something to come, less than *timeout*.
        pending: whether an entry is pending until it is acknowledged, or forgotten once it is read.
    """

    def __init__(
        self, client: Any, key: str, timeout: float, block: float, *, pending: bool
    ) -> None:
        self._client = client
        self._key = key
        self._timeout = timeout
        self._block = int(1000 * block)
        self._pending = pending
        self.made = 0
        """How often the group was made: more than once if it was lost."""

    async def read(self, count: int, after: str | bytes = ">") -> list[Entry]:
        """Up to *count* entries that were never read, once there are some; or none after *block*.

        With a name of an entry for *after*, those that are pending behind it; ``0`` for all.

        Raises:
            RedisError, OSError, TimeoutError: the server failed, or has something else under the
                key.
        """
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._client.xreadgroup(
                    GROUP,
                    CONSUMER,
                    {self._key: after},
                    count=count,
                    block=self._block if after == ">" else None,
                    noack=not self._pending,
                )
        except ResponseError as error:
            if not str(error).startswith(_LOST):
                raise
            await self._make()
            return []
        return list(_entries(answer))

    async def _make(self) -> None:
        """Make the group, and the stream, so that all that is in it is read."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._client.xgroup_create(self._key, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # another process was faster
                raise
        self.made += 1


def _entries(answer: Any) -> Iterator[Entry]:
    """The entries in *answer*, which has other shapes under RESP3 and in newer clients."""
    streams = answer.values() if isinstance(answer, dict) else [each[1] for each in answer or ()]
    for entries in streams:
        for entry in entries:
            for name, fields in [entry] if isinstance(entry, tuple) else entry:
                yield name, fields or {}
