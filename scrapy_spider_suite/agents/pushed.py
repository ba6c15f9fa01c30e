"""Seeds that others push to Redis, taken by one taker at a time and lost by none.

They go from where they were pushed to a list of the taker's own, in one step, and are removed from
there when the taker has stored them. Whoever is killed between the two finds them there again, and
tells by their mark whether they are those that it has stored already.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from scrapy_spider_suite.agents.scripts import alone
from scrapy_spider_suite.agents.server import Server

LONGEST: Final = 1 << 20
"""Bytes of a message; of a longer one comes one byte more than that, and the rest is dropped."""
_ENOUGH: Final = 4 << 20
"""Bytes of messages after which no more are taken at once."""
_TAKE, _STORED, _COUNT = alone("take"), alone("stored"), alone("count")


class Taken(NamedTuple):
    """Messages that are the taker's, until it removes them."""

    mark: bytes
    messages: list[bytes]


class Pushed:
    """What is pushed to *key*: a ``list`` (left end first), ``set`` or ``zset`` (highest first).

    *taker* names whoever takes it, also after a restart, and nobody else. All that asks Redis
    raises `RegistryError`.
    """

    def __init__(self, server: Server, key: str, kind: str, taker: str) -> None:
        self._server = server
        self._kind = kind
        self.key = key
        self.taken_key = f"{key}:taken:{taker}"

    async def take(self, count: int) -> Taken | None:
        """Take *count* messages at most; None if there are none.

        The same as before, if those were not removed.
        """
        found = await self._server.run(
            _TAKE, [self.key, self.taken_key], self._kind, str(count), str(_ENOUGH), str(LONGEST),
            uuid.uuid4().hex,
        )  # fmt: skip
        return Taken(found[0], found[1:]) if found else None

    async def remove(self, mark: bytes) -> None:
        """Remove what was taken with *mark*."""
        await self._server.run(_STORED, [self.taken_key], mark)

    async def count(self, key: str) -> int:
        """How many entries the list or sorted set *key* has; 0 for anything else."""
        return int((await self._server.run(_COUNT, [key]))[0])

    async def close(self) -> None:
        """Let go of the server."""
        await self._server.close()
