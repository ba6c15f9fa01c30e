"""Ledgers in virtual time, in a real Redis and in a file, and processes that use them by hand."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from scrapy_spider_suite.cluster.ledger import rate_ledger
from scrapy_spider_suite.cluster.ledger.rate_ledger import (
    Account,
    FetchEnd,
    FileLedger,
    LedgerAnswer,
    LedgerBatch,
    LedgerLine,
    LedgerMarker,
    LedgerReply,
    RateLedger,
    RedisLedger,
)

NOON = 1_800_000_000_000
A, B, C = (message * 16 for message in "abc")
K, L = "host k", "address l"
WINDOW, HOLD, AHEAD = 5_000, 30_000, 5_000


class Memory:
    """A ledger that is asked at a time."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.marker: LedgerMarker | None = None

    def settle(self, batch: LedgerBatch, now: float) -> LedgerReply:
        """What it says."""
        at = int(now * 1000) + 10**9
        self.marker = rate_ledger.updated_marker(self.marker, batch, at, "run", at)
        answers = rate_ledger.apply_batch(
            lambda key: self.accounts.setdefault(key, Account()), batch, self.marker, at
        )
        return LedgerReply(int(self.marker.era), int(self.marker.longest), answers)


class Place:
    """Where a ledger lies, and its clock."""

    def __init__(self) -> None:
        self.now = NOON
        self.longest = 1_000

    def wait(self, milliseconds: int) -> None:
        """Let time pass."""
        self.now += milliseconds

    def ledger(self) -> RateLedger:
        """Of one process."""
        raise NotImplementedError

    def restarted(self) -> None:
        """The server or the machine began anew, just now."""
        raise NotImplementedError

    def wiped(self) -> None:
        """What it knew is gone."""
        raise NotImplementedError

    def put(self, key: str | None, value: Any) -> None:
        """Have *value* under *key*, None for the marker."""
        raise NotImplementedError

    def held(self) -> int:
        """How many keys it knows something of."""
        raise NotImplementedError


class InRedis(Place):
    """In a real one, whose clock is a key."""

    def __init__(self, client: Any, url: str) -> None:
        super().__init__()
        self.client, self._url = client, url
        client.flushall()
        client.mset({"test:run": "a", "test:uptime": 10**9})
        self.wait(0)

    def wait(self, milliseconds: int) -> None:
        super().wait(milliseconds)
        self.client.set("test:now", self.now)

    def ledger(self) -> RedisLedger:
        return RedisLedger(self._url, "town", timeout=60.0)

    def restarted(self) -> None:
        self.client.append("test:run", "b")
        self.client.set("test:uptime", 0)

    def wiped(self) -> None:
        for key in self.client.keys("suite:ledger:*"):
            self.client.delete(key)

    def put(self, key: str | None, value: Any) -> None:
        name = "suite:ledger:{town}" + (f":{key}" if key else "")
        self.client.delete(name)
        if isinstance(value, bytes):
            self.client.set(name, value)
        else:
            self.client.rpush(name, str(value))

    def held(self) -> int:
        return len(self.client.keys("suite:ledger:{town}:*"))


class InFile(Place):
    """In a file, by a clock of the test's."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._run = path, "a"

    def ledger(self) -> FileLedger:
        return FileLedger(self._path, 60.0, clock=lambda: self.now, run=self._run)

    def restarted(self) -> None:
        self._run += "b"
        self.now = 0

    def wiped(self) -> None:
        self._do("DELETE FROM marker", "DELETE FROM accounts")

    def put(self, key: str | None, value: Any) -> None:
        value = value if isinstance(value, bytes) else str(value).encode()
        with sqlite3.connect(self._path) as file:
            if key is None:
                file.execute("REPLACE INTO marker VALUES (1, ?)", (value,))
            else:
                file.execute("REPLACE INTO accounts VALUES (?, 1e15, ?)", (key, value))
        file.close()

    def held(self) -> int:
        with sqlite3.connect(self._path) as file:
            (count,) = file.execute("SELECT count(*) FROM accounts").fetchone()
        file.close()
        return int(count)

    def _do(self, *statements: str) -> None:
        with sqlite3.connect(self._path) as file:
            for each in statements:
                file.execute(each)
        file.close()


class User:
    """One process that uses the ledger by hand."""

    def __init__(self, ledger: RateLedger, process: str) -> None:
        self.ledger, self.process = ledger, process
        self.era, self.longest, self.serial = 0, 1_000, 0

    async def say(
        self, *asks: tuple[LedgerLine, ...], longest: int = 0, **said: Any
    ) -> LedgerReply:
        """One call."""
        self.longest = max(self.longest, longest)
        batch = LedgerBatch(
            self.process, self.era, self.longest, WINDOW, HOLD, AHEAD,
            **{name: tuple(value) for name, value in said.items()}, asks=asks,
        )  # fmt: skip
        reply = await self.ledger.settle(batch)
        self.era, self.longest = reply.era, reply.longest
        return reply

    async def ask(self, *keys: str, delay: int = 1_000, anew: bool = True) -> LedgerAnswer:
        """For a grant of all *keys*: another one, or the last one *anew*."""
        self.serial += anew
        lines = tuple(LedgerLine(key, self.serial, delay) for key in keys)
        return (await self.say(lines, longest=delay)).answers[0]

    async def end(self, *keys: str, ago: int = 0, delay: int = 1_000) -> LedgerReply:
        """The fetch of the last grant ended."""
        return await self.say(ends=[FetchEnd(key, self.serial, ago, delay) for key in keys])
