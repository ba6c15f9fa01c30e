"""The ledger in Redis: one script, Redis's time, and keys that are gone when nothing needs them."""

from __future__ import annotations

import re
from typing import Final

from scrapy_spider_suite.agents import scripts
from scrapy_spider_suite.agents.ledger import Batch, Reply, check, pack, unpack
from scrapy_spider_suite.agents.server import Server
from scrapy_spider_suite.errors import LedgerError, RegistryError

_NAME: Final = re.compile(r"[\w.:-]{1,100}")


class RedisLedger:
    """`ledger.Ledger` under ``suite:ledger:{NAME}`` in one Redis.

    A host of 20 characters takes some 250 bytes there, for as long as a delay.

    Args:
        url: of Redis.
        name: of the ledger: crawls that use the same are polite together.
        timeout: seconds that a call may take.

    Raises:
        ValueError: there is no such URL, or a ledger cannot have that name.
    """

    def __init__(self, url: str, name: str, timeout: float = 5.0) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a ledger: 1 to 100 of letters, _ . : -")
        self._server = Server(url, timeout)
        self._script = scripts.timed("ledger")
        self._marker = f"suite:ledger:{{{name}}}"
        self._looked = False
        self.where = f"Redis at {self._server.where}"

    async def settle(self, batch: Batch) -> Reply:
        """See `ledger.Ledger`. Raises `ValueError` too: that is no batch."""
        check(batch)
        keys = batch.all_keys()
        data = pack(batch, {key: index for index, key in enumerate(keys)})
        names = [self._marker, *(f"{self._marker}:{key}" for key in keys)]
        try:
            if not self._looked:
                await self._refuse_eviction()
            found = await self._server.run(self._script, names, data)
        except RegistryError as error:
            self._looked = False  # the next one that answers may be another server
            raise LedgerError(self._named(error), error.kind) from error
        try:
            return unpack(found[0], batch, keys)
        except (ValueError, TypeError, IndexError) as error:
            text = f"{self.where} answers what the suite did not write: {error}"
            raise LedgerError(text, "damaged") from error

    async def close(self) -> None:
        """See `ledger.Ledger`."""
        await self._server.close()

    def _named(self, error: RegistryError) -> str:
        # Of the keys of fetches the script reports each by itself; the marker is what is left.
        known = error.kind != "type" or self._marker in str(error)
        return str(error) if known else f"{error} ({self._marker})"

    async def _refuse_eviction(self) -> None:
        if evicting := await self._server.evicting():
            raise LedgerError(evicting, "eviction")
        self._looked = True
